"""Wake-ups: a hint that a run's rows have moved, or that a thread has a new run.

The rows are the truth; a lost or doubled hint costs a re-read. In memory: it joins what runs in this process, and what
`polling` saw and `relay` heard of others.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from uuid import UUID

#: What somebody waits for: a run by its address, or a thread by its primary key.
Key = UUID | int


class Subscription:
    """One follower's interest. Made before the rows are read, so that nothing falls in between."""

    __slots__ = ("_broadcaster", "_loop", "_waiter", "_woken", "key")

    def __init__(self, broadcaster: Broadcaster, key: Key, loop: asyncio.AbstractEventLoop) -> None:
        """Made by `Broadcaster.subscribe`."""
        self.key = key
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
    """The process's subscriptions by run and by thread. Every method may be called from any thread."""

    def __init__(self) -> None:
        """Nobody is interested yet."""
        #: Called with the key of each local hint, and of each interest: how `relay` reaches other processes.
        self.on_publish: list[Callable[[Key], None]] = []
        self.on_follow: list[Callable[[Key], None]] = []
        self._lock = threading.Lock()
        self._by_key: dict[Key, set[Subscription]] = {}

    def subscribe(self, key: Key) -> Subscription:
        """Begin to receive hints about a run or a thread in the running loop; close what is returned."""
        subscription = Subscription(self, key, asyncio.get_running_loop())
        with self._lock:
            self._by_key.setdefault(key, set()).add(subscription)
        for follow in self.on_follow:
            follow(key)
        return subscription

    def forget(self, subscription: Subscription) -> None:
        """Remove a subscription."""
        with self._lock:
            found = self._by_key.get(subscription.key)
            if found is not None:
                found.discard(subscription)
                if not found:
                    del self._by_key[subscription.key]

    def publish(self, key: Key, *, relay: bool = True) -> None:
        """Wake the subscribers of a run or a thread. ``relay=False`` for a hint that came from another process."""
        with self._lock:
            woken = list(self._by_key.get(key, ()))
        for subscription in woken:
            subscription.wake()
        if relay:
            for tell in self.on_publish:
                tell(key)

    def publish_all(self) -> None:
        """Wake everybody: the process is draining."""
        for key in self.watched():
            self.publish(key, relay=False)

    def watched(self) -> list[Key]:
        """Runs and threads that somebody waits for."""
        with self._lock:
            return list(self._by_key)


broadcaster = Broadcaster()
