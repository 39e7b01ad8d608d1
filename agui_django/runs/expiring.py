"""Questions whose time is over are closed, whether or not anybody asks for their thread.

Law: safe in any number of processes at once: a question is closed under its thread's lock, by whoever gets there first.
An idle site asks nothing: a process sleeps until the next question expires that it knows of.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextvars import Context
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import Error, transaction
from django.utils import timezone

from agui_django.agents.registry import get_agent
from agui_django.models import Interrupt, Thread
from agui_django.protocol.errors import AgUiError
from agui_django.runs import announce, completing, resume, supervisor
from agui_django.runs.database import database_alias, get_pool, transact
from agui_django.runs.drafts import draft_of
from agui_django.runs.ledger import expiry
from agui_django.runs.requests import Opened
from agui_django.runs.setup import Wire

logger = logging.getLogger("agui_django.runs")

#: Questions that are looked at together.
SOME = 100
#: Seconds between two looks at least, and after one that failed.
PAUSE, AGAIN = 1.0, 30.0


@dataclass(frozen=True)
class Due:
    """What expires.

    Attributes:
        threads: those with questions whose time is over, some of them.
        next: when the next question expires, or at once where more are due; None: none that is known.
    """

    threads: list[int]
    next: datetime | None


@dataclass
class Lapsed:
    """What became of a thread's questions.

    Attributes:
        closed: primary keys of those that expired.
        opened: the run that carries the answers to the others, where they were all that was missing.
        entry: its agent.
    """

    closed: list[int] = field(default_factory=list)
    opened: Opened | None = None
    entry: Any = None


class Expiring:
    """The questions with an end, as far as this process sees to them.

    Args:
        begin: executes a run that was just stored, given what opened it and its agent; called in the event loop.
        claim: who executes the runs that are opened here.
    """

    def __init__(self, begin: Callable[[Opened, Any], None], claim: Callable[[], str]) -> None:
        """Nothing is known to expire."""
        self._begin = begin
        self._claim = claim
        self._next: datetime | None = None
        self._timer: tuple[asyncio.AbstractEventLoop, asyncio.TimerHandle] | None = None

    def asked(self, questions: Iterable[Wire]) -> None:
        """Questions were asked; call in the event loop."""
        moments = [moment for each in questions if (moment := expiry(each.get("expiresAt"))) is not None]
        if moments:
            self.expects(min(moments))

    async def sweep(self) -> None:
        """Close what is over, and look again when the next question expires."""
        again: datetime | None = None
        try:
            found = await get_pool().run(due)
            again = found.next
            for thread in found.threads:
                lapsed = await get_pool().run(expire, thread, self._claim())
                announce.tell_closed(lapsed.closed)
                if lapsed.opened is not None:
                    self._begin(lapsed.opened, lapsed.entry)
        except Exception:
            logger.exception("Questions that expired could not be closed; they are looked at again")
            again = timezone.now() + timedelta(seconds=AGAIN)
        if again is not None:
            self.expects(again)

    def expects(self, moment: datetime) -> None:
        """A question expires at a moment: look then; call in the event loop."""
        if self._timer is not None:
            loop, timer = self._timer
            if self._next is not None and self._next <= moment and not loop.is_closed():
                return
            timer.cancel()
        loop, seconds = asyncio.get_running_loop(), (moment - timezone.now()).total_seconds()
        # Nothing of the request that is here now may wait with it.
        self._timer = loop, loop.call_later(max(seconds, PAUSE), self._look, context=Context())
        self._next = moment

    def _look(self) -> None:
        self._timer = None
        if not supervisor.draining():
            supervisor.start(self.sweep(), name="agui expiry", service=True)


def due() -> Due:
    """What expires, in one statement; call in a database thread."""
    now = timezone.now()
    rows = Interrupt.objects.using(database_alias()).open().filter(expires_at__isnull=False).order_by("expires_at")
    found = list(rows.only("thread", "expires_at")[: SOME + 1])
    over = [row for row in found[:SOME] if resume.over(row, now)]
    rest = found[len(over) :]
    return Due(list({row.thread_id: None for row in over}), rest[0].expires_at if rest else None)


def count() -> int:
    """How many questions wait whose time is over; call in a database thread."""
    return Interrupt.objects.using(database_alias()).open().filter(expires_at__lte=timezone.now()).count()


def expire(thread: int, claim: str | None = None) -> Lapsed:
    """Close a thread's questions whose time is over; call in a database thread.

    Where the others of their run have been answered, that was all that was missing: the run that carries the answers
    begins.

    Args:
        thread: primary key of the thread.
        claim: the process that executes such a run at once; empty: it becomes pending; None: nobody here can, and
            such threads are left to a process that serves.
    """
    return transact(_expire, thread, claim)


def _expire(key: int, claim: str | None) -> Lapsed:
    alias, now, lapsed = database_alias(), timezone.now(), Lapsed()
    thread = Thread.objects.using(alias).select_for_update(no_key=True).filter(pk=key).first()
    if thread is None:
        return lapsed
    rows = Interrupt.objects.using(alias).filter(thread=thread).open().select_related("run__user")
    found = completing.with_thread(rows.order_by("run__created_at", "position"), thread)
    over = [row for row in found if resume.over(row, now)]
    waiting = [row for row in found if row not in over]
    complete = bool(over and waiting) and all(row.draft for row in waiting)
    if complete and claim is None:
        return lapsed
    resume.close_expired(alias, over, now)
    lapsed.closed = [row.pk for row in over]
    if complete:
        try:
            with transaction.atomic(using=alias):
                _go_on(alias, thread, waiting, claim or "", now, lapsed)
        except Error:
            raise
        except Exception as error:
            # The answers stay; whoever answers again tries again.
            known = isinstance(error, AgUiError)
            logger.warning("Thread %s cannot go on with its answers: %s", key, error, exc_info=not known)
    return lapsed


def _go_on(alias: str, thread: Thread, rows: list[Interrupt], claim: str, now: datetime, lapsed: Lapsed) -> None:
    run = rows[-1].run
    run.thread = thread
    entry = get_agent(run.agent)
    last = max((draft for row in rows if (draft := draft_of(row)) is not None), key=lambda draft: draft.at)
    request = completing.request_for(run, None, actor=completing.person(alias, last.by), agent=entry)
    request.claim = claim
    lapsed.opened = completing.complete(alias, thread, request, rows, [], now)
    lapsed.entry = entry
