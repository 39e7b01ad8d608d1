"""The app's WebSocket client in a real browser, as pages of a site use it: what the page has is the log, whatever the
network and the server do meanwhile."""

from __future__ import annotations

import json
import os
import select
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cutting import CuttingProxy
from tests.parts import ROOT, chromium, require
from tests.servers import Kind, ServerProcess

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

KINDS: list[Kind] = ["daphne", "uvicorn"]
PATIENCE = 90
TERMINAL = ("RUN_FINISHED", "RUN_ERROR")

Event = dict[str, Any]


class Browser:
    """One Chromium with pages by number, all of one visitor."""

    def __init__(self, port: int) -> None:
        self._process = subprocess.Popen(
            ["node", "websocket.mjs", f"http://127.0.0.1:{port}/"], cwd=ROOT / "tests" / "browser", text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "CHROMIUM": chromium() or ""},
        )  # fmt: skip

    def do(self, what: str, page: int = 0, **members: Any) -> Any:
        """Let a page do something and return its answer."""
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        assert stdin is not None and stdout is not None and stderr is not None
        stdin.write(json.dumps({"page": page, "do": what, **members}) + "\n")
        stdin.flush()
        assert select.select([stdout], [], [], PATIENCE)[0], f"{what} was not answered"
        line = stdout.readline()
        assert line, stderr.read()
        return json.loads(line)

    def run(self, thread: str, text: str, page: int = 0, **members: Any) -> None:
        """Begin a run."""
        asked = {"id": uuid.uuid4().hex, "role": "user", "content": text}
        run_input = {
            "threadId": thread, "runId": uuid.uuid4().hex, "protocolVersion": "1.1", "state": {}, "messages": [asked],
            "tools": [], "context": [], "forwardedProps": {},
        }  # fmt: skip
        self.do("watch", page, agent="echo", method="run", argument=run_input, **members)

    def follow(self, place: dict[str, Any] | None, page: int = 0, **members: Any) -> None:
        """Follow from a place; None: from the one that the page has kept."""
        self.do("watch", page, method="follow", argument=place, **members)

    def over(self, page: int = 0) -> list[Event]:
        """Wait for the stream's end and return all that the page has of it."""
        found = self.do("over", page)
        assert found["error"] is None
        events: list[Event] = found["events"]
        return events

    def close(self) -> None:
        """End the browser: it closes when there are no more commands."""
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    require("node", "browser", "chromium")
    folder = tmp_path_factory.mktemp("browser")
    with ServerProcess(request.param, tmp_path=folder, env=site()) as running:
        yield running


def site(**more: Any) -> dict[str, str]:
    """A site whose runs outlive a busy machine, and whose end is quick."""
    return {"AGUI_SQLITE": "wal", "AGUI_SETTINGS": json.dumps({"GRACE": 0.2, **more})}


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[CuttingProxy]:
    with CuttingProxy([server.port]) as running:
        yield running


@pytest.fixture
def browser(proxy: CuttingProxy) -> Iterator[Browser]:
    running = Browser(proxy.port)
    try:
        yield running
    finally:
        running.close()


@pytest.fixture
def thread() -> str:
    return uuid.uuid4().hex


def log(server: ServerProcess, thread: str, run: int = 0) -> list[Event]:
    """The events of a thread's run as they are stored."""
    events: list[Event] = server.stored(thread)["runs"][run]["events"]
    return events


def test_a_run_through_cuts(server: ServerProcess, proxy: CuttingProxy, browser: Browser, thread: str) -> None:
    browser.run(thread, "tokens:300 delay_ms:10 size:8")
    browser.do("seen", count=20)
    connections = proxy.connections
    # In the middle of a handshake, of the frames behind it, and of the events that have piled up meanwhile.
    proxy.cut_all([150, 700, 1500, 400, 2500])
    seen = browser.over()
    assert proxy.connections - connections > 5
    assert seen == log(server, thread)
    assert len(seen) == 304


