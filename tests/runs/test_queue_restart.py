"""Queued runs and the death of servers: they are in the database, and whoever comes next goes on with them."""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests import sse
from tests.parts import require
from tests.servers import DatabaseKind, ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ENV = {"AGUI_SETTINGS": json.dumps({"BUSY": "queue", "LEASE": 3, "GRACE": 1, "CANCEL_GRACE": 1})}
LONG = "tokens:100000 delay_ms:20 size:8"


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> DatabaseKind:
    if request.param == "postgres":
        require("postgres")
    kind: DatabaseKind = request.param
    return kind


def post(server: ServerProcess, body: dict[str, Any], seen: list[str]) -> threading.Thread:
    """A client in a thread; what it saw, the name of an error at the end."""

    def read() -> None:
        try:
            with (
                sse.client(server.base_url) as http,
                http.stream("POST", "/agui/agents/echo", json=body) as response,
            ):
                seen.append(str(response.status_code))
                for _, event in sse.frames(response):
                    seen.append(event["type"])
        except Exception as error:
            seen.append(type(error).__name__)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def until(condition: Any, seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)


def statuses(server: ServerProcess, thread_id: str = "t") -> list[str]:
    return [run["status"] for run in server.stored(thread_id).get("runs", [])]


def test_a_restart_with_queued_runs(database: DatabaseKind, tmp_path: Path) -> None:
    with ServerProcess(database=database, tmp_path=tmp_path, env=ENV) as server:
        seen: list[list[str]] = [[], [], []]
        bodies = [sse.body("t", text) for text in (LONG, "two", "three")]
        for number, body in enumerate(bodies):
            post(server, body, seen[number])
            until(lambda number=number: seen[number])  # type: ignore[misc]
        until(lambda: "TEXT_MESSAGE_CONTENT" in seen[0])
        assert sorted(statuses(server)) == ["queued", "queued", "running"]
        server.kill()
        server.start()
        # nobody asks for anything but its health: the dead run is ended, the queue goes on in order
        until(lambda: statuses(server) == ["failed", "finished", "finished"])
        thread = server.stored("t")
        assert [message["content"] for message in thread["messages"] if message["role"] == "user"] == [
            LONG, "two", "three",
        ]  # fmt: skip
        assert thread["runs"][0]["errorCode"] == "abandoned"
        # a client that comes back with the same request is shown the run that it asked for
        with sse.client(server.base_url) as http:
            again = sse.run(http, "echo", bodies[2])
        assert [event for _, event in again] == thread["runs"][2]["events"]


def test_a_shutdown_with_queued_runs(database: DatabaseKind, tmp_path: Path) -> None:
    with ServerProcess(database=database, tmp_path=tmp_path, env=ENV) as server:
        first: list[str] = []
        second: list[str] = []
        post(server, sse.body("t", LONG), first)
        until(lambda: "TEXT_MESSAGE_CONTENT" in first)
        body = sse.body("t", "two")
        reader = post(server, body, second)
        until(lambda: second)
        server.signal(signal.SIGTERM)
        reader.join(30)
        # its stream is cut, its run is not lost
        assert "RUN_STARTED" not in second
        server.wait(30)
        server.kill()
        assert sorted(statuses(server)) == ["cancelled", "queued"]
        server.start()
        until(lambda: statuses(server) == ["cancelled", "finished"])


def test_another_process_starts_what_waits(tmp_path: Path) -> None:
    """The process that held the thread dies; one that lives finds its run and starts the next."""
    require("postgres")
    with (
        ServerProcess(database="postgres", tmp_path=tmp_path, env=ENV) as one,
        ServerProcess(database="postgres", tmp_path=tmp_path, env=ENV, database_name=one.database_name) as two,
    ):
        first: list[str] = []
        second: list[str] = []
        post(one, sse.body("t", LONG), first)
        until(lambda: "TEXT_MESSAGE_CONTENT" in first)
        reader = post(two, sse.body("t", "two"), second)
        until(lambda: second)
        assert statuses(one) == ["running", "queued"]
        one.kill()
        reader.join(30)
        assert second[0] == "200"
        assert (second[1], second[-1]) == ("RUN_STARTED", "RUN_FINISHED")
        assert statuses(two) == ["failed", "finished"]


def test_two_processes_race_for_one_queue(tmp_path: Path) -> None:
    """Both follow the queued runs, both hear that the thread is free: each run is executed once, in order."""
    require("postgres")
    with (
        ServerProcess(database="postgres", tmp_path=tmp_path, env=ENV) as one,
        ServerProcess(database="postgres", tmp_path=tmp_path, env=ENV, database_name=one.database_name) as two,
    ):
        seen: list[list[str]] = []
        readers = []
        for number in range(8):
            seen.append([])
            server = (one, two)[number % 2]
            readers.append(post(server, sse.body("t", f"tokens:5 delay_ms:20 size:8 number {number}"), seen[-1]))
            until(lambda: seen[-1])
        for reader in readers:
            reader.join(60)
        stored = one.stored("t")["runs"]
        assert [run["status"] for run in stored] == ["finished"] * 8
        for run, saw in zip(stored, seen, strict=True):
            types = [event["type"] for event in run["events"]]
            assert types == saw[1:]
            assert (types.count("RUN_STARTED"), types.count("RUN_FINISHED")) == (1, 1)
