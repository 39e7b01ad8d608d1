"""Questions whose time is over: closed by any process, once; what that lets go on; and a site that is idle."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from django.utils import timezone

from agui_django import RunContext, approval_required, signals
from agui_django.models import Interrupt, Message, Run
from agui_django.protocol.codec import decode
from agui_django.protocol.errors import InterruptsOpen
from agui_django.runs import expiring, supervisor
from agui_django.runs.answering import aanswer
from agui_django.runs.database import get_pool
from agui_django.runs.drafts import draft_of
from agui_django.runs.engine import get_engine
from agui_django.runs.expiring import expire
from agui_django.runs.start import astart_run
from agui_django.testing import override_agent
from tests.runs.given import Given, counted
from tests.runs.test_answering import Asks, asked, over, rows, said

SOON, LATER = timedelta(seconds=1.2), timedelta(hours=1)


@pytest.fixture
def asks(agui_runtime: None) -> Iterator[Asks]:
    agent = Asks()
    with override_agent("asks", agent):
        yield agent


class Heard:
    """What a signal told, from any thread."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.told: list[tuple[str, str]] = []
        self.came = asyncio.Event()

    def __call__(self, sender: Any, interrupt: Interrupt, **_: Any) -> None:
        self.told.append((interrupt.key, interrupt.status))
        self.loop.call_soon_threadsafe(self.came.set)

    async def next(self) -> None:
        async with asyncio.timeout(20):
            await self.came.wait()
        self.came.clear()


@pytest_asyncio.fixture
async def resolved() -> Any:
    heard = Heard()
    signals.interrupt_resolved.connect(heard)
    yield heard
    signals.interrupt_resolved.disconnect(heard)


async def passed(*questions: Interrupt) -> None:
    """Time goes by."""
    keys = [question.pk for question in questions]
    await Interrupt.objects.filter(pk__in=keys).aupdate(expires_at=timezone.now() - timedelta(seconds=1))


# ---- one process ----------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_question_is_closed_when_its_time_is_over(asks: Asks, ada: Any, resolved: Heard) -> None:
    asks.questions = {"one": {"expires": SOON}, "two": {"expires": LATER}}
    one, two = await asked(ada)
    with pytest.raises(InterruptsOpen):
        await astart_run("echo", "t", "still open", ada)
    await resolved.next()
    assert resolved.told == [("one", "expired")]
    found = await rows()
    assert [(row.status, row.closed_at is not None, row.answered_by) for row in found] == [
        ("expired", True, None), ("open", False, None),
    ]  # fmt: skip
    assert one.expires_at is not None
    assert found[0].closed_at is not None
    assert found[0].closed_at >= one.expires_at
    await passed(two)
    await get_engine().upkeep.sweep()
    await resolved.next()
    assert resolved.told == [("one", "expired"), ("two", "expired")]
    # The thread is free, and the next turn is told.
    asks.questions = {}
    await astart_run("asks", "t", "next", ada)
    assert {key: answer[0] for key, answer in asks.passes[-1]["answers"].items()} == {
        "one": "expired",
        "two": "expired",
    }
    await supervisor.settle()
    assert len(resolved.told) == 2


@pytest.mark.asyncio
async def test_an_expiry_lets_the_other_answers_go(asks: Asks, ada: Any, bob: Any, resolved: Heard) -> None:
    asks.questions = {"one": {}, "two": {"expires": LATER}, "three": {"permission": ""}}
    one, two, three = await asked(ada)
    await aanswer(one, user=None, payload=1)
    await aanswer(three, user=ada, payload=3)
    await passed(two)
    await get_engine().upkeep.sweep()
    run = await Run.objects.select_related("actor", "user").aget(resumed_run=one.run_id)
    assert (await over(run.pk)).status == "finished"
    assert (run.actor, run.user) == (ada, ada)
    assert await said() == ["hi", "Told: 1, declined, 3"]
    assert {key: answer[0] for key, answer in asks.passes[-1]["answers"].items()} == {
        "one": "resolved", "two": "expired", "three": "resolved",
    }  # fmt: skip
    assert [row.answered_by for row in await rows()] == [None, None, ada]
    assert sorted(resolved.told) == [("one", "resolved"), ("three", "resolved"), ("two", "expired")]
    assert get_engine().slots.held == 0


