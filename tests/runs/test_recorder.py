"""The log of a running run: committed before visible, group commit, the fence, failing writes, bounds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import OperationalError
from django.test import override_settings

from agui_django.models import Run, RunEvents
from agui_django.protocol.codec import encode
from agui_django.protocol.errors import AgentFlood, LogLimit, RunClosed
from agui_django.runs import recorder as recorders
from agui_django.runs.database import get_pool
from agui_django.runs.recorder import Recorder
from agui_django.runs.requests import Opened
from agui_django.runs.setup import Closing
from tests.runs.given import Given, Statements, counted, says, user

SOON = 10.0


def custom(number: int, size: int = 0) -> str:
    return encode({"type": "CUSTOM", "name": "n", "value": number, "pad": "x" * size})


def closing(opened: Opened, **values: Any) -> Closing:
    assert opened.setup is not None
    assert opened.run is not None
    ids = {"threadId": opened.setup.thread_id, "runId": opened.run.run_id}
    return Closing(status="finished", terminal={"type": "RUN_FINISHED", **ids}, spent=True, **values)


def record(opened: Opened) -> Recorder:
    assert opened.run is not None
    assert opened.setup is not None
    return Recorder(opened.run, opened.setup)


async def until(condition: Callable[[], bool]) -> None:
    """Turns of the loop until something is true; the clock only bounds a failure."""
    async with asyncio.timeout(SOON):
        while not condition():
            await asyncio.sleep(0.002)


@contextmanager
def refusing(match: str, error: type[Exception] = OperationalError, text: str = "disk on fire") -> Iterator[list[str]]:
    """The database refuses the statements that contain a text, on every connection of the pool."""
    refused: list[str] = []

    def wrapper(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if match in sql:
            refused.append(sql)
            raise error(text)
        return execute(sql, params, many, context)

    pool = get_pool()
    pool.submit_writer(int).result()
    wrapped = list(pool._opened)  # the writer's is among them; readers may connect meanwhile
    for connection in wrapped:
        connection.execute_wrappers.append(wrapper)
    try:
        yield refused
    finally:
        for connection in wrapped:
            connection.execute_wrappers.remove(wrapper)


async def opened(given: Given, thread_id: str = "t1", **body: Any) -> Opened:
    return await given.store.aopen_run(given.request(threadId=thread_id, **body))


async def rows(run: Any) -> list[tuple[int, int, str]]:
    def read() -> list[tuple[int, int, str]]:
        found = RunEvents.objects.filter(run=run).order_by("first_seq")
        return list(found.values_list("first_seq", "last_seq", "text"))

    return await get_pool().run(read)


async def do(function: Callable[[], Any]) -> Any:
    """ORM code in the pool: Django's own thread for it would keep a connection of its own."""
    return await get_pool().run(function)


def stored_before(log: Recorder, *, last_seq: int, text: str) -> None:
    RunEvents.objects.create(run_id=log.uuid, first_seq=1, last_seq=last_seq, text=text, plain=True)


async def count(run: Any) -> int:
    return sum(last - first + 1 for first, last, _ in await rows(run))


@pytest.mark.asyncio
async def test_urgent_events_and_the_end_do_not_wait_for_the_interval(given: Given) -> None:
    with override_settings(AGUI_DJANGO={"FLUSH_INTERVAL": 3600.0}):
        run = await opened(given)
        log = record(run)
        began = log.committed
        log.append(custom(1), plain=True)
        await asyncio.sleep(0.1)
        assert log.committed == began
        log.append(custom(2), plain=True, urgent=True)
        await until(lambda: log.committed == began + 2)
        log.append(custom(3), plain=True)
        async with asyncio.timeout(SOON):
            assert await log.close(closing(run))
        assert log.committed == began + 4


@pytest.mark.asyncio
async def test_nothing_is_shown_before_its_commit(given: Given) -> None:
    start = await opened(given)
    log = record(start)
    gate, entered = threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        assert gate.wait(SOON)

    log.append(custom(1), plain=True, urgent=True)
    assert log.committed == 0
    await log.flush()
    assert log.committed == 1
    get_pool().submit_writer(hold)
    await asyncio.get_running_loop().run_in_executor(None, entered.wait)
    log.append(custom(2), plain=True, urgent=True)
    log.append(custom(3), plain=True)
    await asyncio.sleep(0.1)  # longer than the flush interval: the writer is held, so nothing may appear
    assert log.committed == 1
    assert [seq for seq, _, _ in log.tail_from(0) or []] == [1]
    gate.set()
    async with asyncio.timeout(SOON):
        await log.flush()
    assert [text for _, text, _ in log.tail_from(1) or []] == [custom(2), custom(3)]
    assert await count(start.run) == 3
    assert await log.close(closing(start))


