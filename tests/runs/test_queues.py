"""Requests for a busy thread: refused, in front, or in a queue that outlives processes and keeps its order."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from agui_django.models import Message, Run, Thread
from agui_django.protocol.codec import decode
from agui_django.protocol.errors import ThreadBusy
from agui_django.runs import database, polling, supervisor
from agui_django.runs.claims import process_name
from agui_django.runs.database import get_pool
from agui_django.runs.engine import get_engine
from agui_django.runs.requests import AgentPolicy
from agui_django.runs.start import astart_run
from agui_django.runs.store import Begun, ThreadStore
from agui_django.runs.stream import Follow, follow
from agui_django.testing import override_agent
from tests.runs.given import Given, calls, counted, says, tool, user
from tests.runs.test_races import at_once

QUEUE = AgentPolicy("echo", busy="queue")
CANCEL = AgentPolicy("echo", busy="cancel")


def start_next(given: Given, claim: str | None = None) -> Begun:
    return given.do(given.store.start_next, given.thread.pk, process_name() if claim is None else claim)


def log_types(given: Given, run: Any) -> list[str]:
    return [event["type"] for event in given.log(run)]


# ---- the store ------------------------------------------------------------------------------------------------------


def test_a_queued_run_touches_nothing_before_it_starts(given: Given) -> None:
    active = given.open(messages=[user("u1")], state={"a": 1})
    queued = given.open(QUEUE, messages=[user("u1"), user("u2")], state={"a": 2}, runId="second")
    assert queued.kind == "queued"
    run = given.run(queued)
    assert (run.status, run.claim, run.started_at) == ("queued", "", None)
    assert given.ids == ["u1"]
    assert decode(given.thread.state) == {"a": 1}
    assert start_next(given).opened is None, "the thread is not free"
    given.finish(active, messages=[says("a1", "x")])
    begun = start_next(given)
    assert begun.opened is not None and begun.opened.setup is not None
    setup = begun.opened.setup
    # what it had not seen stays: only its new message is appended
    assert [message["id"] for message in setup.messages] == ["u1", "a1", "u2"] == given.ids
    assert [message["id"] for message in setup.new_messages] == ["u2"]
    assert setup.state == {"a": 2} == decode(given.thread.state)
    run.refresh_from_db()
    assert (run.status, run.claim) == ("running", process_name())
    assert run.created_at > given.run(active).created_at
    stored = decode(run.input)
    assert stored["runId"] == "second"
    assert not {"messages", "state", "queued"} & stored.keys()
    assert given.finish(begun.opened, messages=[says("a2", "y")])
    assert given.ids == ["u1", "a1", "u2", "a2"]


def test_in_order_and_bounded(given: Given) -> None:
    policy = AgentPolicy("echo", busy="queue", queue_length=2)
    active = given.open(messages=[user("u1")])
    for number in (2, 3):
        assert given.open(policy, messages=[user(f"u{number}")], runId=f"r{number}").kind == "queued"
    with pytest.raises(ThreadBusy, match="Too many runs wait"):
        given.open(policy, messages=[user("u4")])
    opened = active
    for number in (2, 3):
        given.finish(opened)
        next_ = start_next(given).opened
        assert next_ is not None and next_.run is not None
        assert next_.run.run_id == f"r{number}"
        opened = next_
    given.finish(opened)
    assert start_next(given).opened is None
    assert given.ids == ["u1", "u2", "u3"]
    assert given.open(policy, messages=[user("u4")]).kind == "created"


def test_nobody_overtakes_what_waits(given: Given) -> None:
    active = given.open(messages=[user("u1")])
    given.open(QUEUE, messages=[user("u2")], runId="waits")
    given.finish(active)
    # between the close and the nudge
    assert given.open(QUEUE, messages=[user("u3")]).kind == "queued"
    with pytest.raises(ThreadBusy) as busy:
        given.open(messages=[user("u4")])
    assert busy.value.extra["runId"]
    opened = start_next(given).opened
    assert opened is not None and opened.run is not None and opened.run.run_id == "waits"


def test_a_repeat_attaches_to_the_queued_run(given: Given) -> None:
    given.open(messages=[user("u1")])
    body = {"messages": [user("u2")], "runId": "again"}
    first, second = given.open(QUEUE, **body), given.open(QUEUE, **body)
    assert (first.kind, second.kind) == ("queued", "attached")
    assert first.run is not None and second.run is not None and first.run.pk == second.run.pk


def test_answers_do_not_wait(given: Given) -> None:
    given.open(messages=[user("u1")])
    resume = [{"interruptId": "i1", "status": "cancelled"}]
    for policy in (QUEUE, CANCEL):
        with pytest.raises(ThreadBusy):
            given.open(policy, messages=[user("u2")], resume=resume)
    assert Run.objects.count() == 1


def test_hydration_of_a_busy_thread_joins(given: Given) -> None:
    given.open(messages=[user("u1")])
    assert given.open(QUEUE, messages=[]).kind == "joined"


def test_a_message_that_two_of_them_bring_is_appended_once(given: Given) -> None:
    active = given.open(messages=[user("u1")])
    given.open(QUEUE, messages=[user("u1"), user("u2")])
    given.open(QUEUE, messages=[user("u1"), user("u2"), user("u3")])
    given.finish(active, messages=[says("a1", "x")])
    second = start_next(given).opened
    assert second is not None
    given.finish(second, messages=[says("a2", "y")])
    third = start_next(given).opened
    assert third is not None and third.setup is not None
    assert [message["id"] for message in third.setup.messages] == ["u1", "a1", "u2", "a2", "u3"]
    assert [message["id"] for message in third.setup.new_messages] == ["u3"]


def test_the_messages_of_a_run_cancelled_in_the_queue_come_with_the_next(given: Given) -> None:
    active = given.open(messages=[user("u1")])
    gone = given.open(QUEUE, messages=[user("u1"), user("u2")])
    given.open(QUEUE, messages=[user("u1"), user("u2"), user("u3")])
    assert given.do(given.store.cancel_waiting, gone.run.pk, "user") == given.thread.pk  # type: ignore[union-attr]
    given.finish(active, messages=[says("a1", "x")])
    opened = start_next(given).opened
    assert opened is not None
    assert given.ids == ["u1", "a1", "u2", "u3"]


def test_a_regenerate_that_waited_replaces_what_was_said_meanwhile(given: Given) -> None:
    active = given.open(messages=[user("u1")])
    assert given.open(QUEUE, messages=[user("u1")], runId="again").kind == "queued"
    given.finish(active, messages=[says("a1", "x")])
    opened = start_next(given).opened
    assert opened is not None and opened.setup is not None
    assert [message["id"] for message in opened.setup.messages] == ["u1"] == given.ids
    assert Message.objects.get(message_id="a1").superseded_by_id == opened.run.pk  # type: ignore[union-attr]


def test_an_edit_that_waited_leaves_what_stands_before_it(given: Given) -> None:
    given.turn(user("u1"), says=[says("a1", "x")])
    active = given.open(messages=[user("u2")])
    edit = {"messages": [user("u3")], "forwardedProps": {"supersedeAfter": "u1"}}
    assert given.open(QUEUE, **edit).kind == "queued"
    given.finish(active, messages=[says("a2", "y")])
    assert start_next(given).opened is not None
    assert given.ids == ["u1", "u3"]


def test_a_result_that_came_first_stands(given: Given) -> None:
    given.turn(user("u1"), says=[calls("a1", "c1")])
    active = given.open(messages=[tool("t1", "c1", "first")])
    # the same page in another tab
    second = given.open(QUEUE, messages=[tool("t2", "c1", "second"), user("u2")])
    assert second.kind == "queued"
    given.finish(active)
    assert start_next(given).opened is not None
    assert given.ids == ["u1", "a1", "t1", "u2"]


def test_open_questions_end_what_waited(given: Given) -> None:
    active = given.open(messages=[user("u1")])
    waits = given.open(QUEUE, messages=[user("u2")])
    last = given.open(AgentPolicy("echo", busy="queue"), messages=[user("u3")])
    wire = {"id": "i1", "reason": "confirmation"}
    given.finish(active, status="interrupted", interrupts=[wire])
    begun = start_next(given)
    assert begun.opened is None
    assert begun.ended == [given.run(waits).pk, given.run(last).pk]
    log = given.log(given.run(waits))
    assert [event["type"] for event in log] == ["RUN_STARTED", "RUN_ERROR"]
    assert log[-1]["code"] == "interrupts_open" and "i1" in log[-1]["message"]
    run = given.run(waits)
    assert (run.status, run.error_code, run.last_seq) == ("failed", "interrupts_open", 2)
    assert given.ids == ["u1"]
    assert given.open_ids == ["i1"]


def test_open_questions_are_dropped_where_the_site_says_so(given: Given, settings: Any) -> None:
    settings.AGUI_DJANGO = {"OPEN_INTERRUPTS": "cancel"}
    active = given.open(messages=[user("u1")])
    given.open(QUEUE, messages=[user("u2")])
    given.finish(active, status="interrupted", interrupts=[{"id": "i1", "reason": "confirmation"}])
    assert start_next(given).opened is not None
    assert given.open_ids == []


def test_answers_go_before_what_waits(given: Given) -> None:
    active = given.open(messages=[user("u1")])
    given.open(QUEUE, messages=[user("u2")])
    given.finish(active, status="interrupted", interrupts=[{"id": "i1", "reason": "confirmation"}])
    answered = given.open(QUEUE, messages=[], resume=[{"interruptId": "i1", "status": "resolved", "payload": 1}])
    assert answered.kind == "created"
    assert start_next(given).opened is None
    given.finish(answered)
    assert start_next(given).opened is not None


def test_an_agent_that_is_gone_ends_its_run_and_lets_the_next_start(given: Given) -> None:
    active = given.open(messages=[user("u1")])
    gone = given.open(AgentPolicy("gone", busy="queue"), messages=[user("u2")])
    given.open(QUEUE, messages=[user("u3")], runId="next")
    given.finish(active)
    begun = start_next(given)
    assert begun.ended == [given.run(gone).pk]
    assert begun.opened is not None and begun.opened.run is not None and begun.opened.run.run_id == "next"
    run = given.run(gone)
    assert (run.status, run.error_code) == ("failed", "not_found")


def test_cancelled_while_queued_ends_in_order(given: Given) -> None:
    active = given.open(messages=[user("u1")])
    queued = given.open(QUEUE, messages=[user("u2")], state={"x": 1})
    key = given.run(queued).pk
    assert given.do(given.store.cancel_waiting, key, "user") == given.thread.pk
    assert given.do(given.store.cancel_waiting, key, "user") is None
    run = given.run(queued)
    assert (run.status, run.end_reason, run.last_seq) == ("cancelled", "user", 2)
    log = given.log(run)
    assert log[0]["type"] == "RUN_STARTED"
    assert log[1]["type"] == "RUN_FINISHED" and log[1]["outcome"] == {"type": "cancelled"}
    assert all(event["runId"] == run.run_id for event in log)
    # a client from before 1.0 is not sent that outcome
    assert run.events.get().plain is False
    assert given.run(active).status == "running"
    given.finish(active)
    assert start_next(given).opened is None
    assert given.ids == ["u1"]


def test_a_queue_behind_a_lost_run_goes_on(given: Given) -> None:
    active = given.open(messages=[user("u1")])
    given.open(QUEUE, messages=[user("u2")])
    Run.objects.filter(pk=given.run(active).pk).update(heartbeat="2020-01-01T00:00:00Z", claim="elsewhere.1.1.x")
    begun = start_next(given)
    assert begun.ended == [given.run(active).pk]
    assert begun.opened is not None
    assert given.run(active).error_code == "abandoned"
    assert given.ids == ["u1", "u2"]


def test_many_processes_start_a_queued_run_once(given: Given) -> None:
    """Connections of their own, as processes have: the database decides."""
    for round_ in range(10):
        thread = f"t{round_}"
        active = given.open(messages=[user("u1")], threadId=thread)
        queued = given.open(QUEUE, messages=[user("u2")], threadId=thread)
        given.finish(active)
        key = given.run(queued).thread_id
        begun = at_once(4, lambda n, key=key: ThreadStore().start_next(key, f"process{n}"))  # type: ignore[misc]
        assert not [each for each in begun if isinstance(each, Exception)], begun
        assert Counter(each.opened is not None for each in begun) == {True: 1, False: 3}
        winner = next(n for n, each in enumerate(begun) if each.opened is not None)
        assert given.run(queued).claim == f"process{winner}"


def test_a_start_and_a_cancel_of_a_queued_run_race(given: Given) -> None:
    outcomes: Counter[str] = Counter()
    for round_ in range(10):
        active = given.open(messages=[user("u1")], threadId=f"t{round_}")
        queued = given.open(QUEUE, messages=[user("u2")], threadId=f"t{round_}")
        given.finish(active)
        run = given.run(queued)
        started, cancelled = at_once(
            2,
            lambda n, run=run: (  # type: ignore[misc]
                ThreadStore().cancel_waiting(run.pk, "user") if n else ThreadStore().start_next(run.thread_id, "me")
            ),
        )
        run.refresh_from_db()
        outcomes[run.status] += 1
        assert (started.opened is not None) == (run.status == "running")
        assert (cancelled is not None) == (run.status == "cancelled")
    assert sum(outcomes.values()) == 10


def test_the_ordinary_start_asks_no_more(given: Given) -> None:
    given.turn(user("u0"))
    with counted() as rejecting:
        first = given.open(messages=[user("u1")])
    given.finish(first)
    with counted() as queueing:
        given.open(QUEUE, messages=[user("u2")])
    assert len(rejecting) == len(queueing)


def test_idle_queues(given: Given) -> None:
    for thread in ("busy", "free"):
        active = given.open(messages=[user("u1")], threadId=thread)
        given.open(QUEUE, messages=[user("u2")], threadId=thread)
    given.finish(active)
    free = Thread.objects.get(thread_id="free").pk
    assert given.do(given.store.idle_queues) == [free]


# ---- the engine -----------------------------------------------------------------------------------------------------


class Gate:
    """Says its text after it was let through; counts who is inside."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.inside = self.most = 0
        self.entered, self.go_on = asyncio.Event(), asyncio.Event()
        self.stubborn = False

    async def run(self, run: Any) -> None:
        self.order.append(run.text)
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.entered.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            if not self.stubborn:
                raise
            await self.go_on.wait()
        finally:
            self.inside -= 1
        await run.say(f"done {run.text}")


