"""Drives one agent through one run: every shape of agent, its timeouts and its cancel, and the end.

Law: one task per agent function, from its first line to its last; whatever it raises stays in it; whatever it does, the
run ends with what is open closed and one terminal event. Knows no database.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from agui_django.agents.asking import plain
from agui_django.agents.registry import AgentEntry, shape_of
from agui_django.agents.sink import READY
from agui_django.conf import settings
from agui_django.protocol.errors import NotJson, ProtocolViolation
from agui_django.runs.endings import Ending, Happened, decide, is_cancel
from agui_django.runs.session import RunSession
from agui_django.runs.setup import Closing, RunLog, RunSetup, Wire

logger = logging.getLogger("agui_django.runs")

#: Agents that outlived their run: held until they end, for nobody awaits them.
_abandoned: set[asyncio.Task[None]] = set()
#: Seconds after the second cancel; an agent that is still there then is left behind.
LAST_GRACE = 1.0


class RunControl:
    """How a run is told to stop. Used in the loop's thread.

    Attributes:
        reason: why it was cancelled first: user, staff, disconnect, superseded, timeout or shutdown.
        aborted: the run was taken away; nothing more is recorded.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.aborted = False
        self._listener: Callable[[], None] | None = None

    def cancel(self, reason: str) -> None:
        """Ask the agent to stop; the first reason stands."""
        if self.reason is None:
            self.reason = reason
            if self._listener is not None:
                self._listener()

    def abort(self) -> None:
        """Stop the agent and record nothing more."""
        if not self.aborted:
            self.aborted = True
            if self._listener is not None:
                self._listener()

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Call this when something changes."""
        self._listener = listener


@dataclass(frozen=True)
class DriveOptions:
    """Limits of a run, in seconds; None: no limit."""

    timeout: float | None = None
    idle_timeout: float | None = None
    cancel_grace: float = 5.0

    @classmethod
    def for_agent(cls, entry: AgentEntry) -> DriveOptions:
        """As the agent was registered, else as the settings say."""
        return cls(
            settings.for_agent(entry, "TIMEOUT"), settings.for_agent(entry, "IDLE_TIMEOUT"), settings.CANCEL_GRACE
        )


async def drive(
    entry: AgentEntry, setup: RunSetup, log: RunLog, control: RunControl, options: DriveOptions | None = None
) -> Closing:
    """Run an agent to its end.

    Args:
        entry: which agent.
        setup: what its run starts from.
        log: where its events go, but for the terminal one: that is the closing's.
        control: how it is cancelled.
        options: its limits; default: its own, else the settings'.

    Returns:
        What is to be written; of no value where `control.aborted`.
    """
    return await _Drive(entry, setup, log, control, options or DriveOptions.for_agent(entry)).run()


class _Drive:
    def __init__(
        self, entry: AgentEntry, setup: RunSetup, log: RunLog, control: RunControl, options: DriveOptions
    ) -> None:
        self.entry = entry
        self.setup = setup
        self.control = control
        self.options = options
        self.loop = asyncio.get_running_loop()
        self.began = self.loop.time()
        self.faults: list[BaseException] = []
        self.result: Any = None
        self.cancels = 0  # how often the agent was told
        self.swallowed = False
        self.woken: asyncio.Future[None] | None = None
        self.session = self._session(log)

    # ---- the whole -----------------------------------------------------------------------------------------------

    async def run(self) -> Closing:
        session = self.session
        session.start()
        self.control.listen(self._changed)
        # The supervisor's task awaits this one and is its parent; the language and the time zone come with the context.
        task = self.loop.create_task(self._agent(), name=f"agui agent {self.entry.name} {self.setup.address}")
        try:
            await self._watch(task)
        finally:
            self.control.listen(None)
            if not task.done():
                task.cancel()
                _abandoned.add(task)
                task.add_done_callback(_abandoned.discard)
        try:
            return self._close()
        finally:
            session.closed = True
            session.inbox.close()
            session.run_thread.close()

    async def _watch(self, task: asyncio.Task[None]) -> None:
        """Wait for the agent, and keep its limits."""
        control, options = self.control, self.options
        end = self.began + options.timeout if options.timeout is not None else None
        seen, quiet_since = self.session.count, self.loop.time()
        deadline: float | None = None
        while not task.done():
            now = self.loop.time()
            if self.session.count != seen:
                seen, quiet_since = self.session.count, now
            idle_end = quiet_since + options.idle_timeout if options.idle_timeout is not None else None
            if control.reason is None and any(limit is not None and now >= limit for limit in (end, idle_end)):
                control.reason = "timeout"
            if self._stopping and not self.cancels:
                self._cancel(task)
                deadline = now + options.cancel_grace
            elif deadline is not None and now >= deadline:
                if self.cancels > 1:
                    logger.error("Agent %s does not end; run %s ends without it", self.entry.name, self.setup.address)
                    return
                self._cancel(task)
                deadline = now + min(LAST_GRACE, options.cancel_grace)
            if deadline is not None:
                waits = [deadline - now]
            else:
                # An agent that emits moves its idle limit without telling: look a few times before it.
                waits = [limit - now for limit in (end, idle_end) if limit is not None]
                if idle_end is not None and options.idle_timeout is not None:
                    waits.append(options.idle_timeout / 8)
            self.woken = self.loop.create_future()
            await asyncio.wait((task, self.woken), timeout=min(waits, default=None), return_when="FIRST_COMPLETED")

    @property
    def _stopping(self) -> bool:
        return self.control.reason is not None or self.control.aborted or self.session.limit is not None

    def _changed(self) -> None:
        if self.control.aborted:
            self.session.closed = True
            self.session.inbox.close()
        if self.woken is not None and not self.woken.done():
            self.woken.set_result(None)

    def _cancel(self, task: asyncio.Task[None]) -> None:
        self.cancels += 1
        reason = self.control.reason or ("aborted" if self.control.aborted else "limit")
        self.session.cancelled = reason
        self.session.inbox.cancel(reason)
        task.cancel(reason)

    # ---- the agent -----------------------------------------------------------------------------------------------

    async def _agent(self) -> None:
        """The agent's one task. Nothing leaves it, not even a SystemExit, which would stop the server."""
        try:
            self.session.run_thread.enter()
            self.session.document.check()
            if not self._stopping and not self.faults:
                self.result = await self._call(self.entry.make())
                self.swallowed = self.cancels > 0
        except BaseException as error:
            # At the end of the grace there is nobody left to tell.
            if not (self.cancels and is_cancel(error)):
                self.faults.append(error)

    async def _call(self, target: Callable[..., Any]) -> Any:
        context = self.session.context
        match shape_of(target):
            case "coroutine":
                return await self._finish(await target(context))
            case "async generator":
                return await self._finish(target(context))
            case "generator":
                return await self._in_thread(lambda: self._pull_here(target(context.sync)))
            case _:
                return await self._finish(await self._in_thread(lambda: self._plain(target(context.sync))))

    async def _finish(self, value: Any) -> Any:
        """The result of what a function gave: one that is wrapped may give a coroutine or a generator."""
        if inspect.isawaitable(value):
            value = await value
        return await self._pull(value) if hasattr(value, "__anext__") or hasattr(value, "__aiter__") else value

    def _plain(self, value: Any) -> Any:
        return self._pull_here(value) if inspect.isgenerator(value) else value

    async def _pull(self, source: Any) -> None:
        """Drive an async generator: what goes wrong with an event is thrown in at its yield."""
        events = source.__aiter__()
        session = self.session
        throw = getattr(events, "athrow", None)
        try:
            event = await anext(events)
            while True:
                try:
                    pause = session.yielded(event)
                    if pause is not READY:
                        await pause
                except BaseException as error:
                    if throw is None:
                        raise
                    event = await throw(error)
                else:
                    event = await anext(events)
        except StopAsyncIteration:
            return
        finally:
            if hasattr(events, "aclose"):
                await events.aclose()

    def _pull_here(self, events: Iterator[Any]) -> Any:
        """Drive a generator in the run's thread; gives what it returns."""
        session = self.session
        throw = getattr(events, "throw", None)
        try:
            event = next(events)
            while True:
                try:
                    kind = event.get("type") if type(event) is dict else None
                    if type(event) is str or (type(kind) is str and kind.endswith(("_CONTENT", "_ARGS"))):
                        session.post(session.yielded, event)
                    else:
                        session.call(session.yielded, event)
                except BaseException as error:
                    if throw is None:
                        raise
                    event = throw(error)
                else:
                    event = next(events)
        except StopIteration as stop:
            return stop.value
        finally:
            if hasattr(events, "close"):
                events.close()

    async def _in_thread(self, fn: Callable[[], Any]) -> Any:
        """Run a synchronous agent; a cancel reaches its thread at its next call, and this task waits for that."""
        work = self.session.in_thread(fn)
        pending = self.loop.create_task(work, name=f"agui thread {self.setup.address}")
        _abandoned.add(pending)
        pending.add_done_callback(_forget)
        while True:
            try:
                return await asyncio.shield(pending)
            except asyncio.CancelledError:
                if pending.done() or self.cancels != 1:
                    raise

    # ---- the end -------------------------------------------------------------------------------------------------

    def _close(self) -> Closing:
        session = self.session
        if self.control.aborted:
            return Closing("failed", {"type": "RUN_ERROR", "message": ""}, end_reason="aborted")
        result = self._last_words()
        ending = decide(self._happened())
        reference = secrets.token_hex(6)
        failure = ending.failure(reference)
        if failure is not None:
            self._log_failure(ending, reference)
        self._closing_events(ending)
        terminal = session.normaliser.terminal(self._terminal(ending, reference, result))
        if session.hints is not None:
            session.hints.finished(self.result, self.swallowed)
        interrupted = ending.status == "interrupted"
        now = self.loop.time()
        return Closing(
            ending.status,
            terminal,
            messages=[
                message for id in session.reducer.touched if (message := session.reducer.message(id)) is not None
            ],
            removed=session.reducer.removed,
            state=session.document.plain(),
            state_changed=session.state_edited,
            interrupts=[interrupt for interrupt, _ in session.questions.values()] if interrupted else [],
            interrupt_keys={question["id"]: key for key, (question, _) in session.questions.items()}
            if interrupted
            else {},
            interrupt_permissions={question["id"]: permission for question, permission in session.questions.values()}
            if interrupted
            else {},
            usage=list(session.usage.values()),
            tool_calls=len(session.normaliser.calls),
            failure=failure,
            end_reason=ending.reason,
            spent=session.first_at is not None,
            first_event_ms=None if session.first_at is None else round((session.first_at - self.began) * 1000),
            duration_ms=round((now - self.began) * 1000),
        )

    def _last_words(self) -> Any:
        """What the function left undone: edits, the implicit message, its result; faults are noted."""
        session = self.session
        try:
            session.settle()
            session.end_implicit()
        except Exception as error:
            self.faults.append(error)
        normaliser = session.normaliser
        try:
            session.append(normaliser.close_chunks() + normaliser.close_reopened())
        except Exception as error:
            self.faults.append(error)
        items = normaliser.verifier.open_items()
        if items and not self.faults and not self._stopping and not session.questions and not normaliser.own_terminal:
            names = ", ".join(f"{item.kind} '{item.id}'" for item in items)
            self.faults.append(ProtocolViolation(f"The agent returned and left open: {names}."))
        result = session.result if self.result is None else self.result
        try:
            return plain(result)
        except NotJson as error:
            self.faults.append(error)
            return None

    def _happened(self) -> Happened:
        session = self.session
        own = session.normaliser.own_terminal
        marks = [session.limit, session.normaliser.violation, session.flood]
        return Happened(
            cancelled=self.control.reason,
            faults=[mark for mark in marks if mark is not None] + self.faults,
            own_error=own if own is not None and own["type"] == "RUN_ERROR" else None,
            own_cancel=own is not None and (own.get("outcome") or {}).get("type") == "cancelled",
            asked=bool(session.questions),
        )

    def _closing_events(self, ending: Ending) -> None:
        session = self.session
        asked: dict[str, list[str]] = {}
        for question, _ in session.questions.values():
            if "subagentRunId" in question:
                asked.setdefault(question["subagentRunId"], []).append(question["id"])
        open_subagents = {item.id for item in session.normaliser.verifier.open_items() if item.kind == "subagent"}
        suspended = {name: asked.get(name, []) for name in open_subagents} if ending.status == "interrupted" else None
        error = "The subagent failed." if ending.status == "failed" else None
        try:
            session.append(session.normaliser.close_all(error=error, suspended=suspended))
        except Exception:
            # The log takes no more: RUN_ERROR ends whatever is open along with the run.
            logger.exception("The closing events of run %s were refused", self.setup.address)

    def _terminal(self, ending: Ending, reference: str, result: Any) -> Wire:
        session = self.session
        usage = {"usage": list(session.usage.values())} if session.usage else {}
        if ending.status == "failed":
            return {"type": "RUN_ERROR", "message": ending.message(reference), "code": ending.code, **usage}
        event: Wire = {"type": "RUN_FINISHED", "threadId": self.setup.thread_id, "runId": self.setup.run_id}
        if ending.status == "cancelled":
            return {**event, "outcome": {"type": "cancelled"}, **usage}
        if ending.status == "interrupted":
            interrupts = [interrupt for interrupt, _ in session.questions.values()]
            event["outcome"] = {"type": "interrupt", "interrupts": interrupts}
        elif pending := session.normaliser.verifier.unanswered_calls:
            event["outcome"] = {"type": "success", "pendingToolCallIds": pending}
        if result is not None:
            event["result"] = result
        return {**event, **usage}

    def _log_failure(self, ending: Ending, reference: str) -> None:
        level = logging.WARNING if ending.public else logging.ERROR
        logger.log(
            level,
            "Run %s of agent %s failed: %s (reference %s) %s",
            self.setup.address,
            self.entry.name,
            ending.code,
            reference,
            ending.detail or ending.error or "",
            exc_info=ending.trace_of,
        )

    def _session(self, log: RunLog) -> RunSession:
        options = self.entry.options
        state = self.setup.state
        initial = False
        try:
            if state in (None, {}) and options.initial_state is not None:
                given = options.initial_state() if callable(options.initial_state) else options.initial_state
                state, initial = plain(given), True
        except Exception as error:
            self.faults.append(error)
        try:
            session = self._make_session(log, state)
        except Exception as error:  # a state that cannot be one, a schema that is none: told as the run's failure
            self.faults.append(error)
            session = self._make_session(log, {}, schema=False)
            initial = False
        if initial:
            self.setup.state_differs = session.state_edited = True
        return session

    def _make_session(self, log: RunLog, state: Any, *, schema: bool = True) -> RunSession:
        return RunSession(
            self.setup,
            log,
            state=state,
            state_schema=self.entry.options.state_schema if schema else None,
            on_limit=self._changed,
            on_taken=self.control.abort,
        )


def _forget(task: asyncio.Task[Any]) -> None:
    _abandoned.discard(task)
    if not task.cancelled():
        task.exception()  # told where it was awaited, or the run is over
