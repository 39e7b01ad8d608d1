"""A run's log while it runs: events get their numbers here, and are visible once the writer has committed them.

Law: everything in a `Recorder` is touched in its loop's thread only; the writer's thread is handed finished rows.
Followers are cursors: they read the tail up to `committed`, and rows where the tail no longer reaches back to them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from itertools import accumulate
from typing import TYPE_CHECKING, Any
from uuid import UUID

from agui_django.agents.sink import OnceClaim
from agui_django.conf import settings
from agui_django.protocol.codec import encode
from agui_django.protocol.downgrade import needs_downgrade
from agui_django.protocol.errors import AgentFlood, LogLimit, RunClosed
from agui_django.runs.database import get_pool
from agui_django.runs.once import claim_once
from agui_django.runs.settling import Settling
from agui_django.runs.setup import Closing, Settled
from agui_django.runs.waiting import Patience, Waiter, Waiters, settle
from agui_django.runs.writer import Item, Row, get_writer

if TYPE_CHECKING:
    from agui_django.models import Run
    from agui_django.runs.present import Present
    from agui_django.runs.setup import RunSetup
    from agui_django.runs.telemetry import RunTrace

MB = 1024 * 1024

#: Unstored events and bytes above which an agent's await waits for the writer.
CROWD, CROWD_BYTES = 2_048, 1 * MB
#: Unstored events and bytes above which the call itself raises.
FLOOD, FLOOD_BYTES = 20_000, 16 * MB
#: How many events may still be recorded after a limit was told: those that end the run in order.
SPARE = 1_000
#: Committed events that stay in memory for followers beside those of the last two commits, and bytes at most; others
#: are read from rows.
TAIL, TAIL_BYTES = 16, 1 * MB
#: Size of one row: what a replay reads at once.
ROW, ROW_BYTES = 1_000, 256 * 1024


#: One event of the log: its number, its wire text, whether every client may be sent it unchanged.
Recorded = tuple[int, str, bool]


#: The runs that this process records, by their address.
recorders: dict[UUID, Recorder] = {}


def get(uuid: UUID) -> Recorder | None:
    """The recorder of a run that is executed in this process."""
    return recorders.get(uuid)


class _Ready:
    """An awaitable that is done: awaiting it costs no task switch."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


READY = _Ready()


