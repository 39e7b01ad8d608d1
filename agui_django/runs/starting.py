"""A request that is being opened, and the client that waits for it.

Law: the start goes on without its client; what the client's leaving means is settled once the run is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from agui_django.conf import settings
from agui_django.runs import announce, attachments, signs, supervisor, telemetry
from agui_django.runs.requests import Asked, Opened, StartRequest
from agui_django.runs.watching import Vigil

if TYPE_CHECKING:
    from agui_django.runs.engine import RunEngine


class Start:
    """A request that is being opened, and the client that waits for it."""

    def __init__(self, engine: RunEngine, ask: StartRequest | Callable[[], Asked]) -> None:
        """Begin; call in the event loop. Whose messages hold files is asked as a `StartRequest`."""
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._left = False
        self._vigil: Vigil | None = None
        self._task = supervisor.start(self._open(ask), name="agui start")

    async def opened(self) -> Opened:
        """Wait for what became of it. A waiter that is cancelled has left; the start goes on without it."""
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            self.leave()
            raise

    def leave(self) -> None:
        """The client has gone; the agent's ``ON_DISCONNECT`` says what that means. From any thread, harmless later."""
        if self._loop.is_closed():
            return
        try:
            self._loop.call_soon_threadsafe(self._leave)
        except RuntimeError:  # the loop closed just now, and took the run with it
            return

    def _leave(self) -> None:
        self._left = True
        if self._vigil is not None:
            self._vigil.alone()

    async def _open(self, ask: StartRequest | Callable[[], Asked]) -> Opened:
        engine = self._engine
        start = partial(engine.open, partial(Asked, ask, True) if isinstance(ask, StartRequest) else ask)
        if isinstance(ask, StartRequest) and ask.run_input.inline:
            request, opened = await attachments.uploading(ask, start)
        else:
            request, opened = await start()
        announce.tell_closed(opened.closed)
        run = opened.run
        if opened.kind not in ("created", "queued") or run is None:
            return opened
        if request.origin == "client" and settings.for_agent(request.agent, "ON_DISCONNECT") == "cancel":
            grace = settings.for_agent(request.agent, "DISCONNECT_GRACE")
            self._vigil = Vigil(run.pk, grace, partial(engine.leave, run.pk), partial(signs.fresh, run.pk, grace))
        if opened.setup is not None:
            engine.launch(request.agent, run, opened.setup, request.user)
        else:
            telemetry.wait(run.pk)
            # The thread may have become free since the request met it.
            supervisor.start(engine.upkeep.advance(run.thread_id), name=f"agui queue {run.thread_id}")
        if self._left:
            self._leave()
        return opened
