"""Spans and counters as an exporter gets them: of runs, tool calls and flushes, and in whose trace."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from opentelemetry import context as contexts
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from agui_django import RunContext, approval_required
from agui_django.agents.sync import SyncRunContext
from agui_django.models import Interrupt, Run, RunEvents
from agui_django.protocol.errors import Declined
from agui_django.runs import supervisor, telemetry
from agui_django.runs.answering import aanswer
from agui_django.runs.engine import get_engine
from agui_django.runs.start import astart_run, start_run
from agui_django.testing import override_agent
from tests.live import LiveServer
from tests.parts import ROOT
from tests.runs.given import counted

#: What must not be exported, wherever it is said.
SECRET = "s3cret-of-ada"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collected:
    """What a backend would hold."""

    def __init__(self) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)

    def spans(self, prefix: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name.startswith(prefix)]

    def span(self, prefix: str) -> ReadableSpan:
        (span,) = self.spans(prefix)
        return span

    def numbers(self, name: str) -> dict[tuple[str, ...], Any]:
        """A metric's value (of a histogram the count) by its attributes' values, in the order of their names."""
        data = self.reader.get_metrics_data()
        found: dict[tuple[str, ...], Any] = {}
        for resource in data.resource_metrics if data is not None else ():
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                for point in metric.data.data_points if metric.name == name else ():
                    labels = tuple(str(value) for _, value in sorted((point.attributes or {}).items()))
                    found[labels] = point.count if hasattr(point, "count") else point.value
        return found


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collected]:
    made = Collected()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: made.tracers)
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: made.meters)
    yield made
    made.tracers.shutdown()
    made.meters.shutdown()


async def started(agent: Any, text: str = "hi", thread: str = "t", user: Any = None, **options: Any) -> Run:
    with override_agent("worker", agent):
        run = await astart_run("worker", thread, text, user, **options)
        await supervisor.settle()
    return run


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


# ---- runs


@pytest.mark.asyncio
async def test_a_run_that_succeeds(agui_runtime: None, collected: Collected) -> None:
    async def agent(run: RunContext) -> None:
        await run.say("hello")
        run.usage(provider="acme", model="acme-1", input_tokens=120, output_tokens=30)
        assert trace.get_current_span().get_span_context().is_valid

    run = await started(agent)
    span = collected.span("agui.run")
    assert span.name == "agui.run worker"
    assert span.parent is None
    assert span.status.status_code is trace.StatusCode.UNSET
    # RUN_STARTED, START, CONTENT, END, RUN_FINISHED.
    assert dict(span.attributes or {}) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "worker",
        "gen_ai.conversation.id": str(run.thread_id),
        "gen_ai.provider.name": "acme",
        "gen_ai.request.model": "acme-1",
        "gen_ai.usage.input_tokens": 120,
        "gen_ai.usage.output_tokens": 30,
        "agui.run.uuid": str(run.pk),
        "agui.run.transport": "server",
        "agui.run.status": "finished",
        "agui.run.events": 5,
        "agui.run.tool_calls": 0,
    }
    assert collected.numbers("agui.runs.started") == {("worker",): 1}
    assert collected.numbers("agui.runs.finished") == {("finished", "worker"): 1}
    assert collected.numbers("agui.runs.open") == {("worker",): 0}
    assert collected.numbers("agui.events") == {("worker",): 5}
    assert collected.numbers("agui.tokens") == {
        ("worker", "acme", "acme-1", "input"): 120,
        ("worker", "acme", "acme-1", "output"): 30,
    }


@pytest.mark.asyncio
async def test_a_run_that_fails(agui_runtime: None, collected: Collected) -> None:
    async def agent(run: RunContext) -> None:
        raise OSError(SECRET)

    run = await started(agent)
    assert run.error_code
    span = collected.span("agui.run")
    assert span.status.status_code is trace.StatusCode.ERROR
    assert not span.status.description
    assert not span.events
    attributes = span.attributes or {}
    assert (attributes["agui.run.status"], attributes["error.type"]) == ("failed", run.error_code)
    assert collected.numbers("agui.runs.finished") == {("failed", "worker"): 1}


@pytest.mark.asyncio
async def test_a_run_that_is_cancelled(agui_runtime: None, collected: Collected) -> None:
    entered = asyncio.Event()

    async def agent(run: RunContext) -> None:
        entered.set()
        await asyncio.Event().wait()

    with override_agent("worker", agent):
        run = await astart_run("worker", "t", "hi", wait=False)
        await asyncio.wait_for(entered.wait(), 20)
        assert collected.numbers("agui.runs.open") == {("worker",): 1}
        await get_engine().cancel(run.pk, "user")
        await supervisor.settle()
    span = collected.span("agui.run")
    attributes = span.attributes or {}
    assert (attributes["agui.run.status"], attributes["agui.run.end_reason"]) == ("cancelled", "user")
    assert span.status.status_code is trace.StatusCode.UNSET
    assert collected.numbers("agui.runs.open") == {("worker",): 0}
    assert collected.numbers("agui.runs.finished") == {("cancelled", "worker"): 1}


@pytest.mark.asyncio
async def test_a_run_that_was_taken_away(agui_runtime: None, collected: Collected) -> None:
    async def agent(run: RunContext) -> None:
        await Run.objects.aupdate(claim="somebody else")
        await run.say("late")

    with override_agent("worker", agent):
        run = await astart_run("worker", "t", "hi", wait=False)
        await supervisor.settle()
    attributes = collected.span("agui.run").attributes or {}
    assert (attributes["agui.run.status"], attributes["error.type"]) == ("lost", "lost")
    assert collected.numbers("agui.runs.open") == {("worker",): 0}
    await Run.objects.filter(pk=run.pk).aupdate(status="failed")


# ---- tool calls


@pytest.mark.asyncio
async def test_tool_calls(agui_runtime: None, collected: Collected) -> None:
    tracer = collected.tracers.get_tracer("site")

    async def look_up(city: str) -> str:
        with tracer.start_as_current_span("query"):
            return SECRET

    def breaks() -> None:
        with tracer.start_as_current_span("thread"):
            raise OSError(SECRET)

    async def agent(run: RunContext) -> Any:
        async with run.tool_call("look_up", {"city": SECRET}, key="c1") as call:
            await call.run(look_up)
        with pytest.raises(OSError, match=SECRET):
            await (await run.tool_call("breaks", {})).run(breaks)
        await run.emit({"type": "TOOL_CALL_START", "toolCallId": "c3", "toolCallName": "raw"})
        await run.emit({"type": "TOOL_CALL_END", "toolCallId": "c3"})
        declined = {"failed": True, "declined": True}
        result = {"type": "TOOL_CALL_RESULT", "messageId": "r", "toolCallId": "c3", "content": SECRET}
        await run.emit({**result, "metadata": declined})
        await run.emit({"type": "TOOL_CALL_START", "toolCallId": "c4", "toolCallName": "pending"})
        await run.emit({"type": "TOOL_CALL_END", "toolCallId": "c4"})

    run = await started(agent)
    assert run.status == "finished"
    above = collected.span("agui.run")
    found = {span.name.removeprefix("execute_tool "): span for span in collected.spans("execute_tool")}
    assert set(found) == {"look_up", "breaks", "raw", "pending"}
    assert {parent_of(span) for span in found.values()} == {id_of(above)}
    told = {key: dict(span.attributes or {}) for key, span in found.items()}
    assert told["look_up"] == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look_up",
        "gen_ai.tool.call.id": f"{run.turn}:c1",
        "agui.tool.failed": False,
    }
    assert (told["breaks"]["agui.tool.failed"], told["breaks"]["error.type"]) == (True, "tool_failed")
    assert (told["raw"]["agui.tool.failed"], told["raw"]["error.type"]) == (True, "tool_declined")
    assert "agui.tool.failed" not in told["pending"]
    errors = {key for key, span in found.items() if span.status.status_code is trace.StatusCode.ERROR}
    assert errors == {"breaks", "raw"}
    assert parent_of(collected.span("query")) == id_of(found["look_up"])
    assert parent_of(collected.span("thread")) == id_of(found["breaks"])
    assert (above.attributes or {})["agui.run.tool_calls"] == 4


@pytest.mark.asyncio
async def test_tools_of_an_agent_in_a_thread(agui_runtime: None, collected: Collected) -> None:
    def inside() -> str:
        with collected.tracers.get_tracer("site").start_as_current_span("query"):
            return "ok"

    def agent(run: SyncRunContext) -> None:
        with run.tool_call("look_up", {}) as call:
            call.run(inside)

    assert (await started(agent)).status == "finished"
    assert parent_of(collected.span("query")) == id_of(collected.span("execute_tool"))


@pytest.mark.asyncio
async def test_a_call_that_is_approved_later_is_traced_where_it_is_executed(
    agui_runtime: None, collected: Collected, ada: Any
) -> None:
    @approval_required
    def refund(amount: int) -> str:
        with collected.tracers.get_tracer("site").start_as_current_span("bank"):
            return "ok"

    async def agent(run: RunContext) -> None:
        await (await run.tool_call("refund", {"amount": 5}, key="refund")).run(refund)

    with override_agent("worker", agent):
        first = await astart_run("worker", "t", "hi", ada)
        question = await Interrupt.objects.aget()
        await aanswer(question, user=ada, payload={"approved": True})
        await supervisor.settle()
    asked, went_on = collected.spans("agui.run")
    assert (asked.attributes or {})["agui.run.status"] == "interrupted"
    assert (went_on.attributes or {})["agui.run.status"] == "finished"
    assert (went_on.attributes or {})["agui.run.resumes"] == str(first.pk)
    executed = next(
        span for span in collected.spans("execute_tool") if id_of(span) == parent_of(collected.span("bank"))
    )
    assert parent_of(executed) == id_of(went_on)
    assert (executed.attributes or {})["agui.tool.failed"] is False


# ---- nothing that anybody said


@pytest.mark.asyncio
@pytest.mark.parametrize("ends", ["finished", "failed", "declined"])
async def test_no_texts_are_exported(ends: str, agui_runtime: None, collected: Collected) -> None:
    def tool(text: str) -> str:
        raise Declined(SECRET) if ends == "declined" else ValueError(SECRET)

    async def agent(run: RunContext) -> Any:
        run.state["note"] = SECRET
        await run.say(SECRET)
        with pytest.raises(Exception, match=SECRET):
            await (await run.tool_call("look_up", {"text": SECRET})).run(tool)
        if ends == "failed":
            raise OSError(SECRET)
        return {"result": SECRET}

    await started(agent, text=SECRET, thread=SECRET, extra={"note": SECRET})
    spans = collected.exporter.get_finished_spans()
    assert {span.name.split()[0] for span in spans} == {"agui.run", "execute_tool", "agui.flush"}
    assert all(SECRET not in span.to_json() for span in spans)
    assert SECRET not in collected.reader.get_metrics_data().to_json()


# ---- flushes


@pytest.mark.asyncio
async def test_flushes_of_one_run_are_below_it(agui_runtime: None, collected: Collected) -> None:
    async def agent(run: RunContext) -> None:
        await run.say("one")
        await run.flush()
        await run.say("two")

    run = await started(agent)
    above, flushes = collected.span("agui.run"), collected.spans("agui.flush")
    assert len(flushes) >= 2
    assert {parent_of(span) for span in flushes} == {id_of(above)}
    told = [span.attributes or {} for span in flushes]
    assert {each["agui.flush.runs"] for each in told} == {1}
    # RUN_STARTED is stored with the run, not by the writer.
    assert sum(int(str(each["agui.flush.events"])) for each in told) == run.last_seq - 1 == 7
    assert (
        sum(int(str(each["agui.flush.rows"])) for each in told) == await RunEvents.objects.filter(run=run).acount() - 1
    )
    assert all(0 < float(str(each["agui.flush.seconds"])) < 60 for each in told)
    assert collected.numbers("agui.flush.duration") == {(): len(flushes)}


@pytest.mark.asyncio
async def test_a_flush_that_is_shared_is_linked(agui_runtime: None, collected: Collected) -> None:
    from agui_django.runs.writer import Item, Row

    class Traced:
        def __init__(self, run: Run) -> None:
            self.trace = telemetry.begin(run)

    runs = [Run(uuid=uuid4(), thread_id=number, agent="worker") for number in (1, 2)]
    recorders: list[Any] = [Traced(run) for run in runs]
    rows = [Row(1, 4, "…", True), Row(5, 5, "…", True)]
    items = [Item(recorder, rows, 5, None) for recorder in recorders]
    with pytest.raises(ZeroDivisionError), telemetry.flush(items):
        raise ZeroDivisionError(SECRET)
    span = collected.span("agui.flush")
    assert span.parent is None
    linked = {link.context.span_id for link in span.links}
    assert linked == {recorder.trace.span.get_span_context().span_id for recorder in recorders}
    attributes = span.attributes or {}
    told = [attributes[f"agui.flush.{name}"] for name in ("runs", "rows", "events")]
    assert (told, attributes["error.type"]) == ([2, 4, 10], "ZeroDivisionError")
    assert SECRET not in span.to_json()


# ---- whose trace


async def echo(run: RunContext) -> None:
    await run.say("ok")


@pytest.mark.asyncio
async def test_a_run_goes_on_with_the_span_it_was_started_in(agui_runtime: None, collected: Collected) -> None:
    with collected.tracers.get_tracer("site").start_as_current_span("view"):
        await started(echo)
        inside = trace.get_current_span().get_span_context().span_id
    view = collected.span("view")
    assert inside == id_of(view)  # nothing of the run leaks into the caller
    assert parent_of(collected.span("agui.run")) == id_of(view)


def test_a_run_of_synchronous_code(agui_runtime: None, collected: Collected) -> None:
    with override_agent("worker", echo), collected.tracers.get_tracer("site").start_as_current_span("command"):
        start_run("worker", "t", "hi")
    assert parent_of(collected.span("agui.run")) == id_of(collected.span("command"))


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (f"00-{TRACE}-{PARENT}-01", (TRACE, PARENT)),
        (f"00-{TRACE}-{PARENT}", None),
        ("00-" + "0" * 32 + f"-{PARENT}-01", None),
        ("ÿ" * 8_000, None),
    ],
)
def test_a_request_s_traceparent_goes_on(
    header: str, expected: tuple[str, str] | None, server: LiveServer, ada: Any, collected: Collected
) -> None:
    from tests.live import Caller, wait_until

    caller = Caller(server, ada, "echo")
    caller.run(caller.body({}), {"traceparent": header.encode("latin-1")})  # type: ignore[dict-item]
    wait_until(lambda: collected.spans("agui.run"))
    span = collected.span("agui.run")
    parent = span.parent
    found = parent and (f"{parent.trace_id:032x}", f"{parent.span_id:016x}")
    assert found == expected
    assert (span.attributes or {})["agui.run.transport"] == "sse"


@pytest.mark.asyncio
async def test_an_instrumented_server_goes_before_the_headers(collected: Collected) -> None:
    named = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    with collected.tracers.get_tracer("server").start_as_current_span("POST") as span, telemetry.continued(named):
        assert trace.get_current_span() is span


@pytest.mark.asyncio
async def test_a_queued_run_is_in_the_trace_of_its_own_request(
    agui_runtime: None, ada: Any, settings: Any, collected: Collected
) -> None:
    settings.AGUI_DJANGO = {"BUSY": "queue"}
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def agent(run: RunContext) -> None:
        entered.set()
        await go_on.wait()
        await run.say("ok")

    tracer = collected.tracers.get_tracer("site")
    with override_agent("worker", agent):
        for name in ("first", "second"):
            with tracer.start_as_current_span(name):
                await astart_run("worker", "t", name, ada, wait=False)
            await asyncio.wait_for(entered.wait(), 20)
        with tracer.start_as_current_span("who waits"):
            go_on.set()
            await supervisor.settle()
    parents = [parent_of(span) for span in collected.spans("agui.run")]
    assert parents == [id_of(collected.span("first")), id_of(collected.span("second"))]
    assert not telemetry._waiting


@pytest.mark.asyncio
async def test_a_queued_run_of_another_process_begins_a_trace(
    agui_runtime: None, ada: Any, settings: Any, collected: Collected
) -> None:
    settings.AGUI_DJANGO = {"BUSY": "queue"}
    go_on = asyncio.Event()

    async def agent(run: RunContext) -> None:
        await go_on.wait()

    with override_agent("worker", agent), collected.tracers.get_tracer("site").start_as_current_span("first"):
        await astart_run("worker", "t", "one", ada, wait=False)
        await astart_run("worker", "t", "two", ada, wait=False)
        telemetry._waiting.clear()  # as where another process has taken the request
        go_on.set()
        await supervisor.settle()
    _, second = collected.spans("agui.run")
    assert second.parent is None


def test_what_waits_is_bounded(collected: Collected, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "WAITING", 2)
    runs = [uuid4() for _ in range(3)]
    for run in runs:
        telemetry.wait(run)
    assert list(telemetry._waiting) == runs[1:]
    telemetry._waiting.clear()


@pytest.mark.asyncio
async def test_a_worker_s_run_is_below_what_executes_it(
    agui_runtime: None, ada: Any, settings: Any, collected: Collected
) -> None:
    settings.AGUI_DJANGO = {"RUNNER": "tests.runs.test_answering.Keeps"}
    with override_agent("worker", echo):
        run = await astart_run("worker", "t", "hi", ada, wait=False)
        await supervisor.settle()
        assert collected.spans("agui.run") == []
        with collected.tracers.get_tracer("site").start_as_current_span("task"):
            assert await get_engine().execute(run.pk)
        await supervisor.settle()
    assert parent_of(collected.span("agui.run")) == id_of(collected.span("task"))


@pytest.mark.asyncio
async def test_helpers_are_no_part_of_the_trace_that_needed_them_first() -> None:
    async def seen() -> object:
        return contexts.get_value("span")

    token = contexts.attach(contexts.set_value("span", "of the request"))
    try:
        assert await supervisor.start(seen(), name="helper", service=True) is None
    finally:
        contexts.detach(token)


# ---- where nobody collects


@pytest.mark.asyncio
async def test_without_an_sdk_nothing_is_done(agui_runtime: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "Instruments", None)  # would raise
    monkeypatch.setattr(telemetry, "RunTrace", None)
    seen: list[object] = []

    async def agent(run: RunContext) -> None:
        session: Any = run._sink
        seen.append(session.trace)
        await (await run.tool_call("look_up", {})).run(lambda: "ok")

    assert (await started(agent)).status == "finished"
    assert seen == [None]
    with telemetry.continued({"traceparent": f"00-{TRACE}-{PARENT}-01"}):
        assert not trace.get_current_span().get_span_context().is_valid


class Broken(SpanProcessor):
    def on_start(self, span: Any, parent_context: Any = None) -> None:
        raise OSError("start")

    def on_end(self, span: ReadableSpan) -> None:
        raise OSError("end")


@pytest.mark.asyncio
@pytest.mark.parametrize("broken", ["on_start", "on_end"])
async def test_a_broken_processor_ends_no_run(
    broken: str, agui_runtime: None, collected: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = "on_end" if broken == "on_start" else "on_start"
    monkeypatch.setattr(Broken, other, getattr(SpanProcessor, other))
    collected.tracers.add_span_processor(Broken())

    async def agent(run: RunContext) -> None:
        await (await run.tool_call("look_up", {})).run(lambda: "ok")
        await run.say("ok")

    run = await started(agent)
    assert (run.status, await run.thread.messages.acount()) == ("finished", 4)
    assert collected.numbers("agui.runs.finished") == {("finished", "worker"): 1}


BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocker())
import django
django.setup()
import asyncio
from django.core.management import call_command
from agui_django.runs import database, supervisor, telemetry
from agui_django.runs.start import astart_run

async def main():
    run = await astart_run("echo", "t", "hi")
    await supervisor.settle()
    await database.shutdown()
    return run.status

call_command("migrate", run_syncdb=True, verbosity=0)
print(telemetry.INSTALLED, asyncio.run(main()), [name for name in sys.modules if name.startswith("opentelemetry")])
"""


