"""The layer is a hint: absent, down, emptied or full it costs time, never an event."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests import sse
from tests.parts import require
from tests.processes.parts import SHARED_REDIS, Follower, Frames, Redis, contiguous, site, started
from tests.servers import DatabaseKind

LONG = "tokens:400 delay_ms:10 size:24"


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_absent(database: DatabaseKind, tmp_path: Path) -> None:
    if database == "postgres":
        require("postgres")
    with site(2, tmp_path, database=database) as (a, b), sse.client(a.base_url) as http:
        with started(http, "echo", sse.body("t1", LONG)) as (path, frames):
            follower = Follower(b, path)
            seen: Frames = list(frames)
        assert contiguous(seen)
        assert follower.end() == seen
        with (
            sse.client(b.base_url) as other,
            started(http, "echo", sse.body("t1", "tokens:20000 delay_ms:10 size:24")) as (path, frames),
        ):
            next(frames)
            assert other.post(path.replace("/events", "/cancel")).json()["cancelling"] is True
            assert list(frames)[-1][1]["type"] == "RUN_FINISHED"
        assert [run["status"] for run in a.stored("t1")["runs"]] == ["finished", "cancelled"]


def test_down_and_up_again(tmp_path: Path) -> None:
    require("postgres", "redis")
    with (
        Redis(tmp_path) as redis,
        site(2, tmp_path, redis=redis.url) as (a, b),
        sse.client(a.base_url) as http,
        sse.client(b.base_url) as other,
    ):
        seen: Frames = []
        with started(http, "echo", sse.body("t1", "tokens:6000 delay_ms:10 size:24")) as (path, frames):
            follower = Follower(b, path)
            for found in frames:
                seen.append(found)
                if len(seen) == 100:
                    redis.kill()
                    # The one thing that a stop needs is the column.
                    late = sse.run(other, "echo", sse.body("t2", "tokens:3 delay_ms:0 size:4"))
                    assert late[-1][1]["type"] == "RUN_FINISHED"
                if len(seen) == 500:
                    redis.start()
                if len(seen) > 500 and len(seen) % 50 == 0 and quick(follower):
                    break
            else:
                raise AssertionError(f"the layer was not found again: {follower.chunks[-60:]}")
            assert other.post(path.replace("/events", "/cancel")).json()["cancelling"] is True
            seen += list(frames)
        assert contiguous(seen)
        followed = follower.end()
        # What its own client saw and what is stored differ in how a client from before 1.0 is told of a stop.
        assert followed[:-1] == seen[:-1]
        assert followed[-1][0] == seen[-1][0]
        for server in (a, b):
            assert 1 <= server.log.count("The channel layer fails") <= 3, server.log[-3000:]


def quick(follower: Follower) -> bool:
    """Whether the last chunks were commits of 50 ms rather than looks of a second."""
    last = [count for count in follower.chunks if count][-20:]
    return len(last) == 20 and max(last) < 40 and sum(last) / 20 < 15


def test_emptied(tmp_path: Path) -> None:
    require("postgres", "redis")
    with Redis(tmp_path) as redis, site(2, tmp_path, redis=redis.url) as (a, b), sse.client(a.base_url) as http:
        seen: Frames = []
        with started(http, "echo", sse.body("t1", LONG)) as (path, frames):
            follower = Follower(b, path)
            for found in frames:
                seen.append(found)
                if len(seen) % 40 == 0:
                    assert redis.command(b"FLUSHALL") == b"+OK\r\n"
        assert contiguous(seen)
        assert follower.end() == seen


def test_full(tmp_path: Path) -> None:
    """Twenty runs and forty followers behind a layer that drops nearly everything."""
    require("postgres", "redis")
    env = {"DJANGO_SETTINGS_MODULE": "tests.processes.crowded"}
    with (
        site(2, tmp_path, redis=SHARED_REDIS, env=env) as (a, b),
        sse.client(a.base_url) as http,
        contextlib.ExitStack() as stack,
    ):
        followers: list[tuple[Follower, Follower]] = []
        for number in range(20):
            path, frames = stack.enter_context(started(http, "echo", sse.body(f"t{number}", LONG)))
            next(frames)
            followers.append((Follower(a, path), Follower(b, path)))
        for here, there in followers:
            seen = here.end()
            assert contiguous(seen)
            assert there.end() == seen
