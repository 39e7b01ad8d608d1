"""Names, archives, notes; and deletion, which ends what runs and leaves nothing that could come back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from agui_django.models import Feedback, Interrupt, Message, Run, RunEvents, StateVersion, Thread
from agui_django.protocol.errors import InvalidInput, NotFound, RunClosed
from agui_django.runs import keeping, polling, supervisor
from agui_django.runs.branches import restore
from agui_django.runs.database import get_pool
from agui_django.runs.engine import get_engine
from agui_django.runs.feed import follow_thread
from agui_django.runs.feedback import give_feedback
from agui_django.runs.keeping import aarchive, adelete, archive, arename, aset_metadata, delete, rename, set_metadata
from agui_django.runs.requests import AgentPolicy
from agui_django.runs.start import astart_run
from agui_django.runs.stream import follow
from agui_django.testing import override_agent
from tests.runs.given import Given, says, user

QUEUE = AgentPolicy("echo", busy="queue")


# ---- naming, putting away -------------------------------------------------------------------------------------------


def test_a_title_that_a_person_gave_stays(given: Given) -> None:
    given.turn(user("u1", "first words"), says=[says("a1", "x")])
    before = given.thread
    given.do(rename, before, "  My\n trip  ")
    thread = given.thread
    assert (thread.title, thread.titled_by, before.title) == ("My trip", "person", "My trip")
    assert thread.updated_at == before.updated_at  # it is listed where it was
    given.turn(user("u2", "other words"))
    assert given.thread.title == "My trip"


def test_an_empty_title_makes_it_the_first_message_again(given: Given) -> None:
    given.turn(user("u1", "first words"), says=[says("a1", "x")])
    given.do(rename, given.thread, "My trip")
    given.do(rename, given.thread, " ")
    assert (given.thread.title, given.thread.titled_by) == ("first words", "")


def test_the_first_words_follow_the_first_message(given: Given) -> None:
    given.turn(user("u1", "first words"), says=[says("a1", "x")])
    run = given.turn(user("u2", "better words"), forwardedProps={"supersedeAfter": ""}, says=[says("a2", "y")])
    assert (given.thread.title, given.thread.titled_by) == ("better words", "")
    # What comes behind it is no title, and an edit of that none either.
    given.turn(user("u3", "more"), says=[says("a3", "z")])
    given.turn(user("u4", "else"), forwardedProps={"supersedeAfter": "a2"})
    assert given.thread.title == "better words"
    given.do(restore, given.thread, run.pk)
    assert given.thread.title == "first words"


def test_a_title_of_somebody_s_choice_does_not_follow(given: Given) -> None:
    given.turn(user("u1", "first words"), says=[says("a1", "x")])
    for change in (lambda: rename(given.thread, "My trip"), lambda: Thread.objects.update(title="imported")):
        given.do(change)
        title = given.thread.title
        run = given.turn(user(f"u-{title}", "better words"), forwardedProps={"supersedeAfter": ""})
        assert given.thread.title == title
        given.do(restore, given.thread, run.pk)
        assert given.thread.title == title
        Thread.objects.update(titled_by="", title="first words")


def test_an_empty_thread_has_no_first_words(given: Given) -> None:
    thread = given.stored()
    given.do(rename, thread, "")
    assert given.thread.title == ""
    given.turn(user("u1", "first words"))
    assert given.thread.title == "first words"


@pytest.mark.parametrize("title", ["x" * 256, 7, None])
def test_a_title_that_is_none(given: Given, title: Any) -> None:
    given.turn(user("u1", "first words"))
    with pytest.raises(InvalidInput) as caught:
        given.do(rename, given.thread, title)
    assert caught.value.fields[0]["path"] == "/title"
    assert given.thread.title == "first words"


def test_hostile_titles_are_texts(given: Given) -> None:
    given.turn(user("u1"))
    given.do(rename, given.thread, "<script>\0\ud800'; DROP TABLE x; --")
    assert given.thread.title == "<script>\ufffd\ufffd'; DROP TABLE x; --"
    given.do(rename, given.thread, "x" * 255)
    assert given.thread.title == "x" * 255


def test_archived_and_back(given: Given) -> None:
    given.turn(user("u1"))
    thread = given.thread
    given.do(archive, thread)
    assert (given.thread.archived, thread.archived) == (True, True)
    given.turn(user("u2"))  # it is run as any other
    assert given.thread.archived
    given.do(archive, thread, False)
    assert not given.thread.archived


@pytest.mark.parametrize("metadata", [[], "x", None, {"x": "y" * 70_000}, {"x": object()}])
def test_metadata_that_is_none(given: Given, metadata: Any) -> None:
    given.turn(user("u1"))
    with pytest.raises(InvalidInput):
        given.do(set_metadata, given.thread, metadata)
    assert given.thread.metadata == "{}"


@pytest.mark.asyncio
async def test_twins(given: Given) -> None:
    do = get_pool().run
    await do(given.turn, user("u1"))
    thread = await do(lambda: given.thread)
    await arename(thread, "named")
    await aarchive(thread)
    await aset_metadata(thread, {"ticket": [1, None, "ü\0"]})
    await do(thread.refresh_from_db)
    assert (thread.title, thread.archived, thread.metadata) == ("named", True, '{"ticket":[1,null,"ü\ufffd"]}')
    await adelete(thread)
    for change in (arename(thread, "x"), aarchive(thread), aset_metadata(thread, {}), adelete(thread)):
        with pytest.raises(NotFound):
            await change


# ---- deleting -------------------------------------------------------------------------------------------------------


class Held:
    """An agent that works until it is stopped; it may not even hear of that."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.deaf = False
        self.released = threading.Event()
        self.left: list[BaseException] = []

    async def run(self, run: Any) -> None:
        try:
            await run.say("begun")
            self.begun.set()
            while True:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    if not self.deaf:
                        raise
                    await asyncio.get_running_loop().run_in_executor(None, self.released.wait, 30)
                    await run.say("still here")
        except BaseException as error:
            self.left.append(error)
            raise


