"""CopilotKit's addresses: the paths of its REST transport, and the envelope of its single-route one, on one mount.

Law: an envelope is a path, a method and a body that are written otherwise; both lead to the same handlers.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from django.http import HttpRequest, HttpResponse, HttpResponseBase, QueryDict

from agui_django.agents.registry import AgentEntry
from agui_django.protocol.codec import decode
from agui_django.protocol.errors import InvalidJson, MethodRefused, NotFound, UnsupportedMediaType
from agui_django.transports import attachments, requests, starts
from agui_django.transports.copilotkit import runs, threads
from agui_django.transports.copilotkit.calls import DEFAULT, Call, Handler, Mount, refused, told
from agui_django.transports.views import described

#: The runtime whose protocol this is.
VERSION = "1.74.0"

_THREADS = {"list": True, "inspect": True, "mutations": True, "realtimeMetadata": False}


async def info(call: Call) -> HttpResponseBase:
    """What there is: the agents that the caller may run, and which of the protocol's parts are served."""
    entries = {entry.name: entry for entry in await starts.runnable(call.request)}
    alias = call.mount.alias() or DEFAULT  # the agents' modules are loaded by now: no database thread is needed
    if alias in entries:
        entries = {DEFAULT: entries[alias], **entries}
    found: dict[str, Any] = {
        "version": VERSION,
        "mode": "sse",
        "agents": {name: _described(name, entry) for name, entry in entries.items()},
        "threadEndpoints": _THREADS,
        "singleRoute": {"resourceOperations": True, "threadEndpoints": _THREADS},
        "suggestions": True,
        "audioFileTranscriptionEnabled": False,
        "a2uiEnabled": False,
        "openGenerativeUIEnabled": False,
        "telemetryDisabled": True,
    }
    if (licence := call.mount.licence) is not None:
        found["licenseStatus"] = licence
    return requests.json_response(found)


def _described(name: str, entry: AgentEntry) -> dict[str, Any]:
    known = described(entry, None)
    found = {"name": name, "description": known["description"], "className": known["title"]}
    return {**found, "capabilities": known["capabilities"]} if "capabilities" in known else found


async def no_transcription(call: Call) -> HttpResponseBase:
    """Speech is not read here."""
    await call.enter()
    return refused(503, "service_not_configured", "Transcription is not configured.", retryable=False)


async def no_memories(call: Call, **_: Any) -> HttpResponseBase:
    """Memories are not kept here."""
    await call.enter()
    return refused(501, "not_configured", "Memories are not configured.")


async def no_subscription(call: Call, **_: Any) -> HttpResponseBase:
    """Lists are not told of changes: ``/info`` names no socket."""
    await call.enter()
    return refused(422, "Not available", "Live lists of threads are not configured.")


async def inspector(call: Call) -> HttpResponseBase:
    """There is nothing to add for the inspector."""
    await call.enter()
    return HttpResponse(status=204)


_ONE_THREAD: Mapping[str, Handler] = {"PATCH": threads.change, "DELETE": threads.delete}

#: Paths below the mount, and who answers. The first that fits counts. A thread's id may hold any character.
ROUTES: list[tuple[re.Pattern[str], Mapping[str, Handler]]] = [
    (re.compile(pattern, re.DOTALL), handlers)
    for pattern, handlers in (
        (r"info/?", {"GET": info}),
        (r"agent/(?P<agent>[^/]+)/run/?", {"POST": runs.run}),
        (r"agent/(?P<agent>[^/]+)/connect/?", {"POST": runs.connect}),
        (r"agent/(?P<agent>[^/]+)/suggest/?", {"POST": runs.suggest}),
        (r"agent/(?P<agent>[^/]+)/stop/(?P<thread>.+)", {"POST": runs.stop}),
        (r"threads/?", {"GET": threads.listed}),
        (r"threads/(?P<thread>clear)", {"POST": threads.clear, **_ONE_THREAD}),
        (r"threads/(?P<thread>subscribe)", {"POST": no_subscription, **_ONE_THREAD}),
        (r"threads/(?P<thread>.+)/archive", {"POST": threads.archive}),
        (r"threads/(?P<thread>.+)/messages", {"GET": threads.messages}),
        (r"threads/(?P<thread>.+)/events", {"GET": threads.events}),
        (r"threads/(?P<thread>.+)/state", {"GET": threads.state}),
        (r"threads/(?P<thread>.+)", _ONE_THREAD),
        (r"annotate/?", {"POST": threads.annotate}),
        (r"memories/?", {"GET": no_memories, "POST": no_memories}),
        (r"memories/(?P<memory>recall|subscribe)", {"POST": no_memories}),
        (r"memories/(?P<memory>.+)", {"PATCH": no_memories, "DELETE": no_memories}),
        (r"transcribe/?", {"POST": no_transcription}),
        (r"inspector-metadata/?", {"GET": inspector}),
    )
]

