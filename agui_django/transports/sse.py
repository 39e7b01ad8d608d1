"""Server-sent events over HTTP: frames, heartbeats, and the response that carries them.

Law: everything that is ready leaves in one chunk; the first chunk is a comment, so that the headers leave before the
agent is awaited (Daphne holds them back until a body comes); a frame ends in LF LF and holds one data line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.http import StreamingHttpResponse

from agui_django.runs.stream import Batches, Frame
from agui_django.transports.threads import release_request_thread

OPENING = b":\n\n"
HEARTBEAT = b": heartbeat\n\n"

HEADERS = {
    "Cache-Control": "no-store",
    # nginx would hold the stream back, GZipMiddleware would compress it chunk by chunk.
    "X-Accel-Buffering": "no",
    "Content-Encoding": "identity",
}


def frames(batch: Sequence[Frame]) -> bytes:
    """One chunk for a batch. A frame without a number (what was never recorded) carries no ``id:`` line."""
    return "".join([f"id: {seq}\ndata: {text}\n\n" if seq else f"data: {text}\n\n" for seq, text, _ in batch]).encode()


class Body:
    """The chunks of a stream.

    Args:
        source: batches of frames; an empty batch is a sign of life.
        on_leave: called once, from any thread, when the body is given up before its end: the client has gone.
    """

    def __init__(self, source: Batches, on_leave: Callable[[], None] | None = None) -> None:
        """Nothing is read before the first chunk is asked for."""
        self._source = source
        self._on_leave = on_leave
        self._opened = False

    def __aiter__(self) -> Body:
        """Chunks are taken once."""
        return self

    async def __anext__(self) -> bytes:
        """The next chunk."""
        if not self._opened:
            self._opened = True
            release_request_thread()
            return OPENING
        try:
            batch = await anext(self._source)
        except StopAsyncIteration:
            self._on_leave = None
            raise
        return frames(batch) if batch else HEARTBEAT

    async def aclose(self) -> None:
        """The server asks for no more chunks; what follows is the response's `close`."""

    def close(self) -> None:
        """Give the body up; after its end, and when repeated, nothing happens. Called with the response."""
        # What cannot be closed here (a generator) stops watching when it is dropped.
        if (stop := getattr(self._source, "close", None)) is not None:
            stop()
        leave, self._on_leave = self._on_leave, None
        if leave is not None:
            leave()

    def __del__(self) -> None:
        """A response that a middleware was still busy with when the client left is dropped, never closed."""
        self.close()


class _Stream(StreamingHttpResponse):
    """A response whose chunks are handed over as they are, where no middleware has put something around them."""

    def __aiter__(self) -> Any:
        """The chunks; Django's own way wraps each in two generators."""
        body = self.__dict__.get("_iterator")
        return body if isinstance(body, Body) else super().__aiter__()


def stream_response(
    source: Batches, *, location: str = "", on_leave: Callable[[], None] | None = None
) -> StreamingHttpResponse:
    """A response that streams batches of frames.

    Args:
        source: the batches.
        location: names the run.
        on_leave: see `Body`.
    """
    body: Any = Body(source, on_leave)
    response = _Stream(body, content_type="text/event-stream", headers=HEADERS)
    if location:
        response["Content-Location"] = location
    return response
