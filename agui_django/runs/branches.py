"""A conversation's branches: what a regenerate, an edit or a restore took out of play, and how it comes back.

Law: nothing is deleted or doubled. A restore exchanges a branch with what stands in play behind its point, which is a
branch from then on. It is a run of its own in the log, so that whoever follows the thread is shown the exchange.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Q
from django.db.models.functions import Left
from django.utils import timezone

from agui_django.models import Message, Run, RunEvents, StateVersion, Thread
from agui_django.protocol.codec import encode
from agui_django.protocol.errors import InterruptsOpen, InvalidInput, NotFound, ThreadBusy
from agui_django.runs import merging, reaping, resume, sql
from agui_django.runs.broadcaster import broadcaster
from agui_django.runs.database import database_alias, get_pool, transact
from agui_django.runs.ledger import LAST_WORDS, last_words
from agui_django.runs.present import started
from agui_django.runs.setup import milliseconds
from agui_django.runs.titling import first_words

#: The `Run.transport` of a restore: no agent was called.
RESTORE = "restore"
#: Characters of a branch's first words.
FIRST_WORDS = 120
#: Keys in one statement.
MANY = 500


@dataclass(frozen=True)
class Alternative:
    """One way in which the conversation went, or goes, on behind a point.

    Attributes:
        run: what `restore` takes to bring it back; None: it is in play.
        made_by: the run that brought its first message, where that is known.
        created_at: when its first message came.
        count: how many messages it has.
        first_words: the start of its first text message.
        state_version: the version of the shared state when its last run ended; None where that is not known.
    """

    run: UUID | None
    made_by: UUID | None
    created_at: datetime
    count: int
    first_words: str
    state_version: int | None = None

    @property
    def in_play(self) -> bool:
        """Whether the conversation consists of it now."""
        return self.run is None


@dataclass(frozen=True)
class Point:
    """A place behind which the conversation went on in several ways.

    Attributes:
        message_id: the message it lies behind; empty: the beginning.
        within: the branch that this message is in itself; None: it is in play.
        alternatives: the ways, oldest first.
    """

    message_id: str
    within: UUID | None
    alternatives: list[Alternative]


class _Row(NamedTuple):
    pk: int
    message_id: str
    branch: UUID | None
    behind: int | None
    order: int
    role: str
    run: UUID | None
    created_at: datetime
    words: str


# ---- looking --------------------------------------------------------------------------------------------------------


def branches(thread: Thread) -> list[Point]:
    """The points of a thread at which there are branches, in the order of the conversation; in a database thread.

    What an agent itself took out of the conversation is in no branch, nor is what stood behind it.
    """
    alias = database_alias()
    wanted = Q(superseded_by=None) | Q(behind__isnull=False)
    found = Message.objects.using(alias).filter(wanted, thread=thread).annotate(words=Left("search_text", FIRST_WORDS))
    columns = ("pk", "message_id", "superseded_by", "behind", "order", "role", "run", "created_at", "words")
    rows = [_Row(*row) for row in found.order_by("order", "pk").values_list(*columns)]
    if all(row.behind is None for row in rows):
        return []
    known = {row.pk: row for row in rows}
    ways: dict[UUID | None, list[_Row]] = defaultdict(list)
    for row in rows:
        ways[row.branch].append(row)

    def reachable(branch: UUID | None) -> bool:
        point = None if branch is None else ways[branch][0].behind
        return not point or (point in known and reachable(known[point].branch))

    points: dict[int, list[tuple[UUID | None, list[_Row]]]] = defaultdict(list)
    for branch, way in ways.items():
        if branch is not None and reachable(branch):
            points[way[0].behind or 0].append((branch, way))
    for point, alternatives in points.items():
        within, order = (known[point].branch, known[point].order) if point else (None, -1)
        if goes_on := [row for row in ways[within] if row.order > order]:
            alternatives.append((within, goes_on))
    versions = _versions(alias, thread, [way[-1].run for found in points.values() for _, way in found])
    return [
        Point(
            known[point].message_id if point else "",
            known[point].branch if point else None,
            [_alternative(branch, way, versions) for branch, way in sorted(found, key=lambda each: each[1][0].pk)],
        )
        for point, found in sorted(points.items(), key=lambda each: known[each[0]].order if each[0] else -1)
    ]


async def abranches(thread: Thread) -> list[Point]:
    """`branches`, from any event loop."""
    return await get_pool().read(branches, thread)


def _alternative(branch: UUID | None, way: Sequence[_Row], versions: dict[UUID, int]) -> Alternative:
    first, last = way[0], way[-1]
    texts = (row.words for row in way if row.role in ("user", "assistant") and row.words.strip())
    words = " ".join(next(texts, "").split())
    version = versions.get(last.run) if last.run is not None else None
    return Alternative(branch, first.run, first.created_at, len(way), words, version)


def _versions(alias: str, thread: Thread, runs: Sequence[UUID | None]) -> dict[UUID, int]:
    """The state's version when each of these runs had ended."""
    ends = Run.objects.using(alias).filter(pk__in={run for run in runs if run is not None})
    stored = StateVersion.objects.using(alias).filter(thread=thread).order_by("version")
    versions = list(stored.values_list("version", "run", "created_at"))
    found = {}
    for run, ended in ends.exclude(finished_at=None).values_list("pk", "finished_at"):
        assert ended is not None  # noqa: S101 - excluded
        found[run] = max((number for number, by, at in versions if by == run or at <= ended), default=0)
    return found


# ---- bringing back --------------------------------------------------------------------------------------------------


