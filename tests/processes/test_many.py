"""One site, many processes, PostgreSQL and Redis: a run belongs to none of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import sse
from tests.parts import require
from tests.processes.parts import SHARED_REDIS, Follower, Frames, contiguous, site, started
from tests.servers import ServerProcess

LONG = "tokens:400 delay_ms:10 size:24"
SHORT = "tokens:5 delay_ms:0 size:8"


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServerProcess]]:
    require("postgres", "redis")
    with site(4, tmp_path_factory.mktemp("four"), redis=SHARED_REDIS) as servers:
        yield servers


def test_started_in_one_followed_in_another(four: list[ServerProcess]) -> None:
    a, b, *_ = four
    with sse.client(a.base_url) as http, started(http, "echo", sse.body("follow", LONG)) as (path, frames):
        follower = Follower(b, path)
        seen: Frames = list(frames)
    assert contiguous(seen)
    assert len(seen) == 404
    assert follower.end() == seen
    # Four seconds: a look a second would have brought four chunks, commits are twenty a second.
    assert len([count for count in follower.chunks if count]) > 20


def test_joined_at_any_point_in_any_process(four: list[ServerProcess]) -> None:
    a, *others = four
    with sse.client(a.base_url) as http, started(http, "echo", sse.body("points", LONG)) as (path, frames):
        seen, followers = [], []
        for found in frames:
            seen.append(found)
            if len(seen) in (50, 150, 250):
                followers.append((len(seen) - 7, Follower(others[len(followers)], path, len(seen) - 7)))
    for after, follower in followers:
        assert follower.end() == seen[after:]


def test_stopped_in_a_third(four: list[ServerProcess]) -> None:
    a, b, c, _ = four
    endless = "tokens:20000 delay_ms:10 size:24"
    with (
        sse.client(a.base_url) as http,
        sse.client(c.base_url) as stopping,
        started(http, "echo", sse.body("stop", endless)) as (path, frames),
    ):
        follower = Follower(b, path)
        seen = [next(frames) for _ in range(20)]
        answer = stopping.post(path.replace("/events", "/cancel"))
        assert answer.json()["cancelling"] is True
        seen += list(frames)
        again = stopping.post(path.replace("/events", "/cancel"))
    assert again.json()["cancelling"] is False
    assert contiguous(seen)
    assert follower.end()[-1][0] == seen[-1][0]
    (run,) = a.stored("stop")["runs"]
    assert (run["status"], run["endReason"]) == ("cancelled", "user")
    assert run["events"][-1]["outcome"] == {"type": "cancelled"}


def test_answered_in_a_fourth(four: list[ServerProcess]) -> None:
    a, _, _, d = four
    with sse.client(a.base_url) as http, sse.client(d.base_url) as other:
        asked = sse.run(http, "refund", sse.body("answer", "my order, please"))
        (interrupt,) = asked[-1][1]["outcome"]["interrupts"]
        resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True, "amount": 12}}]
        resumed = sse.run(other, "refund", sse.body("answer", "", messages=[], resume=resume))
    assert resumed[-1][1]["type"] == "RUN_FINISHED"
    assert "".join(event.get("delta", "") for _, event in resumed).startswith("Refunded 12")
    stored = d.stored("answer")
    assert [run["status"] for run in stored["runs"]] == ["interrupted", "finished"]
    assert [row["status"] for row in stored["interrupts"]] == ["resolved"]


def test_a_feed_sees_runs_that_another_process_starts(four: list[ServerProcess]) -> None:
    a, b, *_ = four
    with sse.client(a.base_url) as http, sse.client(b.base_url) as other:
        sse.run(http, "echo", sse.body("feed", "first"))
        idle = threading.Event()
        said: list[str] = []
        types: list[str] = []

        def watch() -> None:
            with other.stream("GET", "/agui/threads/events", params={"threadId": "feed"}) as response:
                for event in events(response):
                    types.append(event["type"])
                    said.append(event.get("delta", ""))
                    if event["type"] == "RUN_FINISHED":
                        idle.set()
                        if types.count("RUN_FINISHED") == 3:
                            return

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        assert idle.wait(20)
        for text in ("second", "third"):
            sse.run(http, "echo", sse.body("feed", text))
        watching.join(20)
        assert not watching.is_alive()
    assert types[:4] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT", "RUN_FINISHED"]
    assert "".join(said) == "You said: secondYou said: third"


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The events of a feed; its cursors are not looked at."""
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line[6:])


def test_gunicorn_with_two_workers(tmp_path: Path) -> None:
    require("postgres", "redis")
    with (
        site(1, tmp_path, redis=SHARED_REDIS, kind="gunicorn", workers=2) as (server,),
        sse.client(server.base_url) as http,
        started(http, "echo", sse.body("workers", LONG)) as (path, frames),
    ):
        first = [next(frames) for _ in range(5)]
        # As many connections as it takes for both workers to have some.
        followers = [Follower(server, path) for _ in range(12)]
        seen = first + list(frames)
        assert contiguous(seen)
        for follower in followers:
            assert follower.end() == seen
        with started(http, "echo", sse.body("workers", "tokens:20000 delay_ms:10 size:8")) as (path, frames):
            next(frames)
            # A new connection each: whichever worker has it, the run stops.
            answers = [httpx.post(f"{server.base_url}{path.replace('/events', '/cancel')}", headers=http.headers)]
            answers += [httpx.post(answer.url, headers=http.headers) for answer in answers * 3]
            assert list(frames)[-1][1]["type"] == "RUN_FINISHED"
        assert {answer.status_code for answer in answers} == {200}
        stored = server.stored("workers")
    assert [run["status"] for run in stored["runs"]] == ["finished", "cancelled"]
