"""Jobs over WebSockets: a client that only counts frames, one event each."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any, cast

from benchmarks.load import streams
from benchmarks.work import Order, run_input

#: A run's last event; an event's type stands at its beginning.
LAST = b"RUN_FINISHED"
TEXT, CLOSE = 1, 8


def frame(opcode: int, payload: bytes) -> bytes:
    """A client's frame, masked with zeros: legal, and costs nothing."""
    if len(payload) < 126:
        head = struct.pack("!BB", 0x80 | opcode, 0x80 | len(payload))
    else:
        head = struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, len(payload))
    return head + b"\0\0\0\0" + payload


class Socket(asyncio.Protocol):
    """One run on a socket of its own."""

    def __init__(self, target: dict[str, Any], order: Order, on_events: Callable[[int], None]) -> None:
        """Prepare to ask for a run on a new thread."""
        self._target, self._input, self._on_events = target, run_input(order), on_events
        self.events = self.bytes = 0
        self.status = ""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the upgrade."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        headers = "".join(f"{name}: {value}\r\n" for name, value in self._target["headers"].items())
        self._transport.write((
            f"GET {self._target['socket']} HTTP/1.1\r\nHost: 127.0.0.1:{self._target['port']}\r\n{headers}"
            "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        ).encode())  # fmt: skip

    def data_received(self, data: bytes) -> None:
        """Count the frames that are complete."""
        self.bytes += len(data)
        data = self._rest + data if self._rest else data
        at, new = 0, 0
        if not self.status:
            at = data.find(b"\r\n\r\n") + 4
            if at < 4:
                self._rest = data
                return
            self.status = data[9:12].decode("latin-1")
            self._transport.write(frame(TEXT, self._input))
        size = len(data)
        while at + 2 <= size:
            length, begin = data[at + 1], at + 2
            if length == 126:
                length, begin = int.from_bytes(data[begin : begin + 2], "big"), begin + 2
            elif length == 127:
                length, begin = int.from_bytes(data[begin : begin + 8], "big"), begin + 8
            if begin + length > size:
                break
            if data[at] & 0x0F == TEXT:
                new += 1
                if LAST in data[begin : begin + 24]:
                    self._transport.write(frame(CLOSE, b"\x03\xe8"))
                    self._end()
            elif data[at] & 0x0F == CLOSE:
                self._end()
            at = begin + length
        self._rest = data[at:]
        if new:
            self.events += new
            self._on_events(new)

    def connection_lost(self, exc: Exception | None) -> None:
        """Whatever came is what there was."""
        self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


async def window(job: dict[str, Any]) -> dict[str, Any]:
    """Keep N runs going for a time, each on a socket of its own, and count the events of that time."""
    target, order = job["target"], Order(**job["order"])

    async def one(on_events: Callable[[int], None]) -> Socket:
        socket = Socket(target, order, on_events)
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: socket, "127.0.0.1", target["port"])
        try:
            await asyncio.wait_for(socket.ended, streams.RUN_TIMEOUT)
        except TimeoutError:
            socket.status = "timeout"
        finally:
            transport.close()
        return socket

    return await streams.counted(job, one)
