"""The questions of a thread as rows: which are open, what a request's answers do to them, what the agent gets to know.

The rules themselves are `protocol.interrupts`; here they meet the database. Law: a resume is claimed by one
conditional update, so that of two racing ones exactly one runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db.models import Case, CharField, Q, TextField, Value, When

from agui_django.models import Interrupt, Run, Thread
from agui_django.protocol.codec import decode, encode
from agui_django.protocol.errors import InterruptsOpen, PermissionRefused, ResumeConflict
from agui_django.protocol.interrupts import OpenInterrupt, Resolution, Resolved, plan_resume, resume_of
from agui_django.runs.drafts import Draft
from agui_django.runs.setup import Answer, Wire

if TYPE_CHECKING:
    from agui_django.runs.requests import StartRequest

Warn = Callable[[str], None]
Status = Interrupt.Status


@dataclass
class Plan:
    """What a request does to the interrupts of its thread.

    Attributes:
        answered: the rows that the request closes, with their answers.
        dropped: the rows that are cancelled because the user wrote on.
        expired: the rows whose time is over.
        untold: the rows that had expired before, which no run was told of.
        given_up: entries that cancel those.
        run: the run whose questions are answered, None where the request is no resume.
        repeated: the run that carries the same answers already, where the request only repeats them.
        earlier: the rows that were closed before, in the turn that is continued.
    """

    answered: list[tuple[Interrupt, Resolved]] = field(default_factory=list)
    dropped: list[Interrupt] = field(default_factory=list)
    expired: list[Interrupt] = field(default_factory=list)
    untold: list[Interrupt] = field(default_factory=list)
    given_up: list[Wire] = field(default_factory=list)
    run: Run | None = None
    repeated: Run | None = None
    earlier: list[Interrupt] = field(default_factory=list)

    @property
    def answers(self) -> dict[str, Answer]:
        """What the agent is told, by key, once the plan is carried out."""
        closed = [*self.expired, *self.dropped, *(row for row, _ in self.answered)]
        return answers_of([*self.earlier, *self.untold, *closed])

    @property
    def entries(self) -> list[Wire]:
        """The accepted resume entries, as the agent's input holds them."""
        return [*(entry_of(resolved) for _, resolved in self.answered), *self.given_up]

    @property
    def closed(self) -> list[int]:
        """Primary keys of the rows that are closed for good whatever becomes of the run."""
        return [row.pk for row in [*self.expired, *self.dropped]]


def entry_of(resolved: Resolved) -> Wire:
    """An answer as a resume entry."""
    entry: Wire = {"interruptId": resolved.id, "status": resolved.status}
    if resolved.payload is not None:
        entry["payload"] = resolved.payload
    if resolved.metadata is not None:
        entry["metadata"] = resolved.metadata
    return entry


