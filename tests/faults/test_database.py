"""A database that sleeps, restarts, crashes or is full: those who watch wait, or are cut; nothing seen is lost."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import sse
from tests.faults.cluster import DATABASE, Cluster
from tests.parts import require
from tests.processes.parts import SHARED_REDIS, Follower, Frames, contiguous, started, wait_for
from tests.servers import ServerProcess

SHORT = "tokens:3 delay_ms:0 size:4"


class Site:
    """Two processes on a cluster of their own."""

    def __init__(self, cluster: Cluster, first: ServerProcess, second: ServerProcess) -> None:
        self.cluster, self.first, self.second = cluster, first, second


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    require("postgres", "redis", "initdb")
    with Cluster() as cluster:
        env = {
            **cluster.env, "AGUI_REDIS": SHARED_REDIS, "AGUI_REDIS_PREFIX": uuid.uuid4().hex,
            "AGUI_SETTINGS": json.dumps({"BUSY": "queue"}),
        }  # fmt: skip
        options: dict[str, Any] = {
            "database": "postgres", "database_name": DATABASE, "tmp_path": tmp_path_factory.mktemp("cluster"),
            "env": env,
        }  # fmt: skip
        with ServerProcess("uvicorn", **options) as first, ServerProcess("uvicorn", **options) as second:
            yield Site(cluster, first, second)


class Run:
    """A long run with everybody who can watch it: its client, a follower beside it, one elsewhere, a feed elsewhere."""

    def __init__(self, site: Site, text: str) -> None:
        self.site, self.thread = site, uuid.uuid4().hex
        self.seen: Frames = []
        self._stack = contextlib.ExitStack()
        http = self._stack.enter_context(sse.client(site.first.base_url))
        path, self.frames = self._stack.enter_context(started(http, "echo", sse.body(self.thread, text)))
        self.followers = [Follower(site.first, path), Follower(site.second, path)]

    def read(self, count: int) -> None:
        """So many more events."""
        for _ in range(count):
            self.seen.append(next(self.frames))

    def end(self) -> list[dict[str, Any]]:
        """Everything was told to everybody, and is what is stored."""
        self.seen += list(self.frames)
        self._stack.close()
        assert contiguous(self.seen)
        for follower in self.followers:
            assert follower.end() == self.seen
        (run,) = self.site.second.stored(self.thread)["runs"]
        events: list[dict[str, Any]] = run["events"]
        assert (run["status"], events) == ("finished", [event for _, event in self.seen])
        return events


def healthy(server: ServerProcess) -> float:
    """How long the process takes to say that it is well: it asks no database."""
    began = time.monotonic()
    assert httpx.get(f"{server.base_url}/agui/health", timeout=5).json() == {"status": "ok"}
    return time.monotonic() - began


def test_paused_for_ten_seconds(site: Site) -> None:
    run = Run(site, "tokens:400 delay_ms:10 size:24")
    run.read(50)
    with site.cluster.paused():
        # A start meanwhile waits, too; neither keeps the process from hearing others.
        waiting = Starter(site.first)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            assert healthy(site.first) < 2
            assert healthy(site.second) < 2
            time.sleep(0.5)
    assert len(run.end()) == 404
    assert waiting.end()[-1][1]["type"] == "RUN_FINISHED"


class Starter(Follower):
    """Starts a run in a thread of its own."""

    def __init__(self, server: ServerProcess) -> None:
        self.thread_id = uuid.uuid4().hex
        super().__init__(server, "")

    def _read(self) -> None:
        try:
            with sse.client(self._url) as http:
                self.frames = sse.run(http, "echo", sse.body(self.thread_id, SHORT))
                self.status = 200
        except BaseException as error:
            self.error = error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT], ids=["in order", "at once"])
def test_restarted(number: int, site: Site) -> None:
    run = Run(site, "tokens:1000 delay_ms:10 size:24")
    run.read(50)
    site.cluster.stop(number)
    down = time.monotonic() + 2
    while time.monotonic() < down:
        assert healthy(site.first) < 2
        assert healthy(site.second) < 2
        time.sleep(0.2)
    with sse.client(site.second.base_url) as http:
        refused = http.post("/agui/agents/echo", json=sse.body(uuid.uuid4().hex, SHORT))
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "database_away")
    assert int(refused.headers["retry-after"]) > 0
    site.cluster.start()
    assert len(run.end()) == 1004
    for server in (site.first, site.second):
        with sse.client(server.base_url) as http:
            after = sse.run(http, "echo", sse.body(run.thread, SHORT))
        assert after[-1][1]["type"] == "RUN_FINISHED"


FULL = """
CREATE FUNCTION disk_full() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$;
CREATE TRIGGER disk_full BEFORE INSERT ON agui_django_runevents EXECUTE FUNCTION disk_full();
"""


def test_full_for_a_while(site: Site) -> None:
    """PostgreSQL answers each INSERT with the error of a full disk; then there is room again."""
    run = Run(site, "tokens:400 delay_ms:10 size:24")
    run.read(50)
    with site.cluster.connect() as admin:
        admin.execute(FULL)
        try:
            wait_for(lambda: "cannot be written, trying again" in site.first.log, "a failing write")
            quiet = time.monotonic() + 2
            while time.monotonic() < quiet:
                assert healthy(site.first) < 2
        finally:
            admin.execute("DROP FUNCTION disk_full CASCADE")
    assert len(run.end()) == 404


def limit_files(pid: int, size: int) -> None:
    """No file of that process may grow beyond a size: its writes fail as on a full disk."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))


