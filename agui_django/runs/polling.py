"""What other processes did, by one statement a second per process.

It asks for cancel requests and edits of runs executed here, for progress of runs followed here but executed elsewhere,
and for the new runs of threads followed here.
Law: only a fallback for wake-ups that never come, so nothing may depend on its speed; idle, it asks nothing and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

from django.db import Error
from django.db.models import OuterRef, Q, Subquery

from agui_django.conf import settings
from agui_django.models import Run, RunEvents, Thread
from agui_django.runs import supervisor
from agui_django.runs.broadcaster import Key, broadcaster
from agui_django.runs.database import database_alias, get_pool

#: Status, last stored event and cancel request of a run, and the version of its thread's state; of a thread its latest
#: run and its active one.
Progress = tuple[str, int | None, str, int]

logger = logging.getLogger("agui_django.runs")

#: Seconds between two statements.
INTERVAL = 1.0


class Poller:
    """One per process; lives in the loop that last needed it."""

    def __init__(self) -> None:
        """Nothing is asked before `ensure`."""
        #: Runs executed in this process, and how each is cancelled. The callables may be called from any thread.
        self.executing: dict[UUID, Callable[[str], object]] = {}
        #: How each is told the version of its thread's state; likewise.
        self.edited: dict[UUID, Callable[[int], object]] = {}
        #: Looks for what other processes left behind; awaited at the first tick, and three times a lease.
        self.sweep: Callable[[], Awaitable[None]] | None = None
        #: Moves queues that stand still; awaited while a queued run is followed here.
        self.advance: Callable[[], Awaitable[None]] | None = None
        #: Says that runs are watched here; awaited at each tick, tells whether it wants to be awaited again.
        self.sign: Callable[[], Awaitable[bool]] | None = None
        self._swept: float | None = None
        self._task: asyncio.Task[None] | None = None
        self._seen: dict[Key, tuple[str, int | None]] = {}
        self._lock = threading.Lock()
        self._hurried = asyncio.Event()

    def hurry(self) -> None:
        """Ask now rather than in a second; call in the poller's loop."""
        self._hurried.set()

    def ensure(self) -> None:
        """Go on asking while there is something to ask about; call in the event loop."""
        with self._lock:
            task = self._task
            if task is None or task.done() or task.get_loop().is_closed():
                self._hurried = asyncio.Event()
                self._task = supervisor.start(self._poll(), name="agui polling", service=True)

    async def _poll(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(INTERVAL):
                    await self._hurried.wait()
            self._hurried.clear()
            executing = list(self.executing)
            followed = set(broadcaster.watched()) - self.executing.keys()
            self._seen = {key: seen for key, seen in self._seen.items() if key in followed}
            signed = self.sign is not None and await self.sign()
            if not executing and not followed:
                if signed:
                    continue
                return
            try:
                rows = await get_pool().run(read_progress, [*executing, *followed])
            except Error:
                logger.exception("Polling failed; it goes on in a second")
                continue
            for run in executing:
                _, _, reason, version = rows.get(run, ("", None, "", 0))
                cancel, edited = self.executing.get(run), self.edited.get(run)
                if reason and cancel is not None:
                    cancel(reason)
                if edited is not None:
                    edited(version)
            for key in followed:
                status, last_seq, _, _ = rows.get(
                    key, ("", None, "", 0)
                )  # what is deleted moves, too: its followers end
                if self._seen.get(key) != (status, last_seq):
                    self._seen[key] = (status, last_seq)
                    broadcaster.publish(key, relay=False)
            if self.advance is not None and any(rows.get(key, ("",))[0] == Run.Status.QUEUED for key in followed):
                await self.advance()
            now = time.monotonic()
            if self.sweep is not None and (self._swept is None or now - self._swept >= settings.LEASE / 3):
                self._swept = now
                await self.sweep()


def read_progress(keys: Sequence[Key]) -> dict[Key, Progress]:
    """What became of runs and threads, in one statement; of a thread that has no run yet, nothing."""
    alias = database_alias()
    runs = {key for key in keys if isinstance(key, UUID)}
    threads = [key for key in keys if isinstance(key, int)]
    wanted = Q(pk__in=runs)
    if threads:
        latest = Run.objects.filter(thread=OuterRef("pk")).exclude(status=Run.Status.QUEUED).order_by("-created_at")
        newest = Thread.objects.filter(pk__in=threads).values_list(Subquery(latest.values("pk")[:1]))
        wanted |= Q(pk__in=newest) | Q(thread__in=threads, status__in=Run.ACTIVE)
    last = RunEvents.objects.filter(run=OuterRef("pk")).order_by("-first_seq").values("last_seq")[:1]
    rows = Run.objects.using(alias).filter(wanted).order_by("created_at")
    found: dict[Key, Progress] = {}
    for run, thread, status, reason, version, last_seq in rows.values_list(
        "pk", "thread", "status", "cancel_requested", "thread__state_version", Subquery(last)
    ):
        if run in runs:
            found[run] = (status, last_seq, reason, version)
        if thread in threads:
            before = found[thread][0] if thread in found else ""
            found[thread] = (f"{before} {run} {status in Run.TERMINAL} {version}", None, "", version)
    return found


poller = Poller()
