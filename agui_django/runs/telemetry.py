"""OpenTelemetry: a span per run, tool call and flush, counters, and the trace of the request that asked for a run.

Law: attributes are names, keys and numbers, never what a person, an agent or an exception said. Where nobody collects
(no package, or no SDK that was set up) a run costs one look here, its events nothing; what a site's own processors
raise ends no run.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any
from uuid import UUID

try:
    from opentelemetry import context as contexts
    from opentelemetry import metrics, trace
    from opentelemetry.context import Context
except ImportError:
    INSTALLED = False
else:
    INSTALLED = True

if TYPE_CHECKING:
    from agui_django.models import Run
    from agui_django.runs.setup import Closing, Wire
    from agui_django.runs.writer import Item

logger = logging.getLogger("agui_django.runs")

#: Names the instrumentation in what is exported.
SCOPE = "agui_django"
#: Where the API's own providers live, which do nothing.
_IDLE_MODULES = ("opentelemetry.trace", "opentelemetry.metrics")
#: Runs that wait for their thread, and whose trace is known here, at most.
WAITING = 1_000
#: Longest name of a tool or id of a call: models make them up.
NAME = 255

_NOTHING: AbstractContextManager[None] = nullcontext()
_waiting: OrderedDict[UUID, Context] = OrderedDict()


class Instruments:
    """What is measured with: made once for the providers that the site has set."""

    def __init__(self, tracers: trace.TracerProvider, meters: metrics.MeterProvider) -> None:
        from agui_django import __version__

        self.providers = tracers, meters
        self.tracer = tracers.get_tracer(SCOPE, __version__)
        meter = meters.get_meter(SCOPE, __version__)
        self.started = meter.create_counter("agui.runs.started", "{run}", "Runs that began to be executed")
        self.finished = meter.create_counter("agui.runs.finished", "{run}", "Runs that ended, by status")
        self.open = meter.create_up_down_counter("agui.runs.open", "{run}", "Runs that are being executed")
        self.events = meter.create_counter("agui.events", "{event}", "Events of the runs that ended")
        self.tokens = meter.create_counter("agui.tokens", "{token}", "Tokens that ended runs reported")
        self.flushes = meter.create_histogram("agui.flush.duration", "s", "Transactions that store events")

    def span(self, name: str, context: Context | None, **options: Any) -> trace.Span:
        """Start a span; one that does nothing where that fails."""
        try:
            return self.tracer.start_span(name, context, **options)
        except Exception:
            logger.warning("A span could not be started", exc_info=True)
            return trace.INVALID_SPAN


_made: Instruments | None = None


def _instruments() -> Instruments | None:
    """None where nobody collects. Asked each time, as sites set their providers up at any time, also after a fork."""
    global _made
    if not INSTALLED:
        return None
    providers = trace.get_tracer_provider(), metrics.get_meter_provider()
    if all(type(each).__module__.startswith(_IDLE_MODULES) for each in providers):
        return None
    made = _made
    if made is None or made.providers != providers:
        made = _made = Instruments(*providers)
    return made


# ---- runs and their tool calls --------------------------------------------------------------------------------------


class RunTrace:
    """The span of one run and those of its tool calls.

    Attributes:
        span: the run's.
        context: in which it is current.
    """

    def __init__(self, made: Instruments, run: Run, parent: Context) -> None:
        self._made = made
        self._agent: dict[str, Any] = {"gen_ai.agent.name": run.agent}
        self._calls: dict[str, trace.Span] = {}
        self._ended = False
        attributes = {
            **self._agent,
            "gen_ai.operation.name": "invoke_agent",
            # The client's own id of the thread may say anything.
            "gen_ai.conversation.id": str(run.thread_id),
            "agui.run.uuid": str(run.pk),
            "agui.run.transport": run.transport,
        }
        if run.resumed_run_id is not None:
            attributes["agui.run.resumes"] = str(run.resumed_run_id)
        self.span = made.span(f"agui.run {run.agent}", parent, attributes=attributes)
        self.context = trace.set_span_in_context(self.span, parent)
        made.started.add(1, self._agent)
        made.open.add(1, self._agent)

    def enter(self) -> None:
        """Make the run's span the current one, to the end of the task that calls."""
        contexts.attach(self.context)

    def told(self, event: Wire) -> None:
        """A tool call of the run was started, or got its result."""
        if event["type"] == "TOOL_CALL_START":
            self._call(event["toolCallId"], event["toolCallName"])
        elif (span := self._calls.pop(event["toolCallId"], None)) is not None:
            metadata = event.get("metadata") or {}
            failed = metadata.get("failed") is True
            span.set_attribute("agui.tool.failed", failed)
            if failed:
                code = "tool_declined" if metadata.get("declined") is True else "tool_failed"
                _failed(span, code)
            _end(span)

    @contextmanager
    def executing(self, call_id: str, tool: str) -> Iterator[None]:
        """Make a call's span the current one while its function is executed; from any thread."""
        if self._ended:
            yield
            return
        with trace.use_span(self._call(call_id, tool), record_exception=False, set_status_on_exception=False):
            yield

    def end(self, closing: Closing | None, events: int) -> None:
        """The run has ended; once.

        Args:
            closing: what was written; None: the run was taken away from this process, or could not be written.
            events: how many events its log has.
        """
        if self._ended:
            return
        self._ended = True
        for span in self._calls.values():  # the page answers them, a person has to approve, or the run was cut
            _end(span)
        status = "lost" if closing is None else closing.status
        self.span.set_attributes({"agui.run.status": status, "agui.run.events": events})
        if closing is None:
            _failed(self.span, "lost")
        else:
            self._tell(closing)
        _end(self.span)
        made, agent = self._made, self._agent
        made.open.add(-1, agent)
        made.finished.add(1, {**agent, "agui.run.status": status})
        made.events.add(events, agent)

    def _tell(self, closing: Closing) -> None:
        self.span.set_attribute("agui.run.tool_calls", closing.tool_calls)
        if closing.end_reason:
            self.span.set_attribute("agui.run.end_reason", closing.end_reason[:40])
        if closing.failure is not None:
            _failed(self.span, closing.failure.code[:100])
        for key, name in (("input", "inputTokens"), ("output", "outputTokens")):
            counts = [(entry, entry[name]) for entry in closing.usage if name in entry]
            if counts:
                self.span.set_attribute(f"gen_ai.usage.{key}_tokens", sum(count for _, count in counts))
            for entry, count in counts:
                self._made.tokens.add(count, {**self._agent, **_model(entry), "gen_ai.token.type": key})
        if len(closing.usage) == 1:
            self.span.set_attributes(_model(closing.usage[0]))

    def _call(self, call_id: str, tool: str) -> trace.Span:
        span = self._calls.get(call_id)
        if span is None:
            attributes = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": tool[:NAME],
                "gen_ai.tool.call.id": call_id[:NAME],
            }
            name = f"execute_tool {tool[:NAME]}"
            span = self._calls[call_id] = self._made.span(name, self.context, attributes=attributes)
        return span


