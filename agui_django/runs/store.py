"""ThreadStore: every short transaction on threads and runs; methods for a pool's thread, `a`-twins for loops.

Nothing else writes these rows, but for the log of a running run, which is the writer's.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from django.db import Error
from django.db.models import Case, F, Value, When
from django.db.models.functions import Now
from django.utils import timezone

from agui_django.agents.registry import AgentEntry, get_agent
from agui_django.models import Message, Run, Thread
from agui_django.protocol.codec import decode
from agui_django.protocol.errors import AgUiError, ResumeError
from agui_django.runs import completing, merging, queued, reaping, resume
from agui_django.runs.database import database_alias, get_pool, transact
from agui_django.runs.ledger import METADATA_KEY, Ledger
from agui_django.runs.opening import Opening
from agui_django.runs.requests import Hydration, Opened, StartRequest
from agui_django.runs.setup import RunSetup, Wire

logger = logging.getLogger("agui_django.runs")

#: Active runs that are looked at together, those with the oldest sign of life first.
LOOKED_AT = 1_000


@dataclass
class Begun:
    """What became of a thread's queue.

    Attributes:
        opened: the run that starts, None where none does.
        entry: its agent.
        ended: the runs that could not start, and have ended.
    """

    opened: Opened | None = None
    entry: AgentEntry | None = None
    ended: list[UUID] = field(default_factory=list)


class ThreadStore:
    """The rows of threads and runs. Keeps nothing: make one where you need one."""

    # ---- opening --------------------------------------------------------------------------------------------------

    def open_run(self, request: StartRequest) -> Opened:
        """Open a run, or find the one that the request means.

        A request with a `claim` is inserted as running and ours; without, as pending, for whoever claims it.

        Raises:
            RequestError: the request cannot be served (`ThreadBusy`, `InvalidInput`); nothing was stored.
        """
        alias, given = database_alias(), request.given
        try:
            if given is not None:
                return transact(completing.answer, alias, request, given)
            return transact(lambda: Opening(alias, request).open())
        except ResumeError as error:
            return Opened("refused", error=error)

    async def aopen_run(self, request: StartRequest) -> Opened:
        """`open_run`, from any event loop."""
        return await get_pool().run(self.open_run, request)

    def claim(self, uuid: UUID, claim: str) -> tuple[Run, RunSetup] | None:
        """Take a pending run for execution; one conditional update decides between several takers.

        Returns:
            The row and what the run starts from; None where it is not pending any more.
        """
        return transact(_claim, uuid, claim)

    async def aclaim(self, uuid: UUID, claim: str) -> tuple[Run, RunSetup] | None:
        """`claim`, from any event loop."""
        return await get_pool().run(self.claim, uuid, claim)

    # ---- stopping -------------------------------------------------------------------------------------------------

    def request_cancel(self, uuid: UUID, reason: str) -> bool:
        """Ask whoever executes a run to stop it; the first reason stands.

        Returns:
            Whether the run is active.
        """
        runs = Run.objects.using(database_alias()).filter(uuid=uuid, status__in=[Run.Status.QUEUED, *Run.ACTIVE])
        first = Case(When(cancel_requested="", then=Value(reason[:40])), default=F("cancel_requested"))
        return bool(transact(runs.update, cancel_requested=first))

    def cancel_waiting(self, uuid: UUID, reason: str) -> int | None:
        """End a run as cancelled that nobody executes yet: a queued or a pending one.

        Returns:
            Its thread; None where the run is neither (any more).
        """
        return transact(_cancel_waiting, uuid, reason)

    def reap(self, uuid: UUID, *, why: str = "") -> bool:
        """End a run whose process is gone; False where it lives, has ended, or does not exist.

        Args:
            uuid: the run.
            why: it is known that nobody will claim it, for this reason: a pending run is ended at once.
        """
        return transact(_reap, uuid, why)

    def reap_lost(self, limit: int = 100, *, quiet: float = 0.0) -> list[UUID]:
        """End the runs that are lost; each in its own transaction. Returns which.

        Args:
            limit: how many at most.
            quiet: look only at those without a sign of life for so many seconds.
        """
        return [uuid for uuid in self.lost(quiet=quiet)[:limit] if self.reap(uuid)]

    def lost(self, *, quiet: float = 0.0) -> list[UUID]:
        """The runs that `reap_lost` would end; of very many active runs those with the oldest signs of life."""
        active = reaping.with_quiet(Run.objects.using(database_alias()).active().order_by("heartbeat"))
        if quiet:
            active = active.filter(heartbeat__lt=Now() - timedelta(seconds=quiet))
        return [run.pk for run in active.only("uuid", "status", "claim")[:LOOKED_AT] if reaping.lost(run)]

    # ---- queues ---------------------------------------------------------------------------------------------------

    def idle_queues(self, limit: int = 100) -> list[int]:
        """Threads in which runs wait though none is active."""
        return queued.idle(database_alias(), limit)

    def start_next(self, thread: int, claim: str) -> Begun:
        """Start the run that has waited longest, where its thread is free; of several takers one does.

        Args:
            thread: the thread's primary key.
            claim: the process that executes it at once; empty: it becomes pending.
        """
        return transact(_start_next, thread, claim)

    # ---- reading --------------------------------------------------------------------------------------------------

    def hydrate(self, scope: str, thread_id: str) -> Hydration | None:
        """A thread's present; None where the scope has no such thread."""
        return transact(_hydrate, scope, thread_id)

    async def ahydrate(self, scope: str, thread_id: str) -> Hydration | None:
        """`hydrate`, from any event loop."""
        return await get_pool().run(self.hydrate, scope, thread_id)

    def run_for(self, scope: str, uuid: UUID) -> Run | None:
        """A run by its address, inside a scope."""
        return Run.objects.using(database_alias()).for_scope(scope).filter(uuid=uuid).select_related("thread").first()