def test_without_the_package(tmp_path: Any) -> None:
    settings = tmp_path / "site_settings.py"
    settings.write_text(
        "from tests.settings import *\n"
        "class MIGRATION_MODULES: __contains__ = lambda *_: True; __getitem__ = lambda *_: None\n"  # tables at once
        "MIGRATION_MODULES = MIGRATION_MODULES()\n"
        f"DATABASES = {{'default': {{'ENGINE': 'django.db.backends.sqlite3', 'NAME': {str(tmp_path / 'db')!r}}}}}\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", BLOCKED], cwd=ROOT, capture_output=True, text=True, timeout=90,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "DJANGO_SETTINGS_MODULE": "site_settings"},
    )  # fmt: skip
    assert found.stdout == "False finished []\n", found.stderr[-2000:]


@pytest.mark.asyncio
async def test_what_is_collected_costs_no_statement(
    agui_runtime: None, collected: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def agent(run: RunContext) -> None:
        return None

    counts: dict[bool, int] = {}
    await started(agent)
    for collects in (True, False):
        monkeypatch.setattr(telemetry, "INSTALLED", collects)
        found = []
        for _ in range(3):  # the least of some: a heartbeat may come between
            with counted() as statements:
                await started(agent)
            found.append(len(statements))
        counts[collects] = min(found)
    assert counts[True] == counts[False]
    assert len(collected.spans("agui.run")) == 4
