"""The process's group commit: one thread, one connection, one transaction for all runs that are due.

Law: an event is shown only after its commit, and a run that was taken away gets not one row more: nothing is written
but behind the fence, which finds (and locks) exactly the runs that this process still holds.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from django.db import DatabaseError, Error, IntegrityError, InterfaceError, OperationalError, transaction

from agui_django.conf import settings
from agui_django.protocol.errors import RunClosed
from agui_django.runs import sql, telemetry
from agui_django.runs.database import Pool, get_pool
from agui_django.runs.setup import Closing, Settled

if TYPE_CHECKING:
    from agui_django.runs.recorder import Recorder

logger = logging.getLogger("agui_django.runs")

#: Due times are rounded up to this grid (seconds), so that runs share a transaction.
TICK = 0.01
#: Seconds between two attempts while writes fail.
RETRY = 0.25


class Row(NamedTuple):
    """A batch of consecutive events, as it is stored."""

    first_seq: int
    last_seq: int
    text: str
    plain: bool


@dataclass(eq=False)
class Item:
    """Work for the writer: rows of one run, what became of claims, its closing when the rows are the last."""

    recorder: Recorder
    rows: list[Row]
    last_seq: int
    closing: Closing | None
    settled: list[Settled] = field(default_factory=list)
    failing_since: float | None = None


class Writer:
    """Writes the logs of all runs of a process. `put`, `register`, `unregister` may be called from any thread."""

    def __init__(self, pool: Pool) -> None:
        """Make a writer for a pool; it ends with the pool."""
        self.pool = pool
        self._lock = threading.Lock()
        self._items: list[Item] = []
        self._queued = False
        self._ticks: dict[tuple[asyncio.AbstractEventLoop, int], list[Recorder]] = {}
        self._recorders: dict[Recorder, float] = {}  # -> when its heartbeat was last written
        self._failed: dict[Recorder, Item] = {}  # the writer's thread only
        self._clock: threading.Thread | None = None
        self._alarm = threading.Event()
        self._stopped = False
        pool.on_close.append(self.stop)

    # ---- from the loops -------------------------------------------------------------------------------------------

    def register(self, recorder: Recorder) -> None:
        """Keep a run alive: its heartbeat is written from now on."""
        with self._lock:
            self._recorders[recorder] = time.monotonic()
            if self._clock is None:
                self._clock = threading.Thread(target=self._keep_time, name="agui-clock", daemon=True)
                self._clock.start()

    def unregister(self, recorder: Recorder) -> None:
        """The run has ended."""
        with self._lock:
            self._recorders.pop(recorder, None)

    def at_tick(self, recorder: Recorder, delay: float) -> None:
        """Flush a run on the first tick after a delay; call in its loop."""
        loop = recorder.loop
        tick = ceil((loop.time() + delay) / TICK)
        waiting = self._ticks.get((loop, tick))
        if waiting is None:
            waiting = self._ticks[loop, tick] = []
            loop.call_at(tick * TICK, self._due, loop, tick)
        waiting.append(recorder)

    def put(self, items: Iterable[Item]) -> None:
        """Hand over work; what waits when the thread is free shares a transaction."""
        with self._lock:
            self._items.extend(items)
            if self._queued or not self._items or self._stopped:
                return
            self._queued = True
        self.pool.submit_writer(self._work)

    def stop(self) -> None:
        """End the clock; called as the pool closes."""
        self._stopped = True
        self._alarm.set()

    def _due(self, loop: asyncio.AbstractEventLoop, tick: int) -> None:
        items = [recorder.tick() for recorder in self._ticks.pop((loop, tick))]
        self.put([item for item in items if item is not None])

    # ---- in the writer's thread -----------------------------------------------------------------------------------

    def _work(self) -> None:
        with self._lock:
            items, self._items = self._items, []
            self._queued = False
        self._write([self._with_earlier(item) for item in items])

    def _with_earlier(self, item: Item) -> Item:
        """An item, with the rows before it that could not be written yet."""
        earlier = self._failed.pop(item.recorder, None)
        if earlier is not None and earlier is not item:
            item.rows[:0] = earlier.rows
            item.settled[:0] = earlier.settled
            item.closing = item.closing or earlier.closing
            item.failing_since = earlier.failing_since
        return item

    def _write(self, items: list[Item]) -> None:
        batches = [item for item in items if item.closing is None]
        if batches:
            self._flush(batches)
        endings = [(item, item.closing) for item in items if item.closing is not None]
        if not self._close_together(endings):
            for item, closing in endings:
                self._close(item, closing)

    def _flush(self, items: list[Item]) -> None:
        try:
            with telemetry.flush(items):
                held = self._flush_together(items)
        except (OperationalError, InterfaceError) as error:
            # The database itself is in trouble: every run would meet the same.
            self._put_off(items, error)
        except DatabaseError:
            for item in items:
                self._flush_alone(item)
        except Exception as error:
            logger.exception("Events could not be written")
            for item in items:
                _call(item.recorder.loop, item.recorder.lose, error)
        else:
            self._tell(items, held)

    def _flush_together(self, items: list[Item]) -> set[UUID]:
        from agui_django.models import Run, RunEvents
        from agui_django.runs import once

        found = [item.recorder for item in items]
        rows = row_values(items)
        settled = any(item.settled for item in items)
        quick = 0 < len(rows) <= sql.ROWS and not settled
        if quick and self._beaten(found) and sql.can_insert_under(self.pool.alias):
            # The fence is part of the statement, and the statement is the transaction.
            mine = {"claim": found[0].claim, "status": Run.Status.RUNNING}
            if sql.insert_under(self.pool.alias, RunEvents, rows, "run", **mine) == len(rows):
                return {recorder.uuid for recorder in found}
            return self._held([recorder.uuid for recorder in found], mine)
        with transaction.atomic(using=self.pool.alias):
            held = self._fence(found)
            ours = [item for item in items if item.recorder.uuid in held]
            sql.insert(self.pool.alias, RunEvents, row_values(ours))
            if settled:
                once.settle_here(self.pool.alias, [each for item in ours for each in item.settled])
        return held

    def _beaten(self, found: list[Recorder]) -> bool:
        """Whether these runs share a claim, and none needs a heartbeat."""
        since = time.monotonic() - settings.LEASE / 6
        return all(self._recorders.get(each, 0.0) > since and each.claim == found[0].claim for each in found)

    def _flush_alone(self, item: Item) -> None:
        try:
            try:
                with telemetry.flush([item]):
                    held = self._flush_together([item])
            except IntegrityError:
                # A commit whose answer was lost has stored some of it already.
                item.rows = missing(self.pool.alias, item)
                with telemetry.flush([item]):
                    held = self._flush_together([item])
        except Error as error:
            self._put_off([item], error)
        else:
            self._tell([item], held)

    def _fence(self, found: list[Recorder]) -> set[UUID]:
        """Write the heartbeats of the runs that are still ours; returns which these are."""
        from agui_django.models import Run

        held: set[UUID] = set()
        for claim in {recorder.claim for recorder in found}:
            wanted = [recorder.uuid for recorder in found if recorder.claim == claim]
            mine = {"claim": claim, "status": Run.Status.RUNNING}
            if sql.update(self.pool.alias, Run, {"heartbeat": sql.NOW}, uuid=wanted, **mine) == len(wanted):
                held.update(wanted)
            else:
                held |= self._held(wanted, mine)
        now = time.monotonic()
        for recorder in found:
            if recorder.uuid in held and recorder in self._recorders:
                self._recorders[recorder] = now
        return held

    def _held(self, wanted: list[UUID], mine: dict[str, Any]) -> set[UUID]:
        from agui_django.models import Run

        rows = Run.objects.using(self.pool.alias).filter(uuid__in=wanted, **mine)
        return set(rows.values_list("uuid", flat=True))

    def _close_together(self, endings: list[tuple[Item, Closing]]) -> bool:
        """Close several runs in one transaction; False, with nothing written, where that does not go at once."""
        from agui_django.runs import closing as closings

        if len(endings) < 2:
            return False
        # Threads are locked in one order by everybody who locks several.
        endings = sorted(endings, key=lambda ending: ending[0].recorder.ledger.thread)
        try:
            with telemetry.flush([item for item, _ in endings]), transaction.atomic(using=self.pool.alias):
                for item, closing in endings:
                    recorder = item.recorder
                    closings.close_here(
                        recorder.uuid, recorder.claim, recorder.ledger, item.rows, item.last_seq, closing, item.settled
                    )
        except Exception:
            logger.debug("Runs are closed one by one", exc_info=True)
            return False
        self._tell([item for item, _ in endings], {item.recorder.uuid for item, _ in endings})
        return True

    def _close(self, item: Item, closing: Closing) -> None:
        from agui_django.runs import closing as closings

        recorder = item.recorder
        try:
            try:
                with telemetry.flush([item]):
                    done = closings.close(
                        recorder.uuid, recorder.claim, recorder.ledger, item.rows, item.last_seq, closing, item.settled
                    )
            except IntegrityError:
                item.rows = missing(self.pool.alias, item)
                raise
        except Error as error:
            self._put_off([item], error)
        except Exception as error:
            logger.exception("Run %s could not be closed", recorder.uuid)
            _call(recorder.loop, recorder.lose, error)
        else:
            self._tell([item], {recorder.uuid} if done else set())

    def _put_off(self, items: list[Item], error: Exception) -> None:
        """Keep what could not be written for a later attempt; give runs up that have waited too long."""
        now = time.monotonic()
        if isinstance(error, OperationalError | InterfaceError):
            self.pool.suspect()
        for item in items:
            recorder = item.recorder
            if item.failing_since is None:
                item.failing_since = now
                logger.warning("Run %s cannot be written, trying again: %s", recorder.uuid, error)
                _call(recorder.loop, recorder.fail)
            if now - item.failing_since > settings.WRITE_DEADLINE:
                logger.error("Run %s is given up: it could not be written", recorder.uuid, exc_info=error)
                _call(recorder.loop, recorder.lose, error)
            else:
                self._failed[recorder] = item
        self._alarm.set()

    def _tell(self, items: list[Item], held: set[UUID]) -> None:
        """After a commit: once per loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Item, bool]]] = {}
        for item in items:
            by_loop.setdefault(item.recorder.loop, []).append((item, item.recorder.uuid in held))
        for loop, told in by_loop.items():
            _call(loop, _deliver, told)

    # ---- heartbeats and second attempts ---------------------------------------------------------------------------

    def _keep_time(self) -> None:
        """The clock's thread: it only queues jobs, and ends when no run is left."""
        while True:
            # The alarm is rung by failures; it is cleared before they are looked at, so that none is missed.
            self._alarm.wait(RETRY if self._failed else settings.LEASE / 6)
            self._alarm.clear()
            with self._lock:
                if self._stopped or not self._recorders:
                    self._clock = None
                    return
            if self._failed:
                self._alarm.wait(RETRY)
                self._alarm.clear()
            try:
                self.pool.submit_writer(self._beat).result()
            except RuntimeError:  # the pool closed
                return
            except Exception:
                logger.exception("Heartbeats failed")

    def _beat(self) -> None:
        again = list(self._failed.values())
        if again:
            self._failed.clear()
            self._write(again)
        since = time.monotonic() - settings.LEASE / 6
        with self._lock:
            quiet = [recorder for recorder, seen in self._recorders.items() if seen <= since]
        if not quiet:
            return
        try:
            with transaction.atomic(using=self.pool.alias):
                held = self._fence(quiet)
        except Error as error:
            logger.warning("Heartbeats cannot be written, trying again: %s", error)
            return
        for recorder in quiet:
            if recorder.uuid not in held:
                _call(recorder.loop, _taken, recorder)