def test_sqlite_full_for_a_while(tmp_path: Path) -> None:
    with ServerProcess("uvicorn", tmp_path=tmp_path) as server, sse.client(server.base_url) as http:
        seen: Frames = []
        body = sse.body("t", "tokens:600 delay_ms:10 size:400")
        with started(http, "echo", body) as (path, frames):
            seen += [next(frames) for _ in range(50)]
            limit_files(server.pid, Path(server.database_name).stat().st_size)
            wait_for(lambda: "cannot be written, trying again" in server.log, "a failing write")
            limit_files(server.pid, resource.RLIM_INFINITY)
            seen += list(frames)
        assert contiguous(seen)
        assert len(seen) == 604
        (run,) = server.stored("t")["runs"]
        assert (run["status"], run["events"]) == ("finished", [event for _, event in seen])
        assert Follower(server, path, 300).end() == seen[300:]


def test_sqlite_full_for_good(tmp_path: Path) -> None:
    """Followers are cut without an end, since there is none; once there is room the thread is free again."""
    env = {"AGUI_SETTINGS": json.dumps({"WRITE_DEADLINE": 1.5, "LEASE": 3})}
    with ServerProcess("uvicorn", tmp_path=tmp_path, env=env) as server, sse.client(server.base_url) as http:
        seen: Frames = []
        with started(http, "echo", sse.body("t", "tokens:100000 delay_ms:10 size:400")) as (path, frames):
            seen += [next(frames) for _ in range(50)]
            follower = Follower(server, path)
            limit_files(server.pid, Path(server.database_name).stat().st_size)
            seen += list(frames)
        assert seen[-1][1]["type"] == "TEXT_MESSAGE_CONTENT"
        assert follower.end() == seen
        (run,) = server.stored("t")["runs"]
        assert [event for _, event in seen] == run["events"]
        limit_files(server.pid, resource.RLIM_INFINITY)
        wait_for(lambda: goes_on(http), "the thread is free")
        dead, alive = server.stored("t")["runs"]
        assert (dead["status"], dead["errorCode"], alive["status"]) == ("failed", "abandoned", "finished")
        assert dead["events"][: len(seen)] == run["events"]
        assert [event["type"] for event in dead["events"][len(seen) :]] == ["TEXT_MESSAGE_END", "RUN_ERROR"]


def goes_on(http: httpx.Client) -> bool:
    """Whether the thread takes a run."""
    with http.stream("POST", "/agui/agents/echo", json=sse.body("t", SHORT)) as response:
        return response.status_code == 200 and list(sse.frames(response))[-1][1]["type"] == "RUN_FINISHED"
