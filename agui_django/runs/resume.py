"""The questions of a thread as rows: which are open, what a request's answers do to them, what the agent gets to know.

The rules themselves are `protocol.interrupts`; here they meet the database. Law: a resume is claimed by one
conditional update, so that of two racing ones exactly one runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.db.models import Case, CharField, Q, TextField, Value, When

from agui_django.models import Interrupt, Run, Thread
from agui_django.protocol.codec import decode, encode
from agui_django.protocol.errors import InterruptsOpen, PermissionRefused, ResumeConflict
from agui_django.protocol.interrupts import OpenInterrupt, Resolution, Resolved, plan_resume, resume_of
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
        run: the run whose questions are answered, None where the request is no resume.
        repeated: the run that carries the same answers already, where the request only repeats them.
        earlier: the rows that were closed before, in the turn that is continued.
    """

    answered: list[tuple[Interrupt, Resolved]] = field(default_factory=list)
    dropped: list[Interrupt] = field(default_factory=list)
    expired: list[Interrupt] = field(default_factory=list)
    run: Run | None = None
    repeated: Run | None = None
    earlier: list[Interrupt] = field(default_factory=list)

    @property
    def answers(self) -> dict[str, Answer]:
        """What the agent is told, by key, once the plan is carried out."""
        return answers_of([*self.earlier, *self.expired, *self.dropped, *(row for row, _ in self.answered)])

    @property
    def entries(self) -> list[Wire]:
        """The accepted resume entries, as the agent's input holds them."""
        return [entry_of(resolved) for _, resolved in self.answered]


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
    waiting = [row for row in rows if row.status == Status.OPEN and not _over(row, now)]
    over = [row for row in rows if row.status == Status.OPEN and _over(row, now)]
    resume = resume_of(data, [_open(row) for row in waiting or over])
    if resume is None:
        return _without_answers(waiting, over, request)
    named |= {entry["interruptId"] for entry in resume}
    judged = [*waiting, *(row for row in over if row.interrupt_id in named)]
    closed = [row for row in rows if row.status != Status.OPEN]
    known = {row.interrupt_id: _resolution(row) for row in closed}
    resolved = plan_resume([_open(row) for row in judged], known, resume, now=now, warn=warn)
    if request.may_answer is not None and not all(map(request.may_answer, judged)):
        raise PermissionRefused
    result = Plan(list(zip(judged, resolved, strict=True)), [], [row for row in over if row not in judged])
    if judged:
        result.run = judged[-1].run
        result.earlier = [row for row in closed if row.run.turn == result.run.turn]
    else:
        carriers = [row.answered_run for row in closed if row.interrupt_id in named and row.answered_run is not None]
        result.repeated = carriers[-1] if carriers else None
    return result


def _without_answers(waiting: list[Interrupt], over: list[Interrupt], request: StartRequest) -> Plan:
    if waiting and request.policy.open_interrupts != "cancel":
        names = ", ".join(row.interrupt_id for row in waiting)
        raise InterruptsOpen(f"The thread waits for answers to its open interrupts: {names}")
    return Plan(dropped=waiting, expired=over)


def carry_out(alias: str, plan: Plan, run: Run, user: Any, now: datetime) -> None:
    """Close the interrupts of a plan for a run.

    Raises:
        ResumeConflict: one of them was closed meanwhile; the transaction must not be committed.
    """
    changes = [(row, resolved.status, encode(entry_of(resolved))) for row, resolved in plan.answered]
    changes += [(row, str(Status.CANCELLED), "") for row in plan.dropped]
    if changes:
        rows = Interrupt.objects.using(alias).filter(pk__in=[row.pk for row, *_ in changes], status=Status.OPEN)
        closed = rows.update(
            status=Case(*(When(pk=row.pk, then=Value(status)) for row, status, _ in changes), output_field=CharField()),
            response=Case(*(When(pk=row.pk, then=Value(text)) for row, _, text in changes), output_field=TextField()),
            answered_run=run,
            answered_by=user if getattr(user, "pk", None) is not None else None,
            closed_at=now,
        )
        if closed != len(changes):
            raise ResumeConflict
        for row, status, text in changes:
            row.status, row.response, row.closed_at = status, text, now
            row.answered_by = user if getattr(user, "pk", None) is not None else None
    close_expired(alias, plan.expired, now)


def close_expired(alias: str, rows: Iterable[Interrupt], now: datetime) -> None:
    """Close questions whose time is over."""
    found = list(rows)
    if found:
        expired = Interrupt.objects.using(alias).filter(pk__in=[row.pk for row in found], status=Status.OPEN)
        expired.update(status=Status.EXPIRED, closed_at=now)
        for row in found:
            row.status, row.closed_at = Status.EXPIRED, now


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


def answers_of_turn(alias: str, thread: Thread, turn: str) -> dict[str, Answer]:
    """The answers that were given in a turn so far."""
    rows = Interrupt.objects.using(alias).filter(thread=thread, run__turn=turn).exclude(status=Status.OPEN)
    return answers_of(rows.select_related("answered_by").order_by("run__created_at", "position"))


def open_wires(alias: str, thread: Thread, now: datetime) -> list[Wire]:
    """The questions that wait, as clients are shown them; closes those whose time is over."""
    rows = list(Interrupt.objects.using(alias).filter(thread=thread).open().order_by("run__created_at", "position"))
    close_expired(alias, [row for row in rows if _over(row, now)], now)
    return [decode(row.wire) for row in rows if not _over(row, now)]


def _over(row: Interrupt, now: datetime) -> bool:
    return row.expires_at is not None and row.expires_at <= now


def _open(row: Interrupt) -> OpenInterrupt:
    return OpenInterrupt(row.interrupt_id, decode(row.response_schema) if row.response_schema else None, row.expires_at)


def _resolution(row: Interrupt) -> Resolution:
    return Resolution(row.status, decode(row.response).get("payload") if row.response else None)
