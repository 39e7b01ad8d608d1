"""Runs on task queues: real brokers, real workers, and what happens when either of them dies."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests import sse
from tests.parts import require
from tests.servers import ServerProcess
from tests.workers import KINDS, Worker, in_site, runs, site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SLOW = "tokens:60 delay_ms:50 size:8"
ENDLESS = "tokens:100000 delay_ms:20 size:8"


SETTINGS = json.dumps({"LEASE": 3, "BUSY": "queue", "CANCEL_GRACE": 1, "GRACE": 1})


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    require("postgres", "redis")
    name: str = request.param
    return name


@pytest.fixture
def server(kind: str, tmp_path: Path) -> Iterator[ServerProcess]:
    """A web tier that notices the dead soon."""
    with site(kind, tmp_path, SETTINGS) as started:
        yield started


@pytest.fixture(scope="module")
def shared(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, Worker]]:
    """A web tier and a worker that nothing happens to."""
    folder = tmp_path_factory.mktemp(kind)
    with site(kind, folder, SETTINGS) as started, Worker(kind, started.env, folder) as worker:
        yield started, worker


@pytest.fixture
def thread(request: pytest.FixtureRequest) -> str:
    """A thread of the test's own."""
    return uuid.uuid4().hex


class Reader:
    """A client in a thread."""

    def __init__(self, server: ServerProcess, thread_id: str, text: str, **members: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.begun = threading.Event()
        self.location = ""
        self._server, self._body = server, sse.body(thread_id, text, protocolVersion="1.1", **members)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            with (
                sse.client(self._server.base_url) as http,
                http.stream("POST", "/agui/agents/echo", json=self._body) as response,
            ):
                self.location = response.headers.get("content-location", "")
                for frame in sse.frames(response):
                    self.events.append(frame[1])
                    if len(self.events) == 5:
                        self.begun.set()
        except Exception as error:
            self.events.append({"type": f"broken: {type(error).__name__}"})

    def opened(self) -> None:
        """Wait until the stream is there, before any event."""
        deadline = time.monotonic() + 30
        while not self.location:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def wait(self, seconds: float = 60) -> list[str]:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), [event["type"] for event in self.events][-3:]
        return [event["type"] for event in self.events]

    @property
    def last(self) -> dict[str, Any]:
        return self.events[-1]


def claims(server: ServerProcess, thread_id: str) -> list[int]:
    """The process ids that a thread's runs were claimed by."""
    code = (
        "from agui_django.models import Run; import json\n"
        f"rows = Run.objects.filter(thread__thread_id={thread_id!r}).order_by('created_at')\n"
        "print(json.dumps([run.claim for run in rows]))"
    )
    found: list[str] = json.loads(in_site(server, code))
    return [int(claim.split(".")[1]) for claim in found]


def test_a_run_in_a_worker(shared: tuple[ServerProcess, Worker], thread: str) -> None:
    server, worker = shared
    reader = Reader(server, thread, "hi")
    types = reader.wait()
    assert (types[0], types[-1]) == ("RUN_STARTED", "RUN_FINISHED")
    assert claims(server, thread)[0] in worker.members()
    [run] = runs(server, thread)
    assert run["status"] == "finished"
    assert [event["type"] for event in run["events"]] == types
    assert [message["role"] for message in server.stored(thread)["messages"]] == ["user", "assistant"]


def test_stopped_from_the_web(shared: tuple[ServerProcess, Worker], thread: str) -> None:
    server, _ = shared
    reader = Reader(server, thread, ENDLESS)
    assert reader.begun.wait(60)
    with sse.client(server.base_url) as http:
        assert http.post(reader.location.replace("/events", "/cancel")).json()["cancelling"] is True
    assert reader.wait()[-1] == "RUN_FINISHED"
    assert reader.last["outcome"] == {"type": "cancelled"}
    [run] = runs(server, thread)
    assert (run["status"], run["endReason"]) == ("cancelled", "user")


def test_the_web_tier_restarts(kind: str, server: ServerProcess, tmp_path: Path) -> None:
    with Worker(kind, server.env, tmp_path):
        reader = Reader(server, "t", SLOW)
        assert reader.begun.wait(60)
        server.kill()
        reader.wait()
        seen = [event for event in reader.events if not event["type"].startswith("broken")]
        server.start()
        behind = f"{reader.location}?after={len(seen)}"
        with sse.client(server.base_url) as http, http.stream("GET", behind) as response:
            rest = [event for _, event in sse.frames(response)]
        assert rest[-1]["type"] == "RUN_FINISHED"
        [run] = runs(server, "t")
        assert run["status"] == "finished"
        assert seen + rest == run["events"]


def test_a_killed_worker(kind: str, server: ServerProcess, tmp_path: Path) -> None:
    with Worker(kind, server.env, tmp_path) as worker:
        reader = Reader(server, "t", ENDLESS)
        assert reader.begun.wait(60)
        worker.kill()
        types = reader.wait(40)
        assert types[-1] == "RUN_ERROR"
        assert reader.last["code"] == "abandoned"
        assert types.count("TEXT_MESSAGE_END") == 1
        [run] = runs(server, "t")
        assert (run["status"], run["errorCode"]) == ("failed", "abandoned")
        assert reader.events == run["events"]
    with Worker(kind, server.env, tmp_path):
        # the thread is free, and what the dead worker held is not begun again
        assert Reader(server, "t", "hi").wait()[-1] == "RUN_FINISHED"
        assert [run["status"] for run in runs(server, "t")] == ["failed", "finished"]


