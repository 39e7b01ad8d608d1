"""The same requests to CopilotKit's own runtime and to the site: where they differ is what the documentation says."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from rest_framework.authtoken.models import Token

from agui_django import AgentError
from agui_django.testing import override_agent
from tests.copilotkit.conftest import Gate
from tests.copilotkit.script import Script
from tests.live import LiveServer
from tests.parts import ROOT, program, require

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(180)]

PAGE = ROOT / "docs" / "howto" / "copilotkit.md"


@pytest.fixture
def opened(agui_runtime: None) -> Iterator[threading.Event]:
    """The script's own agents; set, it lets the one that waits go on."""
    held = Gate()

    async def fails(run: Any) -> None:
        await run.say("So far")
        raise AgentError("Broken.", code="broken")

    async def suggests(run: Any) -> None:
        run.tool_call("copilotkitSuggest", {"suggestions": [{"title": "More", "message": "Tell me more"}]})

    with contextlib.ExitStack() as stack:
        for name, made in (("kit_gate", held), ("kit_fails", fails), ("kit_suggesting", suggests)):
            stack.enter_context(override_agent(name, made))
        yield held.opened
        held.opened.set()


@contextlib.contextmanager
def node_runtime(server: LiveServer, token: str) -> Iterator[str]:
    """CopilotKit's runtime in a process of its own, with the site's agents behind it; gives its address."""
    spec = {
        "url": server.url, "headers": {"Authorization": f"Token {token}"},
        "agents": ["echo", "haiku", "refund", "kit_gate", "kit_fails", "kit_suggesting"],
    }  # fmt: skip
    node = program("node")
    assert node is not None
    environment = {"COPILOTKIT_TELEMETRY_DISABLED": "true", "DO_NOT_TRACK": "1"}
    with subprocess.Popen(
        [node, "runtime.mjs"], cwd=Path(__file__).parent, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env=environment,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps(spec))
            process.stdin.close()
            line = process.stdout.readline()
            assert line.strip().isdigit(), line + process.stdout.read()
            yield f"http://127.0.0.1:{line.strip()}"
        finally:
            process.kill()


def documented() -> dict[str, tuple[str, str]]:
    """The table's rows: what is asked, and what both answer."""
    table = PAGE.read_text().partition("<!-- differences: begin -->")[2].partition("<!-- differences: end -->")[0]
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.strip().splitlines()[2:]]
    return {name: (theirs.strip("`"), ours.strip("`")) for name, theirs, ours, _ in rows}


def test_the_differences_are_those_of_the_documentation(
    server: LiveServer, django_user_model: Any, opened: threading.Event
) -> None:
    require("copilotkit")
    users = [django_user_model.objects.create_user(name) for name in ("ada", "bob", "node")]
    tokens = {user.username: Token.objects.create(user=user).key for user in users}

    def client(url: str, user: str) -> httpx.Client:
        return httpx.Client(base_url=url, timeout=60, headers={"Authorization": f"Token {tokens[user]}"})

    # The runtime's agents answer a user of its own here: the same ids of threads are then free for Ada.
    with node_runtime(server, tokens["node"]) as url, client(url, "ada") as http, client(url, "bob") as stranger:
        theirs = Script(http, stranger, opened).play()
    with client(server.url, "ada") as http, client(server.url, "bob") as stranger:
        ours = Script(http, stranger, opened).play()
    assert theirs.keys() == ours.keys()
    differences = {name: (theirs[name], ours[name]) for name in theirs if theirs[name] != ours[name]}
    assert f"A script of {len(theirs)} requests " in PAGE.read_text()
    assert documented() == differences
