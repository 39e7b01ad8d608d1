"""Answers that the site's own code takes, one by one: kept until every open question of the thread has one.

Law: everything under the thread's lock and in one transaction: a draft is kept, or the run that carries all answers is
there. Every rule is the one that a resume from a client meets.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.contrib.auth import get_user_model
from django.db.models import Q
from django.utils import timezone

from agui_django.models import Interrupt, Run, Thread
from agui_django.protocol.codec import decode, encode
from agui_django.protocol.errors import InterruptExpired, NotFound, PermissionRefused, ResumeInvalid
from agui_django.protocol.interrupts import check_repeat, check_response
from agui_django.protocol.run_input import RunInput, build_run_input
from agui_django.runs import reaping, resume
from agui_django.runs.drafts import Draft, draft_of
from agui_django.runs.opening import Opening
from agui_django.runs.requests import AgentPolicy, Given, Opened, StartRequest
from agui_django.runs.setup import Wire

#: Members of an input's forwardedProps that were about that one request: they must not take effect again.
ONCE = ("supersedeAfter", "command")


def request_for(run: Run, given: Given | None, *, actor: Any, agent: Any) -> StartRequest:
    """The request that goes on with an interrupted run; its answers come later.

    Args:
        run: the interrupted run, with its thread.
        given: the answers that are to be taken.
        actor: who answered.
        agent: the registry's entry, or an `AgentPolicy` where this process does not know the agent.
    """
    thread, data = run.thread, decode(run.input)
    props = data.get("forwardedProps", {})
    kept: Wire = {"threadId": thread.thread_id, "runId": str(uuid.uuid4()), "messages": []}
    kept |= {key: data[key] for key in ("tools", "context", "protocolVersion") if key in data}
    kept["forwardedProps"] = {k: v for k, v in props.items() if k not in ONCE} if isinstance(props, dict) else props
    return StartRequest(
        scope=thread.scope,
        owner=thread.owner,
        user=thread.owner or run.user,
        actor=actor,
        agent=agent,
        run_input=RunInput(kept, "", data.get("protocolVersion"), []),
        transport="server",
        extra=decode(run.extra),
        language=run.language,
        time_zone=run.time_zone,
        resumed_run=run,
        origin="server",
        given=given,
    )


def answer(alias: str, request: StartRequest, given: Given) -> Opened:
    """Take answers; in a transaction.

    Raises:
        NotFound: there is no such question (any more), or nobody here to tell the answer to.
        PermissionRefused: the caller may not answer one of them.
        ResumeError: the answer cannot be taken; nothing was changed.
        ThreadBusy: another run of the thread is active.
    """
    return _Taking(alias, request, given).take()


@dataclass
class _Taking:
    alias: str
    request: StartRequest
    given: Given

    def take(self) -> Opened:
        alias, given, now = self.alias, self.given, timezone.now()
        thread = _locked(alias, self.request)
        _end_lost(alias, thread)
        rows = _rows(alias, thread, given.run)
        named = [row for row in rows if row.run_id == given.run and given.means(row.pk, row.status)]
        if not named and given.interrupt is not None:
            raise NotFound
        cancels = given.entry["status"] == Interrupt.Status.CANCELLED
        if not all(self.request.permits(row, cancels=cancels) for row in named):
            raise PermissionRefused
        settled = [row for row in named if row.status != Interrupt.Status.OPEN]
        for row in settled:
            check_repeat(row.interrupt_id, given.entry, resume.resolution(row))
        if told := [row for row in settled if row.status != Interrupt.Status.EXPIRED or row.answered_run_id]:
            return Opened("attached", run=told[-1].answered_run)
        fresh = [row for row in named if row.status == Interrupt.Status.OPEN]
        for row in fresh:
            self._check(row, now)
            row.draft = Draft({"interruptId": row.interrupt_id, **given.entry}, _key(given.by), now).text
        # An expired question is closed whatever becomes of it; one that nobody was told of may be given up.
        taken = [
            row for row in rows if row.status == Interrupt.Status.OPEN and (row in named or not resume.over(row, now))
        ]
        if not taken and not settled:
            return Opened("attached")
        if not all(row.draft for row in taken):
            Interrupt.objects.using(alias).bulk_update(fresh, ["draft"])
            return Opened("kept")
        return complete(alias, thread, self.request, taken, settled, now)

    def _check(self, row: Interrupt, now: datetime) -> None:
        """Refuse what does not fit the question, at the field of the call."""
        if self.given.entry["status"] != "resolved":
            return
        if resume.over(row, now):
            raise InterruptExpired(f"Expired, can be cancelled but not answered: {row.interrupt_id}")
        if row.response_schema:
            wrong = check_response(decode(row.response_schema), self.given.entry.get("payload"))
            if wrong:
                raise ResumeInvalid(fields=[{**field, "path": f"/payload{field['path']}"} for field in wrong])


def complete(
    alias: str,
    thread: Thread,
    request: StartRequest,
    answered: Sequence[Interrupt],
    given_up: Sequence[Interrupt],
    now: datetime,
) -> Opened:
    """Open the run that carries the drafts of questions; in a transaction that holds the thread's row.

    Args:
        alias: the database.
        thread: the locked row.
        request: what `request_for` gave.
        answered: open questions, each with its draft.
        given_up: expired ones that are given up.
        now: the time.

    Raises:
        NotFound: the agent is not known here, and there is something to tell it.
        ThreadBusy: another run of the thread is active.
    """
    drafts = {row.interrupt_id: draft for row in answered if (draft := draft_of(row)) is not None}
    if isinstance(request.agent, AgentPolicy):
        return _dismiss(alias, answered, drafts, now)
    people = _people(alias, {draft.by for draft in drafts.values()}, request.actor)
    entries = [draft.entry for draft in drafts.values()] + [resume.cancelling(row) for row in given_up]
    answers = replace(
        request,
        run_input=build_run_input({**request.run_input.data, "resume": entries}),
        answerers={name: people.get(draft.by) for name, draft in drafts.items()},
        may_answer=None,  # asked when each was given
        may_give_up=None,
        given=None,
    )
    return Opening(alias, answers).open()


def _dismiss(alias: str, rows: Sequence[Interrupt], drafts: dict[str, Draft], now: datetime) -> Opened:
    """Close questions of an agent that is gone: nobody is there to be told."""
    if any(draft.entry["status"] != "cancelled" for draft in drafts.values()):
        raise NotFound("The agent that asked is not registered here; its questions can only be cancelled.")
    for row in rows:
        draft = drafts[row.interrupt_id]
        Interrupt.objects.using(alias).filter(pk=row.pk, status=Interrupt.Status.OPEN).update(
            status=Interrupt.Status.CANCELLED,
            response=encode(draft.entry),
            answered_by=draft.by,
            closed_at=now,
            draft="",
        )
    return Opened("attached", closed=[row.pk for row in rows])


# ---- reading --------------------------------------------------------------------------------------------------------


def _locked(alias: str, request: StartRequest) -> Thread:
    threads = Thread.objects.using(alias).select_for_update(no_key=True)
    thread = threads.filter(scope=request.scope, thread_id=request.run_input.thread_id).first()
    if thread is None:
        raise NotFound
    return thread


def _end_lost(alias: str, thread: Thread) -> None:
    """End a run that was lost: perhaps its questions are open again."""
    for active in reaping.with_quiet(Run.objects.using(alias).filter(thread=thread).active()):
        if reaping.lost(active):
            reaping.reap_here(alias, thread, active)


def _rows(alias: str, thread: Thread, run: Any) -> list[Interrupt]:
    """The run's questions, and whatever else is open in its thread."""
    wanted = Q(run=run) | Q(status=Interrupt.Status.OPEN)
    rows = Interrupt.objects.using(alias).filter(wanted, thread=thread).select_related("run", "answered_run")
    return with_thread(rows.order_by("run__created_at", "position"), thread)


def with_thread(rows: Iterable[Interrupt], thread: Thread) -> list[Interrupt]:
    """Rows that know their thread, for who asks the policy about them."""
    found = list(rows)
    for row in found:
        row.thread = thread
    return found


def person(alias: str, key: Any) -> Any:
    """A user by the key that a draft holds; None where they are gone."""
    return _people(alias, {key}, None).get(key)


def _people(alias: str, keys: set[Any], known: Any) -> dict[Any, Any]:
    """Users by the text of their keys; of one that is known already nothing is read."""
    found = {str(known.pk): known} if _key(known) is not None else {}
    if wanted := keys - found.keys() - {None}:
        rows = get_user_model()._default_manager.using(alias).filter(pk__in=wanted)
        found |= {str(row.pk): row for row in rows}
    return found


def _key(row: Any) -> Any:
    return getattr(row, "pk", None)
