"""One user's CopilotKit over real HTTP, by either transport, and an agent that waits."""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from agui_django.testing import override_agent
from tests.live import Caller, LiveServer, Response, read

#: The tool that a suggestion run is made to call.
SUGGEST = {"name": "copilotkitSuggest", "description": "d", "parameters": {"type": "object", "properties": {}}}


class Kit:
    """One user's calls, by one of the two transports."""

    def __init__(self, server: LiveServer, user: Any, transport: str) -> None:
        self.http = Caller(server, user, "").http
        self.transport = transport

    def stream(self, method: str, body: Any, agent: str = "default", frames: int | None = None) -> Response:
        """Run, connect or suggest."""
        if self.transport == "rest":
            url, content = f"/copilotkit/agent/{agent}/{method}", body
        else:
            url, content = "/copilotkit", {"method": f"agent/{method}", "params": {"agentId": agent}, "body": body}
        headers = {"Accept": "text/event-stream"}
        with self.http.stream("POST", url, json=content, headers=headers) as response:
            return read(response, frames=frames)

    def stop(self, thread: str, body: Any = None, agent: str = "default") -> httpx.Response:
        if self.transport == "rest":
            content = b"" if body is None else json.dumps(body).encode()
            return self.http.post(f"/copilotkit/agent/{agent}/stop/{thread}", content=content)
        params = {"agentId": agent, "threadId": thread}
        whole = {"method": "agent/stop", "params": params, **({} if body is None else {"body": body})}
        return self.http.post("/copilotkit/", json=whole)

    def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        """A resource."""
        if self.transport == "rest":
            content = b"" if body is None else json.dumps(body).encode()
            return self.http.request(method, f"/copilotkit{path}", content=content)
        params = {"path": path, "httpMethod": method}
        whole = {"method": "resource/request", "params": params, **({} if body is None else {"body": body})}
        return self.http.post("/copilotkit", json=whole)

    def info(self) -> httpx.Response:
        if self.transport == "rest":
            return self.http.get("/copilotkit/info")
        return self.http.post("/copilotkit/", json={"method": "info"})


@pytest.fixture(params=["rest", "single"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def kit(server: LiveServer, ada: Any, transport: str) -> Kit:
    """Ada's."""
    return Kit(server, ada, transport)


@pytest.fixture
def bobs(server: LiveServer, bob: Any, transport: str) -> Kit:
    """Bob's."""
    return Kit(server, bob, transport)


def said(thread: str = "t1", text: str = "hello", **members: Any) -> dict[str, Any]:
    """A run input as CopilotKit writes it: no protocolVersion."""
    return {
        "threadId": thread, "runId": str(uuid.uuid4()), "tools": [], "context": [], "forwardedProps": {}, "state": {},
        "messages": [{"id": str(uuid.uuid4()), "role": "user", "content": text}], **members,
    }  # fmt: skip


def silent(thread: str = "t1") -> dict[str, Any]:
    """The body of a connect."""
    return said(thread, messages=[])


def types(response: Response) -> list[str]:
    return [event["type"] for event in response.events]


class Gate:
    """Writes a word, waits to be let through (or stopped), and writes another."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()

    async def run(self, run: Any) -> None:
        async with run.message() as message:
            await message.write("before")
            self.entered.set()
            while not self.opened.is_set():
                await asyncio.sleep(0.02)
            await message.write(" after")


@pytest.fixture
def gate(agui_runtime: None) -> Iterator[Gate]:
    """The agent ``gate``."""
    made = Gate()
    with override_agent("gate", made):
        yield made
    made.opened.set()


@pytest.fixture
def held(gate: Gate, kit: Kit) -> Iterator[Callable[[], Response]]:
    """A run of ``gate`` that is under way in thread t1; gives its end."""
    found: list[Response] = []
    started = threading.Thread(target=lambda: found.append(kit.stream("run", said(), "gate")))
    started.start()
    assert gate.entered.wait(20)

    def end() -> Response:
        started.join(30)
        return found[0]

    yield end
    gate.opened.set()
    started.join(30)
