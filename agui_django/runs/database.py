"""Our own database threads: every statement of this app runs in one of them, never in a request's thread.

Four threads, on SQLite one, which is also the writer's: then nothing inside the process fights for the file's lock.
Started lazily and keyed by process (fork safe); usable from any event loop and from plain threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from django.db import IntegrityError, InterfaceError, OperationalError, connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from agui_django.conf import settings
from agui_django.runs import shared, supervisor

P = ParamSpec("P")
T = TypeVar("T")

#: Threads, and so connections, beside the writer's.
THREADS = 4
#: A connection that rested longer than this is tried before it is used: servers and firewalls drop quiet ones.
REST = 30.0
#: How long a transaction is tried again on "database is locked", a deadlock or a lost connection.
RETRY_DEADLINE = 10.0
#: SQLSTATEs, and classes of them, that pass: serialization, deadlock, lock timeout, shutdown, connection, resources.
PASSING = frozenset({"40001", "40P01", "55P03", "57P01", "57P02", "57P03", "08", "53"})
#: How often a transaction is tried again after losing a race for a unique value.
RACES = 5


def database_alias() -> str:
    """The alias that all of this app's rows are written to and read from."""
    from agui_django.models import Run

    return router.db_for_write(Run)


class Pool:
    """The database threads of one process.

    Args:
        alias: the database.
        single: whether one thread does everything (SQLite).
    """

    def __init__(self, alias: str, *, single: bool) -> None:
        """Make the executors; their threads start with the first job."""
        self.alias = alias
        self.single = single
        self.pid = os.getpid()
        #: Called when the pool closes, before its threads end.
        self.on_close: list[Callable[[], None]] = []
        self._local = threading.local()
        self._opened: list[BaseDatabaseWrapper] = []
        self._suspected = 0.0  # when a connection was last found to be lost: others may be, too
        self._lock = threading.Lock()
        self._writer = ThreadPoolExecutor(1, "agui-writer")
        self._readers = self._writer if single else ThreadPoolExecutor(THREADS, "agui-db")

    def submit(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a job; its result comes through a `concurrent.futures.Future`."""
        return self._readers.submit(self._work, function, *args, **kwargs)

    def submit_writer(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a job in the writer's thread, behind what it has been given before."""
        return self._writer.submit(self._work, function, *args, **kwargs)

    async def run(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a job and wait for it. A cancelled caller does not stop a job that has begun."""
        return await self._answered(self._readers, partial(function, *args, **kwargs))

    async def read(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """`run` for a function that changes nothing: tried again while the database is away."""
        patience = Patience()
        while True:
            try:
                return await self.run(function, *args, **kwargs)
            except (OperationalError, InterfaceError) as error:
                await patience.wait(error)

    async def run_writer(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a job in the writer's thread and wait for it."""
        return await self._answered(self._writer, partial(function, *args, **kwargs))

    def _answered(self, executor: ThreadPoolExecutor, function: Callable[[], T]) -> asyncio.Future[T]:
        """One future and one call into the loop; `wrap_future` takes two futures and twice as long."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            if answer.cancelled():
                return
            try:
                value = self._work(function)
            except BaseException as error:
                _tell(loop, _fail, answer, error)
            else:
                _tell(loop, _give, answer, value)

        executor.submit(work)
        return answer

    def run_sync(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a job for a synchronous caller; a caller that is in one of our threads runs it there."""
        if self.inside:
            return self._work(function, *args, **kwargs)
        return self.submit(function, *args, **kwargs).result()

    @property
    def inside(self) -> bool:
        """Whether the calling thread is one of this pool's."""
        return getattr(self._local, "connection", None) is not None

    async def close(self) -> None:
        """Finish what is queued, end the threads and close their connections. The next `get_pool` makes a new pool."""
        await asyncio.get_running_loop().run_in_executor(None, self.close_sync)

    def close_sync(self) -> None:
        """`close` for synchronous callers outside the pool's threads."""
        forget_pool(self)
        for stop in self.on_close:
            stop()
        for executor in {self._readers, self._writer}:
            executor.shutdown(wait=True)
        for connection in self._opened:
            # Their threads are gone; nobody else uses these wrappers.
            connection.inc_thread_sharing()
            connection.close()

    def suspect(self) -> None:
        """A connection was lost: every other one is tried before it is used again. From any thread."""
        self._suspected = time.monotonic()

    def _work(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        connection = self._connection()
        try:
            return function(*args, **kwargs)
        except (OperationalError, InterfaceError):
            self.suspect()
            raise
        finally:
            self._local.used = time.monotonic()
            if connection.queries_log and not connection.force_debug_cursor:
                # With DEBUG Django keeps statements, and so every event, until a request begins: here none ever does.
                connection.queries_log.clear()

    def _connection(self) -> BaseDatabaseWrapper:
        # Django keeps one connection per alias and thread. It stays open between jobs: CONN_MAX_AGE is for requests.
        connection: BaseDatabaseWrapper | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = connections[self.alias]
            self._local.connection = connection
            self._local.used = time.monotonic()  # a job's job comes before the first one has ended
            with self._lock:
                self._opened.append(connection)
        else:
            used = self._local.used
            doubtful = used < self._suspected or time.monotonic() - used > REST
            if connection.connection is not None and (connection.errors_occurred or (doubtful and not self.single)):
                revive(connection)
        prepare(connection)
        return connection


def _give(answer: asyncio.Future[T], value: T) -> None:
    if not answer.done():
        answer.set_result(value)


def _fail(answer: asyncio.Future[T], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(RuntimeError(str(error)) if isinstance(error, StopIteration) else error)


def _tell(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(function, *args)


def revive(connection: BaseDatabaseWrapper) -> None:
    """Close a connection that no longer works; the next statement opens a new one."""
    connection.errors_occurred = False
    if connection.in_atomic_block or not connection.is_usable():
        connection.close()


def prepare(connection: BaseDatabaseWrapper) -> None:
    """Connect; on SQLite begin every transaction as a writer.

    A deferred transaction that has read cannot always become a writer beside another process: SQLite then answers
    "database is locked" at once, whatever its timeout.
    """
    if connection.connection is None:
        with contextlib.suppress(OperationalError, InterfaceError):  # the job's first statement tells it
            connection.ensure_connection()
        if connection.vendor == "sqlite" and not getattr(connection, "transaction_mode", None):
            connection.transaction_mode = "IMMEDIATE"  # type: ignore[attr-defined]


def transact(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function in one transaction; whole again when a lock, a lost connection or a race undid it.

    The function must change nothing but the database: it may run more than once. Call it in a pool's thread.
    """
    alias = database_alias()
    if shared.inside(alias):
        return shared.part(function, *args, **kwargs)
    give_up = time.monotonic() + RETRY_DEADLINE
    races, pause = 0, 0.005
    while True:
        try:
            with transaction.atomic(using=alias):
                return function(*args, **kwargs)
        except IntegrityError:
            races += 1
            if races > RACES:
                raise
        except (OperationalError, InterfaceError) as error:
            if not passing(error, connections[alias]) or time.monotonic() > give_up:
                raise
            get_pool().suspect()
            time.sleep(pause)  # in a database thread
            pause = min(pause * 2, 0.25)


class Patience:
    """How long somebody who only reads waits for a database that is away: as long as writes are tried again."""

    def __init__(self) -> None:
        """It has answered so far."""
        self._until: float | None = None
        self._pause = 0.05

    async def wait(self, error: Exception) -> None:
        """Wait a moment.

        Raises:
            Exception: the error, where it will not pass, has lasted too long, or this process is going away.
        """
        now = time.monotonic()
        if self._until is None:
            self._until = now + settings.WRITE_DEADLINE
        if now > self._until or supervisor.draining() or not passing(error, connections[database_alias()]):
            raise error
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, 1.0)


def passing(error: Exception, connection: BaseDatabaseWrapper) -> bool:
    """Whether the same transaction may succeed a moment later."""
    if connection.vendor == "sqlite":
        return "locked" in str(error) or "busy" in str(error)
    # Without a state the connection itself was lost, or could not be made.
    state: str | None = getattr(error.__cause__, "sqlstate", None)
    return state is None or state in PASSING or state[:2] in PASSING


_pool: Pool | None = None
_pool_lock = threading.Lock()


def get_pool() -> Pool:
    """The pool of this process."""
    global _pool
    pool = _pool
    if pool is not None and pool.pid == os.getpid():
        return pool
    with _pool_lock:
        if _pool is None or _pool.pid != os.getpid():
            alias = database_alias()
            _pool = Pool(alias, single=connections[alias].vendor == "sqlite")
        return _pool


def forget_pool(pool: Pool) -> None:
    """Let the next `get_pool` make a new one."""
    global _pool
    with _pool_lock:
        if _pool is pool:
            _pool = None


async def shutdown() -> None:
    """Close the pool of this process, if there is one (tests, the end of a process)."""
    pool = _pool
    if pool is not None and pool.pid == os.getpid():
        await pool.close()
