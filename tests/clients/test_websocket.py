"""Both official clients over a socket, by an AbstractAgent on the browser client that the app brings.

What they live through is what they live through over HTTP; and their connection is cut, at any moment.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.clients import test_stories
from tests.clients.conftest import HERE, PACKAGES, Story, script, user
from tests.cutting import CuttingProxy
from tests.parts import require
from tests.servers import Kind, ServerProcess

STORIES = [
    "text", "text_by_chunks", "reasoning", "tool_calls", "blocks", "frontend_tool_round_trip", "state_deltas",
    "activity", "interrupt_and_resume", "interrupts_survive_a_reload", "error", "cancel_and_watch", "hydration",
    "several_turns", "turns_from_two_devices",
]  # fmt: skip


@dataclass
class SocketStory(Story):
    """The same, over the WebSocket."""

    proxy: CuttingProxy | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, agent: str, *steps: dict[str, Any], **more: Any) -> dict[str, Any]:
        """Let a new client take the steps; through the proxy where there is one."""
        port = self.server.port if self.proxy is None else self.proxy.port
        socket = {"token": "demo-ada", "delay": 5, **self.options}
        if self.legacy:
            socket["protocolVersion"] = "0.x"
        return super().run(agent, *steps, url=f"ws://127.0.0.1:{port}/agui/ws/{agent}", websocket=socket, **more)


@pytest.fixture(params=["current", "legacy"])
def story(request: pytest.FixtureRequest, node: str, server: ServerProcess) -> SocketStory:
    """A new thread for one of the two official clients."""
    return SocketStory(node, PACKAGES[request.param], server)


@pytest.mark.parametrize("name", STORIES)
@pytest.mark.parametrize(("package", "kind"), [("current", "daphne"), ("legacy", "uvicorn")])
def test_story(name: str, package: str, kind: Kind, node: str, servers: Callable[[Kind], ServerProcess]) -> None:
    getattr(test_stories, f"test_{name}")(SocketStory(node, PACKAGES[package], servers(kind)))


def test_one_connection_is_enough(story: SocketStory) -> None:
    seen = story.run("echo", *({"add": [user(f"turn {number}")]} for number in range(3)))
    assert [step["error"] for step in seen["steps"]] == [None] * 3
    assert seen["sockets"] == 1
    assert seen["exchanges"] == []


def test_refusals_are_told(story: SocketStory) -> None:
    [step] = story.run("nobody", {"add": [user("hello")]})["steps"]
    assert [(event["type"], event["code"]) for event in step["events"]] == [("RUN_ERROR", "not_found")]
    story.options = {"token": "wrong"}
    [step] = story.run("echo", {"add": [user("hello")]})["steps"]
    assert [(event["type"], event["code"]) for event in step["events"]] == [("RUN_ERROR", "not_authenticated")]
    assert story.stored() == {}


# ---- cut in the middle ----------------------------------------------------------------------------------------------


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[CuttingProxy]:
    with CuttingProxy([server.port]) as running:
        yield running


@pytest.mark.parametrize("seed", range(2))
def test_cut_again_and_again(story: SocketStory, proxy: CuttingProxy, seed: int) -> None:
    story.proxy = proxy
    sizes = random.Random(seed)
    # Anything from the middle of the handshake to some events on (uvicorn compresses); in the end it is left alone.
    proxy.cuts = [sizes.choice([sizes.randint(1, 300), sizes.randint(300, 1200)]) for _ in range(8)]
    [step] = story.run("echo", {"add": [user("tokens:300 delay_ms:2 size:8")]})["steps"]
    assert step["error"] is None
    assert proxy.connections > 3
    stored = story.assert_client_equals_store(step)
    [run] = stored["runs"]
    log = run["events"]
    assert [event["type"] for event in step["events"]] == [event["type"] for event in log]
    texts = [[e["delta"] for e in events if e["type"] == "TEXT_MESSAGE_CONTENT"] for events in (step["events"], log)]
    assert texts[0] == texts[1]
    assert len(texts[0]) == 300


def test_cut_in_every_kind_of_item(story: SocketStory, proxy: CuttingProxy) -> None:
    story.proxy = proxy
    proxy.cuts = [900] * 12
    ask = script(
        {"type": "STATE_SNAPSHOT", "snapshot": {"items": []}},
        *({"type": "STATE_DELTA", "delta": [{"op": "add", "path": "/items/-", "value": n}]} for n in range(20)),
        {"type": "TOOL_CALL_START", "toolCallId": "c1", "toolCallName": "weather", "parentMessageId": "m1"},
        *({"type": "TOOL_CALL_ARGS", "toolCallId": "c1", "delta": f'"{n}" '} for n in range(20)),
        {"type": "TOOL_CALL_END", "toolCallId": "c1"},
        {"type": "TOOL_CALL_RESULT", "messageId": "r1", "toolCallId": "c1", "content": "sunny", "role": "tool"},
        {"type": "TEXT_MESSAGE_START", "messageId": "m2", "role": "assistant"},
        *({"type": "TEXT_MESSAGE_CONTENT", "messageId": "m2", "delta": f"{n} "} for n in range(20)),
        {"type": "TEXT_MESSAGE_END", "messageId": "m2"},
    )
    [step] = story.run("script", {"add": [ask]})["steps"]
    assert step["error"] is None
    assert proxy.connections > 3
    assert step["state"] == {"items": list(range(20))}
    assert [message["role"] for message in step["messages"]] == ["user", "assistant", "tool", "assistant"]
    story.assert_client_equals_store(step)


def test_cut_while_it_is_being_stopped(story: SocketStory, proxy: CuttingProxy) -> None:
    story.proxy = proxy
    proxy.cuts = [3000, 200, 600]
    stop = {"type": "TEXT_MESSAGE_CONTENT", "count": 3, "leave": False}
    [step] = story.run("echo", {"add": [user("tokens:2000 delay_ms:20 size:4")], "stopAt": stop})["steps"]
    assert step["error"] is None
    assert step["events"][-1]["type"] == "RUN_FINISHED"
    [run] = story.assert_client_equals_store(step)["runs"]
    assert (run["status"], run["endReason"]) == ("cancelled", "user")


def test_a_thread_is_followed_through_cuts(node: str, server: ServerProcess, proxy: CuttingProxy) -> None:
    story = SocketStory(node, PACKAGES["current"], server)
    story.run("echo", {"add": [user("before")]})
    spec = {"url": f"ws://127.0.0.1:{proxy.port}/agui/ws", "threadId": story.thread_id, "runs": 3}
    with subprocess.Popen(
        [node, "follow.mjs"], cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as watcher:
        assert watcher.stdin is not None and watcher.stdout is not None
        watcher.stdin.write(json.dumps(spec))
        watcher.stdin.close()
        present = [json.loads(watcher.stdout.readline()) for _ in range(4)]
        assert [event["type"] for event in present] == [
            "RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT", "RUN_FINISHED",
        ]  # fmt: skip
        proxy.cut_all([600, 250, 900, 1500, 300])
        asked = [user("tokens:60 delay_ms:5 size:8"), user("tokens:5 delay_ms:1"), user("hello")]
        story.run("echo", {}, *({"add": [message]} for message in asked))
        followed = [json.loads(line) for line in watcher.stdout]
    assert watcher.returncode == 0
    assert proxy.connections > 3
    # Every event of every run once: its log, run after run.
    assert followed == [event for run in story.stored()["runs"][1:] for event in run["events"]]


def test_the_server_restarts(node: str, tmp_path: Path) -> None:
    """SIGTERM: the run ends within the grace, and its client is told by the next process."""
    require("clients")
    env = {"AGUI_SETTINGS": '{"GRACE": 0.2}'}
    with ServerProcess("uvicorn", tmp_path=tmp_path, env=env) as first:
        second = ServerProcess("uvicorn", tmp_path=tmp_path, env=env, database_name=first.database_name)
        with second as other, CuttingProxy([first.port, other.port]) as proxy:
            story = SocketStory(node, PACKAGES["current"], first, proxy=proxy)
            proxy.on_first_bytes(2500, lambda: first.signal(signal.SIGTERM))
            [step] = story.run("echo", {"add": [user("tokens:3000 delay_ms:5 size:8")]})["steps"]
            assert step["error"] is None
            assert step["events"][-1]["type"] == "RUN_FINISHED"
            [run] = story.assert_client_equals_store(step)["runs"]
            assert (run["status"], run["endReason"]) == ("cancelled", "shutdown")


def test_the_run_of_another_process(node: str, tmp_path: Path) -> None:
    require("clients", "postgres")
    with ServerProcess("uvicorn", database="postgres", tmp_path=tmp_path) as first:
        second = ServerProcess("daphne", database="postgres", tmp_path=tmp_path, database_name=first.database_name)
        with second as other, CuttingProxy([first.port, other.port]) as proxy:
            proxy.cuts = [2500]
            story = SocketStory(node, PACKAGES["current"], first, proxy=proxy)
            [step] = story.run("echo", {"add": [user("tokens:300 delay_ms:10 size:8")]})["steps"]
            assert step["error"] is None
            assert proxy.ports == [first.port, other.port]
            stored = story.assert_client_equals_store(step)
            assert stored["runs"][0]["status"] == "finished"
