"""The store's tests once more on the other databases that are promised, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.parts import require

HERE = Path(__file__).parent
NAMES = ["sql", "store", "resume", "reaping", "recorder", "races", "database", "log_machine", "queues"]
DATABASES = {
    "sqlite as startproject leaves it": {"AGUI_DATABASE": "sqlite", "AGUI_SQLITE": ""},
    "sqlite with WAL and IMMEDIATE": {"AGUI_DATABASE": "sqlite", "AGUI_SQLITE": "wal"},
    "postgres": {"AGUI_DATABASE": "postgres", "AGUI_SQLITE": ""},
}


def here() -> dict[str, str]:
    """What this process runs on."""
    return {
        "AGUI_DATABASE": os.environ.get("AGUI_DATABASE", "sqlite"),
        "AGUI_SQLITE": os.environ.get("AGUI_SQLITE", ""),
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", DATABASES)
def test_the_store_on(name: str) -> None:
    if DATABASES[name] == here():
        pytest.skip("this very run is on it")
    if name == "postgres":
        require("postgres")
    env = {**os.environ, **DATABASES[name]}
    env.pop("AGUI_DATABASE_NAME", None)
    command = [sys.executable, "-m", "pytest", "-q", "-x", *[str(HERE / f"test_{part}.py") for part in NAMES]]
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=HERE.parent.parent, timeout=590)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
