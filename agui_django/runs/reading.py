"""What a thread's feed reads: where it stands, which runs come next, and the thread as it is now.

Law: a few statements by index, whatever the thread's past; what takes several is checked for a run that began or ended
meanwhile, and read again then. Every function runs in a database thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Exists, F, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.utils import timezone

from agui_django.models import Message, Run, RunEvents, StateVersion, Thread
from agui_django.protocol.codec import decode, encode
from agui_django.runs import merging, resume
from agui_django.runs.database import database_alias
from agui_django.runs.ledger import METADATA_KEY
from agui_django.runs.present import Present, ended, replayed
from agui_django.runs.stream import read_entries

MaySee = Callable[[Run], bool]

_CURSOR = re.compile(r"([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}):([0-9]{1,10})(?::([0-9]{1,10}))?")


class Cursor(NamedTuple):
    """A place in a thread: behind an event of a run, and behind the edits of the state that came after the run."""

    run: UUID
    seq: int
    #: The version of the state that the watcher was told; None: what the run left.
    state: int | None = None

    @classmethod
    def of(cls, text: str) -> Cursor | None:
        """Read one; None where it is none of ours."""
        found = _CURSOR.fullmatch(text)
        if found is None:
            return None
        return cls(UUID(found[1]), int(found[2]), None if found[3] is None else int(found[3]))

    def __str__(self) -> str:
        """Write it as the ``id`` of a feed's event."""
        return f"{self.run}:{self.seq}" if self.state is None else f"{self.run}:{self.seq}:{self.state}"


class Hidden(Exception):
    """A run that the watcher may not see: the feed ends as if the thread were gone."""


@dataclass(frozen=True)
class Next:
    """A run that comes next in a feed.

    Attributes:
        uuid: its address.
        last_seq: the number of its terminal event, None while it is active.
        jumps: it began with other messages than the last one left: some went out of play, or got a stand-in.
        edit: wire text of the state that its client had edited; its log does not tell, since that client knows.
    """

    uuid: UUID
    last_seq: int | None
    jumps: bool
    edit: str | None


@dataclass(frozen=True)
class Ahead:
    """What is known at a cursor.

    Attributes:
        here: whether the cursor's run (still) exists; True for a feed that stands before the first run.
        last_seq: the number of its terminal event, None while it is active.
        next: the run that comes behind it, None where there is none yet.
        version: that of the thread's state.
        left: the one that the last run left.
    """

    here: bool
    last_seq: int | None
    next: Next | None
    version: int = 0
    left: int = 0


@dataclass(frozen=True)
class Now:
    """A thread, and the run that says how it stands: the active one, else the latest."""

    thread: Thread
    run: Run | None

    @property
    def active(self) -> bool:
        """Whether something runs."""
        return self.run is not None and not self.run.ended


def read_ahead(thread: int, at: UUID | None, may_see: MaySee | None) -> Ahead:
    """What comes behind a run (None: from the first one on).

    Raises:
        Hidden: the run that comes next is not for this watcher.
    """
    runs = _runs(thread).annotate(
        moment=Coalesce("started_at", "created_at"),
        superseded=Exists(Message.objects.filter(superseded_by=OuterRef("pk"))),
        stands_in=Exists(Message.objects.filter(run=OuterRef("pk"), role="tool", wire__contains=METADATA_KEY)),
        version=F("thread__state_version"),
        left=Coalesce("thread__base_version", "thread__state_version"),
        edit=Subquery(
            StateVersion.objects.filter(run=OuterRef("pk"), origin=StateVersion.Origin.CLIENT).values("state")[:1]
        ),
    )
    if at is not None:
        this = Run.objects.filter(pk=at, thread=thread).annotate(moment=Coalesce("started_at", "created_at"))
        # A queued run was created long before it began.
        later = Q(created_at__gt=Subquery(this.values("created_at")), moment__gt=Subquery(this.values("moment")))
        runs = runs.filter(Q(pk=at) | later | Q(status__in=Run.ACTIVE))
    found: list[Any] = list(runs.order_by("moment").defer("input", "traceback")[:3])
    here = next((run for run in found if run.pk == at), None)
    if at is not None and here is None:
        return Ahead(False, None, None)
    following = next((run for run in found if run.pk != at), None)
    if following is not None and may_see is not None and not may_see(following):
        raise Hidden
    return Ahead(
        True,
        here.last_seq if here is not None and here.ended else None,
        None
        if following is None
        else Next(
            following.pk,
            following.last_seq if following.ended else None,
            following.superseded or following.stands_in,
            following.edit,
        ),
        *(_versions(thread) if not found else (found[0].version, found[0].left)),
    )


