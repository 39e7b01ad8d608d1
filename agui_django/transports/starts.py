"""What every way to start a run has in common, whatever carries its bytes.

Law: who asks, what they may and the opening are one hop into a database thread; what is wrong with a body is told
only to those who may start a run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from inspect import isawaitable

from django.http import HttpRequest
from django.utils import timezone, translation
from django.utils.encoding import escape_uri_path

from agui_django.access import AccessPolicy, Caller, Verdict, get_policy
from agui_django.agents.registry import AgentEntry, all_agents, get_agent
from agui_django.conf import settings
from agui_django.protocol.errors import AgUiError, PermissionRefused
from agui_django.protocol.run_input import RunInput, parse_run_input
from agui_django.runs import stream, telemetry
from agui_django.runs.database import get_pool
from agui_django.runs.engine import get_engine
from agui_django.runs.requests import Asked, Opened, StartRequest
from agui_django.runs.starting import Start

logger = logging.getLogger("agui_django.request")

#: Bodies larger than this are parsed in a thread: the loop has other clients.
LARGE = 128 * 1024

#: Who sends a request; called in a database thread.
Enter = Callable[[AccessPolicy], Caller]


async def admit(request: HttpRequest, name: str, enter: Enter | None = None) -> tuple[Caller, AgentEntry]:
    """The caller of a request, who may run the agent of that name.

    Args:
        request: what `AccessPolicy.run_context` is shown.
        name: the agent's.
        enter: in place of `AccessPolicy.enter` with the request.

    Raises:
        NotAuthenticated, PermissionRefused, NotFound: they may not, or there is none.
    """
    caller, entry, verdict = await get_pool().run(_ask, request, name, enter)
    if not await settled(verdict):
        raise PermissionRefused
    return caller, entry


def _ask(request: HttpRequest, name: str, enter: Enter | None) -> tuple[Caller, AgentEntry, Verdict]:
    policy = get_policy()
    caller = policy.enter(request) if enter is None else enter(policy)
    entry = get_agent(name)
    return policy.with_context(caller, request), entry, policy.may_run(caller.user, entry)


async def begin(
    request: HttpRequest,
    name: str,
    read: Callable[[], bytes],
    transport: str,
    enter: Enter | None = None,
    *,
    attachments: str = "",
) -> tuple[Start, RunInput]:
    """Begin the run that a request asks for: who asks, what they may and the opening are one hop.

    Args:
        request: as for `admit`.
        name: the agent's.
        read: gives the body.
        transport: names the way it came.
        enter: as for `admit`.
        attachments: what clients find in front of an attachment's id; empty: see `attachments_at`.

    Raises:
        As `admit`, which counts before what is wrong with the body: `InvalidJson`, `InvalidInput` and others. And
        Draining. What the opening raises comes from `Start.opened`, `admit`'s errors too where the body is fine.
    """
    try:
        body = await body_of(request, read)
        run_input = await parsed(body) if len(body) <= LARGE else None
    except AgUiError:
        await admit(request, name, enter)
        raise
    language, time_zone = translation.get_language() or "", timezone.get_current_timezone_name()
    if run_input is None or run_input.inline:
        caller, entry = await admit(request, name, enter)
        run_input = run_input or await parsed(body)
        started = start_request(caller, entry, run_input, transport)
        if run_input.inline:
            started.attachments_at = attachments_at(request, attachments)
            # A request lives as long as its stream; what was a file of it must not.
            request._body = b""
        with telemetry.continued(request.headers):
            return get_engine().begin(started), run_input
    checked = run_input

    def ask() -> Asked:
        caller, entry, verdict = _ask(request, name, enter)
        return Asked(_request(caller, entry, checked, transport, language, time_zone), verdict)

    with telemetry.continued(request.headers):
        return get_engine().begin(ask), run_input


async def runnable(request: HttpRequest) -> list[AgentEntry]:
    """The agents that the caller of a request may run.

    Raises:
        NotAuthenticated, PermissionRefused: they may not even ask.
    """

    def ask() -> list[tuple[AgentEntry, Verdict]]:
        policy = get_policy()
        user = policy.enter(request).user
        return [(entry, policy.may_run(user, entry)) for entry in all_agents()]

    return [entry for entry, verdict in await get_pool().run(ask) if await settled(verdict)]


async def settled(verdict: Verdict) -> bool:
    """A verdict, awaited where it has to be."""
    return bool(await verdict) if isawaitable(verdict) else verdict


async def parsed(body: bytes, *, files_inside: bool = False) -> RunInput:
    """The checked input of a body; raises as `parse_run_input`.

    Args:
        body: the bytes.
        files_inside: leave files in their messages: none of it is stored.
    """
    read = partial(parse_run_input, body, inline=None if files_inside else settings.ATTACHMENT_INLINE)
    if len(body) <= LARGE:
        return read()
    return await asyncio.get_running_loop().run_in_executor(None, read)


async def body_of(request: HttpRequest, read: Callable[[], bytes]) -> bytes:
    """The body; a large one is in a file, and is read in a thread."""
    declared = request.META.get("CONTENT_LENGTH") or ""
    if declared.isdigit() and len(declared) < 18 and int(declared) <= LARGE:
        return read()
    return await asyncio.get_running_loop().run_in_executor(None, read)


def attachments_at(request: HttpRequest, beside: str = "") -> str:
    """What clients find in front of an attachment's id: beside the address that they have sent it to.

    Where that is none of ours (a transport of another prefix), the site's addresses say it.

    Args:
        request: what brought it.
        beside: the folder's path, where the transport has one of its own.
    """
    if settings.ATTACHMENT_URL is not None:
        return ""
    prefix, found, _ = request.path.rpartition("/agents/")
    return beside or (f"{escape_uri_path(prefix)}/attachments/" if found else "")


def start_request(caller: Caller, entry: AgentEntry, run_input: RunInput, transport: str) -> StartRequest:
    """What the engine is asked."""
    language, time_zone = translation.get_language() or "", timezone.get_current_timezone_name()
    return _request(caller, entry, run_input, transport, language, time_zone)


def _request(
    caller: Caller, entry: AgentEntry, run_input: RunInput, transport: str, language: str, time_zone: str
) -> StartRequest:
    user = caller.user if getattr(caller.user, "is_authenticated", False) else None
    return StartRequest(
        scope=caller.scope,
        owner=user,
        user=user,
        agent=entry,
        run_input=run_input,
        transport=transport,
        extra=caller.extra,
        language=language,
        time_zone=time_zone,
        may_answer=partial(get_policy().may_answer, caller.user),
        may_give_up=partial(get_policy().may_give_up, caller.user),
    )


def batches(opened: Opened, *, legacy: bool) -> stream.Batches:
    """The stream that answers a start."""
    if opened.kind == "refused":
        assert opened.error is not None  # noqa: S101 - the kind says so
        return stream.tell(stream.refusal(opened.error), legacy=legacy)
    if opened.kind == "hydration":
        assert opened.hydration is not None  # noqa: S101 - the kind says so
        return stream.tell(stream.restated(opened.hydration), legacy=legacy)
    run = opened.run
    assert run is not None  # noqa: S101 - the kind says so
    events: stream.Batches = stream.follow(run.pk, legacy=legacy, last=run.last_seq if run.ended else None)
    if opened.kind == "joined" and opened.hydration is not None:
        events = stream.join(opened.hydration, events, legacy=legacy)
    return events


def log_warnings(opened: Opened, run_input: RunInput) -> None:
    """What of a request was dropped or ignored."""
    warnings: Sequence[str] = [*run_input.warnings, *opened.warnings]
    if warnings:
        # At most some: a hostile request has thousands of unknown fields.
        logger.warning("Run %s: %s", opened.run.pk if opened.run else "-", "; ".join(warnings[:20]))
