"""RunEngine: opens a run, drives it in a task of its own, closes it; and cancels.

Law: the request that starts a run only waits for it to be opened, and even that goes on without it. Nothing flows back
from those who watch.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import threading
import traceback
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.utils import timezone, translation

from agui_django.conf import settings
from agui_django.protocol.codec import encode
from agui_django.protocol.errors import AgUiError, Draining, LimitExceeded, RunClosed, answer_for
from agui_django.runs import announce, supervisor
from agui_django.runs import store as stores
from agui_django.runs.broadcaster import broadcaster
from agui_django.runs.claims import process_name
from agui_django.runs.database import get_pool
from agui_django.runs.driver import RunControl, drive
from agui_django.runs.polling import poller
from agui_django.runs.recorder import Recorder
from agui_django.runs.requests import Opened, StartRequest
from agui_django.runs.setup import Closing, Failure, RunSetup

if TYPE_CHECKING:
    from agui_django.models import Run

logger = logging.getLogger("agui_django.runs")


class Slots:
    """How many runs are active or being opened, in this process and per user."""

    def __init__(self) -> None:
        """All free."""
        self.held = 0
        self._lock = threading.Lock()
        self._by_user: Counter[Any] = Counter()

    def take(self, user: Any) -> None:
        """Take one.

        Raises:
            LimitExceeded: there is none.
        """
        limit, per_user = settings.MAX_RUNS, settings.MAX_RUNS_PER_USER
        key = getattr(user, "pk", None)
        with self._lock:
            if limit is not None and self.held >= limit:
                raise LimitExceeded
            if per_user is not None and key is not None and self._by_user[key] >= per_user:
                raise LimitExceeded
            self.held += 1
            self._by_user[key] += 1

    def give_back(self, user: Any) -> None:
        """Free one."""
        key = getattr(user, "pk", None)
        with self._lock:
            self.held -= 1
            self._by_user[key] -= 1
            if not self._by_user[key]:
                del self._by_user[key]


class Start:
    """A request that is being opened, and the client that waits for it."""

    def __init__(self, engine: RunEngine, request: StartRequest) -> None:
        """Begin; call in the event loop."""
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._on_disconnect = settings.for_agent(request.agent, "ON_DISCONNECT")
        self._left = False
        self._control: RunControl | None = None
        self._task = supervisor.start(self._open(request), name=f"agui start {request.agent.name}")

    async def opened(self) -> Opened:
        """Wait for what became of it. A waiter that is cancelled has left; the start goes on without it."""
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            self.leave()
            raise

    def leave(self) -> None:
        """The client has gone; the agent's ``ON_DISCONNECT`` says what that means. From any thread, harmless later."""
        if self._on_disconnect != "cancel" or self._loop.is_closed():
            return
        try:
            self._loop.call_soon_threadsafe(self._leave)
        except RuntimeError:  # the loop closed just now, and took the run with it
            return

    def _leave(self) -> None:
        self._left = True
        if self._control is not None:
            self._control.cancel("disconnect")

    async def _open(self, request: StartRequest) -> Opened:
        opened = await self._engine.open(request)
        if opened.kind == "created" and opened.run is not None and opened.setup is not None:
            self._control = self._engine.spawn(request.agent, opened.run, opened.setup, request.user)
            if self._left:
                self._control.cancel("disconnect")
        return opened


class RunEngine:
    """Runs of one process. `get_engine` gives the one there is."""

    def __init__(self) -> None:
        """Nothing runs."""
        self.slots = Slots()
        self._running: dict[UUID, tuple[asyncio.AbstractEventLoop, RunControl]] = {}
        supervisor.stoppers.append(self.cancel_all)

    def begin(self, request: StartRequest) -> Start:
        """Begin to open a run; call in the event loop.

        Raises:
            Draining: this process is going away.
            LimitExceeded: too many runs are active.
        """
        if supervisor.draining():
            raise Draining
        self.slots.take(request.user)
        try:
            return Start(self, request)
        except BaseException:
            self.slots.give_back(request.user)
            raise

    async def open(self, request: StartRequest) -> Opened:
        """Open and, where a run is created, claim it; gives the slot back where none is."""
        opened: Opened | None = None
        try:
            opened = await stores.ThreadStore().aopen_run(replace(request, claim=process_name()))
            return opened
        finally:
            if opened is None or opened.kind != "created":
                self.slots.give_back(request.user)

    def spawn(self, entry: Any, run: Run, setup: RunSetup, user: Any) -> RunControl:
        """Drive a claimed run in a task of its own; the slot that was taken for it is given back at its end."""
        control = RunControl()
        loop = asyncio.get_running_loop()
        self._running[run.pk] = loop, control
        poller.executing[run.pk] = partial(self._cancel_here, run.pk)
        recorder = Recorder(run, setup)
        recorder.on_lost = lambda _error: control.abort()
        recorder.on_commit = broadcaster.publish
        recorder.look = lambda: control.look() if control.look is not None else None
        supervisor.start(self._execute(entry, setup, recorder, control, user), name=f"agui run {run.pk}")
        poller.ensure()
        broadcaster.publish(run.thread_id)
        return control

    async def _execute(self, entry: Any, setup: RunSetup, recorder: Recorder, control: RunControl, user: Any) -> None:
        """Drive a run to its end and write its closing."""
        announced = None
        if announce.awaited():
            brought = [message["id"] for message in setup.new_messages]
            announced = supervisor.start(announce.started(recorder.uuid, brought), name=f"agui signals {recorder.uuid}")
        try:
            if setup.language:
                translation.activate(setup.language)
            if setup.time_zone:
                timezone.activate(setup.time_zone)
            try:
                closing = await drive(entry, setup, recorder, control)
            except Exception as error:
                closing = _failed(setup, recorder, error)
            if await recorder.close(closing) and announced is not None:
                await announced
                await announce.finished(recorder.uuid, [message["id"] for message in closing.messages])
        except BaseException as error:
            # Without this the run would be kept alive by its heartbeat, and hold its thread for ever.
            recorder.lose(error if isinstance(error, Exception) else RunClosed("The process ends."))
            raise
        finally:
            self._running.pop(recorder.uuid, None)
            poller.executing.pop(recorder.uuid, None)
            self.slots.give_back(user)

    async def cancel(self, run: UUID, reason: str) -> bool:
        """Ask a run to stop, whichever process executes it. From any loop.

        Returns:
            Whether it was active.
        """
        asked = await get_pool().run(stores.ThreadStore().request_cancel, run, reason)
        self._cancel_here(run, reason)
        return asked

    def cancel_all(self, reason: str) -> None:
        """Cancel all runs of this process."""
        for run in list(self._running):
            self._cancel_here(run, reason)

    def _cancel_here(self, run: UUID, reason: str) -> None:
        """Cancel a run of this process; from any thread, harmless for others."""
        loop, control = self._running.get(run, (None, None))
        if loop is not None and control is not None and not loop.is_closed():
            try:
                loop.call_soon_threadsafe(control.cancel, reason)
            except RuntimeError:  # closed just now
                return


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
        failure=Failure(code, reference, str(error), trace),
    )


_engines: dict[int, RunEngine] = {}


def get_engine() -> RunEngine:
    """The engine of this process; another one after a fork."""
    engine = _engines.get(os.getpid())
    if engine is None:
        engine = _engines.setdefault(os.getpid(), RunEngine())
    return engine