def restore(thread: Thread, branch: UUID, *, user: Any = None) -> Run:
    """Bring a branch back into play; what stood there becomes a branch. In a database thread; see `arestore`.

    A branch of a branch brings that one back first. The shared state stays as it is: it belongs to the thread, and
    people may have edited it since; `Alternative.state_version` names the version that belonged to a branch.

    Args:
        thread: the thread.
        branch: `Alternative.run`.
        user: who asks.

    Returns:
        The run that records it, by which the messages that it took out of play can be restored.

    Raises:
        NotFound: the thread has no such branch (any more).
        ThreadBusy: a run is active, or waits.
        InterruptsOpen: questions wait, which belong to the conversation in play.
        InvalidInput: the branch holds a message whose id is in play before it.
    """
    return transact(_restore, thread.pk, branch, getattr(user, "pk", None))


async def arestore(thread: Thread, branch: UUID, *, user: Any = None) -> Run:
    """`restore`, from any event loop; those who follow the thread are shown it."""
    run = await get_pool().run(restore, thread, branch, user=user)
    broadcaster.publish(run.thread_id)
    return run


def _restore(thread_key: int, branch: UUID, user: Any) -> Run:
    alias = database_alias()
    thread = Thread.objects.using(alias).select_for_update(no_key=True).filter(pk=thread_key).first()
    if thread is None:
        raise NotFound
    _check_idle(alias, thread)
    titled = thread.titled_by == Thread.TitledBy.FIRST_WORDS and thread.title == first_words(alias, thread.pk)
    for each in list(_way_to(alias, thread, branch)):
        run = _exchange(alias, thread, each, user)
    text = Message.objects.using(alias).filter(thread=thread).in_play().filter(role__in=["user", "assistant"])
    words = text.exclude(search_text="").values_list(Left("search_text", 4 * LAST_WORDS), flat=True).last()
    shown = last_words([{"role": "user", "content": words or ""}])
    values = {"updated_at": run.created_at, "last_words": shown}
    if titled:
        values["title"] = first_words(alias, thread.pk)
    sql.update(alias, Thread, values, id=thread.pk)
    return run


def _check_idle(alias: str, thread: Thread) -> None:
    """Refuse while anything happens in the thread, which is locked."""
    runs = Run.objects.using(alias).filter(thread=thread, status__in=[Run.Status.QUEUED, *Run.ACTIVE])
    for run in reaping.with_quiet(runs).order_by("-created_at"):
        active = run.status in Run.ACTIVE
        if not active or not reaping.lost(run) or not reaping.reap_here(alias, thread, run):
            raise ThreadBusy(extra={"runId": run.run_id})
    if waiting := resume.open_wires(alias, thread, timezone.now()):
        names = ", ".join(wire["id"] for wire in waiting)
        raise InterruptsOpen(f"The thread waits for answers to its open interrupts: {names}")


def _way_to(alias: str, thread: Thread, branch: UUID) -> Iterator[UUID]:
    """The branches that have to come back one after the other, the wanted one last."""
    messages = Message.objects.using(alias).filter(thread=thread)
    behind = messages.filter(superseded_by=branch).exclude(behind=None).values_list("behind", flat=True).first()
    if behind is None:
        raise NotFound
    if behind:
        point = messages.filter(pk=behind).values_list("superseded_by", "behind").first()
        if point is None or (point[0] is not None and point[1] is None):
            raise NotFound  # its agent took it out of the conversation
        if point[0] is not None:
            yield from _way_to(alias, thread, point[0])
    yield branch


def _exchange(alias: str, thread: Thread, branch: UUID, user: Any) -> Run:
    """Exchange a branch whose point is in play with what stands behind that."""
    messages = Message.objects.using(alias).filter(thread=thread)
    coming = list(messages.filter(superseded_by=branch).exclude(behind=None).values_list("pk", "message_id", "behind"))
    point = coming[0][2]
    order = messages.filter(pk=point).values_list("order", flat=True).get() if point else -1
    staying = set(messages.filter(superseded_by=None, order__lte=order).values_list("message_id", flat=True))
    if any(message_id in staying for _, message_id, _ in coming):
        raise InvalidInput("A message of this branch is in play before it.")
    run = _record(alias, thread, branch, user)
    messages.filter(superseded_by=None, order__gt=order).update(superseded_by=run, behind=point)
    for start in range(0, len(coming), MANY):
        keys = [key for key, *_ in coming[start : start + MANY]]
        messages.filter(pk__in=keys).update(superseded_by=None, behind=None)
    return run


def _record(alias: str, thread: Thread, branch: UUID, user: Any) -> Run:
    """The run that stands for a restore: followers of the thread meet it behind the last one, and look anew."""
    address, now = uuid.uuid4(), timezone.now()
    values = {
        "uuid": address,
        "thread_id": thread.pk,
        "run_id": str(address),
        "digest": "",
        "agent": thread.agent,
        "user_id": user,
        "status": Run.Status.FINISHED,
        "transport": RESTORE,
        "input": encode({"tools": [], "context": [], "forwardedProps": {"restore": str(branch)}}),
        "turn": address.hex,
        "base_version": merging.left(thread),
        "last_seq": 2,
        "created_at": now,
        "started_at": now,
        "finished_at": now,
        "heartbeat": now,
        "duration_ms": 0,
    }
    run = sql.create(alias, Run, values)
    # Without `input`: a feed that meets such a beginning restates the thread.
    ids = thread.thread_id, run.run_id
    events = [started(*ids), {"type": "RUN_FINISHED", "threadId": ids[0], "runId": ids[1]}]
    text = "\n".join(encode({**event, "timestamp": milliseconds()}) for event in events)
    sql.insert(alias, RunEvents, [{"run_id": address, "first_seq": 1, "last_seq": 2, "text": text, "plain": True}])
    return run
