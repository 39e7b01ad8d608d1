"""Fixtures of the client stories: one server of each kind for the whole session, and the official clients in Node."""

from __future__ import annotations

import json
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.parts import require
from tests.servers import DatabaseKind, Kind, ServerProcess, postgres_reachable

HERE = Path(__file__).resolve().parent
TOKEN = {"Authorization": "Token demo-ada"}
PACKAGES = {"current": "client-current", "legacy": "client-legacy"}


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Kind], ServerProcess]]:
    """Start a server of a kind when it is first asked for; all end with the session."""
    started: dict[Kind, ServerProcess] = {}

    def server_of(kind: Kind) -> ServerProcess:
        if kind not in started:
            # Both databases are covered by giving each server one of them.
            database: DatabaseKind = "postgres" if kind == "uvicorn" and postgres_reachable() else "sqlite"
            folder = tmp_path_factory.mktemp(f"clients-{kind}")
            env = {"DJANGO_SETTINGS_MODULE": "tests.clients.site.settings"}
            started[kind] = ServerProcess(kind, database=database, tmp_path=folder, env=env).__enter__()
        return started[kind]

    yield server_of
    for server in started.values():
        server.close()


@pytest.fixture(params=["daphne", "uvicorn"])
def server(request: pytest.FixtureRequest, servers: Callable[[Kind], ServerProcess]) -> ServerProcess:
    """The server under test."""
    return servers(request.param)


@pytest.fixture(scope="session")
def node() -> str:
    """The path of Node, with the clients installed."""
    require("clients")
    path = shutil.which("node")
    assert path is not None
    return path


@dataclass
class Story:
    """One thread, one client, one server: runs steps and reads what was stored."""

    node: str
    package: str
    server: ServerProcess
    thread_id: str = field(default_factory=lambda: f"thread-{uuid.uuid4()}")

    @property
    def legacy(self) -> bool:
        """Whether the client is the one that declares no protocol version."""
        return self.package == PACKAGES["legacy"]

    def run(self, agent: str, *steps: dict[str, Any], **more: Any) -> dict[str, Any]:
        """Let a new client take the steps (see drive.mjs) and return what it saw."""
        spec = {
            "client": self.package, "url": f"{self.server.base_url}/agui/agents/{agent}", "headers": TOKEN,
            "threadId": self.thread_id, "steps": steps, **more,
        }  # fmt: skip
        done = subprocess.run(
            [self.node, "drive.mjs"],
            cwd=HERE, input=json.dumps(spec), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{self.server.log[-4000:]}"
        seen: dict[str, Any] = json.loads(done.stdout)
        return seen

    def stored(self) -> dict[str, Any]:
        """Return what the database holds of the thread."""
        return self.server.stored(self.thread_id)

    def assert_client_equals_store(self, step: dict[str, Any]) -> dict[str, Any]:
        """Compare the client's final messages and state with the stored ones, which are returned."""
        stored = self.stored()
        assert step["messages"] == stored["messages"]
        assert step["state"] == stored["state"]
        return stored


@pytest.fixture(params=["current", "legacy"])
def story(request: pytest.FixtureRequest, node: str, server: ServerProcess) -> Story:
    """A new thread for one of the two official clients."""
    return Story(node, PACKAGES[request.param], server)


def user(text: str, message_id: str | None = None) -> dict[str, Any]:
    """Return a user message as a client writes it."""
    return {"id": message_id or f"user-{uuid.uuid4()}", "role": "user", "content": text}


def script(*events: dict[str, Any]) -> dict[str, Any]:
    """Return the user message that makes the demo agent `script` yield these events."""
    return user(json.dumps(events))
