"""Who watches runs in this process, and what becomes of a run that nobody watches any more.

Law: counted per process, in any thread; what others know is asked before a run is cancelled (`signs`). A run without a
`Vigil` lives on whoever leaves.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from uuid import UUID

from agui_django.runs import supervisor

#: Seconds until it is asked again whether others still watch.
AGAIN = 1.0


class Watch:
    """One watcher of a run, until it is closed or dropped."""

    __slots__ = ("_run",)

    def __init__(self, run: UUID) -> None:
        self._run: UUID | None = run
        watchers.enter(run)

    def close(self) -> None:
        """Leave; harmless when repeated."""
        run, self._run = self._run, None
        if run is not None:
            watchers.leave(run)

    def __del__(self) -> None:
        """A stream that was dropped without being closed is watched by nobody."""
        self.close()


class Vigil:
    """Cancels a run some time after its last watcher has left.

    Args:
        run: the run's address.
        grace: seconds from the last one's leaving.
        cancel: called in the loop in which this is made, at most once.
        elsewhere: whether somebody watches in another process, or did so within the grace; None: there is none.
    """

    def __init__(
        self,
        run: UUID,
        grace: float,
        cancel: Callable[[], None],
        elsewhere: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """Begin; the run counts as watched until somebody has left."""
        self._run = run
        self._grace = grace
        self._cancel = cancel
        self._elsewhere = elsewhere
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False
        watchers.keep(run, self)

    def alone(self) -> None:
        """Somebody has left; perhaps it was the last one. From any thread."""
        if not self._ended and not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(self._alone)
            except RuntimeError:  # the loop closed just now, and took the run with it
                return

    def end(self) -> None:
        """The run has ended."""
        self._ended = True
        watchers.release(self._run)
        if not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(self._stop)
            except RuntimeError:
                return

    def _alone(self) -> None:
        self._stop()
        if not self._ended and not watchers.count(self._run):
            self._timer = self._loop.call_later(self._grace, self._over)

    def _over(self) -> None:
        self._timer = None
        if self._elsewhere is None:
            self._give_up()
        else:
            supervisor.start(self._ask(self._elsewhere), name=f"agui vigil {self._run}", service=True)

    async def _ask(self, elsewhere: Callable[[], Awaitable[bool]]) -> None:
        watched = await elsewhere()
        if self._timer is not None:  # somebody came and left meanwhile: another grace
            return
        if watched:
            self._timer = self._loop.call_later(AGAIN, self._over)
        else:
            self._give_up()

    def _give_up(self) -> None:
        # Who came back meanwhile starts it all again by leaving.
        if not self._ended and not watchers.count(self._run):
            self._ended = True
            watchers.release(self._run)
            self._cancel()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Watchers:
    """How many watch each run in this process. Every method may be called from any thread."""

    def __init__(self) -> None:
        # Reentrant: a dropped watcher may be collected while the same thread holds it.
        self._lock = threading.RLock()
        self._counts: Counter[UUID] = Counter()
        self._vigils: dict[UUID, Vigil] = {}

    def enter(self, run: UUID) -> None:
        """One more watches."""
        with self._lock:
            self._counts[run] += 1

    def leave(self, run: UUID) -> None:
        """One of them has left."""
        with self._lock:
            self._counts[run] -= 1
            last = self._counts[run] <= 0
            if last:
                del self._counts[run]
            vigil = self._vigils.get(run) if last else None
        if vigil is not None:
            vigil.alone()

    def count(self, run: UUID) -> int:
        """How many watch."""
        with self._lock:
            return self._counts.get(run, 0)

    def elsewhere(self) -> list[UUID]:
        """Runs that are watched here, and whose last watcher's leaving is nobody's concern here."""
        with self._lock:
            return [run for run in self._counts if run not in self._vigils]

    def keep(self, run: UUID, vigil: Vigil) -> None:
        """Tell this one when the last watcher leaves."""
        with self._lock:
            self._vigils[run] = vigil

    def release(self, run: UUID) -> None:
        """Tell nobody any more."""
        with self._lock:
            self._vigils.pop(run, None)

    def ended(self, run: UUID) -> None:
        """The run has ended: nothing is left to cancel."""
        with self._lock:
            vigil = self._vigils.get(run)
        if vigil is not None:
            vigil.end()


watchers = Watchers()
