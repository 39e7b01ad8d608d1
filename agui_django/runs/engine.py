"""RunEngine: opens a run, drives it in a task of its own, closes it; and cancels.

Law: the request that starts a run only waits for it to be opened, and even that goes on without it. Nothing flows back
from those who watch.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.utils import timezone, translation

from agui_django.agents.registry import AgentEntry, get_agent
from agui_django.conf import settings
from agui_django.protocol.codec import encode
from agui_django.protocol.errors import (
    AgUiError,
    Draining,
    PermissionRefused,
    RunClosed,
    ThreadBusy,
    answer_for,
)
from agui_django.runs import announce, runners, signs, supervisor, telemetry, titling
from agui_django.runs import recorder as recorders
from agui_django.runs import store as stores
from agui_django.runs.broadcaster import broadcaster
from agui_django.runs.claims import process_name
from agui_django.runs.database import get_pool
from agui_django.runs.driver import RunControl, drive
from agui_django.runs.endings import place_of
from agui_django.runs.intake import Intake
from agui_django.runs.polling import poller
from agui_django.runs.recorder import Recorder
from agui_django.runs.relay import relay
from agui_django.runs.requests import Asked, Opened, StartRequest
from agui_django.runs.setup import Closing, Failure, RunSetup
from agui_django.runs.slots import Slots
from agui_django.runs.started import first_event
from agui_django.runs.starting import Start
from agui_django.runs.stream import read_end
from agui_django.runs.together import get_together
from agui_django.runs.upkeep import Upkeep, claim, queues
from agui_django.runs.watching import watchers

if TYPE_CHECKING:
    from agui_django.models import Run

logger = logging.getLogger("agui_django.runs")

#: Seconds beyond CANCEL_GRACE that a run which was cancelled has to be gone.
SUPERSEDING = 5.0
#: Seconds between two looks whether a run of another process has ended.
LOOK = 0.25


class Running(RunControl):
    """The control of a run of this process, with its task and the edits that it takes in."""

    task: asyncio.Task[None]
    intake: Intake


class RunEngine:
    """Runs of one process. `get_engine` gives the one there is."""

    def __init__(self) -> None:
        """Nothing runs."""
        self.slots = Slots()
        self._running: dict[UUID, tuple[asyncio.AbstractEventLoop, Running]] = {}
        self.upkeep = Upkeep(self.launch, self.slots)
        supervisor.stoppers.append(self.cancel_all)
        poller.sweep, poller.advance, poller.sign = self.upkeep.sweep, self.upkeep.advance_all, signs.leave

    # ---- from a request -------------------------------------------------------------------------------------------

    def begin(self, ask: StartRequest | Callable[[], Asked]) -> Start:
        """Begin to open a run; call in the event loop.

        Args:
            ask: the request; or what finds out who asks, and makes it: called in a database thread, where the run is
                opened at once.

        Raises:
            Draining: this process is going away.
        """
        if supervisor.draining():
            raise Draining
        return Start(self, ask)

    async def open(self, ask: Callable[[], Asked]) -> tuple[StartRequest, Opened]:
        """Open and, where a run is created here, claim it; a slot is held then.

        Raises:
            PermissionRefused: who asks may not.
            LimitExceeded: too many runs are active.
            ThreadBusy: another run is active, and did not end in time where it was to be cancelled.
        """
        taken: list[Any] = []
        opened: Opened | None = None

        def take(request: StartRequest) -> None:
            # An answer is never turned away for want of room: somebody has waited for it.
            self.slots.take(request.user, force=request.given is not None)
            taken.append(request.user)

        def admitted() -> Asked:
            asked = ask()
            if not isawaitable(asked.allowed):
                if not asked.allowed:
                    raise PermissionRefused
                take(asked.request)
            return asked

        try:
            arrived = timezone.now()
            asked, opened = await get_together().run(
                admitted, lambda asked: None if isawaitable(asked.allowed) else _open(asked.request)
            )
            if opened is None:
                if isawaitable(asked.allowed) and not await asked.allowed:
                    raise PermissionRefused
                take(asked.request)
                opened = await get_pool().run(_open, asked.request)
            if opened.kind == "busy":
                opened = await self._supersede(asked.request, opened, arrived)
            return asked.request, opened
        finally:
            if taken and (opened is None or opened.kind != "created"):
                self.slots.give_back(taken[0])

    async def _supersede(self, wanted: StartRequest, opened: Opened, arrived: datetime) -> Opened:
        """Cancel what is in the way, and open once it has ended; never what came later than the request itself."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + settings.CANCEL_GRACE + SUPERSEDING
        while opened.kind == "busy":
            ahead = opened.run
            assert ahead is not None  # noqa: S101 - the kind says so
            left = deadline - loop.time()
            if left <= 0 or ahead.created_at > arrived:
                raise ThreadBusy(extra={"runId": ahead.run_id})
            await self.cancel(ahead.pk, "superseded")
            await self.ended(ahead.pk, left)
            opened = await get_pool().run(_open, wanted)
        return opened

    def launch(self, entry: Any, run: Run, setup: RunSetup, user: Any) -> None:
        """Execute a run that was just stored: here, or by whom the `RUNNER` finds. Its slot is given back later."""
        if run.claim:
            self.spawn(entry, run, setup, user)
        else:
            broadcaster.publish(run.thread_id)
            supervisor.start(self._submit(run.pk, user), name=f"agui submit {run.pk}")

    async def _submit(self, run: UUID, user: Any) -> None:
        try:
            runner = runners.get_runner()
            assert runner is not None  # noqa: S101 - a run without a claim is for one
            await runner.asubmit(str(run))
        except Exception as error:
            logger.exception("Run %s could not be handed to the RUNNER", run)
            why = f"The RUNNER could not take it: {type(error).__name__}: {error}"
            if await get_pool().run(partial(stores.ThreadStore().reap, run, why=why)):
                self.upkeep.end_elsewhere([run])
        finally:
            self.slots.give_back(user)

    def leave(self, run: UUID) -> None:
        """Nobody watches a run any more that its agent does not want to go on with; call in the event loop."""
        if not self._cancel_here(run, "disconnect"):
            supervisor.start(self.cancel(run, "disconnect"), name=f"agui leave {run}")

    # ---- in a worker ----------------------------------------------------------------------------------------------

    async def execute(self, uuid: UUID) -> bool:
        """Claim a pending run and drive it to its end; a caller that is cancelled cancels it.

        Returns:
            False where it is not pending: it was executed, cancelled or reaped, or another worker has it.
        """
        claimed = await stores.ThreadStore().aclaim(uuid, process_name())
        if claimed is None:
            return False
        run, setup = claimed
        try:
            entry = await get_pool().run(get_agent, run.agent)
        except Exception as error:
            entry = _missing(run.agent, error)
        self.slots.take(run.user, force=True)
        # Those who wait for it in other processes did not know where it would be.
        broadcaster.publish(run.pk)
        control = self.spawn(entry, run, setup, run.user)
        if run.cancel_requested:
            control.cancel(run.cancel_requested)
        try:
            await asyncio.shield(control.task)
        except asyncio.CancelledError:
            control.cancel("shutdown")
            await asyncio.wait([control.task], timeout=settings.CANCEL_GRACE + SUPERSEDING)
            raise
        return True

    def spawn(self, entry: Any, run: Run, setup: RunSetup, user: Any) -> Running:
        """Drive a claimed run in a task of its own; the slot that was taken for it is given back at its end."""
        control = Running()
        loop = asyncio.get_running_loop()
        self._running[run.pk] = loop, control
        poller.executing[run.pk] = partial(self._cancel_here, run.pk)
        control.intake = Intake(run.pk, setup.ledger, control)
        poller.edited[run.pk] = partial(self._edited_here, run.pk)
        if run.thread.state_version > setup.ledger.version:  # edited before it was claimed
            control.intake.edited(run.thread.state_version)
        recorder = Recorder(run, setup)
        recorder.on_lost = lambda _error: control.abort()
        recorder.on_commit = broadcaster.publish
        recorder.look = lambda: control.look() if control.look is not None else None
        control.trace = recorder.trace = telemetry.begin(run)
        control.task = supervisor.start(self._execute(entry, setup, recorder, control, user), name=f"agui run {run.pk}")
        poller.ensure()
        broadcaster.publish(run.thread_id)
        return control

    async def _execute(self, entry: Any, setup: RunSetup, recorder: Recorder, control: RunControl, user: Any) -> None:
        """Drive a run to its end and write its closing."""
        announced = answers = None
        if announce.awaited():
            name, brought = f"agui signals {recorder.uuid}", [message["id"] for message in setup.new_messages]
            announced = supervisor.start(announce.started(recorder.uuid, brought), name=name)
            if setup.resume:
                answers = supervisor.start(_tell_answers(recorder, control), name=name)
        try:
            if setup.language:
                translation.activate(setup.language)
            if setup.time_zone:
                timezone.activate(setup.time_zone)
            if control.trace is not None:
                control.trace.enter()
            try:
                closing = await drive(entry, setup, recorder, control)
            except Exception as error:
                closing = _failed(setup, recorder, error)
            closed = await recorder.close(closing)
            if control.trace is not None:
                control.trace.end(closing if closed else None, recorder.last_seq)
            if closed and closing.interrupts:
                self.upkeep.expiring.asked(closing.interrupts)
            if closed and queues():
                supervisor.start(self.upkeep.advance(setup.ledger.thread), name=f"agui queue {setup.ledger.thread}")
            if closed and titling.due(setup, closing):
                supervisor.start(titling.entitle(setup.ledger.thread), name=f"agui title {setup.ledger.thread}")
            if closed and announced is not None:
                await announced
                if answers is not None:
                    await answers
                await announce.finished(recorder.uuid, [message["id"] for message in closing.messages])
        except BaseException as error:
            # Without this the run would be kept alive by its heartbeat, and hold its thread for ever.
            recorder.lose(error if isinstance(error, Exception) else RunClosed("The process ends."))
            raise
        finally:
            self._running.pop(recorder.uuid, None)
            poller.executing.pop(recorder.uuid, None)
            poller.edited.pop(recorder.uuid, None)
            watchers.ended(recorder.uuid)
            if control.trace is not None:
                control.trace.end(None, recorder.last_seq)
            self.slots.give_back(user)

    async def cancel(self, run: UUID, reason: str) -> bool:
        """Ask a run to stop, whichever process executes it. From any loop.

        Returns:
            Whether it was active.
        """
        store, pool = stores.ThreadStore(), get_pool()
        asked = await pool.run(store.request_cancel, run, reason)
        if asked and not self._cancel_here(run, reason):
            # Who executes it reads the request; what nobody executes yet has to be ended here.
            thread = await pool.run(store.cancel_waiting, run, reason)
            if thread is None:
                relay.look(run)
            else:
                self.upkeep.end_elsewhere([run])
                await self.upkeep.advance(thread)
        return asked

    def cancel_all(self, reason: str) -> None:
        """Cancel all runs of this process."""
        for run in list(self._running):
            self._cancel_here(run, reason)

    def _cancel_here(self, run: UUID, reason: str) -> bool:
        """Cancel a run of this process; from any thread. False for others."""
        loop, control = self._running.get(run, (None, None))
        if loop is None or control is None or loop.is_closed():
            return False
        try:
            loop.call_soon_threadsafe(control.cancel, reason)
        except RuntimeError:  # closed just now
            return False
        return True

    def edited(self, run: UUID, version: int) -> None:
        """The state of an active run's thread was edited, and that is committed. From any thread.

        Args:
            run: the run, whichever process executes it.
            version: the state's version by now.
        """
        if not self._edited_here(run, version):
            relay.look(run)

    def _edited_here(self, run: UUID, version: int) -> bool:
        """Have a run of this process take edits in; from any thread. False for others."""
        loop, control = self._running.get(run, (None, None))
        if loop is None or control is None or loop.is_closed():
            return False
        if control.intake.has(version):  # as the poll finds it for every run, every second
            return True
        try:
            loop.call_soon_threadsafe(control.intake.edited, version)
        except RuntimeError:  # closed just now
            return False
        return True

    async def ended(self, run: UUID, seconds: float) -> bool:
        """Wait until a run has ended, wherever it is executed; False when time is up."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        subscription = broadcaster.subscribe(run)
        try:
            while (recorder := recorders.get(run)) is not None and not recorder.closed:
                left = deadline - loop.time()
                if left <= 0 or not await recorder.wait(recorder.committed, left):
                    return False
            while await get_pool().run(read_end, run) is None:
                left = deadline - loop.time()
                if left <= 0:
                    return False
                poller.ensure()
                await subscription.wait(min(left, LOOK))
        finally:
            subscription.close()
        return True


def _open(request: StartRequest) -> Opened:
    """In a database thread."""
    return stores.ThreadStore().open_run(replace(request, claim=claim(), first_event=first_event))


async def _tell_answers(recorder: Recorder, control: RunControl) -> None:
    """Tell of the answers that a run carries, once they are not taken back any more: it has acted, or has ended."""
    while not recorder.closed and not (control.acted is not None and control.acted()):
        await recorder.wait(recorder.committed, settings.HEARTBEAT)
    if not recorder.closed:
        with contextlib.suppress(RunClosed):
            await recorder.flush()
    if recorder.lost is None:
        await announce.answered(recorder.uuid)


def _missing(name: str, error: Exception) -> AgentEntry:
    """Stands for an agent that this process cannot load: its run fails in order."""

    async def run(_: Any) -> None:
        raise error

    return AgentEntry(name, run)


def _failed(setup: RunSetup, recorder: Recorder, error: Exception) -> Closing:
    """The end of a run that our own code could not drive; what an agent does wrong never comes here."""
    reference = secrets.token_hex(6)
    logger.error("Run %s could not be driven (reference %s)", recorder.uuid, reference, exc_info=error)
    if not recorder.last_seq:
        ids = {"threadId": setup.thread_id, "runId": setup.run_id}
        recorder.append(encode({"type": "RUN_STARTED", **ids}), plain=True)
    code, text = answer_for(AgUiError).code, "Something went wrong here."
    trace = "".join(traceback.format_exception(error))
    return Closing(
        "failed",
        {"type": "RUN_ERROR", "message": f"{text} (reference {reference})", "code": code},
        state=setup.state,
        failure=Failure(code, reference, str(error), trace, kind=type(error).__name__, place=place_of(error)),
    )


_engines: dict[int, RunEngine] = {}


def get_engine() -> RunEngine:
    """The engine of this process; another one after a fork."""
    engine = _engines.get(os.getpid())
    if engine is None:
        engine = _engines.setdefault(os.getpid(), RunEngine())
    return engine