def test_delivered_twice(shared: tuple[ServerProcess, Worker], thread: str) -> None:
    server, _ = shared
    submit = "from agui_django.runs.runners import get_runner\nget_runner().submit({!r})"
    reader = Reader(server, thread, SLOW)
    assert reader.begun.wait(60)
    key = reader.location.split("/")[-2]
    in_site(server, submit.format(key))
    assert reader.wait()[-1] == "RUN_FINISHED"
    in_site(server, submit.format(key))
    # what comes behind it in the queue has been executed: so has the repeat
    assert Reader(server, f"{thread}-behind", "hi").wait()[-1] == "RUN_FINISHED"
    [run] = runs(server, thread)
    assert run["events"] == reader.events
    assert [event["type"] for event in run["events"]].count("RUN_STARTED") == 1


def test_nobody_takes_it(kind: str, thread: str, tmp_path: Path) -> None:
    with site(kind, tmp_path, json.dumps({"LEASE": 3, "PENDING_DEADLINE": 2})) as server:
        reader = Reader(server, thread, "hi")
        assert reader.wait(30) == ["RUN_STARTED", "RUN_ERROR"]
        assert reader.last["code"] == "abandoned"
        with Worker(kind, server.env, tmp_path):
            # it needs longer than the deadline to come up
            deadline = time.monotonic() + 60
            while Reader(server, uuid.uuid4().hex, "hi").wait()[-1] != "RUN_FINISHED":
                assert time.monotonic() < deadline
            # the first task was delivered before these, too late
            [run] = runs(server, thread)
            assert (run["status"], run["events"]) == ("failed", reader.events)


def test_stopped_before_anybody_takes_it(kind: str, server: ServerProcess, tmp_path: Path) -> None:
    reader = Reader(server, "t", "hi")
    reader.opened()
    with sse.client(server.base_url) as http:
        assert http.post(reader.location.replace("/events", "/cancel")).json()["cancelling"] is True
    assert reader.wait(20) == ["RUN_STARTED", "RUN_FINISHED"]
    assert reader.last["outcome"] == {"type": "cancelled"}
    with Worker(kind, server.env, tmp_path):
        assert Reader(server, "t", "again").wait()[-1] == "RUN_FINISHED"
        assert [run["status"] for run in runs(server, "t")] == ["cancelled", "finished"]


@pytest.mark.parametrize("limit", ["TIMEOUT", "IDLE_TIMEOUT"])
def test_limits_hold(kind: str, limit: str, tmp_path: Path) -> None:
    text = ENDLESS if limit == "TIMEOUT" else "tokens:2 delay_ms:60000"
    with site(kind, tmp_path, json.dumps({limit: 1, "CANCEL_GRACE": 1})) as server, Worker(kind, server.env, tmp_path):
        reader = Reader(server, "t", text)
        assert reader.wait(40)[-1] == "RUN_ERROR"
        assert reader.last["code"] == "timeout"


def test_a_queue_of_runs(shared: tuple[ServerProcess, Worker], thread: str) -> None:
    server, _ = shared
    first = Reader(server, thread, "tokens:20 delay_ms:50 size:8")
    assert first.begun.wait(60)
    readers = [first]
    for number in range(2):
        readers.append(Reader(server, thread, f"number {number}"))
        readers[-1].opened()
    for reader in readers:
        assert reader.wait()[-1] == "RUN_FINISHED"
    stored = runs(server, thread)
    assert [run["status"] for run in stored] == ["finished"] * 3
    assert [run["events"] for run in stored] == [reader.events for reader in readers]


def test_a_worker_that_is_asked_to_end(kind: str, server: ServerProcess, tmp_path: Path) -> None:
    """In order, one way or another: the run is finished, or it ends as cancelled; its client hears it."""
    with Worker(kind, server.env, tmp_path) as worker:
        reader = Reader(server, "t", SLOW)
        assert reader.begun.wait(60)
        worker.terminate()
        assert reader.wait()[-1] == "RUN_FINISHED"
        [run] = runs(server, "t")
        assert (run["status"], run["endReason"]) in [("finished", ""), ("cancelled", "shutdown")]
        assert run["events"] == reader.events


def test_many_runs_in_one_procrastinate_worker(tmp_path: Path) -> None:
    require("postgres")
    with site("Procrastinate", tmp_path) as server, Worker("Procrastinate", server.env, tmp_path) as worker:
        assert Reader(server, "warm", "hi").wait()[-1] == "RUN_FINISHED"
        began = time.monotonic()
        with ThreadPoolExecutor(10) as pool:
            readers = list(pool.map(lambda n: Reader(server, f"t{n}", "tokens:40 delay_ms:50 size:8"), range(10)))
        for reader in readers:
            assert reader.wait()[-1] == "RUN_FINISHED"
        # two seconds each
        assert time.monotonic() - began < 12
        assert {claim for n in range(10) for claim in claims(server, f"t{n}")} == {worker.pid}


def test_the_broker_is_down(tmp_path: Path) -> None:
    require("postgres")
    with site("Celery", tmp_path, AGUI_TEST_BROKER="redis://127.0.0.1:1/0") as server:
        reader = Reader(server, "t", "hi")
        assert reader.wait(30) == ["RUN_STARTED", "RUN_ERROR"]
        assert reader.last["code"] == "abandoned"
        assert "Error" not in reader.last["message"], "what staff read is not told"
        assert "could not be handed to the RUNNER" in server.log