@pytest.fixture
def gate(agui_runtime: None) -> Iterator[Gate]:
    yield Gate()


@pytest.fixture
def ada(agui_runtime: None, django_user_model: Any) -> Any:
    return django_user_model.objects.create_user("ada")


async def events(run: Any) -> list[str]:
    return [decode(text)["type"] async for batch in follow(run.pk) for _, text, _ in batch]


async def stored(run: Any) -> Run:
    return await get_pool().run(lambda: Run.objects.get(pk=run.pk))


@pytest.mark.asyncio
async def test_one_after_the_other(gate: Gate, ada: Any) -> None:
    with override_agent("gate", gate, busy="queue"):
        runs = [await astart_run("gate", "t", text, ada, wait=False) for text in ("1", "2", "3")]
        assert [run.status for run in runs] == ["running", "queued", "queued"]
        followers = [asyncio.create_task(events(run)) for run in runs]
        await gate.entered.wait()
        assert get_engine().slots.held == 1
        gate.go_on.set()
        for types in await asyncio.wait_for(asyncio.gather(*followers), 20):
            assert (types[0], types[-1]) == ("RUN_STARTED", "RUN_FINISHED")
        await supervisor.settle()
    assert (gate.order, gate.most) == (["1", "2", "3"], 1)
    assert [(await stored(run)).status for run in runs] == ["finished"] * 3
    assert get_engine().slots.held == 0


