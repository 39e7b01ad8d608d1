"""CopilotKit's addresses over real HTTP: what is told of the site, methods, unknown paths, envelopes."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import override_settings

from agui_django.copilotkit import copilotkit_urls
from agui_django.transports.copilotkit.calls import Mount
from tests.copilotkit.conftest import Kit
from tests.live import LiveServer

pytestmark = pytest.mark.django_db(transaction=True)

# ---- info -----------------------------------------------------------------------------------------------------------


def test_info(kit: Kit) -> None:
    got = kit.info()
    assert got.status_code == 200
    told = got.json()
    agents = told.pop("agents")
    endpoints = {"list": True, "inspect": True, "mutations": True, "realtimeMetadata": False}
    assert told == {
        "version": "1.74.0", "mode": "sse", "threadEndpoints": endpoints,
        "singleRoute": {"resourceOperations": True, "threadEndpoints": endpoints},
        "suggestions": True, "audioFileTranscriptionEnabled": False, "a2uiEnabled": False,
        "openGenerativeUIEnabled": False, "telemetryDisabled": True,
    }  # fmt: skip
    assert agents["default"]["description"] == agents["echo"]["description"]
    assert agents["plan"] == {
        "name": "plan",
        "description": "Thinks, estimates with a tool, and works on a plan that you see change.",
        "className": "Planner",
    }


def test_a_licence_is_told_where_the_site_says_so(kit: Kit) -> None:
    with override_settings(AGUI_DJANGO={"COPILOTKIT_LICENSE_STATUS": "unknown"}):
        assert kit.info().json()["licenseStatus"] == "unknown"


@pytest.mark.django_db(transaction=False)
def test_who_answers_as_default() -> None:
    assert Mount().alias() is None  # several agents: only one of that name
    assert Mount("plan").alias() == "plan"
    with override_settings(AGUI_DJANGO={"COPILOTKIT_DEFAULT_AGENT": "refund"}):
        assert Mount().alias() == "refund"
        assert Mount("plan").alias() == "plan"
    assert Mount("default").alias() is None


def test_the_only_agent_answers_as_default(monkeypatch: pytest.MonkeyPatch) -> None:
    from agui_django.agents import registry
    from agui_django.transports.copilotkit import calls

    monkeypatch.setattr(calls, "all_agents", lambda: [registry.get_agent("plan")])
    assert Mount().alias() == "plan"


def test_a_prefix_is_a_text() -> None:
    for prefix in ("a.b", "/a.b/"):
        base, below = copilotkit_urls(prefix)
        assert [bool(base.pattern.match(path)) for path in ("a.b", "a.b/", "a_b", "a.b/info")] == [
            True,
            True,
            False,
            False,
        ]
        assert below.pattern.match("a.b/info")[2] | {"mount": None} == {"rest": "info", "mount": None}
    base, below = copilotkit_urls()
    assert base.pattern.match("")
    assert below.pattern.match("info")


# ---- addresses and envelopes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/copilotkit", "POST"), ("PUT", "/copilotkit/", "POST"), ("POST", "/copilotkit/info", "GET"),
        ("GET", "/copilotkit/agent/default/run", "POST"), ("DELETE", "/copilotkit/agent/default/connect", "POST"),
        ("GET", "/copilotkit/agent/default/stop/t1", "POST"), ("POST", "/copilotkit/threads", "GET"),
        ("GET", "/copilotkit/threads/t1", "PATCH, DELETE"), ("GET", "/copilotkit/threads/t1/archive", "POST"),
        ("POST", "/copilotkit/threads/t1/messages", "GET"), ("GET", "/copilotkit/annotate", "POST"),
        ("GET", "/copilotkit/transcribe", "POST"), ("PUT", "/copilotkit/memories", "GET, POST"),
    ],
)  # fmt: skip
def test_other_methods(server: LiveServer, ada: Any, method: str, path: str, allowed: str) -> None:
    got = Kit(server, ada, "rest").http.request(method, path, json={})
    assert (got.status_code, got.headers["allow"], got.json()["error"]) == (405, allowed, "method_not_allowed")


@pytest.mark.parametrize(
    "path", ["/copilotkit/nothing", "/copilotkit/agent/default", "/copilotkit/inspector-learning", "/copilotkit/%0A",
             "/copilotkit/cpk-debug-events", "/copilotkit//info", "/copilotkit/agent/a/b/run"]
)  # fmt: skip
def test_unknown_paths(server: LiveServer, ada: Any, path: str) -> None:
    got = Kit(server, ada, "rest").http.get(path)
    assert (got.status_code, got.json()["error"]) == (404, "Not found")


MANY = b"&a" * 600


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400), (b"{", 400), (b"[]", 400), (b"null", 400), (b"{}", 400), (b'{"method": 1}', 400),
        (b'{"method": "nothing"}', 400), (b'{"method": "agent/run"}', 400), (b'{"method": "info", "params": []}', 400),
        (b'{"method": "agent/stop", "params": {"agentId": "default"}}', 400),
        (b'{"method": "resource/request", "params": {"path": "/threads"}}', 400),
        (b'{"method": "resource/request", "params": {"path": "/info", "httpMethod": "GET"}}', 400),
        (b'{"method": "resource/request", "params": {"path": "//x/threads", "httpMethod": "GET"}}', 400),
        (b'{"method": "resource/request", "params": {"httpMethod": "GET", "path": "/threads?' + MANY + b'"}}', 400),
        (b"[" * 100_000, 400),
    ],
)  # fmt: skip
def test_malformed_envelopes(server: LiveServer, ada: Any, body: bytes, status: int) -> None:
    got = Kit(server, ada, "single").http.post("/copilotkit", content=body)
    assert (got.status_code, got.json()["error"]) == (status, "invalid_request")
    assert isinstance(got.json()["message"], str)


def test_only_json_is_an_envelope(server: LiveServer, ada: Any) -> None:
    http = Kit(server, ada, "single").http
    got = http.post("/copilotkit", content=b"{}", headers={"Content-Type": "text/plain"})
    assert (got.status_code, got.json()["error"]) == (415, "invalid_request")
    assert (
        http.post("/copilotkit/agent/default/run", content=b"{}", headers={"Content-Type": "text/plain"}).status_code
        == 415
    )