@pytest_asyncio.fixture
async def held(agui_runtime: None, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Held]:
    monkeypatch.setattr(polling, "INTERVAL", 0.02)
    made = Held()
    with override_agent("held", made, busy="queue"):
        yield made
        made.released.set()


def nothing_left() -> list[int]:
    models: list[Any] = [Thread, Run, RunEvents, Message, StateVersion, Interrupt, Feedback]
    return [model.objects.count() for model in models]


@pytest.fixture
def quick_grace(settings: Any) -> Iterator[None]:
    settings.AGUI_DJANGO = {"CANCEL_GRACE": 0.2}
    yield


@pytest.mark.asyncio
async def test_everything_goes_and_the_id_is_free(given: Given) -> None:
    do = get_pool().run

    def full() -> Thread:
        opened = given.open(messages=[user("u1")])
        given.finish(opened, messages=[says("a", "one")], state={"n": 1}, state_changed=True)
        given.turn(user("u1"), says=[says("a", "two")])
        given.finish(given.open(messages=[user("u2")]), status="interrupted", interrupts=[{"id": "i", "reason": "x"}])
        give_feedback(Message.objects.filter(message_id="a").earliest("pk"), given.owner, 1)
        given.turn(user("u1"), threadId="other")
        return given.thread

    thread = await do(full)
    assert 0 not in await do(nothing_left)
    await adelete(thread)
    assert await do(nothing_left) == [1, 1, 1, 1, 0, 0, 0]  # the other thread's
    await do(given.turn, user("u1"))
    assert await do(lambda: given.ids) == ["u1"]
    assert (await do(lambda: given.thread)).pk != thread.pk


@pytest.mark.asyncio
async def test_a_long_log_goes_piece_by_piece(given: Given) -> None:
    do = get_pool().run

    def long() -> Thread:
        run = given.turn(user("u1"))
        rows = [RunEvents(run=run, first_seq=n, last_seq=n, text="{}") for n in range(100, 1_301)]
        RunEvents.objects.bulk_create(rows)
        return given.thread

    thread = await do(long)
    sizes = []
    real = keeping._delete_logs
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keeping, "_delete_logs", lambda key: sizes.append(real(key)) or sizes[-1])
        await adelete(thread)
    assert sizes == [500, 500, 202]
    assert await do(nothing_left) == [0] * 7


