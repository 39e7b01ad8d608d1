"""Openings and closings that wait together share a transaction; nobody pays for another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from django.db import OperationalError

from agui_django.models import Run, RunEvents, Thread
from agui_django.protocol.errors import ThreadBusy
from agui_django.runs.database import get_pool, transact
from agui_django.runs.recorder import Recorder
from agui_django.runs.requests import Opened
from agui_django.runs.shared import Undone, shared_transaction
from agui_django.runs.together import get_together
from tests.runs.given import Given, says
from tests.runs.test_recorder import closing, do, opened, record, refusing

pytestmark = pytest.mark.asyncio


@contextmanager
def busy_threads() -> Iterator[None]:
    """Every database thread is busy: what is asked for meanwhile waits together."""
    pool, go_on = get_pool(), threading.Event()
    held = [pool.submit(go_on.wait, 20) for _ in range(1 if pool.single else 4)]
    held.append(pool.submit_writer(go_on.wait, 20))
    try:
        yield
    finally:
        go_on.set()


@contextmanager
def commits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The commits of the pool's connections."""
    pool, seen = get_pool(), list[str]()
    for job in [pool.submit(int) for _ in range(8)]:
        job.result()
    pool.submit_writer(int).result()
    with monkeypatch.context() as patch:
        for connection in pool._opened:
            patch.setattr(connection, "_commit", partial(_noted, seen, connection._commit))
        yield seen


def _noted(seen: list[str], commit: Any) -> None:
    seen.append(threading.current_thread().name)
    commit()


async def at_once(given: Given, names: list[str]) -> list[Any]:
    """Openings, all of them asked for before the first is begun."""
    together = get_together()
    requests = [
        given.request(threadId=name, messages=[{"id": name, "role": "user", "content": "hi"}]) for name in names
    ]
    tasks = [
        asyncio.create_task(together.run(lambda request=request: request, given.store.open_run)) for request in requests
    ]
    with busy_threads():
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_openings_share_a_transaction(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    with commits(monkeypatch) as seen:
        answers = await at_once(given, ["a", "b", "c", "d"])
    assert [answer[1].kind for answer in answers] == ["created"] * 4
    assert await do(Run.objects.count) == 4
    assert len(seen) == (1 if get_pool().single else 4)


async def test_a_refusal_is_its_own(given: Given) -> None:
    active = await opened(given, "busy")
    answers = await at_once(given, ["a", "busy", "b"])
    assert isinstance(answers[1], ThreadBusy)
    assert [answers[0][1].kind, answers[2][1].kind] == ["created", "created"]
    assert await do(Run.objects.count) == 3
    assert active.run is not None


async def test_what_is_asked_first_fails_alone(given: Given) -> None:
    together = get_together()

    def refused() -> Any:
        raise PermissionError

    with busy_threads():
        tasks = [
            asyncio.create_task(together.run(refused, given.store.open_run)),
            asyncio.create_task(together.run(lambda: given.request(threadId="a"), given.store.open_run)),
        ]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    first, second = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(first, PermissionError)
    assert second[1].kind == "created"


async def test_a_caller_that_leaves_harms_nobody(given: Given) -> None:
    together = get_together()
    with busy_threads():
        tasks = [
            asyncio.create_task(together.run(lambda name=name: given.request(threadId=name), given.store.open_run))
            for name in ("a", "b")
        ]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.sleep(0)
    assert (await tasks[1])[1].kind == "created"
    assert await do(Run.objects.count) == 1


async def test_a_part_that_failed_undoes_the_whole_even_if_that_is_swallowed(given: Given) -> None:
    alias = get_pool().alias

    def bad() -> None:
        Thread.objects.create(scope="s", thread_id="bad", agent="x")
        raise ZeroDivisionError

    def work() -> None:
        with pytest.raises(Undone), shared_transaction(alias):
            transact(Thread.objects.create, scope="s", thread_id="good", agent="x")
            with pytest.raises(ZeroDivisionError):
                transact(bad)

    await do(work)
    assert await do(Thread.objects.count) == 0
    await do(lambda: transact(Thread.objects.create, scope="s", thread_id="later", agent="x"))
    assert await do(Thread.objects.count) == 1


async def ended(given: Given, names: list[str]) -> list[tuple[Opened, Recorder]]:
    """Runs that have one event more to store, and are about to end."""
    found = []
    for name in names:
        run = await opened(given, name)
        log = record(run)
        log.append('{"type":"CUSTOM","name":"n","value":1}', plain=True)
        found.append((run, log))
    return found


async def close_at_once(runs: list[tuple[Opened, Recorder]]) -> list[bool]:
    with busy_threads():
        tasks = [
            asyncio.create_task(log.close(closing(run, messages=[says(f"a{n}", "x")])))
            for n, (run, log) in enumerate(runs)
        ]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert all(log.committed < log.last_seq for _, log in runs)
    return list(await asyncio.gather(*tasks))


async def test_closings_share_a_transaction(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = await ended(given, ["a", "b", "c"])
    with commits(monkeypatch) as seen:
        assert await close_at_once(runs) == [True] * 3
    assert len(seen) == 1
    assert await do(lambda: Run.objects.filter(status="finished").count()) == 3
    assert all(log.committed == log.last_seq == 2 for _, log in runs)


async def test_a_run_that_was_taken_away_leaves_the_others_their_end(given: Given) -> None:
    runs = await ended(given, ["a", "b", "c"])
    taken = runs[1][1].uuid
    await do(lambda: Run.objects.filter(pk=taken).update(claim="somebody else"))
    assert await close_at_once(runs) == [True, False, True]
    assert await do(lambda: RunEvents.objects.filter(run=taken).count()) == 0
    assert await do(lambda: Run.objects.filter(status="finished").count()) == 2


async def test_closings_that_fail_are_tried_again(given: Given) -> None:
    with busy_threads():  # all connections are made
        pass
    runs = await ended(given, ["a", "b"])
    with refusing('INSERT INTO "agui_django_runevents"', OperationalError) as refused:
        closed = asyncio.create_task(close_at_once(runs))
        while len(refused) < 3:
            await asyncio.sleep(0.01)
    assert await closed == [True, True]
    assert await do(lambda: RunEvents.objects.count()) == 2
