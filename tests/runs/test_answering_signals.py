"""interrupt_opened and interrupt_resolved: each once per question, whatever becomes of it, and not before it is so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from django.utils import timezone

from agui_django import RunContext, signals
from agui_django.models import Interrupt, Run
from agui_django.protocol.errors import Declined
from agui_django.runs import supervisor
from agui_django.runs.answering import aanswer, ainterrupts_cancel
from agui_django.runs.database import get_pool
from agui_django.runs.engine import get_engine
from agui_django.runs.requests import Opened
from agui_django.runs.start import astart_run
from agui_django.testing import override_agent
from tests.runs.given import Given, cancelled, resolved, user


class Slow:
    """An agent that asks, and goes on as far as it is let."""

    def __init__(self) -> None:
        self.questions: tuple[str, ...] = ("sure",)
        self.act, self.end = asyncio.Event(), asyncio.Event()
        self.resumed = asyncio.Event()
        self.fails = False

    async def run(self, run: RunContext) -> None:
        asked = [run.ask(key) for key in self.questions]
        for question in asked:
            try:
                question.answer()
            except Declined:
                continue
        self.resumed.set()
        await self.act.wait()
        if self.fails:
            raise OSError("before it acted")
        await run.say("acted")
        await self.end.wait()

    def let(self) -> None:
        self.act.set()
        self.end.set()


@pytest.fixture
def slow(agui_runtime: None) -> Iterator[Slow]:
    agent = Slow()
    with override_agent("slow", agent) as entry:
        agent.entry = entry  # type: ignore[attr-defined]
        yield agent


class Heard:
    """What was told, in its order."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.told: list[tuple[str, str]] = []
        self.came = asyncio.Event()

    def opened(self, sender: Any, interrupt: Interrupt, **_: Any) -> None:
        self.told.append(("opened", interrupt.key))

    def resolved(self, sender: Any, interrupt: Interrupt, **_: Any) -> None:
        assert interrupt.thread.thread_id
        self.told.append((interrupt.status, interrupt.key))
        self.loop.call_soon_threadsafe(self.came.set)


@pytest_asyncio.fixture
async def heard() -> Any:
    found = Heard()
    signals.interrupt_opened.connect(found.opened)
    signals.interrupt_resolved.connect(found.resolved)
    yield found
    signals.interrupt_opened.disconnect(found.opened)
    signals.interrupt_resolved.disconnect(found.resolved)


async def asked(ada: Any) -> list[Interrupt]:
    run = await astart_run("slow", "t1", "hi", ada)
    await supervisor.settle()
    return await get_pool().run(lambda: list(Interrupt.objects.filter(run=run).order_by("position")))


async def client(ada: Any, slow: Slow, **body: Any) -> Opened:
    given = await get_pool().run(Given, ada)
    return await get_engine().begin(given.request(slow.entry, **body)).opened()  # type: ignore[attr-defined]


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["client", "service"])
async def test_an_answer_is_told_once_the_agent_acts_on_it(way: str, slow: Slow, ada: Any, heard: Heard) -> None:
    (question,) = await asked(ada)
    assert heard.told == [("opened", "sure")]
    if way == "client":
        await client(ada, slow, messages=[], resume=[resolved(question.interrupt_id)])
    else:
        await aanswer(question, user=ada, payload=True)
    await asyncio.wait_for(slow.resumed.wait(), 20)
    assert heard.told == [("opened", "sure")]  # it may still be open again
    slow.act.set()
    await asyncio.wait_for(heard.came.wait(), 20)
    assert heard.told == [("opened", "sure"), ("resolved", "sure")]
    row = await Interrupt.objects.aget(pk=question.pk)
    assert (await Run.objects.aget(pk=row.answered_run_id)).status == "running"
    assert row.answered_by_id == ada.pk
    slow.end.set()
    await supervisor.settle()
    assert heard.told == [("opened", "sure"), ("resolved", "sure")]


