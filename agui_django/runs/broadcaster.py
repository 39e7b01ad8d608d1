"""Wake-ups: a hint that a run's rows have moved. The rows are the truth; a lost or doubled hint costs a re-read.

In memory: it joins what runs in this process, and what `polling` saw of others. A channel layer may join in by calling
`publish` for the messages it receives and by adding its own sender to `relays`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from uuid import UUID


class Subscription:
    """One follower's interest in a run. Made before the rows are read, so that nothing falls in between."""

    __slots__ = ("_broadcaster", "_loop", "_waiter", "_woken", "run")

    def __init__(self, broadcaster: Broadcaster, run: UUID, loop: asyncio.AbstractEventLoop) -> None:
        """Made by `Broadcaster.subscribe`."""
        self.run = run
        self._broadcaster = broadcaster
        self._loop = loop
        self._woken = False
        self._waiter: asyncio.Future[bool] | None = None

    async def wait(self, seconds: float) -> bool:
        """Wait for the next hint since the last call; False after ``seconds``. In the subscriber's loop."""
        if not self._woken:
            self._waiter = self._loop.create_future()
            timer = self._loop.call_later(seconds, _settle, self._waiter, False)
            try:
                return await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
                self._woken = False
        self._woken = False
        return True

    def wake(self) -> None:
        """Deliver a hint; from any thread."""
        if self._loop.is_closed():
            return
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # closed between the two lines: nobody waits any more
            return

    def close(self) -> None:
        """End the interest; harmless when repeated."""
        self._broadcaster.forget(self)

    def _wake(self) -> None:
        self._woken = True
        if self._waiter is not None:
            _settle(self._waiter, True)


def _settle(waiter: asyncio.Future[bool], value: bool) -> None:
    if not waiter.done():
        waiter.set_result(value)


class Broadcaster:
    """The process's subscriptions by run. Every method may be called from any thread."""

    def __init__(self) -> None:
        """Nobody is interested yet."""
        #: Called with a run's uuid for each local hint: how a channel layer tells other processes.
        self.relays: list[Callable[[UUID], None]] = []
        self._lock = threading.Lock()
        self._by_run: dict[UUID, set[Subscription]] = {}

    def subscribe(self, run: UUID) -> Subscription:
        """Begin to receive hints about a run in the running loop; close what is returned."""
        subscription = Subscription(self, run, asyncio.get_running_loop())
        with self._lock:
            self._by_run.setdefault(run, set()).add(subscription)
        return subscription

    def forget(self, subscription: Subscription) -> None:
        """Remove a subscription."""
        with self._lock:
            found = self._by_run.get(subscription.run)
            if found is not None:
                found.discard(subscription)
                if not found:
                    del self._by_run[subscription.run]

    def publish(self, run: UUID, *, relay: bool = True) -> None:
        """Wake a run's subscribers. ``relay=False`` for a hint that came from another process."""
        with self._lock:
            woken = list(self._by_run.get(run, ()))
        for subscription in woken:
            subscription.wake()
        if relay:
            for send in self.relays:
                send(run)

    def publish_all(self) -> None:
        """Wake everybody: the process is draining."""
        for run in self.watched():
            self.publish(run, relay=False)

    def watched(self) -> list[UUID]:
        """Runs that somebody waits for."""
        with self._lock:
            return list(self._by_run)


broadcaster = Broadcaster()
