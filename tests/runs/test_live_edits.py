"""Edits from outside meet a running run: in place, between the agent's awaits, in the stream, and never lost."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from django.test import override_settings

from agui_django.agents.state import StateDocument
from agui_django.models import Run, RunEvents, StateVersion, Thread
from agui_django.protocol.errors import StateRefused, VersionConflict
from agui_django.protocol.reducer import Reducer
from agui_django.runs import polling, recorder, supervisor
from agui_django.runs.claims import process_name
from agui_django.runs.database import get_pool
from agui_django.runs.editing import aedit_state, edit_state
from agui_django.runs.engine import get_engine
from agui_django.runs.requests import AgentPolicy
from agui_django.runs.start import astart_run
from agui_django.runs.store import ThreadStore
from agui_django.testing import override_agent
from tests.runs.given import Given, resolved, user

pytestmark = pytest.mark.asyncio

Wire = dict[str, Any]


@pytest_asyncio.fixture(autouse=True)
async def runtime(agui_runtime: None) -> AsyncIterator[None]:
    yield


class Stage:
    """An agent that waits for the test between its steps."""

    def __init__(self) -> None:
        self.entered, self.go = asyncio.Event(), asyncio.Event()

    async def pause(self) -> None:
        self.entered.set()
        async with asyncio.timeout(20):
            await self.go.wait()
        self.go.clear()


async def started(agent: Any, state: Any, **options: Any) -> tuple[Run, Thread]:
    with override_agent("edited", agent, **options):
        run = await astart_run("edited", None, "hi", state=state, wait=False)
    return run, run.thread


async def over(run: Run) -> tuple[list[Wire], Thread]:
    """The run's events, and its thread afterwards."""
    assert await get_engine().ended(run.pk, 20)
    await supervisor.settle()
    return await get_pool().run(stored, run)


def stored(run: Run) -> tuple[list[Wire], Thread]:
    rows = RunEvents.objects.filter(run=run).order_by("first_seq").values_list("text", flat=True)
    events = [json.loads(line) for text in rows for line in text.split("\n")]
    return events, Thread.objects.get(pk=run.thread_id)


async def until(run: Run, condition: Any) -> None:
    """Wait for what the run has recorded so far."""
    async with asyncio.timeout(20):
        while True:
            here = recorder.get(run.pk)
            assert here is not None
            present = await here.present()
            if present is not None and condition(present.state):
                return
            await here.wait(here.committed, 0.05)


async def versions(thread: Thread) -> list[tuple[int, str, Any, str]]:
    rows = StateVersion.objects.filter(thread=thread).order_by("version")
    found = await get_pool().run(list, rows)
    return [(row.version, row.origin, json.loads(row.state), row.edit) for row in found]


def told(events: list[Wire], state: Any) -> Any:
    """What a client that was given these events holds."""
    reducer = Reducer([], state)
    for event in events:
        reducer.apply(event)
    return reducer.state


def deltas(events: list[Wire]) -> list[Any]:
    return [event["delta"] for event in events if event["type"] == "STATE_DELTA"]


async def test_the_agent_sees_it_and_so_does_the_stream() -> None:
    stage, seen = Stage(), []

    async def agent(run: Any) -> None:
        item = run.state["items"][1]
        await stage.pause()
        seen.append(json.loads(json.dumps(run.state)))
        item["done"] = True  # its index has moved
        run.state["own"] = 1

    run, thread = await started(agent, {"items": [{"n": 1}, {"n": 2}]})
    await asyncio.wait_for(stage.entered.wait(), 20)
    patch = [{"op": "add", "path": "/items/0", "value": {"n": 0}}, {"op": "add", "path": "/note", "value": "hi"}]
    version = await aedit_state(thread, patch=patch, if_version=1)
    assert (version.version, version.run_id, version.origin) == (2, run.pk, "staff")
    await until(run, lambda state: "note" in state)
    with pytest.raises(VersionConflict):
        await aedit_state(thread, merge={"x": 1}, if_version=1)
    stage.go.set()
    events, thread = await over(run)
    assert seen == [{"items": [{"n": 0}, {"n": 1}, {"n": 2}], "note": "hi"}]
    assert deltas(events)[0] == patch
    assert events[1]["metadata"] == {"agui_django": {"stateVersion": 2}}
    final = {"items": [{"n": 0}, {"n": 1}, {"n": 2, "done": True}], "note": "hi", "own": 1}
    assert (json.loads(thread.state), thread.state_version, thread.base_version) == (final, 3, None)
    assert told(events, {"items": [{"n": 1}, {"n": 2}]}) == final
    assert [each[0::3] for each in await versions(thread)] == [(1, ""), (2, ""), (3, "")]


