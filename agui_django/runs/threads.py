"""A run's threads: its own executor, and the queue through which any thread emits.

Law: the loop is never blocked by a thread; a thread waits only for room in the queue or for the loop, and is released
when the run is cancelled or has ended. What a thread handed over comes in its order.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Condition, get_ident
from typing import Any, TypeVar

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.db import connections

from agui_django.protocol.errors import RunCancelled, RunClosed

T = TypeVar("T")

#: What threads may have handed over and the loop not yet taken.
LIMIT = 512
#: Seconds between looks whether the writer caught up, while it has not.
STALL = 0.01


class Inbox:
    """The queue between a run's threads and its loop.

    Args:
        loop: the run's.
        ring: called in the loop when there is something to take; it calls `drain` sooner or later.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._jobs: deque[tuple[int, Future[Any] | None, Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = deque()
        self._changed = Condition()
        self._rung = False
        self._draining = False
        self._closed = False
        self._reason: str | None = None
        self._calls = 0  # how many cancels there were
        self._told: dict[int, int] = {}  # thread -> cancels it was told of
        self._errors: dict[int, BaseException] = {}

    def __bool__(self) -> bool:
        return bool(self._jobs)

    # ---- a thread's side ----

    def put(self, future: Future[Any] | None, fn: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Hand a call over.

        Raises:
            RunCancelled, RunClosed, or what an earlier call of this thread that nobody waited for raised.
        """
        self.check()
        if len(self._jobs) >= LIMIT:
            with self._changed:
                while len(self._jobs) >= LIMIT and not self._closed and not self._untold():
                    self._changed.wait()
            self.check()
        self._jobs.append((get_ident(), future, fn, args, kwargs))
        if not self._rung:
            self._rung = True
            self.ring_threadsafe()
        if self._closed:
            self._fail_rest()

    def check(self) -> None:
        """Raise what this thread has to hear of."""
        thread = get_ident()
        error = self._errors.pop(thread, None) if self._errors else None
        if error is not None:
            raise error
        if self._closed:
            raise RunClosed
        if self._untold():
            self._told[thread] = self._calls
            raise RunCancelled(self._reason)

    def enter(self) -> None:
        """A thread begins a piece of work: it hears of a cancel anew."""
        self._told.pop(get_ident(), None)

    def leave(self, thread: int) -> BaseException | None:
        """A thread has ended a piece of work: gives the error that it has not heard of."""
        self._told.pop(thread, None)
        return self._errors.pop(thread, None)

    def ring_threadsafe(self) -> None:
        """Have the loop look."""
        try:
            self._loop.call_soon_threadsafe(self._ring)
        except RuntimeError:  # the loop is closed: so is the run
            self._closed = True

    def _untold(self) -> bool:
        return self._calls > self._told.get(get_ident(), 0)

    # ---- the loop's side ----

    def drain(self) -> None:
        """Do what was handed over so far; what is done may come here again, and is not interrupted by the next."""
        self._rung = False
        if self._draining:
            return
        self._draining = True
        try:
            self._drain()
        finally:
            self._draining = False

    def _drain(self) -> None:
        jobs = self._jobs
        was_full = len(jobs) >= LIMIT
        while jobs:
            thread, future, fn, args, kwargs = jobs.popleft()
            try:
                value = fn(*args, **kwargs)
            except BaseException as error:
                if future is None:
                    self._errors.setdefault(thread, error)
                else:
                    future.set_exception(error)
            else:
                if future is not None:
                    future.set_result(value)
        if was_full:
            self._release()

    def cancel(self, reason: str) -> None:
        """Tell every thread, once."""
        self._reason = reason
        self._calls += 1
        self._release()

    def close(self) -> None:
        """The run has ended: nothing more is taken, and nobody waits."""
        self._closed = True
        self._fail_rest()
        self._release()

    def _fail_rest(self) -> None:
        while self._jobs:
            try:
                _, future, *_ = self._jobs.popleft()
            except IndexError:  # another thread was faster
                return
            if future is not None:
                future.set_exception(RunClosed())

    def _release(self) -> None:
        with self._changed:
            self._changed.notify_all()


class RunThread:
    """The run's one thread, made when it is first needed: one database connection per run.

    Inside `enter` asgiref uses it, too, so that Django's ``a`` methods and ``sync_to_async`` share it.
    """

    def __init__(self) -> None:
        self._context = ThreadSensitiveContext()

    def enter(self) -> None:
        """Make it the thread-sensitive executor of the current context."""
        SyncToAsync.thread_sensitive_context.set(self._context)

    def run(self, fn: Callable[[], T]) -> Awaitable[T]:
        """Run a function in the thread, in a copy of the current context. Cancelling the await does not stop it."""
        executors = SyncToAsync.context_to_thread_executor
        executor = executors.get(self._context)
        if executor is None:
            executor = executors[self._context] = ThreadPoolExecutor(max_workers=1, thread_name_prefix="agui-run")
        return asyncio.wrap_future(executor.submit(contextvars.copy_context().run, fn))

    def close(self) -> None:
        """Close its database connections behind whatever still runs in it, and let it go. Does not wait."""
        executor = SyncToAsync.context_to_thread_executor.pop(self._context, None)
        if executor is not None:
            executor.submit(connections.close_all)
            executor.shutdown(wait=False)
