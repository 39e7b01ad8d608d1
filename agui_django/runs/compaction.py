"""Old logs made small: the deltas of a message that stand together become one, under the number of the last of them.

Law: what the log tells stays the same, and so do the numbers: a cursor that was a place between two events still is
one, or is refused (`stream.read_entries`), never taken for another place. Each run is a transaction of its own: a
process that is killed has compacted a run or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from agui_django.models import Run, RunEvents
from agui_django.protocol.codec import decode, encode
from agui_django.protocol.downgrade import needs_downgrade
from agui_django.protocol.events import DELTAS
from agui_django.runs import sql
from agui_django.runs.database import database_alias, transact

#: Characters that a row of several events holds at most.
ROW = 64 * 1024
#: Runs that are looked for at once.
SOME = 200

#: Beside type, id and delta a delta that can be merged has nothing but these.
_MORE = frozenset({"timestamp", "subagentRunId"})


@dataclass(frozen=True)
class Compacted:
    """What became of a log.

    Attributes:
        before, after: how many events it had, and has.
        saved: characters.
    """

    before: int = 0
    after: int = 0
    saved: int = 0

    def __add__(self, other: Compacted) -> Compacted:
        """Both together."""
        return Compacted(self.before + other.before, self.after + other.after, self.saved + other.saved)


def candidates(before: datetime, agents: Sequence[str] = (), *, behind: UUID | None = None) -> list[UUID]:
    """Runs that ended before a time and were not compacted, by address; some of them.

    Args:
        before: the time.
        agents: names; empty: all.
        behind: the address behind which to look.
    """
    runs = Run.objects.using(database_alias()).filter(compacted=False, status__in=Run.TERMINAL, finished_at__lt=before)
    if agents:
        runs = runs.filter(agent__in=agents)
    if behind is not None:
        runs = runs.filter(pk__gt=behind)
    return list(runs.order_by("pk").values_list("pk", flat=True)[:SOME])


def compact(run: UUID, *, dry: bool = False) -> Compacted:
    """Compact the log of a run that has ended; in a database thread, in a transaction of its own.

    Args:
        run: its address.
        dry: only count.
    """
    return _measured(run) if dry else transact(_compact, run)


def _compact(run: UUID) -> Compacted:
    alias = database_alias()
    # Nobody writes to the log of a run that has ended; its row keeps two of these from doing the same.
    found = Run.objects.using(alias).select_for_update(no_key=True).filter(pk=run, status__in=Run.TERMINAL)
    if found.filter(compacted=False).values_list("pk", flat=True).first() is None:
        return Compacted()
    count, rows = _merged(_lines(alias, run))
    if count.after < count.before:
        RunEvents.objects.using(alias).filter(run=run).delete()
        sql.insert(alias, RunEvents, [row.values(run) for row in rows])
    Run.objects.using(alias).filter(pk=run).update(compacted=True)
    return count


def _measured(run: UUID) -> Compacted:
    return _merged(_lines(database_alias(), run))[0]


@dataclass
class _Row:
    """A row that is being made."""

    first: int
    last: int
    texts: list[str] = field(default_factory=list)
    size: int = 0
    plain: bool = True

    def add(self, number: int, text: str, *, plain: bool) -> None:
        self.texts.append(text)
        self.last = number
        self.size += len(text)
        self.plain = self.plain and plain

    def values(self, run: UUID) -> dict[str, Any]:
        text = "\n".join(self.texts)
        return {"run_id": run, "first_seq": self.first, "last_seq": self.last, "text": text, "plain": self.plain}


@dataclass
class _Line:
    """An event of the log: its places, its text, and what it is where it is a delta that can be merged."""

    first: int
    last: int
    text: str
    plain: bool
    event: dict[str, Any] | None = None


def _lines(alias: str, run: UUID) -> Iterator[_Line]:
    rows = RunEvents.objects.using(alias).filter(run=run).order_by("first_seq")
    columns = "first_seq", "last_seq", "text", "plain"
    for first, last, text, plain in rows.values_list(*columns).iterator(chunk_size=100):
        lines = text.split("\n")
        if len(lines) <= last - first:  # merged before
            yield _Line(first, last, lines[-1], plain)
            continue
        for number, line in enumerate(lines, start=first):
            yield _Line(number, number, line, plain or not needs_downgrade(decode(line)), _delta(line))


def _delta(text: str) -> dict[str, Any] | None:
    """The event, where it is a delta with nothing of its own."""
    if '"delta":"' not in text:
        return None
    event: dict[str, Any] = decode(text)
    key = DELTAS.get(event["type"])
    if key is None or type(event["delta"]) is not str or event.keys() - {"type", "delta", key} - _MORE:
        return None
    return event


def _merged(lines: Iterable[_Line]) -> tuple[Compacted, list[_Row]]:
    """The rows of the compacted log."""
    rows: list[_Row] = []
    before = after = saved = 0
    for group in _groups(lines):
        before += len(group)
        after += 1
        first, last = group[0].first, group[-1].last
        text = group[0].text
        head = group[0].event
        if len(group) > 1 and head is not None:
            # As of its first piece: when the answer began to come is what timelines show.
            text = encode({**head, "delta": "".join(line.event["delta"] for line in group if line.event is not None)})
            saved += sum(len(line.text) + 1 for line in group) - len(text) - 1
        row = rows[-1] if rows else None
        # A row of several places holds one event; others hold one for each of their places.
        if (
            row is None
            or first < last
            or len(row.texts) <= row.last - row.first
            or row.size > ROW
            or row.last + 1 != first
        ):
            row = _Row(first, last)
            rows.append(row)
        row.add(last, text, plain=group[0].plain)
    return Compacted(before, after, saved), rows


def _groups(lines: Iterable[_Line]) -> Iterator[list[_Line]]:
    """Deltas of one item that stand together; everything else alone."""
    group: list[_Line] = []
    for line in lines:
        if group and not _same(group[-1], line):
            yield group
            group = []
        group.append(line)
    if group:
        yield group


def _same(one: _Line, other: _Line) -> bool:
    if one.event is None or other.event is None or other.first != one.last + 1:
        return False
    key = DELTAS[one.event["type"]]
    return all(one.event.get(name) == other.event.get(name) for name in ("type", key, "subagentRunId"))