def _claim(uuid: UUID, claim: str) -> tuple[Run, RunSetup] | None:
    alias = database_alias()
    pending = Run.objects.using(alias).filter(uuid=uuid, status=Run.Status.PENDING)
    if not pending.update(status=Run.Status.RUNNING, claim=claim, started_at=timezone.now(), heartbeat=Now()):
        return None
    run = Run.objects.using(alias).select_related("thread", "user", "actor").get(uuid=uuid)
    return run, _setup_from_rows(alias, run)


def _setup_from_rows(alias: str, run: Run) -> RunSetup:
    """What a run starts from, in a process that did not open it."""
    thread = run.thread
    version, state = merging.base_of(alias, thread)
    ledger = Ledger(thread=thread.pk, resumed=run.resumed_run_id is not None, began=version, version=version)
    messages: list[Wire] = []
    new: list[Wire] = []
    rows = Message.objects.using(alias).filter(thread=thread).in_play()
    for wire, order, maker in rows.values_list("wire", "order", "run"):
        message = decode(wire)
        messages.append(message)
        ledger.note(message, order)
        if maker == run.pk and METADATA_KEY not in message.get("metadata", {}):
            new.append(message)
    data = decode(run.input)
    answers = resume.answers_of_turn(alias, thread, run.turn, run)
    entries = data.get("resume", [])
    return RunSetup(
        run_id=run.run_id,
        thread_id=thread.thread_id,
        address=run.uuid.hex,
        agent=run.agent,
        input={**data, "messages": messages, "state": state},
        new_messages=new,
        messages=messages,
        state=state,
        # What the client held is not stored; a snapshot too many harms nobody.
        state_differs=True,
        answers=answers,
        resume=entries,
        turn=run.turn,
        user=run.user,
        actor=run.actor,
        thread=thread,
        extra=decode(run.extra),
        language=run.language,
        time_zone=run.time_zone,
        protocol_version=run.protocol_version,
        parent_run_id=data.get("parentRunId"),
        ledger=ledger,
    )


def _locked(alias: str, run: UUID) -> Thread | None:
    """A run's thread, locked; of the run itself nothing is, so that its process goes on writing."""
    thread = Run.objects.using(alias).filter(pk=run).values("thread")
    return Thread.objects.using(alias).select_for_update(no_key=True).filter(pk__in=thread).first()


def _reap(uuid: UUID, why: str) -> bool:
    alias = database_alias()
    thread = _locked(alias, uuid)
    run = reaping.with_quiet(Run.objects.using(alias)).filter(uuid=uuid).first()
    if thread is None or run is None or run.status not in Run.ACTIVE:
        return False
    unclaimed = bool(why) and run.status == Run.Status.PENDING
    return (unclaimed or reaping.lost(run)) and reaping.reap_here(alias, thread, run, why if unclaimed else "")


def _cancel_waiting(uuid: UUID, reason: str) -> int | None:
    alias = database_alias()
    thread = _locked(alias, uuid)
    run = Run.objects.using(alias).filter(uuid=uuid).first()
    if thread is None or run is None or run.status not in (Run.Status.QUEUED, Run.Status.PENDING):
        return None
    return thread.pk if queued.cancel(alias, thread, run, run.cancel_requested or reason) else None


def _start_next(thread_key: int, claim: str) -> Begun:
    alias, begun = database_alias(), Begun()
    thread = Thread.objects.using(alias).select_for_update(no_key=True).filter(pk=thread_key).first()
    if thread is None:
        return begun
    runs = Run.objects.using(alias).filter(thread=thread).select_related("user", "actor")
    active = reaping.with_quiet(runs.active()).first()
    if active is not None:
        if not reaping.lost(active) or not reaping.reap_here(alias, thread, active):
            return begun
        begun.ended.append(active.pk)
        thread.refresh_from_db(using=alias)
    for run in runs.filter(status=Run.Status.QUEUED).order_by("created_at", "pk"):
        run.thread = thread
        try:
            begun.entry = get_agent(run.agent)
            request, found = queued.request_of(run, thread, begun.entry, claim)
            begun.opened = Opening(alias, request).start_queued(thread, run, found)
        except Error:
            raise
        except Exception as error:
            logger.warning("Run %s cannot start: %s", run.pk, error, exc_info=not isinstance(error, AgUiError))
            if queued.fail(alias, thread, run, error):
                begun.ended.append(run.pk)
            continue
        break
    return begun


def _hydrate(scope: str, thread_id: str) -> Hydration | None:
    alias = database_alias()
    thread = Thread.objects.using(alias).filter(scope=scope, thread_id=thread_id).first()
    if thread is None:
        return None
    rows = Message.objects.using(alias).filter(thread=thread).in_play()
    latest = Run.objects.using(alias).filter(thread=thread).order_by("-created_at").first()
    active = latest if latest is not None and latest.status in Run.ACTIVE else None
    return Hydration(
        thread_id=thread.thread_id,
        run_id=latest.run_id if latest else "",
        messages=[decode(wire) for wire in rows.values_list("wire", flat=True)],
        state=decode(thread.state) if active is None else merging.base_of(alias, thread)[1],
        interrupts=[] if active else resume.open_wires(alias, thread, timezone.now()),
        active=active,
    )
