"""The HTTP addresses: start a run, follow it, stop it; which agents there are; whether this process takes runs.

Law: whatever a view needs of the database (login, rights, the run) is asked in one hop into a database thread; ids are
looked up inside the caller's scope, so that a foreign one answers as an unknown one does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils.encoding import escape_uri_path

from agui_django.access import AccessPolicy, get_policy
from agui_django.agents.registry import AgentEntry
from agui_django.models import Run
from agui_django.protocol.consumer import PROTOCOL_VERSION
from agui_django.protocol.errors import Draining, InvalidInput, NotFound, PermissionRefused
from agui_django.runs import stream, supervisor
from agui_django.runs.database import database_alias, get_pool
from agui_django.runs.engine import get_engine
from agui_django.runs.requests import Opened
from agui_django.runs.starting import Start
from agui_django.transports import requests, sse, starts


@requests.endpoint("GET", "HEAD")
async def index(request: HttpRequest, **_: Any) -> HttpResponseBase:
    """The agents that the caller may run."""
    return requests.json_response(
        {
            "protocolVersion": PROTOCOL_VERSION,
            "agents": [
                described(entry, f"{escape_uri_path(request.path.rstrip('/'))}/agents/{escape_uri_path(entry.name)}")
                for entry in await starts.runnable(request)
            ],
        }
    )


@requests.endpoint("GET", "HEAD")
async def health(request: HttpRequest, **_: Any) -> HttpResponseBase:
    """Whether this process takes new runs; for load balancers, so without a login."""
    if supervisor.draining():
        return requests.json_response({"status": "draining"}, status=503)
    get_engine().upkeep.recover()
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

    start, run_input = await starts.begin(request, name, lambda: requests.read_body(request), "sse")
    opened = await start.opened()
    starts.log_warnings(opened, run_input)
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


def _response(request: HttpRequest, start: Start, opened: Opened, *, legacy: bool) -> HttpResponseBase:
    events = starts.batches(opened, legacy=legacy)
    if opened.run is None:
        return sse.stream_response(events)
    # What a client leaves before it watches (or by another way than by watching) has to be told.
    return sse.stream_response(events, location=_location(request, opened.run), on_leave=start.leave)


def _location(request: HttpRequest, run: Run) -> str:
    """The run's address, as a path: the site's prefix may have parameters and a proxy its own host."""
    prefix = request.path.rpartition("agents/")[0]
    return f"{escape_uri_path(prefix)}runs/{run.pk}/events"


def described(entry: AgentEntry, url: str | None) -> dict[str, Any]:
    """What clients are told of an agent."""
    capabilities = entry.capabilities
    return {
        "name": entry.name,
        "title": str(entry.options.title or entry.name),
        "description": str(entry.options.description),
        "url": url,
        **(
            {"capabilities": capabilities.model_dump(mode="json", by_alias=True, exclude_none=True)}
            if capabilities is not None
            else {}
        ),
    }
