"""Every shape of agent, and how it is driven."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from ag_ui.core import TextMessageContentEvent, TextMessageEndEvent, TextMessageStartEvent

from agui_django import Event, RunContext, SyncRunContext
from agui_django.agents.registry import AgentEntry, AgentOptions
from tests.running import bodies, run

pytestmark = pytest.mark.asyncio

#: So that a patch is shorter than the state.
LONG = "a text that makes the state longer than the patch of one of its items"


async def coroutine(run: RunContext) -> str:
    await run.say("hi")
    return "done"


async def generator(run: RunContext) -> AsyncIterator[Event]:
    yield "hi"
    run.result = "done"


def function(run: SyncRunContext) -> str:
    run.say("hi")
    return "done"


def sync_generator(run: SyncRunContext) -> Iterator[Event]:
    yield "hi"
    run.result = "done"


class Coroutine:
    async def run(self, run: RunContext) -> str:
        return await coroutine(run)


class Generator:
    async def run(self, run: RunContext) -> AsyncIterator[Event]:
        async for event in generator(run):
            yield event


class Function:
    def run(self, run: SyncRunContext) -> str:
        return function(run)


async def gives_a_generator(run: RunContext) -> Any:
    return generator(run)


def logged(fn: Any) -> Any:
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return wrapper


async def with_model(run: RunContext, *, llm: str) -> str:
    await run.say(llm)
    return "done"


SHAPES = [
    coroutine, generator, function, sync_generator, Coroutine, Generator, Function, Coroutine(), gives_a_generator,
    logged(coroutine), logged(generator), logged(function), functools.partial(with_model, llm="hi"), Coroutine().run,
]  # fmt: skip


@pytest.mark.parametrize("agent", SHAPES, ids=lambda agent: getattr(agent, "__name__", type(agent).__name__))
async def test_every_shape_says_the_same(agent: Any):
    result = await run(agent)
    assert result.outcome == "success", result.failure
    assert result.said == ["hi"]
    assert result.result == "done"
    assert bodies(result) == [
        ("TEXT_MESSAGE_START",), ("TEXT_MESSAGE_CONTENT", "hi"), ("TEXT_MESSAGE_END",)
    ]  # fmt: skip


async def test_a_class_gets_a_new_instance_per_run():
    class Counter:
        count = 0

        async def run(self, run: RunContext) -> int:
            self.count += 1
            return self.count

    assert [(await run(Counter)).result for _ in range(2)] == [1, 1]
    shared = Counter()
    assert [(await run(shared)).result for _ in range(2)] == [1, 2]


async def test_a_class_that_cannot_be_made_fails_its_run():
    class Broken:
        def __init__(self, key: str) -> None:
            pass

        async def run(self, run: RunContext) -> None: ...

    result = await run(Broken)
    assert result.error is not None
    assert result.error["code"] == "agent_exception"


async def test_a_plain_iterator_object_can_be_driven():
    class Events:
        def __init__(self) -> None:
            self.left = ["a", "b"]

        def __aiter__(self) -> Events:
            return self

        async def __anext__(self) -> str:
            if not self.left:
                raise StopAsyncIteration
            return self.left.pop(0)

    async def agent(run: RunContext) -> Any:
        return Events()

    assert (await run(agent)).said == ["ab"]


async def test_texts_make_one_message_until_another_kind_is_yielded():
    async def agent(run: RunContext) -> AsyncIterator[Event]:
        yield "a"
        yield "b"
        yield {"type": "CUSTOM", "name": "n", "value": 1}
        yield "c"
        yield ""

    assert bodies(await run(agent)) == [
        ("TEXT_MESSAGE_START",), ("TEXT_MESSAGE_CONTENT", "a"), ("TEXT_MESSAGE_CONTENT", "b"), ("TEXT_MESSAGE_END",),
        ("CUSTOM", 1), ("TEXT_MESSAGE_START",), ("TEXT_MESSAGE_CONTENT", "c"), ("TEXT_MESSAGE_END",),
    ]  # fmt: skip


async def test_yields_methods_and_blocks_mix_in_program_order():
    async def agent(run: RunContext) -> AsyncIterator[Event]:
        yield TextMessageStartEvent(message_id="m")
        yield TextMessageContentEvent(message_id="m", delta="a")
        async with run.step("s"):
            await run.custom("n", 1)
            yield TextMessageContentEvent(message_id="m", delta="b")
        run.state["x"] = 1
        yield TextMessageEndEvent(message_id="m")

    result = await run(agent, state={"y": "a long text, so that the patch is shorter than the state"})
    assert bodies(result) == [
        ("TEXT_MESSAGE_START",), ("TEXT_MESSAGE_CONTENT", "a"), ("STEP_STARTED", "s"), ("CUSTOM", 1),
        ("TEXT_MESSAGE_CONTENT", "b"), ("STEP_FINISHED", "s"),
        ("STATE_DELTA", [{"op": "add", "path": "/x", "value": 1}]), ("TEXT_MESSAGE_END",),
    ]  # fmt: skip


async def test_an_async_agent_runs_in_one_task():
    tasks: set[Any] = set()

    async def agent(run: RunContext) -> AsyncIterator[Event]:
        for _ in range(3):
            tasks.add(asyncio.current_task())
            async with asyncio.timeout(5):
                await asyncio.sleep(0)
                yield "x"
        tasks.add(asyncio.current_task())

    assert (await run(agent)).outcome == "success"
    assert len(tasks) == 1


async def test_a_generator_may_keep_a_task_group_around_its_yields():
    async def agent(run: RunContext) -> AsyncIterator[Event]:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(asyncio.sleep(0, "from the child"))
            yield "waiting "
            yield await task

    assert (await run(agent)).said == ["waiting from the child"]


async def test_a_generator_may_recover_from_a_refused_value():
    async def agent(run: RunContext) -> AsyncIterator[Event]:
        try:
            yield {"type": "CUSTOM", "name": "n", "value": object()}
        except Exception as error:
            yield f"{type(error).__name__}"

    assert (await run(agent)).said == ["NotJson"]


async def test_a_sync_generator_may_recover_too():
    def agent(run: SyncRunContext) -> Iterator[Event]:
        try:
            yield {"type": "CUSTOM", "name": "n", "value": object()}
        except Exception as error:
            yield f"{type(error).__name__}"

    assert (await run(agent)).said == ["NotJson"]


async def test_what_is_awaited_in_the_clean_up_of_a_generator_runs():
    done = []

    async def agent(run: RunContext) -> AsyncIterator[Event]:
        try:
            yield {"type": "TEXT_MESSAGE_END", "messageId": "unknown"}
        finally:
            await asyncio.sleep(0)
            done.append(1)

    result = await run(agent)
    assert result.outcome == "error"
    assert done == [1]


async def test_sync_agents_of_one_run_share_a_thread_and_leave_none():
    names: list[str] = []

    def tool(run: SyncRunContext) -> None:
        names.append(threading.current_thread().name)

    async def agent(run: RunContext) -> None:
        await run.tool_call("a").run(tool)
        await run.tool_call("b").run(tool)

    before = threading.active_count()
    assert (await run(agent)).outcome == "success"
    assert len(set(names)) == 1
    assert names[0].startswith("agui-run")
    for thread in threading.enumerate():
        if thread.name == names[0]:
            thread.join(timeout=5)
    assert threading.active_count() <= before


async def test_the_initial_state_is_told_and_kept():
    async def agent(run: RunContext) -> None:
        run.state["items"].append("a")

    entry = AgentEntry("a", agent, AgentOptions(initial_state=lambda: {"items": [], "note": LONG}))
    result = await run(entry)
    assert result.types == ["RUN_STARTED", "STATE_SNAPSHOT", "STATE_DELTA", "RUN_FINISHED"]
    assert result.events[1]["snapshot"] == {"items": [], "note": LONG}
    assert result.state == {"items": ["a"], "note": LONG}
    again = await run(entry, state={"items": ["b"]})
    assert again.state == {"items": ["b", "a"]}


async def test_run_started_tells_what_the_thread_did_not_have():
    async def agent(run: RunContext) -> None:
        await run.say("a")

    first = await run(agent, "one", tools=["pick"], state={"x": 1})
    started = first.events[0]
    assert started["protocolVersion"] == "1.1"
    assert [message["content"] for message in started["input"]["messages"]] == ["one"]
    assert [tool["name"] for tool in started["input"]["tools"]] == ["pick"]
    assert started["input"]["context"] == []
    second = await first.say("two")
    assert [message["content"] for message in second.events[0]["input"]["messages"]] == ["two"]
    assert [message["content"] for message in second.wire_messages] == ["one", "a", "two", "a"]


async def test_run_started_leaves_a_large_input_out():
    async def agent(run: RunContext) -> None: ...

    result = await run(agent, "x" * 300_000)
    assert "input" not in result.events[0]


async def test_the_first_event_and_the_time_are_measured():
    async def agent(run: RunContext) -> None:
        await asyncio.sleep(0.03)
        await run.say("a")
        await asyncio.sleep(0.03)

    closing = (await run(agent)).closing
    assert closing.first_event_ms is not None
    assert 25 <= closing.first_event_ms < closing.duration_ms
    assert closing.spent
