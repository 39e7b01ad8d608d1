"""The admin in a real browser, against Daphne: staff find, read, answer and watch, while the user's page goes on."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.parts import ROOT, chromium, require
from tests.servers import ServerProcess

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def test_staff_at_work(tmp_path: Path) -> None:
    require("node", "browser", "chromium")
    with ServerProcess("daphne", tmp_path=tmp_path) as server:
        command = ["node", "admin.mjs", f"{server.base_url}/"]
        if folder := os.environ.get("AGUI_SCREENSHOTS"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            command.append(folder)
        done = subprocess.run(
            command, cwd=ROOT / "tests" / "browser", capture_output=True, text=True, timeout=240, check=False,
            env={**os.environ, "CHROMIUM": chromium() or ""},
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stderr}\n{server.log[-3000:]}"
        thread = server.stored(json.loads(done.stdout)["thread"])
        assert [run["status"] for run in thread["runs"]] == ["interrupted", "finished"]