@pytest.mark.asyncio
async def test_followers_wake_once_a_commit_made_something_visible(given: Given) -> None:
    start = await opened(given)
    log = record(start)
    told: list[Any] = []
    log.on_commit = told.append
    assert await log.wait(0, 0.01) is False
    async with asyncio.TaskGroup() as group:
        watchers = [group.create_task(log.wait(0, SOON)) for _ in range(3)]
        await asyncio.sleep(0)
        log.append(custom(1), plain=False)
    assert [watcher.result() for watcher in watchers] == [True, True, True]
    assert [(seq, plain) for seq, _, plain in log.tail_from(0) or []] == [(1, False)]
    assert told == [log.uuid]
    assert await log.wait(0, SOON) is True
    assert await log.close(closing(start))
    assert await log.wait(2, SOON) is True
    assert log.closed
    assert log.lost is None
    assert recorders.get(log.uuid) is None


@pytest.mark.asyncio
async def test_a_follower_in_another_loop_wakes_too(given: Given) -> None:
    start = await opened(given)
    log = record(start)
    waiting = threading.Event()

    async def follow() -> bool:
        asyncio.get_running_loop().call_soon(waiting.set)
        return await log.wait(0, SOON)

    other = asyncio.get_running_loop().run_in_executor(None, asyncio.run, follow())
    await asyncio.get_running_loop().run_in_executor(None, waiting.wait)
    log.append(custom(1), plain=True, urgent=True)
    assert await other is True
    assert await log.close(closing(start))


@pytest.mark.asyncio
async def test_a_close_writes_the_rest_and_the_terminal_event_in_one_transaction(given: Given) -> None:
    start = await opened(given, messages=[user("u1")])
    log = record(start)
    for number in range(1, 4):
        log.append(custom(number), plain=number != 2)
    assert await log.close(closing(start, messages=[says("a1", "x")]))
    stored = await rows(start.run)
    assert [(first, last) for first, last, _ in stored] == [(1, 4)]
    run = await do(lambda: Run.objects.get(pk=log.uuid))
    assert (run.status, run.last_seq) == ("finished", 4)
    assert (await do(lambda: RunEvents.objects.get(run=log.uuid))).plain is False
    with pytest.raises(RunClosed):
        log.append(custom(9), plain=True)
    assert await log.close(closing(start)) is True  # the answer stands