class Recorder:
    """The log of one running run; the `RunLog` that a driver appends to.

    Args:
        run: the row, claimed by this process.
        setup: what the store's open or claim returned with it.
        loop: whose thread calls; the running loop by default.

    Attributes:
        last_seq: number of the last event.
        committed: number of the last event that may be shown.
        closed: nothing more will come: the terminal event is committed, or the run was `lost`.
        lost: why the run was taken away or given up; its followers end without a terminal event.
        on_lost: called in the loop with the error when that happens.
        on_commit: called in the loop with the run's address after `committed` or `closed` changed.
        look: called in the loop; what the log says up to its last event, None while that cannot be told.
        trace: the run's spans, where somebody collects them.
    """

    def __init__(self, run: Run, setup: RunSetup, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Begin to record; `get` finds the recorder from now on."""
        self.uuid: UUID = run.uuid
        self.claim = run.claim
        self.ledger = setup.ledger
        self.turn = setup.turn
        self.loop = loop or asyncio.get_running_loop()
        self.last_seq = self.committed = run.last_seq
        self.closed = False
        self.lost: Exception | None = None
        self.on_lost: Callable[[Exception], None] | None = None
        self.on_commit: Callable[[UUID], None] | None = None
        self.look: Callable[[], Present | None] | None = None
        self.trace: RunTrace | None = None
        self._writer = get_writer()
        self._tail: list[Recorded] = []
        #: Bytes of the log, of what is stored of it, of what is not in memory any more.
        self._bytes = self._stored_bytes = self._dropped_bytes = 0
        if setup.first is not None:
            self.last_seq = self.committed = 1
            self._tail.append((1, setup.first.text, setup.first.plain))
            self._bytes = self._stored_bytes = len(setup.first.text)
        self._handed = self.last_seq  # number of the last event handed to the writer
        self._older = self._newer = self.last_seq  # what was committed two commits ago, and one
        self._max_log = settings.MAX_LOG
        self._interval = settings.FLUSH_INTERVAL
        self._spare: int | None = None
        self._waiting_for_tick = self._urgent = self._failing = self._ended = False
        self._done: asyncio.Future[bool] | None = None
        self._settling = Settling(self.loop)
        self._waiters = Waiters()
        recorders[self.uuid] = self
        self._writer.register(self)

    # ---- the driver's side ----------------------------------------------------------------------------------------

    def append(self, text: str, *, plain: bool, urgent: bool = False) -> None:
        """Add one event's wire text; see `RunLog`."""
        if self.closed or self._ended:
            raise RunClosed
        size = len(text) if text.isascii() else len(text.encode())
        total = self._bytes + size
        seq = self.last_seq + 1
        if (
            self._spare is not None
            or total > self._max_log
            or seq - self.committed > FLOOD
            or total - self._stored_bytes > FLOOD_BYTES
        ):
            self._check(size)
        self.last_seq = seq
        self._bytes = total
        self._tail.append((seq, text, plain))
        if urgent:
            self._hurry()
        elif not self._waiting_for_tick:
            self._waiting_for_tick = True
            self._writer.at_tick(self, self._interval)

    def crowded(self) -> bool:
        """Whether so much is unstored that an emission should wait in `room`."""
        return (
            self._failing or self.last_seq - self.committed > CROWD or self._bytes - self._stored_bytes > CROWD_BYTES
        ) and not self.closed

    def room(self) -> Awaitable[None]:
        """Wait until half of that is stored; asks the writer to flush early."""
        if not self.crowded():
            return READY
        self._hurry()
        return self._until(max(self.committed + 1, self.last_seq - CROWD // 2))

    def flush(self) -> Awaitable[None]:
        """Wait until all so far is stored and visible."""
        if self.committed >= self.last_seq:
            return READY
        self._hurry()
        return self._until(self.last_seq)

    async def claim_once(self, wanted: OnceClaim) -> OnceClaim:
        """Claim a key of the turn; see `RunLog`."""
        if self.closed or self._ended:
            raise RunClosed
        thread = self.ledger.thread
        return await get_pool().run(claim_once, thread, self.uuid, self.claim, self.turn, wanted)

    def settle_once(self, claim: OnceClaim, text: str | None) -> Awaitable[None]:
        """Store what became of a claim, together with the events so far; see `RunLog`."""
        if self.closed or self._ended:
            raise RunClosed
        kept = self._settling.add(Settled(self.turn, claim.key, claim.by, text))
        # What is emitted in the same step goes with it.
        self.loop.call_soon(self._hurry)
        return kept

    async def close(self, closing: Closing) -> bool:
        """Write what is unstored, the terminal event and everything a close changes, in one transaction.

        Cancelling the caller does not stop it. False: the run was taken away, or the database failed for longer than
        WRITE_DEADLINE; nothing was written then.
        """
        if self._done is None:
            if self.closed:
                return False
            self._spare = SPARE  # no limit stops an end
            self.append(encode(closing.terminal), plain=not needs_downgrade(closing.terminal))
            self._ended = True
            self._done = self.loop.create_future()
            self._hand_over(closing)
        return await asyncio.shield(self._done)

    # ---- the followers' side --------------------------------------------------------------------------------------

    def tail_from(self, seq: int) -> list[Recorded] | None:
        """The committed events after a number; None where the tail begins later, then rows have them."""
        tail, committed = self._tail, self.committed
        if seq >= committed:
            return []
        if not tail or seq + 1 < (first := tail[0][0]):
            return None
        return tail[seq + 1 - first : committed + 1 - first]

    async def wait(self, seen: int, timeout: float, patience: Patience | None = None) -> bool:  # noqa: ASYNC109
        """Wait until `committed` is beyond ``seen`` or the log is closed; False after ``timeout`` seconds.

        From any loop. Who waits again and again brings a `Patience`, and stops it in the end.
        """
        if self.committed > seen or self.closed:
            return True
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(seen + 1, waiter)
        if self.committed > seen or self.closed:  # moved meanwhile, in another loop's thread
            self._waiters.drop(waiter)
            return True
        timer = patience or Patience()
        timer.start(waiter, timeout)
        reached = False
        try:
            reached = await waiter
        finally:
            if not reached:
                self._waiters.drop(waiter)
            if patience is None:
                timer.stop()
        return reached

    async def present(self) -> Present | None:
        """What the log says up to an event, once that one is committed; from any loop.

        None where only rows can tell: before the first event, at the run's end, inside an edit of the state.
        """
        if asyncio.get_running_loop() is self.loop:
            found = self._look()
        else:
            asked: Future[Present | None] = Future()
            try:
                self.loop.call_soon_threadsafe(lambda: asked.set_result(self._look()))
            except RuntimeError:  # the loop is closed: so is the run
                return None
            found = await asyncio.wrap_future(asked)
        while found is not None and self.committed < found.seq:
            if self.closed:
                return None
            await self.wait(found.seq - 1, settings.HEARTBEAT)
        return found

    def _look(self) -> Present | None:
        found = None if self.closed or self._ended or self.look is None else self.look()
        if found is not None and found.seq > self.committed:
            self._hurry()
        return found

    # ---- the writer's side: called in the loop --------------------------------------------------------------------

    def tick(self) -> Item | None:
        """The rows that are due; None where an earlier batch is still under way (its commit hurries the next)."""
        self._waiting_for_tick = False
        if self.closed or self._ended:
            return None
        if self._writing:
            self._urgent = True
        elif self._handed < self.last_seq:
            return self._item(None)
        return None

    def stored(self, last_seq: int, settled: Iterable[Settled] = (), *, final: bool) -> None:
        """A commit made everything up to a number visible, and what became of claims."""
        if self.closed:
            return
        self._settling.stored(settled)
        self._older, self._newer, self.committed = self._newer, self.committed, last_seq
        self._stored_bytes = self._bytes - sum([len(text) for _, text, _ in self._after(last_seq)])
        self._failing = False
        if final:
            self._end()
            settle(self._done, True)
        else:
            self._trim()
            if self._urgent and not self._ended:
                self._hurry()
        self._wake()

    def fail(self) -> None:
        """A write failed and is tried again: the agent waits meanwhile."""
        self._failing = True

    def lose(self, error: Exception) -> None:
        """The run was taken away, or its writes kept failing."""
        if self.closed:
            return
        self.lost = error
        self._end()
        settle(self._done, False)
        self._settling.lost()
        self._wake()
        if self.on_lost is not None:
            self.on_lost(error)

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _check(self, size: int) -> None:
        if self._spare is not None:
            if self._spare <= 0:
                raise RunClosed
            self._spare -= 1
        elif self._bytes + size > self._max_log:
            self._spare = SPARE
            raise LogLimit
        else:
            self._spare = SPARE
            raise AgentFlood

    def _hurry(self) -> None:
        if self.closed or self._ended:
            return
        if self._writing:
            self._urgent = True
        elif self._handed < self.last_seq or self._settling.waiting:
            self._hand_over(None)

    @property
    def _writing(self) -> bool:
        """Whether an earlier batch is under way."""
        return self._handed > self.committed or self._settling.under_way

    def _hand_over(self, closing: Closing | None) -> None:
        self._urgent = False
        self._writer.put([self._item(closing)])

    def _item(self, closing: Closing | None) -> Item:
        unstored = self._after(self._handed)
        self._handed = self.last_seq
        return Item(self, list(_rows(unstored)), self.last_seq, closing, self._settling.take())

    def _after(self, seq: int) -> list[Recorded]:
        """The tail's events after a number that it reaches back to."""
        return self._tail[seq + 1 - self._tail[0][0] :] if self._tail else []

    def _trim(self) -> None:
        """Forget what is committed and older than followers are, or too large; not for a few, as it copies the list."""
        committed = len(self._tail) - (self.last_seq - self.committed)
        keep = max(TAIL, self.committed - self._older)
        large = self._stored_bytes - self._dropped_bytes > 2 * TAIL_BYTES
        if large:
            sizes = accumulate(len(text) for _, text, _ in reversed(self._tail[:committed]))
            keep = min(keep, 1 + sum(size < TAIL_BYTES for size in sizes))
        if (drop := committed - keep) >= TAIL or large:
            # A new list: a follower in another loop's thread may hold the old one.
            self._tail = self._tail[drop:]
            self._dropped_bytes = self._bytes - sum([len(text) for _, text, _ in self._tail])

    def _end(self) -> None:
        self.closed = True
        self._writer.unregister(self)
        if recorders.get(self.uuid) is self:
            del recorders[self.uuid]

    def _wake(self) -> None:
        self._waiters.wake(None if self.closed else self.committed, self.loop)
        if self.on_commit is not None:
            self.on_commit(self.uuid)

    async def _until(self, target: int) -> None:
        if self.committed < target and not self.closed:
            waiter: Waiter = self.loop.create_future()
            self._waiters.add(target, waiter)
            await waiter
        if self.lost is not None:
            raise RunClosed


def _rows(events: list[Recorded]) -> Iterator[Row]:
    """Events as rows of bounded size."""
    if len(events) <= ROW and sum([len(text) for _, text, _ in events]) <= ROW_BYTES:
        if events:
            yield _row(events)
        return
    start = size = 0
    for position, (_, text, _plain) in enumerate(events):
        if position > start and (position - start >= ROW or size + len(text) > ROW_BYTES):
            yield _row(events[start:position])
            start, size = position, 0
        size += len(text)
    if start < len(events):
        yield _row(events[start:])


def _row(events: list[Recorded]) -> Row:
    plain = False not in [plain for _, _, plain in events]
    return Row(events[0][0], events[-1][0], "\n".join([text for _, text, _ in events]), plain)