async def test_a_run_that_adds_nothing_leaves_the_version_of_the_edit() -> None:
    stage = Stage()

    async def agent(run: Any) -> None:
        await stage.pause()

    run, thread = await started(agent, {"a": 1})
    await asyncio.wait_for(stage.entered.wait(), 20)
    version = await aedit_state(thread, merge={"a": 2})
    await until(run, lambda state: state == {"a": 2})
    stage.go.set()
    _, thread = await over(run)
    assert (thread.state, thread.state_version, thread.base_version) == ('{"a":2}', version.version, None)


async def test_edits_meet_what_the_agent_has_not_stored_yet() -> None:
    """The patch is made on what the stream tells, and where both change the same, the edit wins."""
    stage = Stage()

    async def agent(run: Any) -> None:
        run.state["items"].append("by the agent")
        run.state["mine"] = 1
        await run.flush()
        await stage.pause()
        run.state["late"] = 1

    run, thread = await started(agent, {"items": [], "shared": 1})
    await asyncio.wait_for(stage.entered.wait(), 20)
    patch = [
        {"op": "test", "path": "/items/0", "value": "by the agent"},
        {"op": "add", "path": "/items/-", "value": "by staff"},
        {"op": "replace", "path": "/mine", "value": 2},
    ]
    version = await aedit_state(thread, patch=patch)
    assert json.loads(version.state) == {"items": ["by the agent", "by staff"], "shared": 1, "mine": 2}
    await until(run, lambda state: state.get("mine") == 2)
    stage.go.set()
    events, thread = await over(run)
    final = {"items": ["by the agent", "by staff"], "shared": 1, "mine": 2, "late": 1}
    assert json.loads(thread.state) == told(events, {"items": [], "shared": 1}) == final


async def test_an_open_message_goes_on_and_chunks_are_not_cut() -> None:
    stage = Stage()

    async def agent(run: Any) -> AsyncIterator[Any]:
        yield {"type": "TEXT_MESSAGE_CHUNK", "messageId": "m", "role": "assistant", "delta": "one "}
        await stage.pause()
        yield {"type": "TEXT_MESSAGE_CHUNK", "delta": "two"}
        yield "three "
        await stage.pause()
        yield "four"

    run, thread = await started(agent, {"a": 1})
    for number in (2, 3):
        await asyncio.wait_for(stage.entered.wait(), 20)
        stage.entered.clear()
        await aedit_state(thread, merge={"a": number})
        await until(run, lambda state, number=number: state == {"a": number})
        stage.go.set()
    events, _ = await over(run)
    assert events[-1]["type"] == "RUN_FINISHED"
    texts: dict[str, str] = {}
    for event in events:
        if event["type"] == "TEXT_MESSAGE_CONTENT":
            texts[event["messageId"]] = texts.get(event["messageId"], "") + event["delta"]
    assert list(texts.values()) == ["one two", "three four"]
    assert len(deltas(events)) == 2


async def test_a_synchronous_agent_sees_it_between_its_calls_and_never_in_a_block() -> None:
    entered, go, inside, leave = (threading.Event() for _ in range(4))
    seen: list[Any] = []

    def agent(run: Any) -> None:
        with run.edit_state() as state:
            inside.set()
            assert leave.wait(20)
            state["a"] += 1
            seen.append(dict(state))
        deadline = time.monotonic() + 20
        while "b" not in run.state and time.monotonic() < deadline:
            run.say("waiting")
            go.wait(0.02)
        seen.append(dict(run.state))
        entered.set()

    run, thread = await started(agent, {"a": 1})
    assert await asyncio.to_thread(inside.wait, 20)
    await aedit_state(thread, merge={"b": 1, "a": 10})
    await asyncio.sleep(0)
    leave.set()
    events, thread = await over(run)
    # The block was whole; then the edit came, and its value of what both changed stands.
    assert seen == [{"a": 2}, {"a": 10, "b": 1}]
    assert json.loads(thread.state) == told(events, {"a": 1}) == {"a": 10, "b": 1}