@pytest.mark.asyncio
async def test_the_model_reads_that_an_approval_expired(agui_runtime: None, ada: Any) -> None:
    @approval_required("Refund {order}?", expires=LATER)
    def refund(order: int) -> str:
        return f"refunded {order}"

    async def clerk(run: RunContext) -> None:
        for number in (1, 2):
            run.tool_call("refund", {"order": number}, key=f"c{number}")
        await run.dispatch_tool_calls(refund)

    with override_agent("expiring_clerk", clerk):
        run = await astart_run("expiring_clerk", "t", "hi", ada)
        late, answered = await rows(run=run)
        await aanswer(answered, user=ada, payload={"approved": True})
        await passed(late)
        await get_engine().upkeep.sweep()
        resumed = await Run.objects.aget(resumed_run=run)
        assert (await over(resumed.pk)).status == "finished"
    wires = await get_pool().run(
        lambda: list(Message.objects.filter(role="tool").in_play().values_list("wire", flat=True))
    )
    assert [decode(wire)["content"] for wire in wires] == ["Expired: nobody approved it in time.", "refunded 2"]


@pytest.mark.asyncio
async def test_answers_that_cannot_go_are_kept(
    agui_runtime: None, ada: Any, resolved: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Asks()
    agent.questions = {"one": {}, "two": {"expires": LATER}}
    with override_agent("asks", agent):
        one, two = await asked(ada)
        await aanswer(one, user=ada, payload=1)
    await passed(two)
    await get_engine().upkeep.sweep()
    await resolved.next()
    found = await rows()
    assert [(row.status, draft_of(row) is not None) for row in found] == [("open", True), ("expired", False)]
    assert "There is no such agent" in caplog.text
    with override_agent("asks", agent):
        answered = await aanswer(one, user=ada, payload=1)
        assert answered.run is not None
        await over(answered.run)
    assert await said() == ["hi", "Told: 1, declined"]


@pytest.mark.asyncio
async def test_one_that_fails_is_looked_at_again(
    asks: Asks, ada: Any, resolved: Heard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asks.questions = {"one": {"expires": LATER}}
    (one,) = await asked(ada)
    await passed(one)
    calls: list[int] = []

    def fails(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("no disk")
        return expire(*args)

    monkeypatch.setattr(expiring, "expire", fails)
    monkeypatch.setattr(expiring, "AGAIN", 0.1)
    monkeypatch.setattr(expiring, "PAUSE", 0.05)
    upkeep = get_engine().upkeep.expiring
    await upkeep.sweep()
    await resolved.next()
    assert [row.status for row in await rows()] == ["expired"]
    assert "no disk" in caplog.text


@pytest.mark.asyncio
async def test_an_idle_site_asks_one_thing_once(asks: Asks, ada: Any) -> None:
    asks.questions = {"never": {}}
    await asked(ada)
    upkeep = get_engine().upkeep.expiring
    before = upkeep._timer
    with await get_pool().run(counted) as statements:
        await upkeep.sweep()
    assert len(statements) == 1
    assert upkeep._timer is before  # nobody waits for what never expires


@pytest.mark.asyncio
async def test_a_new_process_learns_what_expires_next(asks: Asks, ada: Any) -> None:
    asks.questions = {"later": {"expires": timedelta(hours=2)}, "soon": {"expires": LATER}}
    later, soon = await asked(ada)
    fresh = expiring.Expiring(lambda *_: None, lambda: "")
    await fresh.sweep()
    assert fresh._next == soon.expires_at
    timer = fresh._timer
    assert later.expires_at is not None
    fresh.expects(later.expires_at)
    assert fresh._timer is timer
    fresh.expects(timezone.now() + timedelta(minutes=1))
    assert fresh._timer is not timer


# ---- several --------------------------------------------------------------------------------------------------------


def test_of_several_one_closes_it(given: Given) -> None:
    at = (timezone.now() - timedelta(seconds=1)).isoformat()
    given.asked({"id": "i1", "expiresAt": at}, {"id": "i2", "expiresAt": at}, {"id": "i3"})
    key, gate, closed = given.thread.pk, threading.Barrier(4), []

    def work() -> None:
        gate.wait(10)
        closed.append(given.do(expire, key).closed)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(len, closed)) == [0, 0, 0, 2]
    assert given.open_ids == ["i3"]


def test_many_are_closed_in_pieces(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiring, "SOME", 2)
    at = (timezone.now() - timedelta(seconds=1)).isoformat()
    for number in range(5):
        opened = given.open(threadId=f"t{number}")
        given.finish(opened, status="interrupted", interrupts=[{"id": "i", "reason": "x", "expiresAt": at}])
    found = given.do(expiring.due)
    assert len(found.threads) == 2
    assert found.next is not None
    assert found.next <= timezone.now()  # the rest is due at once
    assert given.do(expiring.count) == 5