@pytest.mark.asyncio
async def test_cancel_while_queued_tells_its_followers(gate: Gate, ada: Any) -> None:
    with override_agent("gate", gate, busy="queue"):
        first = await astart_run("gate", "t", "1", ada, wait=False)
        second = await astart_run("gate", "t", "2", ada, wait=False)
        third = await astart_run("gate", "t", "3", ada, wait=False)
        follower = asyncio.create_task(events(second))
        await gate.entered.wait()
        assert await get_engine().cancel(second.pk, "user") is True
        assert await asyncio.wait_for(follower, 20) == ["RUN_STARTED", "RUN_FINISHED"]
        assert await get_engine().cancel(second.pk, "user") is False
        gate.go_on.set()
        await asyncio.wait_for(events(third), 20)
        await supervisor.settle()
    assert gate.order == ["1", "3"]
    assert [(await stored(run)).status for run in (first, second, third)] == ["finished", "cancelled", "finished"]


@pytest.mark.asyncio
async def test_a_queue_that_another_process_left_is_moved_by_the_poll(
    gate: Gate, ada: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "INTERVAL", 0.02)
    gate.go_on.set()
    with override_agent("gate", gate, busy="queue"):
        await astart_run("gate", "t", "0", ada)
        # another process opened this one, and is gone: nobody will nudge
        active = await get_pool().run(
            lambda: Run.objects.create(
                thread=Thread.objects.get(), run_id="x", digest="x", agent="gate", status="running", turn="x",
                input="{}", claim="elsewhere.1.1.x",
            )
        )  # fmt: skip
        waiting = await astart_run("gate", "t", "1", ada, wait=False)
        assert waiting.status == "queued"
        follower = asyncio.create_task(events(waiting))
        await get_pool().run(Run.objects.filter(pk=active.pk).update, status="finished")  # type: ignore[arg-type]
        types = await asyncio.wait_for(follower, 20)
        assert types[-1] == "RUN_FINISHED"
        await supervisor.settle()