@pytest.mark.parametrize("kind", ["STATE_DELTA", "STATE_SNAPSHOT"])
async def test_an_agents_own_event_meets_an_edit_that_a_thread_has_not_announced(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, go = threading.Event(), threading.Event()
    announce, loops = StateDocument.announce, threading.get_ident()

    def held(document: StateDocument) -> None:
        if threading.get_ident() != loops:
            made.set()
            assert go.wait(20)
        announce(document)

    monkeypatch.setattr(StateDocument, "announce", held)
    own = {"delta": [{"op": "add", "path": "/b", "value": 2}]} if kind == "STATE_DELTA" else {"snapshot": {"b": 2}}

    async def agent(run: Any) -> None:
        def edits() -> None:
            run.state["a"] = 1

        work = asyncio.ensure_future(asyncio.to_thread(edits))
        assert await asyncio.to_thread(made.wait, 20)
        try:
            await run.emit({"type": kind, **own})
        finally:
            go.set()
        await work

    run, _ = await started(agent, {"long": "x" * 100})
    events, thread = await over(run)
    assert events[-1]["type"] == "RUN_FINISHED", events
    changes = [event for event in events[1:] if event["type"].startswith("STATE")]
    assert changes[-2]["delta"] == [{"op": "add", "path": "/a", "value": 1}]
    assert changes[-1].items() >= own.items()
    assert json.loads(thread.state) == ({"long": "x" * 100, "a": 1, "b": 2} if kind == "STATE_DELTA" else {"b": 2})


async def test_the_loop_never_waits_for_a_block_in_a_thread() -> None:
    inside, leave = threading.Event(), threading.Event()

    def agent(run: Any) -> None:
        with run.edit_state():
            inside.set()
            assert leave.wait(20)

    run, thread = await started(agent, {})
    assert await asyncio.to_thread(inside.wait, 20)
    await aedit_state(thread, merge={"a": 1})
    began = time.monotonic()
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert time.monotonic() - began < 5
    leave.set()
    _, thread = await over(run)
    assert json.loads(thread.state) == {"a": 1}


async def test_an_edit_that_comes_as_the_run_ends_is_made_on_what_it_leaves(ada: Any) -> None:
    """Accepted while the run was active, and not seen by it: it is there afterwards, as an edit at rest."""
    given = Given(ada)
    opened = await get_pool().run(given.open, messages=[user("u1")], state={"a": 1, "b": 1})
    version = (await get_pool().run(lambda: edit_state(given.thread, merge={"a": 2}))).version
    assert version.edit
    assert await get_pool().run(given.finish, opened)
    thread = await get_pool().run(Thread.objects.get)
    assert (json.loads(thread.state), thread.state_version, thread.base_version) == ({"a": 2, "b": 1}, 2, 1)
    # Again, and the run has changed something itself.
    opened = await get_pool().run(given.open, messages=[user("u2")], state={"a": 2, "b": 1})
    await get_pool().run(lambda: edit_state(given.thread, merge={"a": 3}))
    await get_pool().run(lambda: given.finish(opened, state={"a": 9, "b": 9}, state_changed=True))
    thread = await get_pool().run(Thread.objects.get)
    assert (json.loads(thread.state), thread.state_version, thread.base_version) == ({"a": 3, "b": 9}, 5, 4)
    assert [each[::2] for each in await versions(thread)] == [
        (1, {"a": 1, "b": 1}),
        (2, {"a": 2, "b": 1}),
        (3, {"a": 3, "b": 1}),
        (4, {"a": 9, "b": 9}),
        (5, {"a": 3, "b": 9}),
    ]
    assert not any(each[3] for each in await versions(thread))


async def test_an_edit_of_a_run_whose_process_died_is_not_lost(ada: Any) -> None:
    given = Given(ada)
    opened = await get_pool().run(given.open, messages=[user("u1")], state={"a": 1, "b": 1})
    assert opened.run is not None
    ids = {"threadId": "t1", "runId": opened.run.run_id}

    def log(*events: Wire) -> None:
        text = "\n".join(map(json.dumps, [{"type": "RUN_STARTED", **ids}, *events]))
        RunEvents.objects.create(run=opened.run, first_seq=1, last_seq=1 + len(events), text=text)

    await get_pool().run(lambda: edit_state(given.thread, merge={"a": 2}))
    mark = {"metadata": {"agui_django": {"stateVersion": 2}}}
    taken = {"type": "STATE_DELTA", "delta": [{"op": "replace", "path": "/a", "value": 2}], **mark}
    later = {"type": "STATE_DELTA", "delta": [{"op": "replace", "path": "/a", "value": 5}]}
    await get_pool().run(log, taken, later)
    await get_pool().run(lambda: edit_state(given.thread, merge={"b": 7}))  # the process dies before it sees this one
    gone = process_name().split(".")
    gone[1], gone[2] = "1", "7"
    await get_pool().run(Run.objects.filter(pk=opened.run.pk).update, claim=".".join(gone))
    assert await get_pool().run(ThreadStore().reap, opened.run.pk)
    thread = await get_pool().run(Thread.objects.get)
    # The first was in the log: what the agent made of it later stands. The second is made on that.
    assert json.loads(thread.state) == {"a": 5, "b": 7}
    assert thread.state_version == 5 and thread.base_version == 4


async def test_an_edit_from_outside_is_no_act_of_the_agent(ada: Any) -> None:
    """A resume that died before it acted leaves its questions open, edited or not."""
    given = Given(ada)
    await get_pool().run(given.asked, {"id": "i"})
    opened = await get_pool().run(lambda: given.open(messages=[], resume=[resolved("i")]))
    assert opened.run is not None
    await get_pool().run(lambda: edit_state(given.thread, merge={"a": 2}))
    mark = {"metadata": {"agui_django": {"stateVersion": 1}}}
    delta = {"type": "STATE_DELTA", "delta": [{"op": "add", "path": "/a", "value": 2}], **mark}
    ids = {"threadId": "t1", "runId": opened.run.run_id}

    def die() -> None:
        text = "\n".join(map(json.dumps, [{"type": "RUN_STARTED", **ids}, delta]))
        RunEvents.objects.create(run=opened.run, first_seq=1, last_seq=2, text=text)
        gone = process_name().split(".")
        gone[1], gone[2] = "1", "7"
        Run.objects.filter(pk=opened.run.pk).update(claim=".".join(gone))  # type: ignore[union-attr]
        assert ThreadStore().reap(opened.run.pk)  # type: ignore[union-attr]
        assert given.open_ids == ["i"]
        assert (given.thread.state, given.thread.state_version) == ('{"a":2}', 1)

    await get_pool().run(die)


async def test_a_pending_run_takes_in_what_was_edited_before_it_was_claimed(ada: Any) -> None:
    seen: list[Any] = []
    stage = Stage()

    async def agent(run: Any) -> None:
        seen.append(dict(run.state))
        await stage.pause()
        seen.append(dict(run.state))

    given = Given(ada)
    with override_agent("echo", agent):
        opened = await get_pool().run(lambda: given.open(claim="", state={"a": 1}))
        assert opened.run is not None
        await get_pool().run(lambda: edit_state(given.thread, merge={"b": 2}))
        executed = asyncio.ensure_future(get_engine().execute(opened.run.pk))
        await asyncio.wait_for(stage.entered.wait(), 20)
        await until(opened.run, lambda state: "b" in state)
        stage.go.set()
        assert await executed
    assert seen == [{"a": 1}, {"a": 1, "b": 2}]
    events, thread = await get_pool().run(stored, opened.run)
    assert json.loads(thread.state) == told(events, {}) == {"a": 1, "b": 2}


async def test_without_a_hint_the_poll_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "INTERVAL", 0.02)
    stage = Stage()

    async def agent(run: Any) -> None:
        await stage.pause()

    run, thread = await started(agent, {})
    await asyncio.wait_for(stage.entered.wait(), 20)
    await get_pool().run(lambda: edit_state(thread, merge={"a": 1}))  # nobody is told
    await until(run, lambda state: state == {"a": 1})
    stage.go.set()
    await over(run)


