"""The admin in a real browser, against Daphne: one server and one Chromium, story by story."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.parts import ROOT, chromium, require
from tests.servers import ServerProcess

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

STORIES = [
    "login", "find", "keys", "zone", "export", "answer", "live", "dashboard", "accessible", "cards", "hostile",
]  # fmt: skip


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What each story came to, and the user's thread as it is stored."""
    require("node", "browser", "chromium")
    with ServerProcess("daphne", tmp_path=tmp_path_factory.mktemp("admin")) as server:
        server.manage("agui_seed", "--runs", "300", "--days", "20", "--users", "12")
        plant = [sys.executable, "manage.py", "shell", "-c", "from tests.browser.plant import plant; plant()"]
        command = ["node", "admin.mjs", f"{server.base_url}/", json.dumps(plant)]
        if folder := os.environ.get("AGUI_SCREENSHOTS"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            command.append(folder)
        done = subprocess.run(
            command, cwd=ROOT / "tests" / "browser", capture_output=True, text=True, timeout=380, check=False,
            env={**server.env, "CHROMIUM": chromium() or ""},
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{server.log[-3000:]}"
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        yield {
            "stories": {line["name"]: line["result"] for line in lines},
            "thread": server.stored(lines[-1]["thread"]),
        }


@pytest.mark.parametrize("name", STORIES)
def test_staff_at_work(told: dict[str, Any], name: str) -> None:
    if told["stories"][name]:
        pytest.fail(told["stories"][name], pytrace=False)


def test_every_story_is_told_and_stored(told: dict[str, Any]) -> None:
    assert list(told["stories"]) == STORIES
    assert [run["status"] for run in told["thread"]["runs"]] == ["interrupted", "finished"]