def plan(
    alias: str, thread: Thread, request: StartRequest, *, open_runs: Sequence[Run], now: datetime, warn: Warn
) -> Plan:
    """Judge a request against the interrupts of its thread; changes nothing.

    Args:
        alias: the database.
        thread: the locked row.
        request: the request.
        open_runs: the runs of the thread that have open interrupts.
        now: the time that expiry is judged by.
        warn: told which answers were ignored.

    Raises:
        ResumeError: the answers cannot be taken, or answers are missing.
        PermissionRefused: the caller may not answer one of the questions.
    """
    data = request.run_input.data
    named = {entry["interruptId"] for entry in data.get("resume") or ()}
    if not open_runs and not named:
        return Plan()
    wanted = Q(status=Status.OPEN) | Q(interrupt_id__in=named) | Q(run__turn__in=[run.turn for run in open_runs])
    found = Interrupt.objects.using(alias).filter(wanted, thread=thread).select_related("run", "answered_by")
    rows = list(found.order_by("run__created_at", "position"))
    for row in rows:
        row.thread = thread
    waiting = [row for row in rows if row.status == Status.OPEN and not over(row, now)]
    late = [row for row in rows if row.status == Status.OPEN and over(row, now)]
    untold = [row for row in rows if row.status == Status.EXPIRED and row.answered_run_id is None]
    resume = resume_of(data, [_open(row) for row in waiting or late])
    if resume is None:
        return _without_answers(waiting, late, untold, request)
    named |= {entry["interruptId"] for entry in resume}
    judged = [*waiting, *(row for row in late if row.interrupt_id in named)]
    given_up = [row for row in untold if row.interrupt_id in named]
    _check_agent([row for row in [*judged, *given_up] if row.interrupt_id in named], request)
    closed = [row for row in rows if row.status != Status.OPEN]
    known = {row.interrupt_id: resolution(row) for row in closed}
    resolved = plan_resume([_open(row) for row in judged], known, resume, now=now, warn=warn)
    cancelled = [row for row, answer in zip(judged, resolved, strict=True) if answer.status == Status.CANCELLED]
    if not all(request.permits(row, cancels=row in cancelled or row in given_up) for row in [*judged, *given_up]):
        raise PermissionRefused
    result = Plan(
        answered=list(zip(judged, resolved, strict=True)),
        expired=[row for row in late if row not in judged],
        untold=untold,
        given_up=[cancelling(row) for row in given_up],
    )
    if judged or given_up:
        result.run = (judged or given_up)[-1].run
        result.earlier = [row for row in closed if row.run.turn == result.run.turn]
    else:
        carriers = [row.answered_run for row in closed if row.interrupt_id in named and row.answered_run is not None]
        result.repeated = carriers[-1] if carriers else None
    return result


def _check_agent(named: list[Interrupt], request: StartRequest) -> None:
    """Answers are for the agent that asked: another one would be called with what it did not ask, by who may run that.

    Raises:
        InterruptsOpen: a question is another agent's.
    """
    others = sorted({row.run.agent for row in named} - {request.policy.name})
    if others:
        raise InterruptsOpen(f"The questions were asked by another agent ({', '.join(others)}); answer them there.")


def _without_answers(
    waiting: list[Interrupt], late: list[Interrupt], untold: list[Interrupt], request: StartRequest
) -> Plan:
    if waiting and request.policy.open_interrupts != "cancel":
        names = ", ".join(row.interrupt_id for row in waiting)
        raise InterruptsOpen(f"The thread waits for answers to its open interrupts: {names}")
    return Plan(dropped=waiting, expired=late, untold=untold)


def carry_out(alias: str, plan: Plan, run: Run, user: Any, now: datetime, by: Mapping[str, Any] | None = None) -> None:
    """Close the interrupts of a plan for a run.

    Args:
        alias: the database.
        plan: what `plan` gave.
        run: the run that is told.
        user: who answers.
        now: when.
        by: who answered, by interrupt id, where that was somebody else.

    Raises:
        ResumeConflict: one of them was closed meanwhile; the transaction must not be committed.
    """
    changes = [(row, resolved.status, encode(entry_of(resolved))) for row, resolved in plan.answered]
    changes += [(row, str(Status.CANCELLED), "") for row in plan.dropped]
    if changes:
        people = {row.pk: (by or {}).get(row.interrupt_id, user) for row, *_ in changes}
        keys = {pk: getattr(person, "pk", None) for pk, person in people.items()}
        rows = Interrupt.objects.using(alias).filter(pk__in=keys, status=Status.OPEN)
        closed = rows.update(
            status=Case(*(When(pk=row.pk, then=Value(status)) for row, status, _ in changes), output_field=CharField()),
            response=Case(*(When(pk=row.pk, then=Value(text)) for row, _, text in changes), output_field=TextField()),
            answered_by=_one_or_each(keys),
            answered_run=run,
            draft="",
            closed_at=now,
        )
        if closed != len(changes):
            raise ResumeConflict
        for row, status, text in changes:
            row.status, row.response, row.closed_at = status, text, now
            row.answered_by = people[row.pk] if keys[row.pk] is not None else None
    close_expired(alias, plan.expired, now, run)
    if plan.untold:
        Interrupt.objects.using(alias).filter(pk__in=[row.pk for row in plan.untold]).update(answered_run=run)