@pytest.mark.asyncio
async def test_what_runs_is_cancelled_first_and_what_waits_never_starts(held: Held) -> None:
    active = await astart_run("held", "t", "one", scope="s", wait=False)
    await held.begun.wait()
    waiting = [await astart_run("held", "t", f"more {n}", scope="s", wait=False) for n in range(2)]
    assert [run.status for run in waiting] == ["queued"] * 2
    feed, stream = follow_thread(active.thread_id), follow(active.pk)
    seen = [await anext(feed), await anext(stream)]
    assert seen
    await adelete(active.thread, reason="staff")
    assert await get_pool().run(nothing_left) == [0] * 7
    assert [str(error) for error in held.left] == ["staff"]
    async with asyncio.timeout(20):  # whoever followed sees it end
        assert [batch async for batch in feed if batch][1:] == []
        async for _ in stream:
            pass
    await supervisor.settle()
    assert len(held.left) == 1


@pytest.mark.asyncio
async def test_a_run_that_does_not_end_is_cut(held: Held, quick_grace: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "SUPERSEDING", 0.1)
    held.deaf = True
    run = await astart_run("held", "t", "one", scope="s", wait=False)
    await held.begun.wait()
    monkeypatch.setattr(get_engine(), "ended", never)  # as in another process that hangs
    await adelete(run.thread)
    assert await get_pool().run(nothing_left) == [0] * 7
    held.released.set()
    await supervisor.settle()
    assert await get_pool().run(nothing_left) == [0] * 7
    assert held.left and isinstance(held.left[-1], asyncio.CancelledError | RunClosed)


async def never(run: Any, seconds: float) -> bool:
    await asyncio.sleep(0.05)
    return False


@pytest.mark.asyncio
async def test_a_run_that_starts_meanwhile_is_cancelled_too(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    run = await astart_run("held", "t", "one", scope="s", wait=False)
    await held.begun.wait()
    thread, real = run.thread, keeping._delete_logs
    late: list[Run] = []

    def meanwhile(key: int) -> int:
        """Between the end of the runs and the deletion somebody writes."""
        if not late:
            begun = asyncio.run_coroutine_threadsafe(
                astart_run("held", "t", "late", scope="s", wait=False), loop
            )  # fmt: skip
            started.append(begun)
            late.append(run)
        return real(key)

    loop, started = asyncio.get_running_loop(), []
    monkeypatch.setattr(keeping, "_delete_logs", meanwhile)
    monkeypatch.setattr(keeping, "_delete", slowly(keeping._delete, started))
    await adelete(thread)
    second = await asyncio.wrap_future(started[0])
    assert await get_pool().run(lambda: Run.objects.filter(pk=second.pk).exists()) is False
    assert await get_pool().run(nothing_left) == [0] * 7
    assert len(held.left) == 2
    await supervisor.settle()


def slowly(real: Any, started: list[Any]) -> Any:
    """Let what was started come first: the deletion is tried again as often as it is told to wait."""
    tries = []

    def work(thread: int, late: bool) -> Any:
        tries.append(1)
        if not Run.objects.filter(thread=thread).active().exists() and len(tries) < 100 and not started[0].done():
            return None
        return real(thread, late)

    return work


@pytest.mark.asyncio
async def test_only_one_of_two_deletes(given: Given) -> None:
    do = get_pool().run
    await do(given.turn, user("u1"))
    thread = await do(lambda: given.thread)
    done = await asyncio.gather(*(adelete(thread) for _ in range(5)), return_exceptions=True)
    assert sorted(type(each).__name__ for each in done) == ["NoneType"] + ["NotFound"] * 4


def test_synchronous_callers(given: Given) -> None:
    given.turn(user("u1"))
    delete(given.thread)
    assert nothing_left() == [0] * 7