@pytest.mark.asyncio
async def test_superseding(gate: Gate, ada: Any) -> None:
    with override_agent("gate", gate, busy="cancel"):
        first = await astart_run("gate", "t", "1", ada, wait=False)
        await gate.entered.wait()
        second = await astart_run("gate", "t", "2", ada, wait=False)
        assert second.status == "running"
        gate.go_on.set()
        await events(second)
        await supervisor.settle()
    ended = await stored(first)
    assert (ended.status, ended.end_reason) == ("cancelled", "superseded")
    assert (await stored(second)).status == "finished"
    assert gate.order == ["1", "2"]


@pytest.mark.asyncio
async def test_superseding_gives_up_in_time(gate: Gate, ada: Any, settings: Any, monkeypatch: Any) -> None:
    """An agent that does not end in time, because it cannot be cancelled from here."""
    from agui_django.runs import engine

    settings.AGUI_DJANGO = {"CANCEL_GRACE": 0.1}
    monkeypatch.setattr(engine, "SUPERSEDING", 0.3)
    gate.go_on.set()
    with override_agent("gate", gate, busy="cancel"):
        done = await astart_run("gate", "t", "0", ada)
        await get_pool().run(
            lambda: Run.objects.create(
                thread=done.thread, run_id="held", digest="x", agent="gate", status="running", turn="x", input="{}",
                claim="elsewhere.1.1.x", created_at=done.created_at,
            )
        )  # fmt: skip
        with pytest.raises(ThreadBusy) as busy:
            await astart_run("gate", "t", "1", ada)
        assert busy.value.extra == {"runId": "held"}
        held = await get_pool().run(lambda: Run.objects.get(run_id="held"))
        assert held.cancel_requested == "superseded"
        assert get_engine().slots.held == 0
        await get_pool().run(held.delete)


