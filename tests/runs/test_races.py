"""Many at once: the constraints and the lock order hold, and nobody meets an error that is not theirs."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, connections, transaction

from agui_django.models import Message, Run, Thread
from agui_django.protocol.errors import ThreadBusy
from agui_django.runs import database
from agui_django.runs.database import get_pool
from agui_django.runs.opening import Opening
from agui_django.runs.recorder import Recorder
from tests.runs.given import Given, says, user
from tests.runs.test_recorder import closing, custom, do


def at_once(number: int, function: Callable[[int], Any]) -> list[Any]:
    """Call a function in so many threads that start together; what each returned or raised."""
    barrier, results = threading.Barrier(number), [None] * number

    def work(index: int) -> None:
        barrier.wait(20)
        try:
            results[index] = function(index)
        except Exception as error:
            results[index] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work, args=[index]) for index in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_one_new_thread_opened_by_twenty_at_once(given: Given) -> None:
    results = at_once(20, lambda n: given.open(runId=f"r{n}", messages=[user(f"u{n}")]))
    created = [opened for opened in results if not isinstance(opened, Exception)]
    assert [opened.kind for opened in created] == ["created"]
    assert {type(error) for error in results if isinstance(error, Exception)} == {ThreadBusy}
    assert (Thread.objects.count(), Run.objects.count(), Message.objects.count()) == (1, 1, 1)


def test_one_request_sent_twenty_times_at_once_is_one_run(given: Given) -> None:  # case C13
    results = at_once(20, lambda n: given.open(runId="r1", messages=[user("u1")]))
    assert Counter(opened.kind for opened in results) == {"created": 1, "attached": 19}
    assert len({opened.run.pk for opened in results}) == 1
    assert given.ids == ["u1"]


def test_twenty_connections_of_their_own_open_one_thread(given: Given) -> None:
    """As twenty processes would: no pool orders them, only the database does."""

    def open_here(number: int) -> Any:
        request = given.request(runId=f"r{number}", messages=[user(f"u{number}")])
        return database.transact(lambda: Opening(get_pool().alias, request).open())

    results = at_once(20, open_here)
    if connection.vendor == "sqlite":
        # Deferred transactions of strangers: they retry until they get through.
        assert not [error for error in results if isinstance(error, Exception) and not isinstance(error, ThreadBusy)]
    assert Counter(type(result).__name__ for result in results) == {"Opened": 1, "ThreadBusy": 19}
    assert (Thread.objects.count(), Run.objects.count()) == (1, 1)


@pytest.mark.asyncio
async def test_three_hundred_starts_at_once(given: Given) -> None:
    async def whole_run(number: int) -> str:
        request = given.request(threadId=f"t{number}", runId=f"r{number}", messages=[user(f"u{number}")])
        opened = await given.store.aopen_run(request)
        log = Recorder(opened.run, opened.setup)  # type: ignore[arg-type]
        log.append(custom(0), plain=True, urgent=True)
        for event in range(1, 20):
            log.append(custom(event), plain=True)
        assert await log.close(closing(opened, messages=[says(f"a{number}", "x")]))
        return opened.kind

    kinds = await asyncio.gather(*[whole_run(number) for number in range(300)])
    assert Counter(kinds) == {"created": 300}
    assert await do(lambda: Run.objects.filter(status="finished", last_seq=21).count()) == 300
    assert await do(lambda: Message.objects.count()) == 600
    ours = ("agui-db", "agui-writer")
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith(ours)]
    assert len(names) <= database.THREADS + 1, names
    assert len(get_pool()._opened) <= database.THREADS + 1


@pytest.mark.asyncio
async def test_runs_are_written_while_strangers_write(given: Given) -> None:
    """A request thread with a connection of its own (sessions, the admin) writes beside the writer."""
    stop = threading.Event()

    def stranger() -> int:
        written = 0
        try:
            while not stop.is_set():
                with transaction.atomic():
                    Thread.objects.create(scope="other", thread_id=f"x{written}", agent="x")
                written += 1
        finally:
            connections.close_all()
        return written

    busy = asyncio.get_running_loop().run_in_executor(None, stranger)
    try:
        for number in range(30):
            opened = await given.store.aopen_run(given.request(threadId=f"t{number}", messages=[user("u1")]))
            log = Recorder(opened.run, opened.setup)  # type: ignore[arg-type]
            log.append(custom(0), plain=True, urgent=True)
            await log.flush()
            assert await log.close(closing(opened))
    finally:
        stop.set()
    assert await busy > 0
    assert await do(lambda: Run.objects.filter(status="finished").count()) == 30