@pytest.mark.asyncio
async def test_a_cancelled_caller_does_not_stop_a_close(given: Given) -> None:
    start = await opened(given)
    log = record(start)
    task = asyncio.create_task(log.close(closing(start)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: log.closed)
    assert (await do(lambda: Run.objects.get(pk=log.uuid))).status == "finished"


# ---- the fence ------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize("change", [{"claim": "thief"}, {"status": "failed"}])
async def test_a_run_that_was_taken_away_gets_not_one_row_more(given: Given, change: dict[str, str]) -> None:
    taken, kept = await opened(given, "t1"), await opened(given, "t2")
    logs = [record(taken), record(kept)]
    lost: list[Exception] = []
    logs[0].on_lost = lost.append
    for log in logs:
        log.append(custom(1), plain=True, urgent=True)
        await log.flush()
    await do(lambda: Run.objects.filter(pk=logs[0].uuid).update(**change))
    for log in logs:
        log.append(custom(2), plain=True)
    await logs[1].flush()
    await until(lambda: logs[0].closed)
    assert isinstance(logs[0].lost, RunClosed)
    assert lost == [logs[0].lost]
    assert await count(taken.run) == 1
    assert await count(kept.run) == 2
    with pytest.raises(RunClosed):
        logs[0].append(custom(3), plain=True)
    assert await logs[0].close(closing(taken)) is False
    assert await logs[1].close(closing(kept)) is True
    assert await count(taken.run) == 1


@pytest.mark.asyncio
async def test_a_close_of_a_run_that_was_taken_away_writes_nothing(given: Given) -> None:
    start = await opened(given, messages=[user("u1")])
    log = record(start)
    log.append(custom(1), plain=True)
    await do(lambda: Run.objects.filter(pk=log.uuid).update(claim="thief"))
    assert await log.close(closing(start, messages=[says("a1", "x")])) is False
    assert isinstance(log.lost, RunClosed)
    assert await rows(start.run) == []
    assert await get_pool().run(lambda: given.ids) == ["u1"]


@pytest.mark.asyncio
async def test_quiet_runs_keep_their_heartbeat_by_one_statement(given: Given) -> None:
    with override_settings(AGUI_DJANGO={"LEASE": 0.3}):
        starts = [await opened(given, f"t{number}") for number in range(3)]
        logs = [record(start) for start in starts]

        def together() -> bool:
            beats = [sql for sql in statements.of("agui_django_run") if sql.startswith("UPDATE")]
            return any(sql.count("%s") >= 5 for sql in beats)  # three runs in one statement

        with counted() as statements:
            await do(lambda: Run.objects.update(heartbeat="2001-01-01T00:00:00Z"))
            async with asyncio.timeout(SOON):
                # They began at slightly different times: the first beats may be alone.
                while not together() or await do(lambda: Run.objects.filter(heartbeat__year=2001).exists()):
                    await asyncio.sleep(0.02)
        await do(lambda: Run.objects.filter(pk=logs[0].uuid).update(claim="thief"))
        await until(lambda: logs[0].closed)
        assert not logs[1].closed
        for log, start in zip(logs[1:], starts[1:], strict=True):
            assert await log.close(closing(start))


# ---- group commit ---------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_runs_that_are_due_share_one_transaction(given: Given) -> None:
    starts = [await opened(given, f"t{number}") for number in range(20)]
    logs = [record(start) for start in starts]
    get_pool().submit_writer(int).result()
    with counted() as statements:
        for log in logs:
            for number in range(50):
                log.append(custom(number), plain=True)
        await asyncio.gather(*[log.flush() for log in logs[:1]])
        await until(lambda: all(log.committed == 50 for log in logs))
    # the urgent one, the others on a tick or two: one statement each, the fence inside
    assert len(statements) <= 3, statements.sql
    for log, start in zip(logs, starts, strict=True):
        assert await log.close(closing(start))


@pytest.mark.asyncio
@pytest.mark.parametrize("events", [5, 3000])
async def test_statements_of_a_whole_run(given: Given, events: int) -> None:
    await opened(given, "warm")
    with counted() as statements:
        start = await opened(given, messages=[user("u1")], state={"k": 1})
        log = record(start)
        log.append(encode({"type": "RUN_STARTED"}), plain=True, urgent=True)
        for number in range(events):
            log.append(custom(number), plain=True)
        assert await log.close(closing(start, messages=[says("a1", "x")], state={"k": 2}, state_changed=True))
    assert len(statements) <= 17, statements.sql
    assert await count(start.run) == events + 2


# ---- failing writes -------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_writer_that_fails_and_recovers_loses_nothing(given: Given) -> None:
    start = await opened(given)
    log = record(start)
    log.append(custom(1), plain=True, urgent=True)
    await log.flush()
    with refusing('INSERT INTO "agui_django_runevents"') as refused:
        log.append(custom(2), plain=True)
        await until(lambda: bool(refused) and log.crowded())
        log.append(custom(3), plain=True)
        assert log.committed == 1
        waiting = asyncio.ensure_future(log.room())
        await asyncio.sleep(0.05)
        assert not waiting.done()  # back-pressure: the agent waits
    async with asyncio.timeout(SOON):
        await waiting
        await log.flush()
    assert not log.crowded()
    assert await log.close(closing(start))
    texts = "\n".join([text for *_, text in await rows(start.run)]).split("\n")
    assert texts[:3] == [custom(1), custom(2), custom(3)]


@pytest.mark.asyncio
async def test_a_close_that_fails_is_tried_again_whole(given: Given) -> None:
    start = await opened(given, messages=[user("u1")])
    log = record(start)
    log.append(custom(1), plain=True)
    with refusing('INSERT INTO "agui_django_message"') as refused:
        task = asyncio.create_task(log.close(closing(start, messages=[says("a1", "x")])))
        await until(lambda: len(refused) > 0)
        assert (await do(lambda: Run.objects.get(pk=log.uuid))).status == "running"
        assert await rows(start.run) == []
    async with asyncio.timeout(SOON):
        assert await task is True
    assert await get_pool().run(lambda: given.ids) == ["u1", "a1"]
    assert await count(start.run) == 2


@pytest.mark.asyncio
async def test_writes_that_keep_failing_cut_the_run(given: Given) -> None:
    with override_settings(AGUI_DJANGO={"WRITE_DEADLINE": 0.2}):
        start = await opened(given)
        log = record(start)
        told: list[Exception] = []
        log.on_lost = told.append
        with refusing('INSERT INTO "agui_django_runevents"'):
            log.append(custom(1), plain=True)
            flushed = asyncio.ensure_future(log.flush())
            await until(lambda: log.closed)
            with pytest.raises(RunClosed):
                await flushed
        assert isinstance(log.lost, OperationalError)
        assert told == [log.lost]
        assert log.committed == 0
        assert await log.close(closing(start)) is False
    # Truncation is honest: the row stays as it is until somebody reaps it.
    assert (await do(lambda: Run.objects.get(pk=log.uuid))).status == "running"


@pytest.mark.asyncio
async def test_one_damaged_run_does_not_stop_the_others(given: Given) -> None:
    bad, good = await opened(given, "t1"), await opened(given, "t2")
    logs = [record(bad), record(good)]
    # The row is there already, with another text: only this run's insert can fail.
    await do(lambda: stored_before(logs[0], last_seq=9, text="{}"))
    for log in logs:
        log.append(custom(1), plain=True)
    async with asyncio.timeout(SOON):
        await logs[1].flush()
    assert await count(good.run) == 1
    await until(logs[0].crowded)
    await do(lambda: RunEvents.objects.filter(run=logs[0].uuid).delete())
    async with asyncio.timeout(SOON):
        await logs[0].flush()
    for log, start in zip(logs, [bad, good], strict=True):
        assert await log.close(closing(start))


@pytest.mark.asyncio
async def test_a_commit_whose_answer_was_lost_is_not_written_twice(given: Given) -> None:
    start = await opened(given)
    log = record(start)
    await do(lambda: stored_before(log, last_seq=1, text=custom(1)))
    log.append(custom(1), plain=True)
    async with asyncio.timeout(SOON):
        await log.flush()
    assert await count(start.run) == 1
    assert await log.close(closing(start))


# ---- bounds ---------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_the_tail_is_bounded_and_rows_have_the_rest(given: Given) -> None:
    start = await opened(given)
    log = record(start)
    total = 0
    for _ in range(12):
        for _ in range(1000):
            log.append(custom(total), plain=True)
            total += 1
        await log.flush()
    assert len(log._tail) <= 2 * 1000 + 2 * recorders.TAIL  # those of the last two commits, and some
    assert log.tail_from(0) is None
    assert [seq for seq, _, _ in log.tail_from(total - 3) or []] == [total - 2, total - 1, total]
    assert log.tail_from(total) == []
    assert await count(start.run) == total
    assert await log.close(closing(start))


@pytest.mark.asyncio
async def test_a_slow_run_keeps_little_in_memory_and_its_followers_read_no_rows(given: Given) -> None:
    start = await opened(given)
    log = record(start)
    seen = 0
    for number in range(200):
        log.append(custom(number), plain=True)
        await log.flush()
        if number % 2:  # one commit behind is still in memory
            entries = log.tail_from(seen)
            assert entries is not None
            assert [seq for seq, _, _ in entries] == [seen + 1, seen + 2]
            seen += 2
        assert len(log._tail) <= 2 * recorders.TAIL + 2
    assert await log.close(closing(start))


@pytest.mark.asyncio
async def test_rows_are_of_bounded_size(given: Given) -> None:
    start = await opened(given)
    log = record(start)
    for number in range(8):
        log.append(custom(number, size=100_000), plain=True)
    assert await log.close(closing(start))
    stored = await rows(start.run)
    assert max(len(text) for *_, text in stored) <= recorders.ROW_BYTES
    assert [seq for first, last, _ in stored for seq in range(first, last + 1)] == list(range(1, 10))


@pytest.mark.asyncio
async def test_a_flood_raises_at_the_call_and_the_run_can_still_end(given: Given) -> None:
    start = await opened(given)
    log = record(start)
    with pytest.raises(AgentFlood):
        for number in range(30_000):
            log.append(custom(number), plain=True)
    assert log.last_seq == recorders.FLOOD
    assert log.crowded()
    log.append(custom(0), plain=True)
    assert await log.close(closing(start))
    assert await count(start.run) == recorders.FLOOD + 2


@pytest.mark.asyncio
async def test_an_agent_that_awaits_never_floods(given: Given) -> None:
    start = await opened(given)
    log = record(start)
    for number in range(30_000):
        log.append(custom(number), plain=True)
        if log.crowded():
            await log.room()
    assert await log.close(closing(start))
    assert await count(start.run) == 30_001


@pytest.mark.asyncio
async def test_a_log_beyond_its_limit_raises_once_and_can_be_closed(given: Given) -> None:
    with override_settings(AGUI_DJANGO={"MAX_LOG": 10_000}):
        start = await opened(given)
        log = record(start)
        with pytest.raises(LogLimit):
            for number in range(1000):
                log.append(custom(number, size=100), plain=True)
        recorded = log.last_seq
        log.append(custom(0), plain=True)
        assert await log.close(closing(start))
        assert await count(start.run) == recorded + 2


def test_counting_counts(given: Given) -> None:
    with counted() as statements:
        given.do(Run.objects.count)
    assert isinstance(statements, Statements)
    assert len(statements) == 1
