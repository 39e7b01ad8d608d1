"""Short transactions that wait for the same thread become one: on SQLite, where one thread writes.

Law: who shares a transaction is told after its commit, and nobody pays for another: where one of them fails, all are
undone and each is done alone.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

from django.db import InterfaceError, OperationalError

from agui_django.runs.database import Pool, get_pool
from agui_django.runs.shared import shared_transaction

A = TypeVar("A")
B = TypeVar("B")


class _Turn(Generic[A, B]):
    """One caller's part."""

    def __init__(self, before: Callable[[], A], inside: Callable[[A], B]) -> None:
        self.before = before
        self.inside = inside
        self.loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[tuple[A, B]] = self.loop.create_future()
        self.error: BaseException | None = None
        self._value: A | None = None
        self._outcome: B | None = None

    def prepare(self) -> bool:
        try:
            self._value = self.before()
        except Exception as error:
            self.error = error
        return self.error is None

    def carry_out(self) -> None:
        self._outcome = self.inside(cast("A", self._value))

    def alone(self) -> None:
        try:
            self.carry_out()
        except Exception as error:
            self.error = error

    def deliver(self) -> None:
        """In the loop."""
        if self.answer.done():  # the caller was cancelled
            return
        if self.error is None:
            self.answer.set_result((cast("A", self._value), cast("B", self._outcome)))
        else:
            self.answer.set_exception(self.error)


class Together:
    """The transactions of one kind in one process."""

    def __init__(self, pool: Pool) -> None:
        """For a pool; it ends with the pool."""
        self.pool = pool
        self._lock = threading.Lock()
        self._waiting: list[_Turn[Any, Any]] = []
        self._queued = False

    async def run(self, before: Callable[[], A], inside: Callable[[A], B]) -> tuple[A, B]:
        """Run two functions in a database thread, and give what they gave. From any loop.

        Args:
            before: whatever has to be asked first; outside of the transaction.
            inside: takes that; one call of `transact`, which may run more than once.
        """
        turn = _Turn(before, inside)
        with self._lock:
            self._waiting.append(turn)
            queued, self._queued = self._queued, self.pool.single
        if not queued:
            self.pool.submit(self._work)
        return await turn.answer

    def _work(self) -> None:
        with self._lock:
            count = len(self._waiting) if self.pool.single else 1
            turns, self._waiting = self._waiting[:count], self._waiting[count:]
            self._queued = False
        turns = [turn for turn in turns if not turn.answer.cancelled()]
        ready = [turn for turn in turns if turn.prepare()]
        if not self._share(ready):
            for turn in ready:
                turn.alone()
        if any(isinstance(turn.error, OperationalError | InterfaceError) for turn in turns):
            self.pool.suspect()
        for loop in {turn.loop for turn in turns}:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_deliver, [turn for turn in turns if turn.loop is loop])

    def _share(self, turns: list[_Turn[Any, Any]]) -> bool:
        if len(turns) < 2:
            return False
        try:
            with shared_transaction(self.pool.alias):
                for turn in turns:
                    turn.carry_out()
        except Exception:
            return False
        return True


def _deliver(turns: list[_Turn[Any, Any]]) -> None:
    for turn in turns:
        turn.deliver()


_together: Together | None = None
_together_lock = threading.Lock()


def get_together() -> Together:
    """That of this process; it lives as long as the process's pool."""
    global _together
    pool = get_pool()
    with _together_lock:
        if _together is None or _together.pool is not pool:
            _together = Together(pool)
        return _together