def test_stopped_through_a_cut(server: ServerProcess, proxy: CuttingProxy, browser: Browser, thread: str) -> None:
    browser.run(thread, "tokens:20000 delay_ms:10 size:8")
    browser.do("seen", count=20)
    browser.do("cancel")
    proxy.cut_all([200])
    seen = browser.over()
    assert seen[-1]["outcome"] == {"type": "cancelled"}
    assert seen == log(server, thread)
    [run] = server.stored(thread)["runs"]
    assert (run["status"], run["endReason"]) == ("cancelled", "user")


def test_loaded_again_in_the_middle(server: ServerProcess, browser: Browser, thread: str) -> None:
    browser.run(thread, "tokens:400 delay_ms:10 size:8")
    for count in (10, 100, 200):
        browser.do("seen", count=count)
        browser.do("reload")
        browser.follow(None)
    assert browser.over() == log(server, thread)


@pytest.mark.parametrize("limit", [1, 2, 40, 203])
def test_left_at_any_event(server: ServerProcess, browser: Browser, thread: str, limit: int) -> None:
    """Also in the middle of events that came together."""
    browser.run(thread, "tokens:200 delay_ms:0 size:8")
    whole = browser.over()
    [run] = server.stored(thread)["runs"]
    browser.do("reload")
    # Its rows are read at once: everything comes together, with a place behind 64 events each.
    browser.follow({"run": run["uuid"], "after": 0}, page=1, limit=limit)
    assert len(browser.over(page=1)) == limit
    browser.follow(None, page=1, limit=limit + 1)
    assert len(browser.over(page=1)) == limit + 1
    browser.do("reload", page=1)
    browser.follow(None, page=1)
    assert browser.over(page=1) == whole == log(server, thread)


def test_a_second_page_follows_the_thread(
    server: ServerProcess, proxy: CuttingProxy, browser: Browser, thread: str
) -> None:
    browser.run(thread, "before")
    browser.over()
    browser.follow({"threadId": thread}, page=1)
    assert browser.do("seen", page=1, count=4) == 4
    for number in range(3):
        browser.do("reload")
        browser.run(thread, "tokens:60 delay_ms:10 size:8", page=2 + number)
        browser.do("seen", page=1, count=4 + 64 * number + 20)
        proxy.cut_all([600, 250])
        browser.over(page=2 + number)
    browser.do("seen", page=1, count=4 + 3 * 64)
    browser.do("close", page=1)
    seen = browser.over(page=1)
    assert [event["type"] for event in seen[:4]] == [
        "RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT", "RUN_FINISHED",
    ]  # fmt: skip
    assert seen[4:] == [event for run in (1, 2, 3) for event in log(server, thread, run)]


@pytest.mark.parametrize("end", ["kill", "term"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_server_restarts(kind: Kind, end: str, tmp_path: Path, thread: str) -> None:
    """A page that follows a run is told by the next process what became of it, and goes on there."""
    require("node", "browser", "chromium")
    with ServerProcess(kind, tmp_path=tmp_path, env=site()) as server, CuttingProxy([server.port]) as proxy:
        browser = Browser(proxy.port)
        try:
            browser.run(thread, "tokens:20000 delay_ms:10 size:8")
            browser.do("seen", count=30)
            ways: dict[str, Callable[[], object]] = {"kill": server.kill, "term": server.stop}
            ways[end]()
            server.start()
            proxy.redirect(server.port)
            seen = browser.over()
            [run] = server.stored(thread)["runs"]
            assert seen == run["events"]
            assert seen[-1]["type"] in TERMINAL
            ended = (run["status"], run["errorCode"] or run["endReason"])
            assert ended == {"kill": ("failed", "abandoned"), "term": ("cancelled", "shutdown")}[end]
            browser.do("reload")
            browser.run(thread, "and now?", page=1)
            assert browser.over(page=1) == log(server, thread, 1)
        finally:
            browser.close()
