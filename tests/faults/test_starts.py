"""Three hundred starts at once, on each database: none of them a 500, every one of them stored."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from tests import sse
from tests.parts import require
from tests.servers import DatabaseKind, ServerProcess

STARTS = 300


@pytest.mark.parametrize(
    ("database", "env"),
    [("sqlite", {}), ("sqlite", {"AGUI_SQLITE": "wal"}), ("postgres", {})],
    ids=["sqlite", "sqlite-wal", "postgres"],
)
def test_starts(database: DatabaseKind, env: dict[str, str], tmp_path: Path) -> None:
    if database == "postgres":
        require("postgres")
    with ServerProcess("uvicorn", database=database, tmp_path=tmp_path, env=env) as server:
        answers = asyncio.run(start_all(server.base_url))
        assert {status for status, _ in answers} == {200}
        assert all('"RUN_FINISHED"' in text for _, text in answers)
        assert "Traceback" not in server.log
        for number in (0, STARTS - 1):
            stored = server.stored(f"t{number}")
            assert [run["status"] for run in stored["runs"]] == ["finished"]
            assert [message["role"] for message in stored["messages"]] == ["user", "assistant"]


async def start_all(base_url: str) -> list[tuple[int, str]]:
    """POST all runs at the same moment."""
    limits = httpx.Limits(max_connections=STARTS)
    headers = {"Authorization": "Token demo-ada"}
    async with httpx.AsyncClient(base_url=base_url, headers=headers, limits=limits, timeout=120) as http:

        async def one(number: int) -> tuple[int, str]:
            response = await http.post("/agui/agents/echo", json=sse.body(f"t{number}", "tokens:5 delay_ms:10 size:8"))
            return response.status_code, response.text

        return await asyncio.gather(*(one(number) for number in range(STARTS)))
