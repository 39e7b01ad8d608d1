"""The OpenAPI document of a site: this API as the site has mounted it, and the streams of ``agui_django.urls``."""

from __future__ import annotations

import threading
from typing import Any
from uuid import UUID

from ag_ui.core import RunAgentInput
from django.urls import NoReverseMatch, reverse
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.settings import patched_settings

from agui_django import __version__
from agui_django.api.base import ApiView

#: What drf-spectacular is told; a site that describes its whole API may list the hook among its own.
SETTINGS: dict[str, Any] = {
    "OAS_VERSION": "3.1.1",
    "TITLE": "AG-UI",
    "DESCRIPTION": "Agents, their conversations, and the questions that they ask.",
    "VERSION": __version__,
    "PREPROCESSING_HOOKS": ["agui_django.api.document.only_ours"],
    "POSTPROCESSING_HOOKS": ["agui_django.api.document.with_streams"],
    "COMPONENT_SPLIT_REQUEST": True,
    "SCHEMA_PATH_PREFIX": "",
    "TAGS": [],
}

_PLACE = UUID(int=0)

_lock = threading.Lock()


def document(urlconf: Any = None, prefix: str = "/") -> dict[str, Any]:
    """The document.

    Args:
        urlconf: where the addresses are looked up; None: the site's.
        prefix: where the site is mounted.
    """
    # The settings of drf-spectacular are the process's.
    with _lock, patched_settings({**SETTINGS, "SERVERS": [{"url": prefix.rstrip("/") or "/"}]}):
        make: Any = SchemaGenerator
        made: dict[str, Any] = make(urlconf=urlconf).get_schema(request=None, public=True)
    return made


def only_ours(endpoints: list[Any], **_: Any) -> list[Any]:
    """Leave out what else the site has."""
    return [each for each in endpoints if issubclass(each[3].cls, ApiView)]


def with_streams(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Add the addresses that stream, where the site includes them."""
    operations = [method for path in result["paths"].values() for method in path.values()]
    security = next((each["security"] for each in operations if "security" in each), None)
    for name, given, shown, method, make in (
        ("agent", ["NAME"], "{name}", "post", _run),
        ("run-events", [_PLACE], "{run}", "get", _run_events),
        ("thread-events", [], "", "get", _thread_events),
    ):
        try:
            address = reverse(f"agui_django:{name}", args=given)
        except NoReverseMatch:
            continue
        path = address.replace(str(given[0]), shown) if given else address
        operation = make()
        if security is not None:
            operation["security"] = security
        result["paths"][path] = {method: operation}
    schema = RunAgentInput.model_json_schema(by_alias=True, ref_template="#/components/schemas/AgUi{model}")
    schemas = result["components"].setdefault("schemas", {})
    schemas.update({f"AgUi{name}": each for name, each in schema.pop("$defs", {}).items()})
    schemas["AgUiRunAgentInput"] = schema
    return result


def _stream(text: str) -> dict[str, Any]:
    schema = {"description": "Server-sent events; the `data` of each is an event of the protocol, as JSON."}
    return {"description": text, "content": {"text/event-stream": {"schema": schema}}}


def _operation(name: str, text: str, **members: Any) -> dict[str, Any]:
    fault = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}, "description": ""}
    responses = {**members.pop("responses"), "4XX": fault, "5XX": fault}
    return {"operationId": name, "description": text, "tags": ["streams"], **members, "responses": responses}


def _parameter(name: str, where: str, schema: dict[str, Any], text: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "in": where, "schema": schema, "description": text, **more}


_UUID = {"type": "string", "format": "uuid"}
_VERSION = _parameter("protocolVersion", "query", {"type": "string"}, "`0.x`: the shape of old clients.")
_NOTHING = {"description": "There is nothing to tell, and will not be."}


def _run() -> dict[str, Any]:
    body = {"application/json": {"schema": {"$ref": "#/components/schemas/AgUiRunAgentInput"}}}
    return _operation(
        "agents_run",
        "Run an agent: its events as they happen.",
        parameters=[_parameter("name", "path", {"type": "string"}, "The agent's.", required=True)],
        requestBody={"content": body, "required": True},
        responses={"200": _stream("A frame for each event; the last one is RUN_FINISHED or RUN_ERROR.")},
    )


def _run_events() -> dict[str, Any]:
    after = _parameter("after", "query", {"type": "integer", "minimum": 0}, "The last event that is known.")
    return _operation(
        "runs_follow",
        "Follow a run: what is stored, then live.",
        parameters=[_parameter("run", "path", _UUID, "The run's address.", required=True), after, _VERSION],
        responses={"200": _stream("A frame for each event."), "204": _NOTHING},
    )


def _thread_events() -> dict[str, Any]:
    return _operation(
        "threads_follow",
        "Follow a thread: its present, then whatever runs in it.",
        parameters=[
            _parameter("threadId", "query", {"type": "string"}, "The client's id of the thread.", required=True),
            _parameter("after", "query", {"type": "string"}, "The last cursor that is known."),
            _parameter("until", "query", {"type": "string", "enum": ["idle"]}, "End as soon as nothing runs."),
            _VERSION,
        ],
        responses={"200": _stream("A frame for each event."), "204": _NOTHING},
    )
