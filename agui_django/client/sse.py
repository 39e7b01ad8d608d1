"""Server-sent events out of bytes, as the HTML standard reads them ("Interpreting an event stream").

Law: bytes may be cut anywhere, also inside a character or between CR and LF; what is buffered is bounded; a frame that
the end cuts off is no frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from agui_django.client.errors import StreamRefused

BOM: Final = b"\xef\xbb\xbf"
#: Defaults: bytes of one frame, and of a whole stream.
MAX_FRAME: Final = 16 * 1024 * 1024
MAX_STREAM: Final = 1024 * 1024 * 1024


class Frame(NamedTuple):
    """One event of the stream.

    Attributes:
        data: the data lines, joined by LF.
        id: the last ``id`` so far, which may be an earlier frame's; empty without.
        named: whether this frame said its id itself.
        event: its type; ``message`` unless it said another.
    """

    data: str
    id: str = ""
    named: bool = False
    event: str = "message"


class EventStream:
    """Reads one stream.

    Args:
        max_frame: bytes that a line, and the data of a frame, may have.
        max_stream: bytes that the whole stream may have.

    Attributes:
        retry: seconds to wait before a reconnect, where the server has said so.
        lines: whole lines so far, comments among them: a sign of life.
    """

    def __init__(self, *, max_frame: int = MAX_FRAME, max_stream: int = MAX_STREAM) -> None:
        self.retry: float | None = None
        self.lines = 0
        self._max_frame = max_frame
        self._left = max_stream
        self._partial: list[bytes] = []
        self._held = 0  # bytes in `_partial`
        self._after_cr = False
        self._began = False
        self._data: list[bytes] = []
        self._size = 0  # bytes in `_data`
        self._event = ""
        self._id = ""
        self._named = False

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """The frames that a chunk completes; to be drawn to its end before the next one.

        Raises:
            StreamRefused: a line, a frame or the stream is too large.
        """
        self._left -= len(chunk)
        if self._left < 0:
            raise StreamRefused("The stream is too large.", code="stream_too_large")
        start = 0
        if self._after_cr and chunk:
            self._after_cr = False
            start = chunk.startswith(b"\n")
        carriage = chunk.find(b"\r", start)
        newline = chunk.find(b"\n", start)
        while carriage >= 0 or newline >= 0:
            if carriage < 0 or 0 <= newline < carriage:
                end, after = newline, newline + 1
            else:
                end, after = carriage, carriage + 1
                if after == len(chunk):
                    self._after_cr = True  # its LF may come with the next chunk
                elif chunk[after] == 10:
                    after += 1
            self._hold(chunk[start:end])
            line = b"".join(self._partial)
            self._partial.clear()
            self._held = 0
            frame = self._line(line)
            if frame is not None:
                yield frame
            start = after
            if 0 <= carriage < start:
                carriage = chunk.find(b"\r", start)
            if 0 <= newline < start:
                newline = chunk.find(b"\n", start)
        self._hold(chunk[start:])

    def _hold(self, piece: bytes) -> None:
        if piece:
            self._held += len(piece)
            self._bounded(self._held)
            self._partial.append(piece)

    def _bounded(self, size: int) -> None:
        if size > self._max_frame:
            raise StreamRefused("A frame of the stream is too large.", code="frame_too_large")

    def _line(self, line: bytes) -> Frame | None:
        self.lines += 1
        if not self._began:
            self._began = True
            line = line.removeprefix(BOM)
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._size += len(value) + 1
            self._bounded(self._size)
            self._data.append(value)
        elif name == b"id":
            if b"\0" not in value:
                self._id = value.decode(errors="replace")
                self._named = True
        elif name == b"event":
            self._event = value.decode(errors="replace")
        elif name == b"retry" and value.isdigit() and len(value) < 10:
            self.retry = int(value) / 1000
        return None

    def _dispatch(self) -> Frame | None:
        data, event, named = self._data, self._event, self._named
        self._data, self._size, self._event, self._named = [], 0, "", False
        if not data:
            return None
        return Frame(b"\n".join(data).decode(errors="replace"), self._id, named, event or "message")
