"""Following a run: its rows, then what is committed live, each event once; and a thread's present restated.

Law: a follower is a cursor (a number), never a queue: the slow reader pays, the producer never. Nothing is done per
event but to hand on its ready text.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import TypeVar
from uuid import UUID

from django.db.models import Q, Subquery

from agui_django.conf import settings
from agui_django.models import Message, Run, RunEvents
from agui_django.protocol.codec import decode, encode
from agui_django.protocol.downgrade import downgrade
from agui_django.protocol.errors import AgUiError, CursorGone
from agui_django.runs import recorder as recorders
from agui_django.runs import sharing, supervisor
from agui_django.runs.broadcaster import broadcaster
from agui_django.runs.database import database_alias
from agui_django.runs.polling import poller
from agui_django.runs.present import at_rest, ended, snapshots, stamped, started
from agui_django.runs.requests import Hydration
from agui_django.runs.setup import Wire
from agui_django.runs.waiting import Patience
from agui_django.runs.watching import Watch

#: An event's number in its run, its wire text, and whether every client may be sent it unchanged.
Entry = tuple[int, str, bool]

#: The same for any stream: the number may be a thread's cursor, and is 0 for what was never recorded.
Frame = tuple[int | str, str, bool]

N = TypeVar("N", int, int | str)

Batches = AsyncIterator[Sequence[Frame]]

#: Rows read at once, and the characters after which a read ends early: what a reader of a long log holds in memory.
ROWS, CHARACTERS = 256, 4 * 1024 * 1024
#: From this many events on the first row of an ended run's log is sent before the rest is read.
LONG = 1_000


class Follow:
    """The events of a run after a number, as batches of frames.

    Each batch is everything that is ready; an empty one is a sign of life after ``HEARTBEAT`` seconds of silence. Ends
    behind the terminal event; without one, where the run was given up or (executed elsewhere) this process drains.

    Args:
        run: the run's address.
        after: the number of the last event that is already known.
        legacy: shape events for clients from before 1.0.
        last: the number of the terminal event, where the run has ended: saves a statement.
        exact: raise `CursorGone` where what follows is not kept event by event. Else what the run left is restated; to
            somebody who has seen a part of it the stream ends without a terminal event, and its restatement begins the
            next one.
    """

    def __init__(
        self, run: UUID, after: int = 0, *, legacy: bool = False, last: int | None = None, exact: bool = False
    ) -> None:
        """Nothing is read before the first batch is asked for."""
        self.cursor = self._after = after
        self._exact = exact
        self._run = run
        self._legacy = legacy
        self._last = last
        # Held from the start: it leaves the map when the run ends, its tail is still the shortest way to the end.
        self._recorder = None if last is not None else recorders.get(run)
        self._given_up = False
        self._watch = Watch(run)
        self._patience = Patience()

    @property
    def moved(self) -> bool:
        """Whether something was told."""
        return self.cursor != self._after

    def close(self) -> None:
        """Stop watching: the one who followed has gone. Also happens at the end, and when this is dropped."""
        self._watch.close()
        self._patience.stop()

    def __aiter__(self) -> Follow:
        """Batches are taken once."""
        return self

    async def __anext__(self) -> Sequence[Entry]:
        """The next batch."""
        while True:
            try:
                batch = await self._next()
            except StopAsyncIteration:
                self.close()
                raise
            if not batch:
                return batch
            self.cursor = batch[-1][0]
            if not self._legacy:
                return batch
            if for_them := list(shaped(batch)):
                return for_them

    async def _next(self) -> Sequence[Entry]:
        """Everything that is ready behind the cursor; waits for it. Empty: nothing happened for a while."""
        if self._last is not None and self.cursor >= self._last:
            raise StopAsyncIteration
        recorder = self._recorder
        while recorder is not None:
            entries = recorder.tail_from(self.cursor)
            if entries is None:
                return await self._read() or []
            if entries:
                return entries
            if recorder.closed:
                if recorder.lost is None:
                    raise StopAsyncIteration
                # Taken away: what its new holder wrote are rows. Given up: there is nothing more.
                self._given_up = True
                self._recorder = None
                break
            if not await recorder.wait(self.cursor, settings.HEARTBEAT, self._patience):
                return []
        return await self._rows()

    async def _rows(self) -> Sequence[Entry]:
        """The same for a run that this process does not execute (any more)."""
        deadline = time.monotonic() + settings.HEARTBEAT
        # Before the read: a hint that comes while it is under way is not lost.
        subscription = broadcaster.subscribe(self._run)
        try:
            while True:
                entries = await self._read()
                if entries:
                    return entries
                if entries is None or self._given_up or supervisor.draining():
                    raise StopAsyncIteration
                poller.ensure()
                if not await subscription.wait(deadline - time.monotonic()):
                    return []
                self._recorder = recorders.get(self._run)
                if self._recorder is not None:
                    return await self._next()
        finally:
            subscription.close()

    async def _read(self) -> Sequence[Entry] | None:
        """A read of rows: entries, [] where there are none yet, None where there will be none."""
        try:
            return await self._read_rows()
        except CursorGone:
            if self._exact:
                raise
            told = None if self.moved else await sharing.read(read_restated, self._run)
            if told:
                self._last = told[-1][0]
            return told or None

    async def _read_rows(self) -> Sequence[Entry] | None:
        begins = self.cursor == self._after and self._last is not None and self._last - self.cursor > LONG
        entries = await sharing.read(read_entries, self._run, self.cursor, 1 if begins else ROWS)
        if entries or self._last is not None:
            return entries or None
        last = await sharing.read(read_end, self._run)
        if last is None:
            return []
        # It may have ended between the two statements.
        return await sharing.read(read_entries, self._run, self.cursor) or None if self.cursor < last else None


def follow(run: UUID, after: int = 0, *, legacy: bool = False, last: int | None = None) -> Batches:
    """Follow a run; see `Follow`."""
    return Follow(run, after, legacy=legacy, last=last)


def read_entries(run: UUID, after: int, limit: int = ROWS) -> list[Entry]:
    """Stored events of a run after a number, in order: all, or those of as many rows. In a database thread.

    A row of a compacted log may hold one event in the place of several: it has the number of the last of them.

    Raises:
        CursorGone: the number is in the middle of such a row, or the row behind it is gone.
    """
    rows = RunEvents.objects.using(database_alias()).filter(run=run).order_by("first_seq")
    if after:
        # The batch that holds the next event is found by the index: the rest of a long log is not looked at.
        before = RunEvents.objects.filter(run=run, first_seq__lte=after + 1).order_by("-first_seq")
        rows = rows.filter(Q(first_seq__gt=after + 1) | Q(first_seq=Subquery(before.values("first_seq")[:1])))
    entries: list[Entry] = []
    size = 0
    expected = after + 1
    for first_seq, last_seq, text, plain in rows.values_list("first_seq", "last_seq", "text", "plain")[:limit]:
        lines = text.split("\n")
        merged = len(lines) <= last_seq - first_seq
        if first_seq > expected or (merged and first_seq < expected <= last_seq):
            raise CursorGone
        expected = max(expected, last_seq + 1)
        entries += [((last_seq if merged else first_seq + n), line, plain) for n, line in enumerate(lines)]
        size += len(text)
        if size > CHARACTERS:
            break
    return [entry for entry in entries if entry[0] > after] if after else entries


def read_restated(run: UUID) -> list[Entry]:
    """What an ended run's thread holds, and how the run ended, in the place of its events; in a database thread.

    Only the last has a number: that of the run's terminal event.
    """
    alias = database_alias()
    row = Run.objects.using(alias).filter(pk=run).select_related("thread").first()
    if row is None or not row.ended:
        return []
    messages = Message.objects.using(alias).filter(thread=row.thread).in_play().values_list("wire", flat=True)
    terminal = read_entries(run, row.last_seq - 1)
    end = terminal[-1][1] if terminal else encode(ended(row.thread.thread_id, row.run_id, None, []))
    texts = at_rest(row.thread.thread_id, row.run_id, list(messages), row.thread.state, end, legacy=False)
    # Not known to be plain: the messages may need to be shaped.
    return [*((0, text, False) for text in texts[:-1]), (row.last_seq, texts[-1], False)]


def read_end(run: UUID) -> int | None:
    """The number of a run's last event once it has ended, 0 when the run is gone, None while it is active."""
    row = Run.objects.using(database_alias()).filter(pk=run).values_list("status", "last_seq").first()
    if row is None:
        return 0
    status, last_seq = row
    return last_seq if status in Run.TERMINAL else None


