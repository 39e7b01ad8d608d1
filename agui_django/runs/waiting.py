"""Waiting until a log has grown: what a run's followers do, and its agent where too much is unstored.

Law: who waits may live in any loop, and is settled in its own. A follower that is told of every commit sets no timer
for each of them.
"""

from __future__ import annotations

import asyncio
import threading

Waiter = asyncio.Future[bool]


class Waiters:
    """Those who wait for a number to be reached. From any thread."""

    def __init__(self) -> None:
        """Nobody waits."""
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, Waiter]] = []

    def add(self, number: int, waiter: Waiter) -> None:
        """Settle this one with True when the number is reached."""
        with self._lock:
            self._waiting.append((number, waiter))

    def drop(self, waiter: Waiter) -> None:
        """This one does not wait any more."""
        with self._lock:
            self._waiting = [entry for entry in self._waiting if entry[1] is not waiter]

    def wake(self, number: int | None, loop: asyncio.AbstractEventLoop) -> None:
        """Settle those who wait for up to a number, or everybody (None).

        Args:
            number: what was reached.
            loop: the loop that calls.
        """
        if not self._waiting:
            return
        with self._lock:
            due = [waiter for wanted, waiter in self._waiting if number is None or wanted <= number]
            if len(due) == len(self._waiting):
                self._waiting = []
            elif due:
                self._waiting = [entry for entry in self._waiting if entry[0] > (number or 0)]
        for waiter in due:
            its = waiter.get_loop()
            if its is loop:
                settle(waiter, True)
            elif not its.is_closed():
                its.call_soon_threadsafe(settle, waiter, True)


class Patience:
    """The end of a follower's patience: many waits one after the other, and one timer that is seldom set."""

    def __init__(self) -> None:
        """No timer runs."""
        self._waiter: Waiter | None = None
        self._end = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, waiter: Waiter, seconds: float) -> None:
        """Settle a waiter with False after a time; in its loop. The one before is forgotten."""
        loop = waiter.get_loop()
        self._waiter, self._end = waiter, loop.time() + seconds
        timer = self._timer
        if timer is not None and self._loop is loop and timer.when() <= self._end:
            return  # it fires early, and is set again then
        if timer is not None and self._loop is loop:
            timer.cancel()
        self._loop, self._timer = loop, loop.call_at(self._end, self._ring, loop)

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if loop.time() < self._end:
            self._timer = loop.call_at(self._end, self._ring, loop)
        else:
            settle(self._waiter, False)

    def stop(self) -> None:
        """Set no timer any more. From another thread than the loop's, one that runs is left to run out."""
        timer, self._timer, self._waiter = self._timer, None, None
        if timer is not None and asyncio._get_running_loop() is self._loop:
            timer.cancel()


def settle(waiter: Waiter | None, value: bool) -> None:
    """Tell a waiter, unless somebody has."""
    if waiter is not None and not waiter.done():
        waiter.set_result(value)