def row_values(items: Iterable[Item]) -> list[dict[str, Any]]:
    """The rows of several runs, column by column."""
    return [{"run_id": item.recorder.uuid, **row._asdict()} for item in items for row in item.rows]


def missing(alias: str, item: Item) -> list[Row]:
    """An item's rows without those that are stored already."""
    from agui_django.models import RunEvents

    if not item.rows:
        return []
    stored = RunEvents.objects.using(alias).filter(run=item.recorder.uuid, first_seq__gte=item.rows[0].first_seq)
    known = set(stored.values_list("first_seq", "last_seq"))
    return [row for row in item.rows if (row.first_seq, row.last_seq) not in known]


def _deliver(told: list[tuple[Item, bool]]) -> None:
    for item, ours in told:
        if ours:
            item.recorder.stored(item.last_seq, item.settled, final=item.closing is not None)
        else:
            _taken(item.recorder)


def _taken(recorder: Recorder) -> None:
    if not recorder.closed:
        logger.warning("Run %s was taken away from this process; nothing more of it is written", recorder.uuid)
    recorder.lose(RunClosed("The run was taken away from this process."))


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., None], /, *args: object) -> None:
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:  # the loop is closed: nobody waits any more
        logger.debug("A loop closed before its run's rows were told")


_writer: Writer | None = None
_writer_lock = threading.Lock()


def get_writer() -> Writer:
    """The writer of this process; it lives as long as the process's pool."""
    global _writer
    pool = get_pool()
    with _writer_lock:
        if _writer is None or _writer.pool is not pool:
            _writer = Writer(pool)
        return _writer