# ---- what is told without a log of its own --------------------------------------------------------------------------


async def tell(events: Iterable[Wire], *, legacy: bool = False) -> Batches:
    """Events that were never recorded, as one batch without numbers."""
    told = [downgrade(event) if legacy else event for event in events]
    yield [(0, encode(event), True) for event in told if event is not None]


def restated(thread: Hydration) -> list[Wire]:
    """A thread's present as a run of its own: snapshots, and the questions that wait on the RUN_FINISHED."""
    ids = thread.thread_id, thread.run_id
    return stamped([started(*ids), *snapshots(thread.messages, thread.state), ended(*ids, None, thread.interrupts)])


def refusal(error: AgUiError) -> list[Wire]:
    """A resume that is not taken: RUN_ERROR as the stream's only event; nothing was stored."""
    return stamped([{"type": "RUN_ERROR", "message": str(error.message), "code": error.code}])


async def join(thread: Hydration, events: Batches, *, legacy: bool) -> Batches:
    """An active run for a client without history: behind its RUN_STARTED comes what the thread held when it began.

    Args:
        thread: what the thread held.
        events: the run from its first event on.
        legacy: as for `events`.
    """
    begun = False
    async for batch in events:
        if batch and not begun:
            begun = True
            yield batch[:1]
            held = stamped(snapshots(thread.messages, thread.state))
            async for told in tell(held, legacy=legacy):
                yield told
            batch = batch[1:]
            if not batch:
                continue
        yield batch


def shaped(entries: Iterable[tuple[N, str, bool]]) -> Iterator[tuple[N, str, bool]]:
    """What a client from before 1.0 may be sent of these events; only those that need it are parsed."""
    for seq, text, plain in entries:
        if plain:
            yield seq, text, plain
        elif (event := downgrade(decode(text))) is not None:
            yield seq, encode(event), plain


# A feed of another process's run would outlive this one's servers: it looks up when a drain begins.
supervisor.on_drain.append(broadcaster.publish_all)