@pytest.mark.asyncio
async def test_an_answer_that_was_taken_back_is_told_when_it_counts(slow: Slow, ada: Any, heard: Heard) -> None:
    slow.questions, slow.fails = ("one", "two"), True
    one, two = await asked(ada)
    slow.let()
    for fails in (True, False):
        slow.fails = fails
        await aanswer(one, user=ada, payload=1)
        await aanswer(two, user=ada, payload=2)
        await supervisor.settle()
    assert sorted(heard.told) == [("opened", "one"), ("opened", "two"), ("resolved", "one"), ("resolved", "two")]


@pytest.mark.asyncio
async def test_questions_that_are_given_up(slow: Slow, ada: Any, heard: Heard) -> None:
    slow.questions = ("one", "two")
    slow.let()
    one, two = await asked(ada)
    entries = [cancelled(one.interrupt_id), resolved(two.interrupt_id)]
    await client(ada, slow, messages=[], resume=entries)
    await supervisor.settle()
    later, _ = await asked(ada)
    await ainterrupts_cancel(later.run_id, user=ada)
    await supervisor.settle()
    opened = [("opened", "one"), ("opened", "two")]
    assert heard.told == [
        *opened,
        ("cancelled", "one"),
        ("resolved", "two"),
        *opened,
        ("cancelled", "one"),
        ("cancelled", "two"),
    ]


@pytest.mark.asyncio
async def test_questions_that_are_dropped_or_found_expired(slow: Slow, ada: Any, heard: Heard, settings: Any) -> None:
    settings.AGUI_DJANGO = {"OPEN_INTERRUPTS": "cancel"}
    slow.questions = ("one", "two")
    slow.let()
    one, _ = await asked(ada)
    await Interrupt.objects.filter(pk=one.pk).aupdate(expires_at=timezone.now() - timedelta(seconds=1))
    slow.questions = ()
    await client(ada, slow, messages=[user("u9")])
    await supervisor.settle()
    assert sorted(heard.told) == [("cancelled", "two"), ("expired", "one"), ("opened", "one"), ("opened", "two")]
    await get_engine().upkeep.sweep()
    await client(ada, slow, messages=[user("u10")])
    await supervisor.settle()
    assert len(heard.told) == 4


@pytest.mark.asyncio
async def test_a_run_that_is_cancelled_before_anybody_executes_it(
    slow: Slow, ada: Any, heard: Heard, settings: Any
) -> None:
    (question,) = await asked(ada)
    settings.AGUI_DJANGO = {"RUNNER": "tests.runs.test_answering.Keeps"}
    answered = await aanswer(question, user=ada, payload=1)
    assert answered.run is not None
    await supervisor.settle()
    assert await get_engine().cancel(answered.run, "user")
    await supervisor.settle()
    assert heard.told == [("opened", "sure"), ("resolved", "sure")]


@pytest.mark.asyncio
async def test_one_that_is_answered_before_it_is_announced_is_announced(ada: Any, heard: Heard) -> None:
    loop, answered = asyncio.get_running_loop(), []

    async def agent(run: RunContext) -> None:
        await run.say("May I?", key="intro")
        run.interrupt("sure")

    async def answer() -> None:
        answered.append(await aanswer(await Interrupt.objects.aget(), user=ada, payload=1))

    def receiver(sender: Any, message: Any, **_: Any) -> None:
        if message.role == "assistant":  # told of at the end of the run, before its questions are
            asyncio.run_coroutine_threadsafe(answer(), loop).result(20)

    signals.message_stored.connect(receiver)
    try:
        with override_agent("slow", agent):
            await astart_run("slow", "t1", "hi", ada)
            await supervisor.settle()
    finally:
        signals.message_stored.disconnect(receiver)
    assert len(answered) == 1
    assert sorted(heard.told) == [("opened", "sure"), ("resolved", "sure")]
