"""What other processes did, by one statement a second per process.

It asks for cancel requests of runs executed here, and for progress of runs followed here but executed elsewhere.
Law: only a fallback for wake-ups that never come, so nothing may depend on its speed; idle, it asks nothing and ends.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from uuid import UUID

from django.db import DatabaseError
from django.db.models import OuterRef, Subquery

from agui_django.models import Run, RunEvents
from agui_django.runs import supervisor
from agui_django.runs.broadcaster import broadcaster
from agui_django.runs.database import database_alias, get_pool

logger = logging.getLogger("agui_django.runs")

#: Seconds between two statements.
INTERVAL = 1.0


class Poller:
    """One per process; lives in the loop that last needed it."""

    def __init__(self) -> None:
        """Nothing is asked before `ensure`."""
        #: Runs executed in this process, and how each is cancelled. The callables may be called from any thread.
        self.executing: dict[UUID, Callable[[str], None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._seen: dict[UUID, tuple[str, int | None] | None] = {}
        self._lock = threading.Lock()

    def ensure(self) -> None:
        """Go on asking while there is something to ask about; call in the event loop."""
        with self._lock:
            task = self._task
            if task is None or task.done() or task.get_loop().is_closed():
                self._task = supervisor.start(self._poll(), name="agui polling", service=True)

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL)
            executing = list(self.executing)
            followed = set(broadcaster.watched()) - self.executing.keys()
            self._seen = {run: seen for run, seen in self._seen.items() if run in followed}
            if not executing and not followed:
                return
            try:
                rows = await get_pool().run(read_progress, [*executing, *followed])
            except DatabaseError:
                logger.exception("Polling failed; it goes on in a second")
                continue
            for run in executing:
                reason = rows[run][2] if run in rows else ""
                cancel = self.executing.get(run)
                if reason and cancel is not None:
                    cancel(reason)
            for run in followed:
                status, last_seq, _ = rows.get(run, ("", None, ""))  # a deleted run moves, too: its followers end
                if self._seen.get(run) != (status, last_seq):
                    self._seen[run] = (status, last_seq)
                    broadcaster.publish(run, relay=False)


def read_progress(runs: Sequence[UUID]) -> dict[UUID, tuple[str, int | None, str]]:
    """Status, last stored event and cancel request of runs, in one statement."""
    alias = database_alias()
    last = RunEvents.objects.filter(run=OuterRef("pk")).order_by("-first_seq").values("last_seq")[:1]
    rows = Run.objects.using(alias).filter(pk__in=runs)
    return {
        run: (status, last_seq, reason)
        for run, status, reason, last_seq in rows.values_list("pk", "status", "cancel_requested", Subquery(last))
    }


poller = Poller()