@pytest.mark.asyncio
async def test_a_later_request_is_not_superseded_by_an_earlier_one(gate: Gate, ada: Any) -> None:
    """Ten at once: each cancels only what was there before it, and one is left."""
    with override_agent("gate", gate, busy="cancel"):
        await astart_run("gate", "t", "0", ada, wait=False)
        await gate.entered.wait()
        asked = [asyncio.create_task(astart_run("gate", "t", str(n), ada, wait=False)) for n in range(1, 11)]
        results = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 60)
        assert {type(result) for result in results} <= {Run, ThreadBusy}
        gate.go_on.set()
        await supervisor.settle()
    statuses = await get_pool().run(lambda: Counter(Run.objects.values_list("status", "end_reason")))
    assert statuses[("finished", "")] == 1
    assert set(statuses) == {("finished", ""), ("cancelled", "superseded")}


@pytest.mark.asyncio
async def test_superseding_takes_what_waits_along(gate: Gate, ada: Any) -> None:
    with override_agent("gate", gate, busy="queue"):
        first = await astart_run("gate", "t", "1", ada, wait=False)
        second = await astart_run("gate", "t", "2", ada, wait=False)
        await gate.entered.wait()
    with override_agent("gate", gate, busy="cancel"):
        third = await astart_run("gate", "t", "3", ada, wait=False)
        assert third.status == "running"
        gate.go_on.set()
        await supervisor.settle()
    for run in (first, second):
        ended = await stored(run)
        assert (ended.status, ended.end_reason) == ("cancelled", "superseded")
    assert (await stored(third)).status == "finished"