async def test_the_schema_guards_what_comes_of_it() -> None:
    stage = Stage()
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "maxProperties": 2}

    async def agent(run: Any) -> None:
        await stage.pause()
        run.state["mine"] = 1  # with the edit that comes next it would be too much
        await stage.pause()

    with override_agent("edited", agent, state_schema=schema):
        run = await astart_run("edited", None, "hi", state={"n": 1}, wait=False)
        await asyncio.wait_for(stage.entered.wait(), 20)
        with pytest.raises(StateRefused):
            await aedit_state(run.thread, merge={"n": "text"})
        accepted = await get_pool().run(lambda: edit_state(run.thread, merge={"theirs": 1}))
        stage.entered.clear()
        stage.go.set()
        await asyncio.wait_for(stage.entered.wait(), 20)
        get_engine().edited(run.pk, accepted.version.version)
        here = recorder.get(run.pk)
        assert here is not None
        await here.wait(here.last_seq, 5)
        stage.go.set()
        events, thread = await over(run)
    assert json.loads(thread.state) == told(events, {"n": 1}) == {"n": 1, "mine": 1}
    assert events[-1]["type"] == "RUN_FINISHED"


@override_settings(AGUI_DJANGO={"MAX_STATE": 1024})
async def test_an_agents_state_has_a_limit() -> None:
    caught: list[str] = []

    async def careful(run: Any) -> None:
        for number in range(100):
            try:
                run.state[f"k{number}"] = "x" * 100
            except Exception as error:
                caught.append(type(error).__name__)
        run.state["k0"] = ""

    run, _ = await started(careful, {})
    events, thread = await over(run)
    assert set(caught) == {"StateTooLarge"}
    assert len(thread.state) <= 1024
    assert told(events, {}) == json.loads(thread.state)

    async def careless(run: Any) -> None:
        await run.emit({"type": "STATE_SNAPSHOT", "snapshot": {"x": "y" * 2000}})

    run, _ = await started(careless, {})
    events, thread = await over(run)
    assert (events[-1]["type"], events[-1]["code"]) == ("RUN_ERROR", "state_too_large")
    assert thread.state == "{}"


