"""A thread is deleted while another process works on it: nothing is left, and nothing comes back."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests import sse
from tests.parts import require
from tests.servers import DatabaseKind, ServerProcess

LONG = "tokens:1000 delay_ms:20 size:8"
SLOW = "tokens:100 delay_ms:2000 size:8"
SHORT = "tokens:3 delay_ms:0 size:4"


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServerProcess]]:
    """Two processes of one site, without a channel layer: only the rows tell one of the other."""
    kind: DatabaseKind = request.param
    if kind == "postgres":
        require("postgres")
    options: dict[str, Any] = {
        "database": kind, "tmp_path": tmp_path_factory.mktemp("deleting"),
        "env": {"AGUI_SETTINGS": '{"CANCEL_GRACE": 0.5, "BUSY": "queue"}'},
    }  # fmt: skip
    with (
        ServerProcess("uvicorn", **options) as first,
        ServerProcess("uvicorn", database_name=first.database_name, **options) as second,
    ):
        yield [first, second]


def key_of(http: httpx.Client, thread_id: str) -> int:
    """A thread's key in the REST API."""
    (thread,) = http.get("/api/agui/threads", params={"threadId": thread_id}).json()["results"]
    found: int = thread["id"]
    return found


def test_from_another_process(pair: list[ServerProcess]) -> None:
    first, second = pair
    with sse.client(first.base_url) as here, sse.client(second.base_url) as there:
        with here.stream("POST", "/agui/agents/echo", json=sse.body("gone", LONG)) as response:
            frames = sse.frames(response)
            seen = [next(frames) for _ in range(10)]
            key = key_of(there, "gone")
            assert there.post("/api/agui/threads/0/branches", json={}).status_code in (404, 405)
            assert there.delete(f"/api/agui/threads/{key}").status_code == 204
            seen += list(frames)  # the stream of the other process ends, with what is stored no more
        assert len(seen) < 1_000
        assert first.stored("gone") == {}
        for client in (here, there):
            assert client.get("/agui/threads/events", params={"threadId": "gone"}).status_code == 404
            assert client.get(f"/api/agui/threads/{key}").status_code == 404
            assert client.delete(f"/api/agui/threads/{key}").status_code == 404
        # The id is free, in both.
        for client in (here, there):
            assert sse.run(client, "echo", sse.body("gone", SHORT))[-1][1]["type"] == "RUN_FINISHED"
    roles = [message["role"] for message in first.stored("gone")["messages"]]
    assert roles == ["user", "assistant"] * 2


def test_while_the_other_process_sleeps(pair: list[ServerProcess]) -> None:
    first, second = pair
    with (
        sse.client(first.base_url) as here,
        sse.client(second.base_url) as there,
        here.stream("POST", "/agui/agents/echo", json=sse.body("sleeps", SLOW)) as response,
    ):
        frames = sse.frames(response)
        while next(frames)[1]["type"] != "TEXT_MESSAGE_CONTENT":
            pass
        key = key_of(there, "sleeps")
        time.sleep(0.3)  # between two of its tokens nothing is being written
        first.signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            assert there.delete(f"/api/agui/threads/{key}").status_code == 204
            assert 4 < time.monotonic() - began < 30  # CANCEL_GRACE and some seconds
            assert second.stored("sleeps") == {}
            # It is used again before the other one wakes.
            assert sse.run(there, "echo", sse.body("sleeps", SHORT))[-1][1]["type"] == "RUN_FINISHED"
        finally:
            first.signal(signal.SIGCONT)
        assert not any(event["type"] == "RUN_FINISHED" for _, event in frames)  # cut: nobody can tell how it ended
    stored = second.stored("sleeps")
    assert [message["role"] for message in stored["messages"]] == ["user", "assistant"]
    assert [run["status"] for run in stored["runs"]] == ["finished"]


def test_what_waits_in_the_other_process(pair: list[ServerProcess]) -> None:
    first, second = pair
    with (
        sse.client(first.base_url) as here,
        sse.client(second.base_url) as there,
        here.stream("POST", "/agui/agents/echo", json=sse.body("queue", LONG)) as active,
    ):
        frames = sse.frames(active)
        next(frames)
        with here.stream("POST", "/agui/agents/echo", json=sse.body("queue", LONG)) as waiting:
            assert waiting.status_code == 200
            key = key_of(there, "queue")
            assert there.delete(f"/api/agui/threads/{key}").status_code == 204
            told = [event["type"] for _, event in sse.frames(waiting)]
        assert "TEXT_MESSAGE_CONTENT" not in told
        list(frames)
    assert second.stored("queue") == {}
