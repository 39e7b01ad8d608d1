"""Answering questions from the site's own code: a view, the REST API, the admin, a command.

Law: the rules and the race safety are those of a resume from a client; once every open question of the thread has its
answer, the run that carries them begins here, and whoever watches the thread sees it go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.db.models import DateTimeField, DurationField, ExpressionWrapper, F, Value
from django.utils import timezone

from agui_django.access import get_policy
from agui_django.agents.asking import plain
from agui_django.agents.registry import get_agent
from agui_django.models import Interrupt, InterruptQuerySet, Run
from agui_django.protocol.errors import InvalidInput, NotFound, NotJson
from agui_django.runs.completing import request_for
from agui_django.runs.database import database_alias, get_pool
from agui_django.runs.engine import get_engine
from agui_django.runs.requests import AgentPolicy, Asked, Given, Opened
from agui_django.runs.setup import Wire
from agui_django.runs.start import in_background
from agui_django.runs.stream import follow


@dataclass(frozen=True)
class Answered:
    """What became of an answer.

    Attributes:
        interrupt: the question's row as it is now.
        complete: no other question of the thread waits; False: the answer is kept as a draft.
        run: the run that carries the answers: it has just begun, or it is the one that brought the same answer before.
    """

    interrupt: Interrupt
    complete: bool
    run: UUID | None


async def aanswer(
    interrupt: Interrupt,
    *,
    user: Any,
    status: str = "resolved",
    payload: Any = None,
    metadata: Mapping[str, Any] | None = None,
    wait: bool = False,
) -> Answered:
    """Answer a question, or give it up.

    While other questions of the thread are open the answer is kept as a draft, and may be given anew. The last one
    starts the run that carries them all: with the tools, context, forwardedProps, ``extra``, language and time zone of
    the run that asked and the thread's state; ``run.user`` is the thread's owner, ``run.actor`` who answered last.

    Args:
        interrupt: the question; it is looked up by whoever calls, in the scope of whoever answers.
        user: who answers, judged by ``AccessPolicy.may_answer`` and ``may_give_up``; None: the site itself, which may.
        status: ``resolved``, or ``cancelled``: the agent is told that there will be no answer.
        payload: the answer, as JSON; with ``cancelled`` there is none.
        metadata: about the answer, no part of it; the agent finds it beside it.
        wait: return when the run that carries the answer has ended, else as soon as it is stored.

    Raises:
        InvalidInput: an argument is malformed; `fields` say which.
        PermissionRefused: the user may not answer it.
        NotFound: the question is gone, or its agent is (then it can only be cancelled).
        ResumeInvalid: the payload does not fit the question's schema; `fields` point into it from ``/payload`` on.
        ResumeConflict: it was answered otherwise meanwhile.
        InterruptExpired: its time is over; it can only be cancelled.
        ThreadBusy: another run of the thread is active.
        Draining: this process is going away.
    """
    entry = _entry(status, payload, metadata)
    opened = await _give(Given(interrupt.run_id, entry, interrupt.pk, _known(user)), user, wait=wait)
    row = await get_pool().run(_row, interrupt.pk)
    return Answered(row, opened.kind != "kept", None if opened.run is None else opened.run.pk)


async def ainterrupts_cancel(
    run: Run | UUID, *, user: Any, metadata: Mapping[str, Any] | None = None, wait: bool = False
) -> UUID | None:
    """Give up all open questions of a run: the agent is called, and each of them raises `Declined` there.

    Args:
        run: the run that asked, or its address.
        user: as for `aanswer`.
        metadata: as for `aanswer`; a reason, say.
        wait: as for `aanswer`.

    Returns:
        The run that tells the agent; None where nothing was open, where questions of other runs are, or where the agent
        is not registered any more: then the questions are closed, and nobody is told.

    Raises:
        As `aanswer`.
    """
    uuid = run.pk if isinstance(run, Run) else run
    opened = await _give(Given(uuid, _entry("cancelled", None, metadata), None, _known(user)), user, wait=wait)
    return None if opened.run is None else opened.run.pk


async def aseen(interrupt: Interrupt, user: Any) -> None:
    """Note that somebody looks at an open question, so that another one sees it."""
    await get_pool().run(_see, interrupt.pk, user)


def answer(interrupt: Interrupt, **given: Any) -> Answered:
    """The synchronous `aanswer`, for views, commands and the admin; the run is executed by a thread of this process.

    Without ``wait`` the process has to live until the run has ended: a command waits.

    Raises:
        TransactionManagementError: called inside a transaction, which the run could not see.
        SynchronousOnlyOperation: called in an event loop; await `aanswer` there.
    """
    return in_background(partial(aanswer, interrupt, **given), "answer()")


def interrupts_cancel(run: Run | UUID, **given: Any) -> UUID | None:
    """The synchronous `ainterrupts_cancel`; raises as `answer`."""
    return in_background(partial(ainterrupts_cancel, run, **given), "interrupts_cancel()")


def open_interrupts(now: datetime | None = None) -> InterruptQuerySet:
    """The questions that wait, those that expire first in front, then the oldest.

    Each has an ``age`` and, where it expires, what is ``left`` of its time, as timedeltas.

    Args:
        now: the time to judge by; default: this moment.
    """
    at = now or timezone.now()
    moment = Value(at, output_field=DateTimeField())
    rows = Interrupt.objects.using(database_alias()).open(at).select_related("thread", "run", "seen_by")
    return rows.annotate(
        age=ExpressionWrapper(moment - F("created_at"), output_field=DurationField()),
        left=ExpressionWrapper(F("expires_at") - moment, output_field=DurationField()),
    ).order_by(F("expires_at").asc(nulls_last=True), "created_at", "pk")


# ---- parts ----------------------------------------------------------------------------------------------------------


async def _give(given: Given, user: Any, *, wait: bool) -> Opened:
    opened = await get_engine().begin(partial(_asked, given, user)).opened()
    if opened.error is not None:
        raise opened.error
    if wait and opened.run is not None:
        async for _ in follow(opened.run.pk):
            pass
    return opened


def _asked(given: Given, user: Any) -> Asked:
    """The request that an answer makes; in a database thread."""
    runs = Run.objects.using(database_alias()).select_related("thread__owner", "user")
    run = runs.filter(pk=given.run).first()
    if run is None:
        raise NotFound
    agent: Any
    try:
        agent = get_agent(run.agent)
    except NotFound:
        agent = AgentPolicy(run.agent)
    request = request_for(run, given, actor=given.by, agent=agent)
    if user is not None:
        request.may_answer = partial(get_policy().may_answer, user)
        request.may_give_up = partial(get_policy().may_give_up, user)
    return Asked(request, True)


def _entry(status: str, payload: Any, metadata: Mapping[str, Any] | None) -> Wire:
    """A resume entry without the question's id.

    Raises:
        InvalidInput: something is malformed.
    """
    if status not in ("resolved", "cancelled"):
        raise InvalidInput(fields=[{"path": "/status", "message": "must be resolved or cancelled"}])
    entry: Wire = {"status": status}
    if status == "resolved" and payload is not None:
        entry["payload"] = _plain("payload", payload)
    if metadata is not None:
        if not isinstance(metadata, Mapping):
            raise InvalidInput(fields=[{"path": "/metadata", "message": "must be an object"}])
        entry["metadata"] = _plain("metadata", metadata)
    return entry


def _plain(name: str, value: Any) -> Any:
    try:
        return plain(value)
    except NotJson as error:
        raise InvalidInput(fields=[{"path": f"/{name}", "message": str(error.message)}]) from None


def _known(user: Any) -> Any:
    """Who answers, where that is a user that can be stored."""
    return user if getattr(user, "pk", None) is not None else None


def _row(key: int) -> Interrupt:
    rows = Interrupt.objects.using(database_alias()).select_related("thread", "run", "answered_by")
    found = rows.filter(pk=key).first()
    if found is None:
        raise NotFound
    return found


def _see(key: int, user: Any) -> None:
    rows = Interrupt.objects.using(database_alias()).open().filter(pk=key)
    rows.update(seen_by=_known(user), seen_at=timezone.now())