def begin(run: Run) -> RunTrace | None:
    """The trace of a run that is about to be executed: below the caller's span, or that of the request it waited with.

    None where nobody collects.
    """
    made = _instruments()
    if made is None:
        return None
    kept = _waiting.pop(run.pk) if run.pk in _waiting else None
    return RunTrace(made, run, kept or contexts.get_current())


def wait(run: UUID) -> None:
    """A run waits for its thread: keep the caller's trace for when it begins in this process."""
    if _instruments() is not None:
        _waiting[run] = contexts.get_current()
        while len(_waiting) > WAITING:
            _waiting.popitem(last=False)


def apart() -> AbstractContextManager[None]:
    """What is begun inside has nothing to do with the caller's span."""
    return _NOTHING if _instruments() is None else _attached(Context())


def continued(headers: Mapping[str, str]) -> AbstractContextManager[None]:
    """What is begun inside belongs to the trace that a request's headers name, where nothing else has read them."""
    if _instruments() is None or trace.get_current_span().get_span_context().is_valid:
        return _NOTHING
    from opentelemetry import propagate  # reads the site's configuration

    try:
        return _attached(propagate.extract(headers))
    except Exception:
        logger.warning("The headers' trace could not be read", exc_info=True)
        return _NOTHING


@contextmanager
def _attached(context: Context) -> Iterator[None]:
    token = contexts.attach(context)
    try:
        yield
    finally:
        contexts.detach(token)


# ---- the writer ------------------------------------------------------------------------------------------------------


def flush(items: Sequence[Item]) -> AbstractContextManager[None]:
    """The span of a transaction that stores events: of its run, or linked to the runs that share it."""
    made = _instruments()
    return _NOTHING if made is None else _flush(made, items)


@contextmanager
def _flush(made: Instruments, items: Sequence[Item]) -> Iterator[None]:
    traces = [item.recorder.trace for item in items if item.recorder.trace is not None]
    rows = [row for item in items for row in item.rows]
    attributes = {
        "agui.flush.runs": len(items),
        "agui.flush.rows": len(rows),
        "agui.flush.events": sum([row.last_seq - row.first_seq + 1 for row in rows]),
    }
    if len(items) == 1 and traces:
        span = made.span("agui.flush", traces[0].context, attributes=attributes)
    else:
        links = [trace.Link(each.span.get_span_context()) for each in traces]
        span = made.span("agui.flush", Context(), attributes=attributes, links=links)
    began = time.perf_counter()
    try:
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            yield
    except BaseException as error:
        _failed(span, type(error).__name__)
        raise
    finally:
        seconds = time.perf_counter() - began
        span.set_attribute("agui.flush.seconds", seconds)
        made.flushes.record(seconds)
        _end(span)


def _model(entry: Wire) -> dict[str, str]:
    """Which model an entry of the usage is of."""
    names = {"gen_ai.provider.name": entry.get("provider"), "gen_ai.request.model": entry.get("model")}
    return {name: value for name, value in names.items() if value}


def _failed(span: trace.Span, code: str) -> None:
    """Mark a span by a code; exceptions' texts may hold what users wrote."""
    span.set_attribute("error.type", code)
    span.set_status(trace.StatusCode.ERROR)


def _end(span: trace.Span) -> None:
    try:
        span.end()
    except Exception:
        logger.warning("A span could not be ended", exc_info=True)
