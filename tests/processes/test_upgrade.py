"""An upgrade: processes of an earlier state of this code and of this one, side by side on one PostgreSQL and Redis."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import sse
from tests.databases import ROOT, create_postgres, drop_postgres, manage, site_environment
from tests.parts import require
from tests.processes.earlier import earlier_code
from tests.processes.parts import SHARED_REDIS, Follower, Frames, contiguous, started, wait_for
from tests.servers import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LONG = "tokens:300 delay_ms:10 size:24"
ENDLESS = "tokens:100000 delay_ms:10 size:8"

Pair = tuple[ServerProcess, ServerProcess]


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require("postgres", "redis")
    return earlier_code(tmp_path_factory.mktemp("code"))


@contextlib.contextmanager
def site(code: Path, folder: Path) -> Iterator[Pair]:
    """The site as it was, then the new code's migrations while it runs, then a new process beside the old one."""
    name = f"agui_test_{os.getpid()}_{uuid.uuid4().hex[:8]}"
    env = {"AGUI_REDIS": SHARED_REDIS, "AGUI_REDIS_PREFIX": uuid.uuid4().hex, "AGUI_SETTINGS": '{"GRACE": 30}'}
    create_postgres(name)
    try:
        for command in ("migrate", "agui_demo_data"):
            before = site_environment("postgres", name, {"PYTHONPATH": str(code)})
            subprocess.run(
                [sys.executable, "manage.py", command], cwd=code, env=before, capture_output=True, check=True
            )
        # Under Daphne a server that drains still answers.
        options: dict[str, Any] = {"database": "postgres", "tmp_path": folder, "env": env, "database_name": name}
        with ServerProcess("daphne", root=code, **options) as old:
            manage("migrate", "--verbosity=0", env=site_environment("postgres", name))
            with ServerProcess("daphne", **options) as new:
                yield old, new
    finally:
        drop_postgres(name)


@pytest.fixture(scope="module")
def pair(code: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with site(code, tmp_path_factory.mktemp("pair")) as servers:
        yield servers


@pytest.fixture(params=["started in the old one", "started in the new one"])
def ordered(request: pytest.FixtureRequest, pair: Pair) -> Pair:
    """Where it is started, and the other one."""
    old, new = pair
    return (old, new) if "old" in request.param else (new, old)


@pytest.fixture
def thread() -> str:
    return uuid.uuid4().hex


def test_it_is_another_code(code: Path, pair: Pair) -> None:
    old, _ = pair
    assert code.resolve() != ROOT.resolve()
    assert Path(f"/proc/{old.pid}/cwd").resolve() == code.resolve()


def test_followed_in_the_other(ordered: Pair, thread: str) -> None:
    one, other = ordered
    with sse.client(one.base_url) as http, started(http, "echo", sse.body(thread, LONG)) as (path, frames):
        first = next(frames)
        live, late = Follower(other, path), Follower(other, path, after=100)
        seen: Frames = [first, *frames]
    assert contiguous(seen)
    assert live.end() == seen
    assert late.end() == seen[100:]
    assert Follower(other, path).end() == seen, "what is over is read by the other, too"


def test_stopped_from_the_other(ordered: Pair, thread: str) -> None:
    one, other = ordered
    with (
        sse.client(one.base_url) as http,
        sse.client(other.base_url) as stopping,
        started(http, "echo", sse.body(thread, ENDLESS)) as (path, frames),
    ):
        next(frames)
        assert stopping.post(path.replace("/events", "/cancel")).json()["cancelling"] is True
        assert list(frames)[-1][1]["type"] == "RUN_FINISHED"
    (run,) = one.stored(thread)["runs"]
    assert (run["status"], run["endReason"]) == ("cancelled", "user")


def test_answered_in_the_other(ordered: Pair, thread: str) -> None:
    one, other = ordered
    with sse.client(one.base_url) as http, sse.client(other.base_url) as answering:
        asked = sse.run(http, "refund", sse.body(thread, "my order, please"))
        (interrupt,) = asked[-1][1]["outcome"]["interrupts"]
        resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True, "amount": 12}}]
        resumed = sse.run(answering, "refund", sse.body(thread, "", messages=[], resume=resume))
    assert resumed[-1][1]["type"] == "RUN_FINISHED"
    assert "".join(event.get("delta", "") for _, event in resumed).startswith("Refunded 12")
    stored = other.stored(thread)
    assert [run["status"] for run in stored["runs"]] == ["interrupted", "finished"]
    assert [row["status"] for row in stored["interrupts"]] == ["resolved"]


def test_one_run_per_thread(ordered: Pair, thread: str) -> None:
    one, other = ordered
    with (
        sse.client(one.base_url) as http,
        sse.client(other.base_url) as late,
        started(http, "echo", sse.body(thread, LONG)) as (_, frames),
    ):
        next(frames)
        assert late.post("/agui/agents/echo", json=sse.body(thread, "me too")).status_code == 409
        assert contiguous([(1, {"type": "RUN_STARTED"}), *frames])


def test_a_rolling_restart(code: Path, tmp_path: Path) -> None:
    """The old process is asked to end in the middle of a run: it drains, and all else goes on in the new one."""
    with (
        site(code, tmp_path) as (old, new),
        sse.client(old.base_url) as http,
        sse.client(new.base_url) as other,
        started(http, "echo", sse.body("t1", "tokens:600 delay_ms:10 size:24")) as (path, frames),
    ):
        seen = [next(frames)]
        follower = Follower(new, path)
        old.signal(signal.SIGTERM)
        wait_for(lambda: health(old) == (503, "draining"), "the old process drains")
        assert health(new) == (200, "ok")
        asked = sse.body("t2", "hello")
        refused = httpx.post(f"{old.base_url}/agui/agents/echo", json=asked, headers=http.headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        # A proxy takes it to the next process.
        assert sse.run(other, "echo", asked)[-1][1]["type"] == "RUN_FINISHED"
        seen += list(frames)
        assert contiguous(seen)
        assert len(seen) == 604
        assert follower.end() == seen
        old.wait(60)
        assert sse.run(other, "echo", sse.body("t1", "go on"))[-1][1]["type"] == "RUN_FINISHED"
        assert [run["status"] for run in new.stored("t1")["runs"]] == ["finished", "finished"]
        assert [run["status"] for run in new.stored("t2")["runs"]] == ["finished"]


def health(server: ServerProcess) -> tuple[int, str]:
    """What the server says of itself."""
    answer = httpx.get(f"{server.base_url}/agui/health", timeout=10)
    return answer.status_code, answer.json()["status"]
