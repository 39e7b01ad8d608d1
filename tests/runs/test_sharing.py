"""Reads that are shared: one statement for those who ask at once, never an answer from before the question."""

from __future__ import annotations

import asyncio
import threading

import pytest

from agui_django.runs import sharing

pytestmark = [pytest.mark.asyncio, pytest.mark.django_db(transaction=True)]


class Rows:
    """A read that waits for its permission; what it finds is what is stored when it begins."""

    def __init__(self) -> None:
        self.stored: list[int] = []
        self.reads = 0
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)

    def read(self, after: int) -> list[int]:
        found = [number for number in self.stored if number > after]
        self.reads += 1
        self.begun.release()
        assert self.may_end.acquire(timeout=10)
        return found


async def in_thread(semaphore: threading.Semaphore) -> None:
    assert await asyncio.get_running_loop().run_in_executor(None, lambda: semaphore.acquire(timeout=10))


async def test_a_hundred_at_the_same_place_read_once(agui_runtime: None) -> None:
    rows = Rows()
    rows.stored = [1, 2]
    rows.may_end.release()
    found = await asyncio.gather(*(sharing.read(rows.read, 0) for _ in range(100)))
    assert found == [[1, 2]] * 100
    assert rows.reads == 1


async def test_other_places_are_other_reads(agui_runtime: None) -> None:
    rows = Rows()
    rows.stored = [1, 2]
    rows.may_end.release(2)
    assert await asyncio.gather(sharing.read(rows.read, 0), sharing.read(rows.read, 1)) == [[1, 2], [2]]
    assert rows.reads == 2


async def test_nothing_found_before_the_call_is_asked_again(agui_runtime: None) -> None:
    rows = Rows()
    first = asyncio.create_task(sharing.read(rows.read, 0))
    await in_thread(rows.begun)
    # what is stored now is not in the read that is under way
    rows.stored = [1]
    late = [asyncio.create_task(sharing.read(rows.read, 0)) for _ in range(3)]
    await asyncio.sleep(0)
    rows.may_end.release(2)
    assert await first == []
    assert await asyncio.gather(*late) == [[1]] * 3
    assert rows.reads == 2


async def test_who_leaves_takes_nobody_along(agui_runtime: None) -> None:
    rows = Rows()
    rows.stored = [1]
    first = asyncio.create_task(sharing.read(rows.read, 0))
    await in_thread(rows.begun)
    second = asyncio.create_task(sharing.read(rows.read, 0))
    await asyncio.sleep(0)
    first.cancel()
    rows.may_end.release()
    assert await second == [1]
    assert rows.reads == 1


async def test_all_meet_the_error_and_the_next_read_is_a_new_one(agui_runtime: None) -> None:
    calls = []

    def broken(after: int) -> list[int]:
        calls.append(after)
        raise OSError("the disk is gone")

    found = await asyncio.gather(*(sharing.read(broken, 0) for _ in range(3)), return_exceptions=True)
    assert [str(error) for error in found] == ["the disk is gone"] * 3
    assert calls == [0]
    with pytest.raises(OSError, match="the disk is gone"):
        await sharing.read(broken, 0)
    assert calls == [0, 0]


async def test_a_read_that_has_just_ended_is_not_waited_for(agui_runtime: None) -> None:
    """Its result is there, what removes it comes in the loop's next turn."""
    rows = Rows()
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    ended.set_result([])
    sharing._reads[loop, rows.read, 0] = sharing._Read(next(sharing._count), ended)
    rows.stored = [1]
    rows.may_end.release()
    assert await asyncio.wait_for(sharing.read(rows.read, 0), 10) == [1]
    assert rows.reads == 1
    assert not sharing._reads