#: The methods of the envelope: who answers, and the params that they are given, by their names here.
METHODS: Mapping[str, tuple[Handler, Mapping[str, str]]] = {
    "info": (info, {}),
    "agent/run": (runs.run, {"agent": "agentId"}),
    "agent/connect": (runs.connect, {"agent": "agentId"}),
    "agent/suggest": (runs.suggest, {"agent": "agentId"}),
    "agent/stop": (runs.stop, {"agent": "agentId", "thread": "threadId"}),
    "transcribe": (no_transcription, {}),
    "inspector/metadata": (inspector, {}),
}
#: What may be asked for by ``resource/request``.
RESOURCES = re.compile(r"/(threads(/.*)?|memories(/.*)?|annotate)", re.DOTALL)
#: Characters of its query; Django refuses one of very many members by an error of its own.
LONGEST = 1_000

_UUID = re.compile(r"attachments/([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})/?")


@requests.endpoint(shape=told)
async def serve(request: HttpRequest, mount: Mount, rest: str = "", **_: Any) -> HttpResponseBase:
    """The whole mount."""
    prefix = request.path.removesuffix(rest)
    prefix = prefix if prefix.endswith("/") else f"{prefix}/"
    if not rest:
        return await _envelope(request, mount, prefix)
    if (file := _UUID.fullmatch(rest)) is not None:
        return await attachments.attachment(request, uuid=file[1])
    return await _answer(Call(request, mount, prefix, request.GET), request.method or "", rest)


async def _answer(call: Call, method: str, path: str) -> HttpResponseBase:
    for pattern, handlers in ROUTES:
        if (found := pattern.fullmatch(path)) is not None:
            handler = handlers.get(method)
            return _no_method(call.request, handlers) if handler is None else await handler(call, **found.groupdict())
    raise NotFound


def _no_method(request: HttpRequest, handlers: Mapping[str, Handler]) -> HttpResponseBase:
    response = requests.error_response(request, MethodRefused(), told)
    response["Allow"] = ", ".join(handlers)
    return response


# ---- the envelope ---------------------------------------------------------------------------------------------------


async def _envelope(request: HttpRequest, mount: Mount, prefix: str) -> HttpResponseBase:
    """A call of the single-route transport: ``{"method", "params"?, "body"?}``."""
    outside = Call(request, mount, prefix, QueryDict())
    if request.method != "POST":
        return _no_method(request, {"POST": info})
    try:
        body = await outside.body()
        if len(body) > starts.LARGE:
            await outside.enter()  # before the work, not behind it
            value = await asyncio.get_running_loop().run_in_executor(None, decode, body)
        else:
            value = decode(body)
        del body
        params = _params(value)
        if value["method"] == "resource/request":
            path, method, query = _resource(params)
            return await _answer(_inside(outside, value, query), method, path)
        handler, names = METHODS.get(value["method"], (None, {}))
        if handler is None:
            raise _Malformed("The envelope's method is unknown.")
        given = {name: params.get(param) for name, param in names.items()}
        if not all(isinstance(each, str) and each for each in given.values()):
            raise _Malformed(f"The envelope's params must name {' and '.join(names.values())}.")
    except (UnsupportedMediaType, InvalidJson, _Malformed) as error:
        await outside.enter()
        status = error.status if isinstance(error, UnsupportedMediaType) else 400
        return refused(status, "invalid_request", str(error))
    return await handler(_inside(outside, value), **given)


class _Malformed(Exception):
    """It is no envelope; the text says why."""


def _params(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not isinstance(value.get("method"), str):
        raise _Malformed("The envelope names no method.")
    params = value.get("params")
    if not isinstance(params, dict | None):
        raise _Malformed("The envelope's params must be an object.")
    return params or {}


def _resource(params: Mapping[str, Any]) -> tuple[str, str, QueryDict]:
    """Path, method and query of a resource request."""
    address, method = params.get("path"), params.get("httpMethod")
    if not isinstance(address, str) or not isinstance(method, str):
        raise _Malformed("A resource request names path and httpMethod.")
    path, _, query = address.partition("?")
    if RESOURCES.fullmatch(path) is None or len(query) > LONGEST:
        raise _Malformed("There is no such resource.")
    return unquote(path[1:]), method, QueryDict(query)


def _inside(outside: Call, value: dict[str, Any], query: QueryDict | None = None) -> Call:
    return replace(outside, query=query or outside.query, enveloped=True, content=value.pop("body", None))
