"""The API under a real server: crowds of readers and writers beside running agents, on both databases."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.parts import require
from tests.servers import ServerProcess

CROWD = 300
INPUT: dict[str, Any] = {"runId": "r", "tools": [], "context": [], "forwardedProps": {}}


async def crowd(server: ServerProcess) -> tuple[Counter[int], list[str]]:
    """Three hundred requests at once: reads, changes of threads and of state, and runs among them."""
    # A connection that rested may be closed by the server just when it is used again.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=server.base_url, timeout=200, limits=limits) as http:
        headers = {"Authorization": "Token demo-ada"}
        for number in range(10):
            body = {**INPUT, "threadId": f"t{number}", "messages": [{"id": "u", "role": "user", "content": "hello"}]}
            async with http.stream("POST", "/agui/agents/echo", json=body, headers=headers) as run:
                assert run.status_code == 200
                await run.aread()
        page = (await http.get("/api/agui/threads", headers=headers)).json()
        threads = [row["id"] for row in page["results"]]
        assert len(threads) == 10

        async def one(number: int) -> tuple[int, str]:
            thread = threads[number % 10]
            path = f"/api/agui/threads/{thread}"
            kind = number % 6
            if kind == 0:
                answer = await http.patch(path, json={"title": f"title {number}"}, headers=headers)
            elif kind == 1:
                patch = {**headers, "Content-Type": "application/merge-patch+json"}
                answer = await http.patch(f"{path}/state", content=json.dumps({f"n{number}": 1}), headers=patch)
            elif kind == 2:
                message = {"id": f"u{number}", "role": "user", "content": "again"}
                body = {**INPUT, "runId": f"r{number}", "threadId": f"new{number}", "messages": [message]}
                answer = await http.post("/agui/agents/echo", json=body, headers=headers)
            else:
                place = ("", "/messages", "/runs", "/state/versions")[number // 6 % 4]
                answer = await http.get(path + place, headers=headers)
            return answer.status_code, answer.text

        answers = await asyncio.gather(*map(one, range(CROWD)))
        final = []
        for thread in threads:
            final.append((await http.get(f"/api/agui/threads/{thread}/state", headers=headers)).json())
        kept = {key for state in final for key in state}
        assert kept >= {f"n{number}" for number in range(CROWD) if number % 6 == 1}
    return Counter(status for status, _ in answers), [text for status, text in answers if status != 200]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_crowd(database: Any, tmp_path: Path) -> None:
    """SQLite as ``startproject`` leaves it: no write-ahead log, no longer timeout."""
    if database == "postgres":
        require("postgres")
    with ServerProcess("uvicorn", database=database, tmp_path=tmp_path) as server:
        statuses, others = asyncio.run(crowd(server))
        assert statuses == {200: CROWD}, others[:3]
        assert "locked" not in server.log
        assert "Traceback" not in server.log, server.log[-4000:]
