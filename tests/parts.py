"""Real parts that a test may need: where one is missing the test is skipped with a reason, or fails in a full run.

AGUI_TEST_REQUIRE=all makes a full run: nothing may be missing (CI sets it).
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CONFORMANCE = Path(os.environ.get("AGUI_CONFORMANCE_DIR") or ROOT.parent / "shared" / "conformance")


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2):
            return True
    except OSError:
        return False


def _index_answers() -> bool:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "--retries", "0", "--timeout", "10", "wheel"]
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run([*command, "-d", folder], capture_output=True, check=False).returncode == 0


@functools.cache
def missing(part: str) -> str:
    """Why a part cannot be used; empty when it can.

    Parts: node, curl, openssl, nginx, pgbouncer, clients, copilotkit and browser (their npm packages), frontend (the
    built CopilotKit example), chromium, postgres, redis, initdb (a PostgreSQL of one's own), conformance, network (a
    package index that pip reaches).
    """
    if part in ("node", "curl", "openssl", "nginx", "pgbouncer"):
        return "" if program(part) else f"{part} is not installed"
    if part == "network":
        return "" if _index_answers() else "pip reaches no package index"
    if part in ("clients", "copilotkit", "browser"):
        if reason := missing("node"):
            return reason
        folder = ROOT / "tests" / part
        return "" if (folder / "node_modules").is_dir() else f"npm ci was not run in tests/{part}"
    if part == "frontend":
        built = ROOT / "project" / "static" / "copilotkit_demo" / "main.js"
        return "" if built.is_file() else "the CopilotKit example was not built: make frontend"
    if part == "chromium":
        return "" if chromium() else "chromium is not installed"
    if part == "postgres":
        from tests.servers import postgres_reachable

        return "" if postgres_reachable() else "no PostgreSQL on 127.0.0.1:5432"
    if part == "initdb":
        from tests.faults.cluster import binaries

        return "" if binaries() and program("setpriv") else "PostgreSQL's initdb or setpriv is not installed"
    if part == "redis":
        if not _listens(6379):
            return "no Redis on 127.0.0.1:6379"
        return "" if program("redis-server") else "redis-server is not installed"
    if part == "conformance":
        return "" if CONFORMANCE.is_dir() else f"no conformance streams in {CONFORMANCE} (set AGUI_CONFORMANCE_DIR)"
    raise ValueError(f"unknown part: {part}")


def program(name: str) -> str | None:
    """A program's path, also of those that only administrators have in their PATH."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/local/sbin")


def chromium() -> str | None:
    """The browser's path."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def require(*parts: str) -> None:
    """Skip the calling test, with the reason, where a part is missing; fail instead in a full run."""
    for part in parts:
        if reason := missing(part):
            if os.environ.get("AGUI_TEST_REQUIRE") == "all":
                pytest.fail(f"AGUI_TEST_REQUIRE=all: {reason}", pytrace=False)
            pytest.skip(reason)