def _versions(thread: int) -> tuple[int, int]:
    """Those of a thread without runs."""
    rows = Thread.objects.using(database_alias()).filter(pk=thread)
    return rows.values_list("state_version", Coalesce("base_version", "state_version")).first() or (0, 0)


def read_now(thread: int, may_see: MaySee | None) -> Now | None:
    """The thread, and what runs in it; None where it is gone.

    Raises:
        Hidden: its run is not for this watcher.
    """
    latest = _runs(thread).order_by("-created_at").values("pk")[:1]
    runs = _runs(thread).filter(Q(pk=Subquery(latest)) | Q(status__in=Run.ACTIVE)).select_related("thread")
    found = sorted(runs.defer("input", "traceback"), key=lambda run: run.ended)
    if not found:
        row = Thread.objects.using(database_alias()).filter(pk=thread).first()
        return None if row is None else Now(row, None)
    run = found[0]
    if may_see is not None and not may_see(run):
        raise Hidden
    return Now(run.thread, run)


def read_active(now: Now) -> Present | None:
    """The present of a run that only its rows can tell; None where it has ended meanwhile."""
    alias, run = database_alias(), now.run
    assert run is not None  # noqa: S101 - the caller asks about an active run
    # While a run is active, the rows of its thread are what it began with.
    messages = [decode(text) for text in _messages(now.thread)]
    logged = RunEvents.objects.using(alias).filter(run=run).order_by("first_seq").values_list("text", flat=True)
    present = replayed(
        messages, merging.base_of(alias, now.thread)[1], (decode(line) for text in logged for line in text.split("\n"))
    )
    if _moved(now):
        return None
    # A pending run: what is restated stands for the RUN_STARTED that it will begin with.
    return present if present.seq else Present(1, messages, present.state)


@dataclass(frozen=True)
class Rest:
    """A thread in which nothing runs, as wire texts; see `present.at_rest`."""

    messages: list[str]
    state: str
    terminal: str


def read_rest(now: Now, *, told: bool, state_only: bool = False) -> Rest | None:
    """The thread at rest; None where a run began meanwhile.

    Args:
        now: the thread.
        state_only: leave the messages out.
        told: whether the watcher knows how the last run ended. To others its own terminal event is told.
    """
    alias, run, thread = database_alias(), now.run, now.thread
    messages = [] if state_only else _messages(thread)
    terminal = ""
    if run is not None and not told:
        last = read_entries(run.pk, run.last_seq - 1)
        terminal = last[-1][1] if last else ""
    if not terminal:
        interrupts = resume.open_wires(alias, thread, timezone.now())
        outcome = decode(run.outcome) if run is not None and run.outcome else None
        terminal = encode(ended(thread.thread_id, run.run_id if run is not None else "", outcome, interrupts))
    return None if _moved(now) else Rest(messages, thread.state, terminal)


def _runs(thread: int) -> QuerySet[Run]:
    return Run.objects.using(database_alias()).filter(thread=thread).exclude(status=Run.Status.QUEUED)


def _messages(thread: Thread) -> list[str]:
    rows = Message.objects.using(database_alias()).filter(thread=thread)
    return list(rows.in_play().values_list("wire", flat=True))


def _moved(now: Now) -> bool:
    """Whether a run began or ended since this was read."""
    rows = _runs(now.thread.pk).order_by("-created_at")
    if now.active:
        assert now.run is not None  # noqa: S101 - active says so
        return not rows.filter(pk=now.run.pk, status__in=Run.ACTIVE).exists()
    latest: UUID | None = rows.values_list("pk", flat=True).first()
    return latest != (None if now.run is None else now.run.pk)