@pytest.mark.asyncio
async def test_a_drain_leaves_the_queue_to_others(gate: Gate, ada: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with override_agent("gate", gate, busy="queue"):
        await astart_run("gate", "t", "1", ada, wait=False)
        second = await astart_run("gate", "t", "2", ada, wait=False)
        await gate.entered.wait()
        # The look whether the thread became free while the run was queued: it may start nothing, but is under way.
        while any(task.get_name().startswith("agui queue") for task in supervisor._here().tasks):
            await asyncio.sleep(0.01)
        monkeypatch.setattr(supervisor._here(), "draining", True)
        gate.go_on.set()
        await supervisor.settle()
        assert (await stored(second)).status == "queued"
        monkeypatch.setattr(supervisor._here(), "draining", False)
        # the next process
        await get_engine().upkeep.sweep()
        await supervisor.settle()
    assert (await stored(second)).status == "finished"


@pytest.mark.asyncio
async def test_a_heartbeat_while_it_waits(gate: Gate, ada: Any, settings: Any) -> None:
    settings.AGUI_DJANGO = {"HEARTBEAT": 0.05}
    with override_agent("gate", gate, busy="queue"):
        await astart_run("gate", "t", "1", ada, wait=False)
        second = await astart_run("gate", "t", "2", ada, wait=False)
        watcher = Follow(second.pk)
        assert await anext(watcher) == []
        assert await anext(watcher) == []
        gate.go_on.set()
        while not (batch := await asyncio.wait_for(anext(watcher), 20)):
            pass
        assert "RUN_STARTED" in batch[0][1]
        await supervisor.settle()


def test_transactions_of_ours_may_be_tried_again(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that loses a race for the thread is tried again from its beginning."""
    from django.db import IntegrityError

    from agui_django.runs.opening import Opening

    active = given.open(messages=[user("u1")])
    given.open(QUEUE, messages=[user("u2")])
    given.finish(active)
    real, failures = Opening.start_queued, [IntegrityError("lost"), IntegrityError("lost")]

    def fails(self: Opening, *args: Any) -> Any:
        result = real(self, *args)
        if failures:
            raise failures.pop()
        return result

    monkeypatch.setattr(Opening, "start_queued", fails)
    assert start_next(given).opened is not None
    assert given.ids == ["u1", "u2"]
    assert database.RACES > 2
