"""The remote agent against servers of others: the official encoders in Python and Node, pydantic-ai's endpoint."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, ClassVar

import pytest
from ag_ui.core import (
    EventType,
    Interrupt,
    ReasoningMessageChunkEvent,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunStartedEvent,
    StateSnapshotEvent,
    TextMessageChunkEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallStartEvent,
)
from ag_ui.encoder import EventEncoder
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from pydantic_ai import Agent, DeferredToolRequests, ToolReturn
from pydantic_ai import RunContext as ToolContext
from pydantic_ai.ui import StateDeps
from pydantic_ai.ui.ag_ui import AGUIAdapter
from starlette.responses import Response

from agui_django.agents.remote import RemoteAgent
from agui_django.testing.pydantic_ai import ScriptedModel
from tests.frameworks.stories import Stories, Story
from tests.live import LiveServer, live_server
from tests.parts import ROOT, require
from tests.running import checked, run

app = FastAPI()
#: Which of the servers' clients left before the end.
left = {"fastapi": threading.Event(), "node": threading.Event()}


# ---- the official encoders -------------------------------------------------------------------------------------------


@app.post("/official")
async def official(given: RunAgentInput, request: Request) -> StreamingResponse:
    """As the protocol's own quick start writes it; the twin of tests/clients/remote_server.mjs."""
    encoder = EventEncoder(accept=request.headers.get("accept"))

    async def encoded() -> AsyncIterator[str]:
        try:
            async for event in told(given, request.headers.get("authorization")):
                yield encoder.encode(event)
        except asyncio.CancelledError:
            left["fastapi"].set()
            raise

    return StreamingResponse(encoded(), media_type=encoder.get_content_type())


async def told(given: RunAgentInput, by: str | None) -> AsyncIterator[Any]:
    ids = {"thread_id": given.thread_id, "run_id": given.run_id}
    yield RunStartedEvent(type=EventType.RUN_STARTED, **ids)
    last: Any = given.messages[-1]
    outcome, result = None, None
    if given.resume:
        for event in saying(given, f"{given.resume[0].status}: {given.resume[0].payload}"):
            yield event
    elif last.role == "tool":
        for event in saying(given, f"painted {last.content}"):
            yield event
    elif last.content == "ask":
        question = Interrupt(id="q1", reason="input_required", message="Sure?")
        outcome = RunFinishedInterruptOutcome(type="interrupt", interrupts=[question])
    elif last.content == "paint":
        call = {"tool_call_id": f"{given.run_id}-c"}
        yield ToolCallStartEvent(tool_call_name=given.tools[0].name, **call)
        yield ToolCallArgsEvent(delta='{"of"', **call)
        yield ToolCallArgsEvent(delta=":2}", **call)
        yield ToolCallEndEvent(**call)
    elif last.content == "fail":
        yield RunErrorEvent(message="secret", code="its_own")
        return
    elif last.content == "wait":
        yield TextMessageChunkEvent(message_id=f"{given.run_id}-m", delta="one ")
        await asyncio.sleep(3600)
    else:
        yield StateSnapshotEvent(snapshot={**given.state, "seen": True})
        for delta in ("Hm", "."):
            yield ReasoningMessageChunkEvent(message_id=f"{given.run_id}-r", delta=delta)
        for event in saying(given, "Grüße 👋: ", last.content):
            yield event
        result = {"messages": len(given.messages), "props": given.forwarded_props, "by": by}
    yield RunFinishedEvent(type=EventType.RUN_FINISHED, outcome=outcome, result=result, **ids)


def saying(given: RunAgentInput, *deltas: str) -> Iterator[Any]:
    message = {"message_id": f"{given.run_id}-m"}
    yield TextMessageStartEvent(type=EventType.TEXT_MESSAGE_START, role="assistant", **message)
    for delta in deltas:
        yield TextMessageContentEvent(type=EventType.TEXT_MESSAGE_CONTENT, delta=delta, **message)
    yield TextMessageEndEvent(type=EventType.TEXT_MESSAGE_END, **message)


@pytest.fixture(scope="module")
def fastapi() -> Iterator[str]:
    """The server of this module."""
    with live_server(app) as running:
        yield running.url


