"""CopilotKit's client on a page of another origin, in Chromium, with django-cors-headers: what the how-to says."""

from __future__ import annotations

import functools
import http.server
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.parts import ROOT, chromium, require
from tests.servers import ServerProcess

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

EVERYTHING = {
    "status": "connected", "said": "You said: Hello from elsewhere",
    "restored": ["Hello from elsewhere", "You said: Hello from elsewhere"], "listed": True, "renamed": True,
}  # fmt: skip


class Pages(http.server.SimpleHTTPRequestHandler):
    """Files of a folder, without a word."""

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[int]:
    """The port of a server with a page that has CopilotKit's client, and nothing else."""
    require("node", "browser", "chromium", "copilotkit")
    folder, page = ROOT / "tests" / "copilotkit", tmp_path / "pages"
    command = ["npx", "--no-install", "esbuild", "page.mjs", "--bundle", "--format=esm", f"--outfile={page}/page.js"]
    subprocess.run([*command, "--log-level=error"], cwd=folder, check=True, timeout=60)
    (page / "index.html").write_text(
        '<!doctype html><title>Elsewhere</title><script type="module" src="page.js"></script>'
    )
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Pages, directory=str(page)))
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    yield server.server_port
    server.shutdown()
    serving.join()
    server.server_close()


def test_tokens_work_from_everywhere_and_sessions_in_part(elsewhere: int, tmp_path: Path) -> None:
    same, other = f"http://127.0.0.1:{elsewhere}", f"http://localhost:{elsewhere}"
    env = {"DJANGO_SETTINGS_MODULE": "tests.browser.cors_settings", "CORS_ORIGINS": f"{same},{other}"}
    with ServerProcess("uvicorn", tmp_path=tmp_path, env=env) as site:
        done = subprocess.run(
            ["node", "cors.mjs", site.base_url, same, other, "demo-ada"], cwd=ROOT / "tests" / "browser",
            capture_output=True, text=True, timeout=120, env={**os.environ, "CHROMIUM": chromium() or ""}, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stderr}\n{site.log[-3000:]}"
    found = json.loads(done.stdout)
    assert found["token"] == found["token, other host"] == EVERYTHING
    # CopilotKit sends no credentials with what it asks of threads.
    refused = {"listed": "Failed to fetch threads: 401", "renamed": "Request failed: 401"}
    assert found["session"] == {**EVERYTHING, **refused}
    # Without them nothing knows who calls; and a cookie that is SameSite=Lax, as Django's are, stays on its own site.
    assert found["session, without credentials"] == found["session, other host"] == {"status": "error"}
