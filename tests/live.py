"""A real HTTP server inside the test process, so that a case may set settings and agents and read the database."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn
from django.test import Client


class LiveServer:
    """uvicorn in a thread with a loop of its own, on a free port of 127.0.0.1."""

    def __init__(self, app: Any) -> None:
        config = uvicorn.Config(app, host="127.0.0.1", port=0, lifespan="off", log_level="error", log_config=None)
        self.server = uvicorn.Server(config)
        self.server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.bind(("127.0.0.1", 0))
        self.clients: list[httpx.Client] = []
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.serve, daemon=True, name="live-server")

    def serve(self) -> None:
        """Run the loop until the server ends."""
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.run(self.server.serve([self.socket]))

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.socket.getsockname()[1]}"

    def start(self) -> None:
        """Start and wait until it accepts."""
        self.socket.listen(256)
        self.thread.start()

    def tasks(self) -> int:
        """How many tasks the server's loop holds, its own included."""
        return len(asyncio.all_tasks(self.loop))

    def stop(self) -> None:
        """Stop and wait for the thread."""
        for client in self.clients:
            client.close()
        self.server.should_exit = True
        self.server.force_exit = True
        self.thread.join(10)
        self.socket.close()


@contextlib.contextmanager
def live_server(app: Any) -> Iterator[LiveServer]:
    """A started server, stopped at the end."""
    server = LiveServer(app)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@dataclass
class Response:
    """One response as it came."""

    status: int
    headers: dict[str, str]
    body: bytes
    comments: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()


def read(response: httpx.Response, *, frames: int | None = None) -> Response:
    """Read a response; a stream is read to its end, or until ``frames`` data frames have come."""
    got = Response(response.status_code, dict(response.headers), b"")
    pending = b""
    for chunk in response.iter_raw():
        got.body += chunk
        pending += chunk
        if not got.headers["content-type"].startswith("text/event-stream"):
            continue
        while b"\n\n" in pending:
            frame, pending = pending.split(b"\n\n", 1)
            got.comments += frame.startswith(b":")
            # exactly one data line per frame: whatever a line break inside a text could do shows here
            got.events += [json.loads(line[6:]) for line in frame.split(b"\n") if line.startswith(b"data: ")]
        if frames is not None and len(got.events) >= frames:
            break
    return got


class Caller:
    """One user's HTTP client against the live server."""

    def __init__(self, server: LiveServer, user: Any, agent: str) -> None:
        self.agent = agent
        session = Client()
        session.force_login(user)
        self.cookies = {"sessionid": session.cookies["sessionid"].value, "csrftoken": "a" * 32}
        self.http = httpx.Client(
            base_url=server.url,
            timeout=60,
            cookies=self.cookies,
            headers={"X-CSRFToken": "a" * 32, "Content-Type": "application/json"},
        )
        server.clients.append(self.http)

    def run(self, content: bytes, headers: dict[str, str] | None = None, frames: int | None = None) -> Response:
        """POST a run of the agent."""
        with self.http.stream("POST", f"/agui/agents/{self.agent}", content=content, headers=headers or {}) as response:
            return read(response, frames=frames)

    def body(self, members: dict[str, Any], number: int = 0) -> bytes:
        """A run input with the defaults of the cases' README."""
        whole = {
            "threadId": "t1",
            "runId": uuid.uuid4().hex,
            "tools": [],
            "context": [],
            "forwardedProps": {},
            "messages": [{"id": uuid.uuid4().hex, "role": "user", "content": "hello"}],
            **members,
        }
        if "resume" in members or "command" in whole["forwardedProps"]:
            whole["messages"] = members.get("messages", [])
        return json.dumps(whole).replace("{n}", str(number)).encode()


def wait_until(condition: Callable[[], Any], seconds: float = 20) -> None:
    """Poll a condition of the database; the event that moves it happens in the server's thread."""
    tick = threading.Event()
    for _ in range(int(seconds / 0.05)):
        if condition():
            return
        tick.wait(0.05)
    raise AssertionError("it did not become true")
