"""Servers that die, and servers that sleep past their lease: real processes, real kill."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import sse
from tests.parts import require
from tests.servers import DatabaseKind, ServerProcess

LONG = "tokens:400 delay_ms:10 size:24"
SHORT_LEASE = {"AGUI_SETTINGS": '{"LEASE": 2}'}
DATABASES = ["sqlite", "postgres"]


def wait_for(condition: Callable[[], Any], seconds: float = 20) -> Any:
    """Poll another process's database until the condition gives something true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError("it did not become true")


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest) -> DatabaseKind:
    kind: DatabaseKind = request.param
    if kind == "postgres":
        require("postgres")
    return kind


def test_kill_in_the_middle_of_a_message(database: DatabaseKind, tmp_path: Path) -> None:
    with ServerProcess("uvicorn", database=database, tmp_path=tmp_path) as server:
        seen = []
        with (
            contextlib.suppress(httpx.TransportError),
            sse.client(server.base_url) as http,
            http.stream("POST", "/agui/agents/echo", json=sse.body("t1", LONG)) as response,
        ):
            for frame in sse.frames(response):
                seen.append(frame)
                if len(seen) == 40:
                    server.kill()
        assert 40 <= len(seen) < 300
        # everything any client saw is stored, with the numbers it saw
        (run,) = server.stored("t1")["runs"]
        assert run["status"] == "running"
        for seq, event in seen:
            assert run["events"][seq - 1] == event
        server.start()
        with sse.client(server.base_url) as http:
            after = sse.run(http, "echo", sse.body("t1", "tokens:3 delay_ms:0 size:4"))
        assert after[-1][1]["type"] == "RUN_FINISHED"
        stored = server.stored("t1")
        dead, alive = stored["runs"]
        assert (dead["status"], dead["errorCode"], alive["status"]) == ("failed", "abandoned", "finished")
        # the log is closed in order: the message, then one terminal event
        assert [event["type"] for event in dead["events"][-2:]] == ["TEXT_MESSAGE_END", "RUN_ERROR"]
        said = "".join(e["delta"] for e in dead["events"] if e["type"] == "TEXT_MESSAGE_CONTENT")
        message_id = next(e["messageId"] for e in dead["events"] if e["type"] == "TEXT_MESSAGE_START")
        assert next(m for m in stored["messages"] if m["id"] == message_id)["content"] == said
        shown = "".join(e["delta"] for _, e in seen if e["type"] == "TEXT_MESSAGE_CONTENT")
        assert said.startswith(shown)


def test_a_process_paused_past_its_lease_writes_nothing(database: DatabaseKind, tmp_path: Path) -> None:
    options: dict[str, Any] = {"database": database, "tmp_path": tmp_path, "env": SHORT_LEASE}
    with (
        ServerProcess("uvicorn", **options) as first,
        ServerProcess("uvicorn", database_name=first.database_name, **options) as second,
        sse.client(first.base_url) as http,
        sse.client(second.base_url) as other,
    ):
        with http.stream("POST", "/agui/agents/echo", json=sse.body("t1", LONG)) as response:
            stream = sse.frames(response)
            for _ in range(10):
                next(stream)
            first.signal(signal.SIGSTOP)
            try:
                wait_for(lambda: taken_over(other))
                before = second.stored("t1")["runs"][0]
            finally:
                first.signal(signal.SIGCONT)
            # the woken process ends its stream without inventing an end of its own
            rest = list(stream)
        assert (before["status"], before["errorCode"]) == ("failed", "abandoned")
        # a run of the woken process shows that its writer is at work again
        again = sse.run(http, "echo", sse.body("t2", "tokens:3 delay_ms:0 size:4"))
        assert again[-1][1]["type"] == "RUN_FINISHED"
        after = second.stored("t1")
    assert after["runs"][0] == before
    assert [run["status"] for run in after["runs"]] == ["failed", "finished"]
    for seq, event in rest:
        assert before["events"][seq - 1] == event


def taken_over(http: httpx.Client) -> bool:
    """Whether the other process let a new run in; until the lease is over it answers 409."""
    members = sse.body("t1", "tokens:3 delay_ms:0 size:4")
    with http.stream("POST", "/agui/agents/echo", json=members) as response:
        if response.status_code == 409:
            return False
        assert response.status_code == 200, response.read()
        return [event["type"] for _, event in sse.frames(response)][-1] == "RUN_FINISHED"
