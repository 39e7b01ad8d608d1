"""Schemathesis against the served document: no answer that the document does not promise."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.servers import ServerProcess

ADA = {"Authorization": "Token demo-ada"}

#: Examples per address; the coverage phase makes its own beside them.
EXAMPLES = 5


def post(server: ServerProcess, path: str, body: Any) -> None:
    """Send JSON and read the answer to its end."""
    request = urllib.request.Request(
        f"{server.base_url}{path}", json.dumps(body).encode(), {**ADA, "Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        response.read()


def seed(server: ServerProcess) -> None:
    """Threads with runs, messages and an open question, so that small numbers are keys of something."""
    for number, (agent, text) in enumerate([("echo", "hello"), ("echo", "again"), ("refund", "refund order 7")], 1):
        message = {"id": f"u{number}", "role": "user", "content": text}
        body = {"threadId": f"t{number}", "runId": f"r{number}", "tools": [], "context": [], "forwardedProps": {}}
        post(server, f"/agui/agents/{agent}", {**body, "messages": [message]})


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_api_keeps_what_it_promises(tmp_path: Path) -> None:
    with ServerProcess("uvicorn", tmp_path=tmp_path) as server:
        seed(server)
        request = urllib.request.Request(f"{server.base_url}/api/agui/schema", headers=ADA)
        with urllib.request.urlopen(request, timeout=60) as response:
            (tmp_path / "openapi.json").write_bytes(response.read())
        done = subprocess.run(
            [
                Path(sys.executable).with_name("st"), "run", "openapi.json", "--url", server.base_url,
                "--header", "Authorization:Token demo-ada", "--max-examples", str(EXAMPLES), "--seed", "1",
                "--phases", "coverage,fuzzing", "--workers", "2", "--checks", "all", "--no-color",
                "--request-timeout", "60",
                # A patch that fits the document need not fit the state, nor an answer its question.
                "--exclude-checks", "positive_data_acceptance", "--suppress-health-check", "all",
            ],
            cwd=tmp_path, capture_output=True, text=True, timeout=580, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert "Traceback" not in server.log, server.log[-6000:]
