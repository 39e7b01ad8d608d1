"""Drives one agent through one run: every shape of agent, its timeouts and its cancel, and the end.

Law: one task per agent function, from its first line to its last; whatever it raises stays in it; whatever it does, the
run ends with what is open closed and one terminal event. Knows no database.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agui_django.agents.asking import plain
from agui_django.agents.registry import AgentEntry
from agui_django.conf import settings
from agui_django.runs.calling import AgentCall
from agui_django.runs.edits import Edit
from agui_django.runs.endings import Happened, decide, is_cancel
from agui_django.runs.finishing import Finish
from agui_django.runs.present import Present
from agui_django.runs.session import RunSession
from agui_django.runs.setup import Closing, RunLog, RunSetup
from agui_django.runs.telemetry import RunTrace

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
        look: what the run has made so far, for who joins in the middle; None before it begins.
        take: takes an edit of the state in; see `Emission.take_in`. None before it begins.
        acted: whether the run has done something that cannot be taken back; None before it begins.
        trace: its spans, where somebody collects them.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.aborted = False
        self.look: Callable[[], Present | None] | None = None
        self.take: Callable[[Edit], bool | None] | None = None
        self.acted: Callable[[], bool] | None = None
        self.trace: RunTrace | None = None
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
        control.look = self.session.present
        control.take = self.session.take_in
        control.acted = lambda: self.session.acted
        if control.trace is not None:
            self.session.traced(control.trace)

    # ---- the whole -----------------------------------------------------------------------------------------------

    async def run(self) -> Closing:
        session = self.session
        session.start()
        self.control.listen(self._changed)
        # The supervisor's task awaits this one and is its parent; the language and the time zone come with the context.
        task = self.loop.create_task(self._agent(), name=f"agui agent {self.entry.name} {self.setup.address}")
        task.add_done_callback(self._wake)
        try:
            await self._watch(task)
        finally:
            self.control.listen(None)
            if not task.done():
                task.cancel()
                _abandoned.add(task)
                task.add_done_callback(_abandoned.discard)
        try:
            return self._closing()
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
            timer = self.loop.call_later(min(waits), self._wake) if waits else None
            try:
                await self.woken
            finally:
                if timer is not None:
                    timer.cancel()

    @property
    def _stopping(self) -> bool:
        return self.control.reason is not None or self.control.aborted or self.session.limit is not None

    def _changed(self) -> None:
        if self.control.aborted:
            self.session.closed = True
            self.session.inbox.close()
        self._wake()

    def _wake(self, _: object = None) -> None:
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
                self.result = await self._called()
                self.swallowed = self.cancels > 0
        except BaseException as error:
            # At the end of the grace there is nobody left to tell.
            if not (self.cancels and is_cancel(error)):
                self.faults.append(error)

    async def _called(self) -> Any:
        """What the agent returns; called again where it failed before anything was seen, and its `Retry` says so."""
        retry = self.entry.retry
        for failed in itertools.count(1):
            try:
                return await AgentCall(self.session, lambda: self.cancels)(self.entry.make())
            except Exception as error:
                self.session.settle()  # edits of the state are events, too
                if retry is None or self._stopping or self.session.acted:
                    raise
                ending = decide(Happened(faults=[error]))
                pause = retry.pause(failed, ending.code, ending.error)
                if pause is None:
                    raise
                self.session.logger.warning(
                    "Agent %s failed before its first event (%s); run %s tries again in %.1f s",
                    self.entry.name, ending.code, self.setup.address, pause, exc_info=error,
                )  # fmt: skip
            self.session.begin_again()
            await asyncio.sleep(pause)

    def _closing(self) -> Closing:
        if self.control.aborted:
            return Closing("failed", {"type": "RUN_ERROR", "message": ""}, end_reason="aborted")
        finish = Finish(
            self.session,
            began=self.began,
            returned=self.result,
            faults=self.faults,
            reason=self.control.reason,
            swallowed=self.swallowed,
        )
        return finish.closing()

    # ---- the beginning -------------------------------------------------------------------------------------------

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
