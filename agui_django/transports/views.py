"""The HTTP addresses: start a run, follow it, stop it; which agents there are; whether this process takes runs.

Law: whatever a view needs of the database (login, rights, the run) is asked in one hop into a database thread; ids are
looked up inside the caller's scope, so that a foreign one answers as an unknown one does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from inspect import isawaitable
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils import timezone, translation
from django.utils.encoding import escape_uri_path

from agui_django.access import AccessPolicy, Caller, Verdict, get_policy
from agui_django.agents.registry import AgentEntry, all_agents, get_agent
from agui_django.models import Run
from agui_django.protocol.errors import Draining, InvalidInput, NotFound, PermissionRefused
from agui_django.protocol.run_input import RunInput, parse_run_input
from agui_django.runs import stream, supervisor
from agui_django.runs.database import database_alias, get_pool
from agui_django.runs.engine import Start, get_engine
from agui_django.runs.requests import Opened, StartRequest
from agui_django.transports import requests, sse

logger = logging.getLogger("agui_django.request")

#: Bodies larger than this are parsed in a thread: the loop has other clients.
LARGE = 128 * 1024


@requests.endpoint("GET", "HEAD")
async def index(request: HttpRequest, **_: Any) -> HttpResponseBase:
    """The agents that the caller may run."""

    def ask() -> list[tuple[AgentEntry, Verdict]]:
        policy = get_policy()
        user = policy.enter(request).user
        return [(entry, policy.may_run(user, entry)) for entry in all_agents()]

    asked = await get_pool().run(ask)
    return requests.json_response(
        {
            "protocolVersion": stream.PROTOCOL_VERSION,
            "agents": [_described(request, entry) for entry, verdict in asked if await _settled(verdict)],
        }
    )


@requests.endpoint("GET", "HEAD")
async def health(request: HttpRequest, **_: Any) -> HttpResponseBase:
    """Whether this process takes new runs; for load balancers, so without a login."""
    if supervisor.draining():
        return requests.json_response({"status": "draining"}, status=503)
    return requests.json_response({"status": "ok"})


@requests.endpoint()
async def unknown(request: HttpRequest, **_: Any) -> HttpResponseBase:
    """Everything else below the prefix."""
    raise NotFound


@requests.endpoint("POST")
async def run_agent(request: HttpRequest, name: str, **_: Any) -> HttpResponseBase:
    """Start a run of an agent and stream it; a repeat of a known request streams the run that it started."""
    requests.check_content_type(request)
    if supervisor.draining():
        raise Draining

    def ask() -> tuple[Caller, AgentEntry, Verdict]:
        policy = get_policy()
        caller = policy.enter(request)
        entry = get_agent(name)
        return policy.with_context(caller, request), entry, policy.may_run(caller.user, entry)

    caller, entry, verdict = await get_pool().run(ask)
    if not await _settled(verdict):
        raise PermissionRefused
    run_input = await _parsed(requests.read_body(request))
    start = get_engine().begin(_start_request(caller, entry, run_input))
    opened = await start.opened()
    _log_warnings(opened, run_input)
    return _response(request, start, opened, legacy=run_input.legacy)


@requests.endpoint("GET")
async def run_events(request: HttpRequest, run: str, **_: Any) -> HttpResponseBase:
    """The events of a run behind a cursor: what is stored, then live."""
    after = requests.cursor_of(request)
    legacy = requests.wants_legacy(request)
    found = await _find(request, run)
    last = found.last_seq if found.ended else None
    if last is not None and after >= last:
        if after > last:
            raise InvalidInput(
                "The cursor is not one of this run.", fields=[{"path": "after", "message": "beyond the last event"}]
            )
        response = HttpResponse(status=204)
        response["Cache-Control"] = "no-store"
        return response
    return sse.stream_response(stream.follow(found.pk, after, legacy=legacy, last=last))


@requests.endpoint("POST")
async def cancel_run(request: HttpRequest, run: str, **_: Any) -> HttpResponseBase:
    """Ask a run to stop; that it is asked again, or has ended, is no error."""
    requests.check_content_type(request, required=False)
    found = await _find(request, run, AccessPolicy.may_cancel)
    asked = not found.ended and await get_engine().cancel(found.pk, "user")
    return requests.json_response({"run": str(found.pk), "runId": found.run_id, "cancelling": asked})


# ---- parts ----------------------------------------------------------------------------------------------------------


async def _settled(verdict: Verdict) -> bool:
    return bool(await verdict) if isawaitable(verdict) else verdict


async def _parsed(body: bytes) -> RunInput:
    if len(body) <= LARGE:
        return parse_run_input(body)
    return await asyncio.get_running_loop().run_in_executor(None, parse_run_input, body)


async def _find(request: HttpRequest, run: str, may: Callable[[AccessPolicy, Any, Run], bool] | None = None) -> Run:
    """A run of the caller's scope, which they may see.

    Raises:
        NotFound: there is none, or it is somebody else's.
        PermissionRefused: they may see it, but not do this.
    """

    def ask() -> Run:
        policy = get_policy()
        caller = policy.enter(request)
        found = Run.objects.using(database_alias()).for_scope(caller.scope).filter(pk=UUID(run)).first()
        if found is None or not policy.may_see(caller.user, found):
            raise NotFound
        if may is not None and not getattr(policy, may.__name__)(caller.user, found):
            raise PermissionRefused
        return found

    return await get_pool().run(ask)


def _start_request(caller: Caller, entry: AgentEntry, run_input: RunInput) -> StartRequest:
    user = caller.user if getattr(caller.user, "is_authenticated", False) else None
    return StartRequest(
        scope=caller.scope,
        owner=user,
        user=user,
        agent=entry,
        run_input=run_input,
        transport="sse",
        extra=caller.extra,
        language=translation.get_language() or "",
        time_zone=timezone.get_current_timezone_name(),
    )


def _response(request: HttpRequest, start: Start, opened: Opened, *, legacy: bool) -> HttpResponseBase:
    if opened.kind == "refused":
        assert opened.error is not None  # noqa: S101 - the kind says so
        return sse.stream_response(stream.tell(stream.refusal(opened.error), legacy=legacy))
    if opened.kind == "hydration":
        assert opened.hydration is not None  # noqa: S101 - the kind says so
        return sse.stream_response(stream.tell(stream.restated(opened.hydration), legacy=legacy))
    run = opened.run
    assert run is not None  # noqa: S101 - the kind says so
    events: stream.Batches = stream.follow(run.pk, legacy=legacy, last=run.last_seq if run.ended else None)
    if opened.kind == "joined" and opened.hydration is not None:
        events = stream.join(opened.hydration, events, legacy=legacy)
    # Only the client that started a run takes it with it when it leaves; a watcher does not.
    return sse.stream_response(events, location=_location(request, run), on_leave=start.leave)


def _location(request: HttpRequest, run: Run) -> str:
    """The run's address, as a path: the site's prefix may have parameters and a proxy its own host."""
    prefix = request.path.rpartition("agents/")[0]
    return f"{escape_uri_path(prefix)}runs/{run.pk}/events"


def _described(request: HttpRequest, entry: AgentEntry) -> dict[str, Any]:
    capabilities = entry.capabilities
    return {
        "name": entry.name,
        "title": str(entry.options.title or entry.name),
        "description": str(entry.options.description),
        "url": f"{escape_uri_path(request.path.rstrip('/'))}/agents/{escape_uri_path(entry.name)}",
        **(
            {"capabilities": capabilities.model_dump(mode="json", by_alias=True, exclude_none=True)}
            if capabilities is not None
            else {}
        ),
    }


def _log_warnings(opened: Opened, run_input: RunInput) -> None:
    warnings: Sequence[str] = [*run_input.warnings, *opened.warnings]
    if warnings:
        # At most some: a hostile request has thousands of unknown fields.
        logger.warning("Run %s: %s", opened.run.pk if opened.run else "-", "; ".join(warnings[:20]))
