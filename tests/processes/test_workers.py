"""Workers behind a channel layer: the web process follows what they write within a flush, and is heard at once."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests import sse
from tests.parts import require
from tests.processes.parts import SHARED_REDIS, Counted, Frames, contiguous
from tests.workers import KINDS, Worker, site

LONG = "tokens:300 delay_ms:10 size:24"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.mark.parametrize("kind", KINDS)
def test_followed_live_and_stopped(kind: str, tmp_path: Path) -> None:
    require("postgres", "redis")
    layer = {"AGUI_REDIS": SHARED_REDIS, "AGUI_REDIS_PREFIX": uuid.uuid4().hex}
    with (
        site(kind, tmp_path, **layer) as server,
        Worker(kind, server.env, tmp_path),
        sse.client(server.base_url, timeout=120) as http,
    ):
        # The worker takes a while to begin; the next ones find it ready.
        assert sse.run(http, "echo", sse.body("t1", "hello"))[-1][1]["type"] == "RUN_FINISHED"
        chunks: list[int] = []
        with http.stream("POST", "/agui/agents/echo", json=sse.body("t1", LONG)) as response:
            seen: Frames = list(sse.frames(Counted(response, chunks)))  # type: ignore[arg-type]
        assert contiguous(seen)
        assert sum(event["type"] == "TEXT_MESSAGE_CONTENT" for _, event in seen) == 300
        # Three seconds: a look a second would have brought four chunks.
        assert len([count for count in chunks if count]) > 15
        endless = sse.body("t1", "tokens:20000 delay_ms:10 size:8")
        with http.stream("POST", "/agui/agents/echo", json=endless) as response:
            frames = sse.frames(response)
            next(frames)
            stop = response.headers["Content-Location"].replace("/events", "/cancel")
            assert http.post(stop).json()["cancelling"] is True
            assert list(frames)[-1][1]["type"] == "RUN_FINISHED"
        assert [run["status"] for run in server.stored("t1")["runs"]] == ["finished", "finished", "cancelled"]
