"""A tiny ASGI server for tests: one exchange with the site's application, as a server would have it.

Unlike Django's test client it hears the headers before the body, leaves in the middle, and goes through the handler's
own thread handling.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from django.core.asgi import get_asgi_application


class Exchange:
    """A request that is under way; leaving the block is the client going away."""

    def __init__(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None,
        *, declared: int | None = None,
    ) -> None:  # fmt: skip
        path, _, query = path.partition("?")
        named = {"host": "testserver", "content-length": str(len(body) if declared is None else declared)}
        named.update({name.lower(): value for name, value in (headers or {}).items()})
        self.scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
            "headers": [(name.encode(), value.encode("latin1")) for name, value in named.items()],
            "client": ("127.0.0.1", 1234), "server": ("testserver", 80),
        }  # fmt: skip
        self.status = 0
        self.headers: dict[str, str] = {}
        self.chunks: list[bytes] = []
        self._body: bytes | None = body
        self._left = asyncio.Event()
        self._arrived = asyncio.Condition()
        self._ended = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Exchange:
        self._task = asyncio.create_task(get_asgi_application()(self.scope, self._receive, self._send))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.leave()

    async def leave(self) -> None:
        """The connection is gone; wait until the application has noticed."""
        self._left.set()
        assert self._task is not None
        await asyncio.wait_for(self._task, 20)

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if self._left.is_set():
            return  # as uvicorn and Daphne do it
        async with self._arrived:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                self.headers = {name.decode().lower(): value.decode("latin1") for name, value in message["headers"]}
            else:
                if message.get("body"):
                    self.chunks.append(message["body"])
                self._ended = not message.get("more_body", False)
            self._arrived.notify_all()

    async def until(self, condition: Any, seconds: float = 20) -> None:
        """Wait until something the application sends makes the condition true."""
        async with asyncio.timeout(seconds), self._arrived:
            await self._arrived.wait_for(lambda: condition() or self._ended)

    async def started(self) -> None:
        """Wait for the headers."""
        await self.until(lambda: self.status)

    async def read(self) -> bytes:
        """Wait for the end and return the whole body."""
        await self.until(lambda: self._ended)
        return b"".join(self.chunks)

    async def events(self, count: int | None = None) -> list[tuple[int, dict[str, Any]]]:
        """The frames that came, as (number, event); waits for so many of them, or for the end."""
        await self.until(lambda: count is not None and len(self.so_far()) >= count)
        return self.so_far()

    def so_far(self) -> list[tuple[int, dict[str, Any]]]:
        """The frames that have come."""
        frames = b"".join(self.chunks).split(b"\n\n")
        parsed = [dict(line.split(b": ", 1) for line in f.split(b"\n")) for f in frames if f and f[:1] != b":"]
        return [(int(frame.get(b"id", 0)), json.loads(frame[b"data"])) for frame in parsed]

    def comments(self) -> int:
        """How many comments have come."""
        return sum(frame.startswith(b":") for frame in b"".join(self.chunks).split(b"\n\n"))


async def ask(
    method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None, **options: Any
) -> Exchange:
    """A whole exchange: the answer has been read to its end."""
    async with Exchange(method, path, body, headers, **options) as exchange:
        await exchange.read()
    return exchange


def error_of(exchange: Exchange) -> dict[str, Any]:
    """The error of a JSON answer; fails where the answer is not one."""
    assert exchange.headers["content-type"] == "application/json"
    assert exchange.headers["cache-control"] == "no-store"
    [(key, error)] = json.loads(b"".join(exchange.chunks)).items()
    assert key == "error"
    assert {"code", "message", "fields", "reference"} <= error.keys()
    assert isinstance(error["reference"], str)
    assert len(error["reference"]) >= 8
    found: dict[str, Any] = error
    return found