async def test_edits_race_with_the_agents_own() -> None:
    """Ten edits of staff and those of two tasks of the agent: each one's own keys all survive, and the log says so."""

    async def agent(run: Any) -> None:
        async def write(name: str) -> None:
            for number in range(40):
                run.state[f"{name}{number}"] = number
                run.state["list"].append(f"{name}{number}")
                await asyncio.sleep(random.random() / 200)
                with run.edit_state() as state:
                    state["count"] += 1

        async with asyncio.TaskGroup() as group:
            group.create_task(write("x"))
            group.create_task(write("y"))

    run, thread = await started(agent, {"list": [], "count": 0})
    accepted = 0
    for number in range(10):
        patch = [
            {"op": "add", "path": f"/s{number}", "value": number},
            {"op": "add", "path": "/list/-", "value": f"s{number}"},
        ]
        await aedit_state(thread, patch=patch)
        accepted += 1
    events, thread = await over(run)
    final = json.loads(thread.state)
    assert told(events, {"list": [], "count": 0}) == final or thread.base_version is not None
    assert final["count"] == 80
    names = [f"{name}{number}" for name in "xy" for number in range(40)] + [f"s{number}" for number in range(accepted)]
    assert {name: final.get(name) for name in names} == {name: int(name[1:]) for name in names}
    assert sorted(final["list"]) == sorted(names)


async def test_two_editors_of_one_version_while_it_runs() -> None:
    stage = Stage()

    async def agent(run: Any) -> None:
        await stage.pause()

    run, thread = await started(agent, {"a": 1})
    await asyncio.wait_for(stage.entered.wait(), 20)
    edits = [aedit_state(thread, merge={"a": number}, if_version=1) for number in (2, 3)]
    results = await asyncio.gather(*edits, return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["StateVersion", "VersionConflict"]
    stage.go.set()
    _, thread = await over(run)
    (winner,) = [result for result in results if isinstance(result, StateVersion)]
    assert json.loads(thread.state) == json.loads(winner.state)


async def test_a_run_that_waited_starts_from_what_the_edit_made(ada: Any) -> None:
    given = Given(ada)
    policy = AgentPolicy("echo", busy="queue")
    opened = await get_pool().run(lambda: given.open(policy, messages=[user("u1")], state={"a": 1}))
    queued = await get_pool().run(lambda: given.open(policy, messages=[user("u2")], state={"a": 1, "q": 1}))
    assert queued.kind == "queued"
    await get_pool().run(lambda: edit_state(given.thread, merge={"a": 2}))
    await get_pool().run(given.finish, opened)

    async def agent(_: Any) -> None: ...

    with override_agent("echo", agent, busy="queue"):
        begun = await get_pool().run(lambda: ThreadStore().start_next(given.thread.pk, process_name()))
    assert begun.opened is not None and begun.opened.setup is not None
    assert begun.opened.setup.state == {"a": 2, "q": 1}
    await get_pool().run(given.finish, begun.opened)
