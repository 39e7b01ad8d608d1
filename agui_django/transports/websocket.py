"""AG-UI over a WebSocket, as a Channels consumer: one socket, one thread, one ordered stream of bare events.

Law: a frame that is sent is an event, nothing else; following happens in a task of its own, so that "cancel" is heard
at any time; a slow socket is waited for, never buffered for. docs/reference/websocket.md is the contract.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from uuid import UUID
from weakref import WeakSet

from channels.generic.websocket import AsyncWebsocketConsumer
from django.utils import translation

from agui_django.access import get_policy
from agui_django.conf import settings
from agui_django.protocol.codec import encode
from agui_django.protocol.errors import (
    AgUiError,
    BodyTooLarge,
    Draining,
    InvalidInput,
    LimitExceeded,
    NotAuthenticated,
    NotFound,
    ThreadBusy,
    UnsupportedMediaType,
)
from agui_django.runs import supervisor
from agui_django.runs.database import get_pool
from agui_django.runs.engine import get_engine
from agui_django.runs.starting import Start
from agui_django.transports import requests, shown, starts
from agui_django.transports.frames import Auth, Cancel, Follow, Target, control, cursor_event
from agui_django.transports.handshake import Handshake
from agui_django.transports.shown import Shown

logger = logging.getLogger("agui_django.request")

#: Seconds in which a socket that brought no login with its handshake has to send one.
AUTH_SECONDS = 10.0

#: Seconds that a client has to answer the close of a process that is going away.
GOODBYE = 2.0

#: Stops that may be under way for one socket.
STOPS = 4

#: Frames sent before others get their turn, and before a client that keeps a cursor is told it.
BURST = 64

NORMAL = 1000

_SECOND = "This socket carries a stream already."


#: The sockets of this process.
_sockets: WeakSet[AgUiConsumer] = WeakSet()


class Gone(Exception):
    """The socket is closed."""


class AgUiConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """One socket. The URL route's ``agent`` names the agent that runs sent here are for."""

    #: Rows are followed, never a layer's messages: one that is full, slow or down loses nothing.
    channel_layer_alias = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._closing = False
        self._entered = False
        self._gone = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None
        self._legacy = self._cursors = False
        #: The thread that this socket is about, once a frame has named it.
        self._thread: str | None = None
        self._stream: asyncio.Task[None] | None = None
        #: Whether the stream's terminal event is still to come, and whether an event of it has been sent.
        self._busy = self._open = False
        self._endless = False
        self._second: AgUiError | None = None
        self._start: Start | None = None
        self._run: UUID | None = None
        self._stop_asked: Target | None = None
        self._stops: set[Target] = set()

    # ---- what the server tells ------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Open the socket, unless a foreign page asks; a login may come with the handshake or as the first frame."""
        try:
            self._handshake = Handshake(self.scope)
        except AgUiError as error:
            self._told(error)
            self._closing = True
            await self.close(code=error.close_code)
            return
        if language := self._handshake.language():
            translation.activate(language)
        await self.accept(subprotocol=self._handshake.subprotocol)
        _sockets.add(self)
        try:
            query = self._handshake.request
            self._legacy = requests.wants_legacy(query)
            self._cursors = query.GET.get("cursors") == "1"
            await self._enter()
        except Exception as error:
            if isinstance(error, NotAuthenticated) and not self._handshake.brought_token:
                self._alarm = asyncio.get_running_loop().call_later(AUTH_SECONDS, self._too_late)
            else:
                await self._refuse(error)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Act on a frame; never waits for a run."""
        if self._closing:
            return
        try:
            if text_data is None:
                raise UnsupportedMediaType("Frames are JSON text.")
            if len(text_data) * 4 > settings.MAX_BODY and len(text_data.encode()) > settings.MAX_BODY:
                raise BodyTooLarge
            frame = control(text_data)
            if isinstance(frame, Auth):
                await self._authenticate(frame)
            elif not self._entered:
                raise NotAuthenticated
            elif isinstance(frame, Cancel):
                self._cancel(frame.target)
            elif isinstance(frame, Follow):
                self._begin(partial(self._follow, frame), endless=frame.target.whole_thread)
            else:
                self._begin(partial(self._start_run, text_data))
        except Exception as error:
            await self._refuse(error)

    async def disconnect(self, code: int) -> None:
        """The client has gone: the run goes on or not as the agent's ``ON_DISCONNECT`` says."""
        self._closing = True
        self._gone.set()
        self._silence()
        if self._stream is not None:
            self._stream.cancel()
        # While a run is being opened, the cancelled task tells it.
        if self._busy and self._start is not None and self._run is not None:
            self._start.leave()

    # ---- who it is ------------------------------------------------------------------------------------------------

    async def _enter(self) -> None:
        await get_pool().run(lambda: self._handshake.enter(get_policy()))
        self._entered = True

    async def _authenticate(self, frame: Auth) -> None:
        if self._stream is not None:
            raise InvalidInput("A login comes before everything else.")
        self._handshake.authorize(frame.scheme, frame.token)
        await self._enter()
        self._silence()

    def _too_late(self) -> None:
        supervisor.start(self._refuse(NotAuthenticated()), name="agui socket login", service=True)

    def _silence(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    # ---- streams --------------------------------------------------------------------------------------------------

    def _begin(self, answer: Callable[[], Awaitable[Shown]], *, endless: bool = False) -> None:
        """Show a stream, in a task of its own.

        Raises:
            ThreadBusy: there is one that has no end behind which a refusal could be told.
        """
        if self._busy:
            if self._endless or self._second is not None:
                raise ThreadBusy(_SECOND)
            # In the middle of a stream a RUN_ERROR would be taken for its end.
            self._second = ThreadBusy(_SECOND)
            return
        self._busy, self._endless, self._open = True, endless, False
        self._start = self._run = self._stop_asked = None
        self._stream = supervisor.start(self._carry(answer, self._stream), name="agui socket")

    async def _carry(self, answer: Callable[[], Awaitable[Shown]], before: asyncio.Task[None] | None) -> None:
        """Show a stream to its end, then tell what could not be told inside it."""
        try:
            if before is not None:
                await asyncio.wait([before])
            stream = await answer()
            try:
                ended = await self._show(stream)
            finally:
                await stream.leave()
        except Gone:
            return
        except Exception as error:
            await self._refuse(error)
            return
        if self._second is not None:
            await self._refuse(self._second)
        elif ended:
            if supervisor.draining():
                await self.go_away()
        else:
            # A stream that ends without its terminal event is truncated; the code says whether to come back for more.
            cut = Draining() if supervisor.draining() else AgUiError()
            await self._shut(NORMAL if stream.ends else cut.close_code)

    async def _start_run(self, text: str) -> Shown:
        if supervisor.draining():
            raise Draining
        name: str = self.scope["url_route"]["kwargs"].get("agent", "")
        caller, entry = await starts.admit(self._handshake.request, name, self._handshake.enter)
        run_input = await starts.parsed(text.encode())
        self._bind(run_input.thread_id)
        self._start = get_engine().begin(starts.start_request(caller, entry, run_input, "websocket"))
        opened = await self._start.opened()
        starts.log_warnings(opened, run_input)
        if opened.run is not None:
            self._opened(opened.run.pk)
        return shown.start(opened, legacy=run_input.legacy)

    async def _follow(self, frame: Follow) -> Shown:
        if supervisor.draining():
            raise Draining
        if frame.target.thread_id is not None:
            self._bind(frame.target.thread_id)
        if frame.target.whole_thread:
            return await shown.thread(self._handshake.enter, frame, legacy=self._legacy)
        run = await get_pool().run(shown.find, self._handshake.enter, self._named(frame.target))
        if run is None:
            raise NotFound
        self._bind(run.thread.thread_id)
        self._opened(run.pk)
        return shown.run(run, frame.after, legacy=self._legacy)

    def _bind(self, thread_id: str) -> None:
        if self._thread not in (None, thread_id):
            fields = [{"path": "/threadId", "message": "another thread needs another socket"}]
            raise InvalidInput("A socket carries one thread.", fields=fields)
        self._thread = thread_id

    def _opened(self, run: UUID) -> None:
        """The stream has a run that can be stopped; perhaps it was asked for already."""
        self._run = run
        if self._stop_asked is not None:
            self._stop(Target(run=run) if self._stop_asked.empty else self._named(self._stop_asked))

    async def _show(self, stream: Shown) -> bool:
        """Send a stream; returns whether it ended with a terminal event."""
        first = place = stream.first
        told: dict[str, Any] | None = None
        held = stream.held
        async for batch in stream.batches:
            for number, (seq, text, _) in enumerate(batch, start=1):
                last = number == len(batch)
                ended = last and not self._endless and shown.is_terminal(text)
                if ended and self._second is None:
                    # The client's next frame may be here before this one is known to have left.
                    self._busy = False
                self._open = not ended
                await self._write(text)
                place = stream.cursor(seq) or place
                if last or number % BURST == 0:
                    # A restatement is whole or nothing: in its middle the client is where it was.
                    if self._cursors and not held and place and place != told and (last or place != first):
                        told = place
                        await self._write(cursor_event(place))
                    await asyncio.sleep(0)
                if ended:
                    return True
            held = max(held - 1, 0) if batch else held
        return False

    # ---- stopping -------------------------------------------------------------------------------------------------

    def _cancel(self, target: Target) -> None:
        """Stop what is shown, or the run that is named; the run's terminal event is the answer."""
        if self._busy and self._run is None and not self._endless:
            self._stop_asked = target
        elif not target.empty:
            self._stop(self._named(target))
        elif self._busy:
            self._stop(Target(thread_id=self._thread) if self._run is None else Target(run=self._run))

    def _named(self, target: Target) -> Target:
        """The target, in this socket's thread where none is named.

        Raises:
            InvalidInput: a run's id means nothing without its thread.
        """
        if target.run_id is None or target.thread_id is not None:
            return target
        if self._thread is None:
            raise InvalidInput(fields=[{"path": "/threadId", "message": "must name the run's thread"}])
        return Target(target.run, self._thread, target.run_id)

    def _stop(self, target: Target) -> None:
        if target in self._stops:
            return
        if len(self._stops) >= STOPS:
            raise LimitExceeded("Too many runs are being stopped.")
        self._stops.add(target)
        supervisor.start(self._stop_run(target), name="agui socket cancel")

    async def _stop_run(self, target: Target) -> None:
        try:
            find = partial(shown.find, self._handshake.enter, target, to_cancel=True)
            run = await get_pool().run(find)
            if run is not None and not run.ended:
                await get_engine().cancel(run.pk, "user")
        except Exception as error:
            await self._refuse(error)
        finally:
            self._stops.discard(target)

    # ---- sending --------------------------------------------------------------------------------------------------

    async def _write(self, text: str) -> None:
        try:
            await self.base_send({"type": "websocket.send", "text": text})
        except Exception as error:  # each server has its own
            raise Gone from error

    async def _refuse(self, error: Exception) -> None:
        """Tell an error as a stream that opens with RUN_ERROR, and close the socket with the table's code.

        While another stream is under way only the code is told: its run goes on, and may be followed again.
        """
        if self._closing:
            return
        self._closing = True
        told = self._told(error)
        ours = self._stream is asyncio.current_task()
        if not ours and self._stream is not None:
            self._stream.cancel()
        if (ours and not self._open) or not self._busy:
            text = "; ".join(
                [str(told.message), *(f"{field['path']}: {field['message']}" for field in told.fields[:5])]
            )
            with contextlib.suppress(Gone):
                await self._write(encode({"type": "RUN_ERROR", "message": text, "code": told.code}))
        await self._shut(told.close_code, told.code)

    def _told(self, error: Exception) -> AgUiError:
        """What a client may know of an error; the rest is in the log."""
        path = self.scope["path"]
        if isinstance(error, AgUiError) and error.public:
            logger.info("WebSocket %s: %s (%s)", path, error.close_code, error.code)
            return error
        reference = secrets.token_hex(6)
        logger.error("WebSocket %s failed, reference %s", path, reference, exc_info=error)
        return requests.hidden(error, reference)

    async def go_away(self) -> None:
        """The process is going away: close, unless a stream is under way."""
        if not self._busy and not self._closing:
            await self._shut(Draining().close_code, Draining().code)
            # The server is about to stop: a consumer that is still to hear of its end would be cut in the middle.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), GOODBYE)

    async def _shut(self, code: int, reason: str = "") -> None:
        self._closing = True
        with contextlib.suppress(Exception):  # closed meanwhile; each server has its own exception
            await self.close(code=code, reason=reason or None)


def _close_idle() -> None:
    for socket in list(_sockets):
        supervisor.start(socket.go_away(), name="agui socket drain")


supervisor.on_drain.append(_close_idle)
