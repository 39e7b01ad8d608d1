"""SIGTERM under real servers: what runs may finish, what is new is refused, then the server ends as it always did."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests import sse
from tests.servers import Kind, ServerProcess

KINDS: list[Kind] = ["uvicorn", "daphne", "gunicorn"]


def watch(
    server: ServerProcess, agent: str, members: dict[str, Any], seen: list[dict[str, Any]], begun: threading.Event
) -> None:
    """Read a run to its end in a thread."""
    with (
        sse.client(server.base_url) as http,
        http.stream("POST", f"/agui/agents/{agent}", json=members) as response,
    ):
        for frame in sse.frames(response):
            seen.append(frame[1])
            if len(seen) == 5:
                begun.set()


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_finishes_within_the_grace(kind: Kind, tmp_path: Path) -> None:
    with ServerProcess(kind, tmp_path=tmp_path) as server:
        seen: list[dict[str, Any]] = []
        begun = threading.Event()
        body = sse.body("t", "tokens:100 delay_ms:20 size:8")
        reader = threading.Thread(target=watch, args=(server, "echo", body, seen, begun))
        reader.start()
        assert begun.wait(30)
        # of gunicorn a request meets the worker; the master only passes the signal on
        server.signal(signal.SIGTERM)
        reader.join(30)
        assert not reader.is_alive()
        assert seen[-1]["type"] == "RUN_FINISHED"
        assert "outcome" not in seen[-1]
        assert len(seen) == 104
        server.wait(30)
        [run] = server.stored("t")["runs"]
        assert (run["status"], run["endReason"]) == ("finished", "")
        assert "Traceback" not in server.log


@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_finish_ends_as_cancelled(kind: Kind, tmp_path: Path) -> None:
    with ServerProcess(kind, tmp_path=tmp_path, env={"DJANGO_SETTINGS_MODULE": "tests.runs.drain_settings"}) as server:
        seen: list[dict[str, Any]] = []
        begun = threading.Event()
        body = sse.body("t", "tokens:5000 delay_ms:20 size:8", protocolVersion="1.1")
        reader = threading.Thread(target=watch, args=(server, "echo", body, seen, begun))
        reader.start()
        assert begun.wait(30)
        server.signal(signal.SIGTERM)
        reader.join(30)
        assert not reader.is_alive()
        assert seen[-1]["type"] == "RUN_FINISHED"
        assert seen[-1]["outcome"] == {"type": "cancelled"}
        server.wait(30)
        [run] = server.stored("t")["runs"]
        assert (run["status"], run["endReason"]) == ("cancelled", "shutdown")


def test_new_runs_are_refused_meanwhile(tmp_path: Path) -> None:
    # Daphne keeps its port open until its handler runs, which is after the drain
    with ServerProcess("daphne", tmp_path=tmp_path) as server:
        seen: list[dict[str, Any]] = []
        begun = threading.Event()
        body = sse.body("t", "tokens:100 delay_ms:20 size:8")
        reader = threading.Thread(target=watch, args=(server, "echo", body, seen, begun))
        reader.start()
        assert begun.wait(30)
        server.signal(signal.SIGTERM)
        with sse.client(server.base_url) as http:
            refused = http.post("/agui/agents/echo", json=sse.body("u", "hi"))
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "draining"
            assert int(refused.headers["retry-after"]) > 0
            assert http.get("/agui/health").json() == {"status": "draining"}
        reader.join(30)
        assert seen[-1]["type"] == "RUN_FINISHED"
        server.wait(30)
        assert server.stored("u") == {}


@pytest.mark.parametrize("kind", KINDS)
def test_an_idle_server_ends_at_once(kind: Kind, tmp_path: Path) -> None:
    with ServerProcess(kind, tmp_path=tmp_path) as server:
        with sse.client(server.base_url) as http:
            assert sse.run(http, "echo", sse.body("t", "hi"))[-1][1]["type"] == "RUN_FINISHED"
        server.signal(signal.SIGTERM)
        server.wait(15)
