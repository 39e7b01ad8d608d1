"""A server that does what a test says, byte by byte: an asyncio server on loopback, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Request:
    """A request as it came, and the way to answer it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    writer: asyncio.StreamWriter
    reader: asyncio.StreamReader

    @property
    def input(self) -> dict[str, Any]:
        """The run input."""
        value: dict[str, Any] = json.loads(self.body)
        return value

    async def send(self, *pieces: bytes) -> None:
        """Write pieces as they are, each in a packet of its own as far as the kernel lets it."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()

    async def begin(self, status: str = "200 OK", kind: str = "text/event-stream", **headers: str) -> None:
        """The head of an answer whose end is the connection's."""
        lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", "Connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.send(("\r\n".join(lines) + "\r\n\r\n").encode())

    async def events(self, *events: dict[str, Any]) -> None:
        """Events as frames."""
        await self.send(*(f"data: {json.dumps(event)}\n\n".encode() for event in events))

    async def started(self) -> None:
        """RUN_STARTED of the run that was asked for."""
        given = self.input
        await self.events({"type": "RUN_STARTED", "threadId": given["threadId"], "runId": given["runId"]})

    async def finished(self, **members: Any) -> None:
        """RUN_FINISHED of the run that was asked for."""
        given = self.input
        event = {"type": "RUN_FINISHED", "threadId": given["threadId"], "runId": given["runId"], **members}
        await self.events(event)

    def reset(self) -> None:
        """Cut the connection."""
        self.writer.transport.abort()


Handler = Callable[[Request], Awaitable[None]]


@dataclass
class Scripted:
    """A running server."""

    handler: Handler
    requests: list[Request] = field(default_factory=list)
    #: Set when a client has closed a connection that was still being answered.
    left: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection; one request."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, _ = head[0].split(" ", 2)
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            request = Request(method, path, headers, body, writer, reader)
            self.requests.append(request)
            await self.handler(request)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left.set()
        finally:
            writer.close()


@contextlib.contextmanager
def scripted(handler: Handler) -> Iterator[Scripted]:
    """A server whose every request is answered by the handler; what still runs at the end is cancelled."""
    server = Scripted(handler)
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    stop = asyncio.Event()

    async def main() -> None:
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, limit=1 << 24)
        server.port = listening.sockets[0].getsockname()[1]
        ready.set()
        await stop.wait()
        listening.close()

    def work() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(main())

    thread = threading.Thread(target=work, daemon=True, name="scripted-server")
    thread.start()
    assert ready.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)


async def gone(request: Request) -> None:
    """Wait until the client has closed its side."""
    await request.reader.read()
    raise ConnectionError
