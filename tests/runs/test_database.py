"""The pool: which threads, which connections, what is tried again."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from django.db import DatabaseError, IntegrityError, OperationalError, connections, transaction

from agui_django.models import Thread
from agui_django.runs import database
from agui_django.runs.database import get_pool, transact
from tests.runs.given import Given

POSTGRES = connections["default"].vendor == "postgresql"


def where() -> tuple[str, int]:
    connections[get_pool().alias].ensure_connection()
    return threading.current_thread().name, id(connections[get_pool().alias].connection)


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(("agui-db", "agui-writer"))]


def test_sqlite_has_one_thread_and_postgres_a_few(given: Given) -> None:
    pool = get_pool()
    jobs = [pool.submit(lambda: (time.sleep(0.02), where())[1]) for _ in range(40)]
    seen = {job.result() for job in jobs}
    writer = pool.submit_writer(where).result()
    if POSTGRES:
        assert len(seen) == database.THREADS
        assert writer not in seen
    else:
        assert seen == {writer}


def test_a_connection_is_kept_between_jobs_and_gone_after_close(given: Given) -> None:
    pool = get_pool()
    assert pool.submit_writer(where).result() == pool.submit_writer(where).result()
    opened = list(pool._opened)
    pool.close_sync()
    assert ours() == []
    assert [connection.connection for connection in opened] == [None] * len(opened)
    assert get_pool() is not pool
    assert given.do(Thread.objects.count) == 0


def test_any_loop_and_no_loop(given: Given) -> None:
    assert asyncio.run(get_pool().run(where)) is not None
    assert asyncio.run(get_pool().run_writer(where)) is not None
    nested = get_pool().run_sync(lambda: get_pool().run_sync(where))  # one that is inside runs in place
    assert nested[0].startswith("agui-")


def test_an_exception_reaches_the_caller(given: Given) -> None:
    with pytest.raises(ZeroDivisionError):
        get_pool().run_sync(lambda: 1 // 0)


def test_a_connection_that_broke_is_replaced(given: Given) -> None:
    if not POSTGRES:
        pytest.skip("for PostgreSQL: a file does not hang up")
    pool = get_pool()

    def backend() -> int:
        connections[pool.alias].ensure_connection()
        return int(connections[pool.alias].connection.info.backend_pid)

    before = pool.submit_writer(backend).result()
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 10000)", [before])
    thread = pool.submit_writer(lambda: transact(Thread.objects.create, scope="s", thread_id="t", agent="x")).result()
    assert thread.pk is not None
    assert pool.submit_writer(backend).result() != before


def test_sqlite_transactions_begin_as_writers(given: Given) -> None:
    if POSTGRES:
        pytest.skip("for SQLite")
    seen: list[str] = []

    def begin() -> None:
        connection = connections[get_pool().alias]
        watch = connection.execute_wrapper(lambda execute, sql, *rest: (seen.append(sql), execute(sql, *rest))[1])
        with watch, transaction.atomic(using=get_pool().alias):
            Thread.objects.count()

    given.do(begin)
    assert seen[0] == "BEGIN IMMEDIATE"


def test_a_transaction_is_tried_again_whole_after_a_lock_or_a_race(given: Given) -> None:
    attempts: list[int] = []
    locked = OperationalError("database is locked")
    if POSTGRES:
        locked.__cause__ = type("Deadlock", (Exception,), {"sqlstate": "40P01"})()

    def work() -> str:
        attempts.append(1)
        Thread.objects.create(scope="s", thread_id=f"t{len(attempts)}", agent="x")
        if len(attempts) == 1:
            raise locked
        if len(attempts) == 2:
            raise IntegrityError("somebody was faster")
        return "done"

    assert given.do(transact, work) == "done"
    assert len(attempts) == 3
    assert list(Thread.objects.values_list("thread_id", flat=True)) == ["t3"]


def test_a_real_error_is_not_tried_again(given: Given) -> None:
    attempts: list[int] = []

    def broken() -> Any:
        attempts.append(1)
        with connections[get_pool().alias].cursor() as cursor:
            cursor.execute("SELECT * FROM there_is_no_such_table")

    with pytest.raises(DatabaseError):
        given.do(transact, broken)
    assert len(attempts) == 1


def test_statements_are_not_kept_between_jobs_while_debugging(given: Given, settings: Any) -> None:
    settings.DEBUG = True  # Django then keeps the last 9000 with their parameters, until a request begins
    pool = get_pool()

    def work() -> int:
        connection = connections[pool.alias]
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        return len(connection.queries_log)

    for submit in (pool.submit_writer, pool.submit):
        assert submit(work).result() == 1
    assert [len(connection.queries_log) for connection in pool._opened] == [0] * len(pool._opened)