def _one_or_each(keys: Mapping[int, Any]) -> Any:
    """Who answered, as a value of the update: mostly it was one."""
    if len(set(keys.values())) == 1:
        return next(iter(keys.values()))
    person = Interrupt._meta.get_field("answered_by").target_field
    cases = [When(pk=row, then=Value(key, output_field=person)) for row, key in keys.items()]
    return Case(*cases, output_field=person)


def close_expired(alias: str, rows: Iterable[Interrupt], now: datetime, run: Run | None = None) -> None:
    """Close questions whose time is over; the caller holds the thread's row.

    Args:
        alias: the database.
        rows: the questions.
        now: when.
        run: the run that is told of it, if any.
    """
    found = list(rows)
    if found:
        expired = Interrupt.objects.using(alias).filter(pk__in=[row.pk for row in found], status=Status.OPEN)
        expired.update(status=Status.EXPIRED, closed_at=now, draft="", answered_run=run)
        for row in found:
            row.status, row.closed_at, row.draft = Status.EXPIRED, now, ""


def reopen(alias: str, run: UUID) -> None:
    """Open the questions again whose answers a run brought that failed before it acted.

    An answer becomes a draft: who gave it need not give it again where others of the run are missing.
    """
    told = Interrupt.objects.using(alias).filter(answered_run=run)
    told.filter(status=Status.EXPIRED).update(answered_run=None)
    for row in told.exclude(status=Status.EXPIRED).order_by("pk"):
        at = row.closed_at or row.created_at
        draft = Draft(decode(row.response), row.answered_by_id, at).text if row.response else ""
        Interrupt.objects.using(alias).filter(pk=row.pk).update(
            status=Status.OPEN, draft=draft, response="", answered_run=None, answered_by=None, closed_at=None
        )


def answers_of(rows: Iterable[Interrupt]) -> dict[str, Answer]:
    """What the agent is told of closed questions, by key; the latest pass counts."""
    answers: dict[str, Answer] = {}
    for row in rows:
        entry = decode(row.response) if row.response else {}
        answers[row.key] = Answer(
            key=row.key,
            interrupt_id=row.interrupt_id,
            status=row.status,
            value=entry.get("payload") if row.status == Status.RESOLVED else None,
            user=row.answered_by,
            at=row.closed_at,
            metadata=entry.get("metadata") or {},
            response_schema=decode(row.response_schema) if row.response_schema else None,
        )
    return answers


def answers_of_turn(alias: str, thread: Thread, turn: str, run: Run | None = None) -> dict[str, Answer]:
    """The answers that were given in a turn so far, and what a run was told of questions of earlier turns."""
    wanted = Q(run__turn=turn) if run is None else Q(run__turn=turn) | Q(answered_run=run)
    rows = Interrupt.objects.using(alias).filter(wanted, thread=thread).exclude(status=Status.OPEN)
    return answers_of(rows.select_related("answered_by").order_by("run__created_at", "position"))


def open_wires(alias: str, thread: Thread, now: datetime) -> list[Wire]:
    """The questions that wait, as clients are shown them."""
    rows = Interrupt.objects.using(alias).filter(thread=thread).open(now).order_by("run__created_at", "position")
    return [decode(wire) for wire in rows.values_list("wire", flat=True)]


def over(row: Interrupt, now: datetime) -> bool:
    """Whether a question's time is over."""
    return row.expires_at is not None and row.expires_at <= now


def cancelling(row: Interrupt) -> Wire:
    """The resume entry that gives a question up."""
    return {"interruptId": row.interrupt_id, "status": "cancelled"}


def _open(row: Interrupt) -> OpenInterrupt:
    return OpenInterrupt(row.interrupt_id, decode(row.response_schema) if row.response_schema else None, row.expires_at)


def resolution(row: Interrupt) -> Resolution:
    """How a question was closed."""
    return Resolution(row.status, decode(row.response).get("payload") if row.response else None)
