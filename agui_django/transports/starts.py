"""What every way to start a run has in common, whatever carries its bytes.

Law: who asks and what they may is settled in one hop into a database thread; the body is read after that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from inspect import isawaitable

from django.http import HttpRequest
from django.utils import timezone, translation

from agui_django.access import AccessPolicy, Caller, Verdict, get_policy
from agui_django.agents.registry import AgentEntry, get_agent
from agui_django.protocol.errors import PermissionRefused
from agui_django.protocol.run_input import RunInput, parse_run_input
from agui_django.runs import stream
from agui_django.runs.database import get_pool
from agui_django.runs.requests import Opened, StartRequest

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

    def ask() -> tuple[Caller, AgentEntry, Verdict]:
        policy = get_policy()
        caller = policy.enter(request) if enter is None else enter(policy)
        entry = get_agent(name)
        return policy.with_context(caller, request), entry, policy.may_run(caller.user, entry)

    caller, entry, verdict = await get_pool().run(ask)
    if not await settled(verdict):
        raise PermissionRefused
    return caller, entry


async def settled(verdict: Verdict) -> bool:
    """A verdict, awaited where it has to be."""
    return bool(await verdict) if isawaitable(verdict) else verdict


async def parsed(body: bytes) -> RunInput:
    """The checked input of a body; raises as `parse_run_input`."""
    if len(body) <= LARGE:
        return parse_run_input(body)
    return await asyncio.get_running_loop().run_in_executor(None, parse_run_input, body)


def start_request(caller: Caller, entry: AgentEntry, run_input: RunInput, transport: str) -> StartRequest:
    """What the engine is asked."""
    user = caller.user if getattr(caller.user, "is_authenticated", False) else None
    return StartRequest(
        scope=caller.scope,
        owner=user,
        user=user,
        agent=entry,
        run_input=run_input,
        transport=transport,
        extra=caller.extra,
        language=translation.get_language() or "",
        time_zone=timezone.get_current_timezone_name(),
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
