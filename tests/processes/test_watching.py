"""ON_DISCONNECT "cancel": the process that took the request knows of those who watch in another one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import sse
from tests.parts import require
from tests.processes.parts import site, started, wait_for
from tests.servers import DatabaseKind, ServerProcess

ENDLESS = "tokens:100000 delay_ms:10 size:8"
GRACE = 4.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
@pytest.mark.parametrize("end", ["leaves", "dies"])
def test_watched_elsewhere(end: str, database: DatabaseKind, tmp_path: Path) -> None:
    """The one who started it leaves, another one stays: the run goes on until that one has gone, or its process."""
    if database == "postgres":
        require("postgres")
    env = {
        "AGUI_SQLITE": "wal", "AGUI_SETTINGS": json.dumps({"ON_DISCONNECT": "cancel", "DISCONNECT_GRACE": GRACE}),
    }  # fmt: skip
    with (
        site(2, tmp_path, database=database, env=env) as (a, b),
        sse.client(a.base_url) as http,
        sse.client(b.base_url) as other,
    ):
        with started(http, "echo", sse.body("t1", ENDLESS)) as (path, frames):
            next(frames)
            watching = other.stream("GET", path)
            follower = sse.frames(watching.__enter__())
            next(follower)
        # By the agent's own clock: longer than the grace and what an old sign may add.
        seen = [next(follower) for _ in range(int((GRACE + 4) * 100))]
        assert seen[-1][1]["type"] == "TEXT_MESSAGE_CONTENT"
        assert status(a) == ("running", "")
        if end == "dies":
            b.kill()
        else:
            watching.__exit__(None, None, None)
        wait_for(lambda: status(a) == ("cancelled", "disconnect"), "the run is cancelled")


def status(server: ServerProcess) -> tuple[str, str]:
    """How the thread's run stands."""
    (run,) = server.stored("t1")["runs"]
    return run["status"], run["endReason"]
