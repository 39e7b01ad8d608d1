"""The OpenAPI document: complete, valid, without a warning; and the page that shows it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.test import override_settings
from django.urls import include, path
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.validation import validate_schema

from agui_django.api.document import document
from agui_django.api.routes import urlpatterns as routes
from agui_django.api.views import docs
from tests.api.conftest import ROOT, Client

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    """No document of another test."""
    docs._made.clear()
    yield
    docs._made.clear()


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    GENERATOR_STATS.reset()
    made = document()
    assert not GENERATOR_STATS._warn_cache, GENERATOR_STATS._warn_cache
    assert not GENERATOR_STATS._error_cache, GENERATOR_STATS._error_cache
    return made


def operations(told: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for address, methods in told["paths"].items():
        for method, operation in methods.items():
            yield address, method.upper(), operation


def test_valid_and_without_a_warning(whole: dict[str, Any]) -> None:
    assert whole["openapi"].startswith("3.1")
    validate_schema(whole)
    names = [operation["operationId"] for _, _, operation in operations(whole)]
    assert len(names) == len(set(names))


def test_the_command(whole: dict[str, Any]) -> None:
    """What a site's own CI runs."""
    out = StringIO()
    call_command(
        "spectacular", "--fail-on-warn", "--validate", "--format", "openapi-json",
        "--custom-settings", "agui_django.api.document.SETTINGS", stdout=out,
    )  # fmt: skip
    assert json.loads(out.getvalue())["paths"].keys() == whole["paths"].keys()


def test_every_address_is_described(whole: dict[str, Any]) -> None:
    described = {(address, method) for address, method, _ in operations(whole) if address.startswith(ROOT)}
    expected = set()
    for pattern in routes:
        view = getattr(pattern.callback, "cls", None)
        if view is None or not pattern.name or pattern.name in ("schema", "docs"):
            continue
        shown = re.sub(r"<\w+:(\w+)>", lambda found: "{" + found[1].replace("pk", "id") + "}", str(pattern.pattern))
        expected |= {(f"{ROOT}/{shown}", method) for method in view.methods() if method != "HEAD"}
    assert described == expected


def test_everything_is_explained(whole: dict[str, Any]) -> None:
    for address, method, operation in operations(whole):
        assert operation["description"], (address, method)
        assert operation["security"], (address, method)
        assert {"4XX", "5XX"} <= operation["responses"].keys()
        for status, answer in operation["responses"].items():
            assert status in ("204", "304") or answer.get("content") or answer.get("description"), (address, status)


def test_streams_have_their_media_type(whole: dict[str, Any]) -> None:
    streams = {
        (address, method)
        for address, method, operation in operations(whole)
        if "text/event-stream" in operation["responses"].get("200", {}).get("content", {})
    }
    assert streams == {
        ("/agui/agents/{name}", "POST"), ("/agui/runs/{run}/events", "GET"), ("/agui/threads/events", "GET"),
    }  # fmt: skip
    run = whole["paths"]["/agui/agents/{name}"]["post"]
    reference = run["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    assert {"threadId", "runId", "messages"} <= whole["components"]["schemas"][reference]["properties"].keys()
    lines = whole["paths"][f"{ROOT}/runs/{{id}}/events"]["get"]["responses"]["200"]["content"]
    assert set(lines) == {"application/json", "application/x-ndjson"}
    patch = whole["paths"][f"{ROOT}/threads/{{id}}/state"]["patch"]["requestBody"]["content"]
    assert set(patch) == {"application/json-patch+json", "application/merge-patch+json"}


def test_filters_and_pages_are_described(whole: dict[str, Any]) -> None:
    parameters = {each["name"]: each for each in whole["paths"][f"{ROOT}/runs"]["get"]["parameters"]}
    assert {"cursor", "limit", "ordering", "status", "agent", "threadId", "hasError", "createdAfter"} <= set(parameters)
    assert parameters["status"]["schema"]["items"]["enum"][0] == "queued"
    assert parameters["status"]["explode"] is False
    assert parameters["hasError"]["schema"]["type"] == "boolean"
    assert parameters["createdAfter"]["schema"]["format"] == "date-time"


def test_served(api: Client, whole: dict[str, Any]) -> None:
    served = api.get("schema")
    assert served == json.loads(json.dumps(whole))


def test_the_page_needs_no_other_host_and_no_script(api: Client) -> None:
    exchange = api.ask("GET", "docs")
    page = b"".join(exchange.chunks).decode()
    assert exchange.headers["content-type"].startswith("text/html")
    assert exchange.headers["content-security-policy"].startswith("default-src 'none'; style-src 'self'")
    assert not re.findall(r"(?:src|href)=[\"'](?:https?:)?//", page)
    assert not re.findall(r"<script|style=|onclick|<style", page)
    for shown in ("threads_list", "/agui/agents/{name}", "hasOpenInterrupts", "application/merge-patch+json"):
        assert shown in page
    anchors = set(re.findall(r'id="([^"]+)"', page))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= anchors
    [style] = re.findall(r'<link rel="stylesheet" href="([^"]+)"', page)
    assert style.endswith("agui_django/api_docs.css")


class Elsewhere:
    """The API below a prefix with a parameter, without the agents' own addresses."""

    urlpatterns = (path("t/<slug:tenant>/", include("agui_django.api.urls")),)


def test_mounted_elsewhere(ada: Any) -> None:
    with override_settings(ROOT_URLCONF=Elsewhere):
        told = document(Elsewhere)
    assert "/t/{tenant}/threads/{id}" in told["paths"]
    assert not [address for address in told["paths"] if "agui" in address]
    validate_schema(told)