@pytest.fixture(scope="module")
def node() -> Iterator[str]:
    """The same in Node."""
    require("clients")
    path = shutil.which("node")
    assert path is not None
    with subprocess.Popen(
        [path, "remote_server.mjs"], cwd=ROOT / "tests" / "clients", stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        reader = threading.Thread(target=lambda out: [left["node"].set() for _ in out], args=[process.stdout])
        reader.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            reader.join(10)


@pytest.mark.asyncio
@pytest.mark.parametrize("peer", ["fastapi", "node"])
async def test_an_official_encoder(peer: str, request: pytest.FixtureRequest):
    async def token(run: Any) -> dict[str, str]:
        return {"Authorization": f"Bearer {run.user}"}

    url = request.getfixturevalue(peer)
    remote = RemoteAgent(
        lambda run: f"{url}/official",
        hosts=["127.0.0.1"],
        headers=token,
        forward=["state", "tools", "forwardedProps"],
        forwarded_props=lambda run: {"tenant": run.extra["tenant"]},
    )
    about: dict[str, Any] = {"user": "ada", "extra": {"tenant": "acme"}, "tools": ["pick"]}
    first = await run(remote, "hello", state={"a": [1]}, forwarded_props={"tenant": "forged", "theme": "dark"}, **about)
    assert [(each["role"], each["content"]) for each in first.wire_messages] == [
        ("user", "hello"), ("reasoning", "Hm."), ("assistant", "Grüße 👋: hello"),
    ]  # fmt: skip
    assert first.state == {"a": [1], "seen": True}
    assert first.result == {"messages": 1, "props": {"tenant": "acme", "theme": "dark"}, "by": "Bearer ada"}
    asked = checked(await first.say("ask"))
    assert list(asked.interrupts) == ["q1"]
    answer = {"fastapi": "resolved: {'ok': True}", "node": 'resolved: {"ok":true}'}
    assert checked(await asked.resume({"q1": {"ok": True}})).said == [answer[peer]]
    painting = checked(await first.say("paint"))
    assert list(painting.pending.values()) == ["pick"]
    assert painting.wire_messages[-1]["toolCalls"][0]["function"]["arguments"] == '{"of":2}'
    assert checked(await painting.answer_frontend({"pick": "red"})).said == ["painted red"]
    failed = checked(await first.say("fail"))
    assert failed.error["code"] == "its_own" and "secret" not in str(failed.wire)
    stopped = checked(await first.say("wait", cancel_after=0.5))
    assert (stopped.outcome, stopped.said) == ("cancelled", ["one "])
    assert await asyncio.to_thread(left[peer].wait, 30)
    await remote.aclose()


# ---- pydantic-ai -----------------------------------------------------------------------------------------------------


class State(BaseModel):
    count: int = 0
    kept: Any = None
    items: list[str] = []


async def count(ctx: ToolContext[StateDeps[State]]) -> Any:
    """Count."""
    ctx.deps.state.count += 1
    ctx.deps.state.items = ["a"]
    return ToolReturn("counted", metadata=[StateSnapshotEvent(snapshot=ctx.deps.state.model_dump())])


class PydanticAI:
    """pydantic-ai's endpoint, an address for each story."""

    name = "remote-pydantic-ai"
    url: ClassVar[str]
    agents: ClassVar[dict[str, Agent[Any, Any]]] = {}
    made: ClassVar[list[RemoteAgent]] = []

    def agent(self, story: Story) -> RemoteAgent:
        agent = Agent(ScriptedModel(story.script), deps_type=StateDeps[State], output_type=[str, DeferredToolRequests])
        for name in story.tools:
            if name == "count":
                agent.tool(count)
            else:
                agent.tool_plain(requires_approval=name == "refund")(getattr(story, name))
        key = f"s{id(story)}"
        self.agents[key] = agent
        self.made.append(RemoteAgent(f"{self.url}/pydantic-ai/{key}", hosts=["127.0.0.1"]))
        return self.made[-1]


@app.post("/pydantic-ai/{key}")
async def pydantic_ai(request: Request, key: str) -> Response:
    """As its documentation has it."""
    deps = StateDeps(State())
    return await AGUIAdapter.dispatch_request(request, agent=PydanticAI.agents[key], deps=deps, include_usage=True)


@pytest.fixture
def closing(server: LiveServer, fastapi: str) -> Iterator[None]:
    """Connections belong to the loop of our server."""
    PydanticAI.url = fastapi
    yield
    for remote in PydanticAI.made:
        asyncio.run_coroutine_threadsafe(remote.aclose(), server.loop).result(10)
    PydanticAI.made.clear()


@pytest.mark.usefixtures("closing")
class TestPydanticAI(Stories):
    framework = PydanticAI()
    denied = "Too much."
    stopped = ""
