"""Edits of the state that one process accepts while another executes the run: seen there, told, and never lost.

The editing process is a third one, without a server, as a command or a worker is.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from agui_django.protocol.reducer import Reducer
from agui_django.runs.edits import marked
from tests import sse
from tests.parts import require
from tests.processes.parts import Redis, site, started
from tests.servers import DatabaseKind, ServerProcess
from tests.workers import Worker, in_site
from tests.workers import site as queue_site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

DATABASES: list[DatabaseKind] = ["sqlite", "postgres"]

EDIT = """
import asyncio, json, os, time
from agui_django.models import Run, StateVersion, Thread
from agui_django.runs import database, supervisor
from agui_django.runs.editing import aedit_state

thread = Thread.objects.get(thread_id={thread_id!r})

async def main():
    made = []
    for merge in {merges!r}:
        made.append((await aedit_state(thread, merge=merge)).version)
        time.sleep({pause!r})
    if {kill!r}:
        os.kill({kill!r}, 9)
    await asyncio.sleep(0.2)  # the layer is told
    await supervisor.settle() if not {layer!r} else None
    await database.shutdown()
    print(json.dumps(made))

asyncio.run(main())
"""


def edit(
    server: ServerProcess, thread_id: str, *merges: Any, pause: float = 0.0, kill: int = 0, layer: bool = False
) -> list[int]:
    """Edit in a process of its own; gives the versions it made."""
    code = EDIT.format(thread_id=thread_id, merges=list(merges), pause=pause, kill=kill, layer=layer)
    made: list[int] = json.loads(in_site(server, code))
    return made


def script(count: int, pause: float) -> str:
    """An agent that edits the state now and then."""
    steps: list[Any] = [{"type": "STATE_SNAPSHOT", "snapshot": {"list": [], "by": "agent"}}]
    for number in range(count):
        ops = [{"op": "add", "path": f"/own{number}", "value": number}]
        steps += [{"type": "STATE_DELTA", "delta": ops}, {"$sleep": pause}]
    return json.dumps(steps)


def stopped(http: httpx.Client, address: str, frames: Iterator[Any], edits: int) -> list[dict[str, Any]]:
    """The run's events; it is stopped when it has taken in so many edits."""
    events: list[dict[str, Any]] = []
    for _, event in frames:
        events.append(event)
        if marked(event):
            edits -= 1
            if not edits:
                assert http.post(address.replace("/events", "/cancel")).status_code == 200
    return events


def told(events: list[dict[str, Any]]) -> Any:
    """The state that a client of these events holds."""
    reducer = Reducer([], {})
    for event in events:
        reducer.apply(event)
    return reducer.state


@pytest.mark.parametrize("database", DATABASES)
def test_edits_of_another_process_race_with_the_agents_own(database: DatabaseKind, tmp_path: Path) -> None:
    require(*(["postgres"] if database == "postgres" else []))
    thread_id = uuid.uuid4().hex
    with (
        site(2, tmp_path, database=database) as (first, second),
        sse.client(first.base_url) as http,
        sse.client(second.base_url) as other,
        started(http, "script", sse.body(thread_id, script(2000, 0.05))) as (address, frames),
    ):
        joined: list[dict[str, Any]] = []

        def follow() -> None:
            with other.stream("GET", f"/agui/threads/events?threadId={thread_id}&until=idle") as response:
                pending = "".join(response.iter_text())
            joined.extend(json.loads(line[6:]) for line in pending.split("\n") if line.startswith("data: "))

        watcher = threading.Thread(target=follow, daemon=True)
        with ThreadPoolExecutor(2) as pool:
            merges = [[{f"{name}{number}": number, "by": name} for number in range(8)] for name in ("x", "y")]
            editors = [pool.submit(edit, first, thread_id, *each, pause=0.15) for each in merges]
            watcher.start()
            events = stopped(other, address, frames, 16)
            made = [version for editor in editors for version in editor.result()]
        watcher.join(30)
        assert sorted(made) == sorted(filter(None, map(marked, events)))
        state = second.stored(thread_id)["state"]
        assert {f"{name}{number}" for name in "xy" for number in range(8)} <= state.keys()
        own = sum(event["type"] == "STATE_DELTA" and not marked(event) for event in events)
        assert {f"own{number}" for number in range(own)} <= state.keys()
        assert state["by"] in ("x", "y")
        assert told(events) == told(joined) == state


@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize("wait", [0.0, 2.0])
def test_a_run_that_is_killed_behind_an_edit_does_not_lose_it(
    database: DatabaseKind, wait: float, tmp_path: Path
) -> None:
    """``wait``: dead at once, before it could see the edit; or when the edit is in its log."""
    require(*(["postgres"] if database == "postgres" else []))
    thread_id = uuid.uuid4().hex
    with site(2, tmp_path, database=database) as (first, second):
        with (
            sse.client(first.base_url) as http,
            started(http, "script", sse.body(thread_id, script(1000, 0.05))) as (_, frames),
        ):
            for _ in range(5):
                next(frames)
            edit(second, thread_id, {"by": "staff", "note": ["kept"]}, pause=wait, kill=first.pid)
        second.manage("agui_reap")
        found = second.stored(thread_id)
        assert found["runs"][0]["status"] == "failed"
        assert found["runs"][0]["errorCode"] == "abandoned"
        assert found["state"]["by"] == "staff"
        assert found["state"]["note"] == ["kept"]
        assert "own2" in found["state"], "what the agent had stored is there, too"
        # And an edit of the thread at rest goes on from there.
        edit(second, thread_id, {"note": ["kept", "again"]})
        assert second.stored(thread_id)["state"]["note"] == ["kept", "again"]


def test_a_page_of_another_process_is_told_of_an_edit_at_rest(tmp_path: Path) -> None:
    """With a channel layer at once, and without one when it looks."""
    require("redis", "postgres")
    with Redis(tmp_path) as redis:
        for address in ("", redis.url):
            thread_id = uuid.uuid4().hex
            with site(1, tmp_path, redis=address) as (server,), sse.client(server.base_url) as http:
                sse.run(http, "echo", sse.body(thread_id, "hello"))
                with http.stream("GET", f"/agui/threads/events?threadId={thread_id}") as response:
                    lines = response.iter_lines()
                    events = (json.loads(line[6:]) for line in lines if line.startswith("data: "))
                    assert [next(events)["type"] for _ in range(4)][-1] == "RUN_FINISHED"
                    assert edit(server, thread_id, {"a": 1}, layer=bool(address)) == [1]
                    news = [next(events) for _ in range(3)]
                assert [event["type"] for event in news] == ["RUN_STARTED", "STATE_SNAPSHOT", "RUN_FINISHED"]
                assert news[1]["snapshot"] == {"a": 1}


def test_a_worker_takes_edits_in(tmp_path: Path) -> None:
    require("postgres", "redis")
    thread_id = uuid.uuid4().hex
    with (
        queue_site("Procrastinate", tmp_path) as server,
        Worker("Procrastinate", server.env, tmp_path),
        sse.client(server.base_url, timeout=120) as http,
        started(http, "script", sse.body(thread_id, script(2000, 0.05))) as (address, frames),
    ):
        for _ in range(3):
            next(frames)
        edit(server, thread_id, {"by": "staff"})
        events = stopped(http, address, frames, 1)
        taken = [event["delta"] for event in events if marked(event)]
        assert taken == [[{"op": "replace", "path": "/by", "value": "staff"}]]
        assert server.stored(thread_id)["state"]["by"] == "staff"
