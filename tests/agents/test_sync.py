"""The face for code in threads: the same names, the same stream, and any thread may emit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from agui_django import Event, RunContext, SyncRunContext
from agui_django.protocol.errors import ProtocolViolation
from agui_django.runs.threads import LIMIT
from tests.running import bodies, checked, run

pytestmark = pytest.mark.asyncio

SKIPPED = {"sync", "check"}


async def test_both_faces_have_the_same_names():
    def public(cls: type) -> set[str]:
        return {name for name in dir(cls) if not name.startswith("_")}

    assert public(RunContext) - SKIPPED == public(SyncRunContext) - SKIPPED


def everything(run: SyncRunContext) -> Any:
    run.say("one")
    run.say(iter(["t", "wo"]))
    with run.message() as m:
        m.reasoning("hm")
        m.write("a")
        m.write(None)
        m.write("b")
        m.tool_call_delta(0, id="c", name="f", args='{"x":')
        m.tool_call_delta(0, args="1}")
        assert m.text == "ab"
    [streamed] = m.tool_calls
    assert streamed.args == {"x": 1}
    streamed.result("ok")
    with run.reasoning() as r:
        r.write("because")
    with run.step("s"):
        run.custom("n", 1)
    progress = run.activity("p", {"n": 0, "text": "long enough that the patch is shorter than this"})
    progress["n"] = 1
    run.emit({"type": "RAW", "event": 1})
    with run.edit_state() as state:
        state["a"] = 1
        state["b"] = 2
    assert run.tool_call("add", {"a": 1, "b": 2}).run(lambda a, b: a + b) == 3
    with run.tool_call("g"):
        pass
    run.usage(model="m", input_tokens=1)
    run.flush()
    assert run.messages[-1].role == "tool"
    run.log.info("done")
    return {"pending": [call.name for call in run.pending_calls], "text": run.text}


async def test_everything_in_a_thread():
    result = await run(everything)
    assert result.failure is None
    assert result.said == ["one", "two", "ab"]
    assert result.result == {"pending": [], "text": "hello"}
    assert result.state == {"a": 1, "b": 2}
    assert [body[0] for body in bodies(result)] == [
        "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END",
        "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END",
        "REASONING_START", "REASONING_MESSAGE_START", "REASONING_MESSAGE_CONTENT", "REASONING_MESSAGE_END",
        "REASONING_END", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_CONTENT",
        "TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TEXT_MESSAGE_END", "TOOL_CALL_RESULT",
        "REASONING_START", "REASONING_MESSAGE_START", "REASONING_MESSAGE_CONTENT", "REASONING_MESSAGE_END",
        "REASONING_END", "STEP_STARTED", "CUSTOM", "STEP_FINISHED",
        "ACTIVITY_SNAPSHOT", "ACTIVITY_DELTA", "RAW", "STATE_SNAPSHOT",
        "TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT",
        "TOOL_CALL_START", "TOOL_CALL_END", "TOOL_CALL_RESULT",
    ]  # fmt: skip


async def test_the_same_face_for_an_async_agents_thread():
    def work(run: SyncRunContext) -> str:
        run.say("from the thread")
        run.state["x"] = 1
        return "value"

    async def agent(run: RunContext) -> str:
        value = await asyncio.to_thread(work, run.sync)
        await run.say("after it")
        return value

    result = await run(agent)
    assert result.said == ["from the thread", "after it"]
    assert result.result == "value"
    assert [body[0] for body in bodies(result)][3] == "STATE_SNAPSHOT"


async def test_what_a_thread_emitted_comes_before_what_follows_its_await():
    def work(run: SyncRunContext) -> None:
        with run.message() as m:
            for number in range(200):
                m.write(f"{number} ")

    async def agent(run: RunContext) -> None:
        for _ in range(5):
            await run.tool_call("work").run(work)
            run.custom("after", 1)

    types = [body[0] for body in bodies(await run(agent))]
    size = len(types) // 5
    assert [types[n * size : (n + 1) * size] for n in range(5)] == [types[:size]] * 5
    assert types[size - 1] == "CUSTOM"


async def test_any_thread_may_emit_through_the_async_face():
    async def agent(run: RunContext) -> None:
        def work(name: str) -> None:
            with run.message(id=name) as m:
                for number in range(300):
                    m.write(f"{number},")
            run.custom("n", name)

        threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)

    result = await run(agent)
    expected = "".join(f"{number}," for number in range(300))
    assert result.said == [expected] * 3
    assert sorted(event["value"] for event in result.events if event["type"] == "CUSTOM") == ["a", "b", "c"]


async def test_the_queue_is_bounded():
    most = 0

    def work(run: SyncRunContext) -> None:
        nonlocal most
        with run.message() as m:
            for _ in range(5_000):
                m.write("x")
                most = max(most, len(run._sink.inbox._jobs))  # type: ignore[attr-defined]

    result = await run(work)
    assert result.said == ["x" * 5_000]
    assert most <= LIMIT


async def test_an_illegal_event_is_raised_in_the_thread():
    raised: list[type] = []

    def agent(run: SyncRunContext) -> None:
        try:
            run.emit({"type": "TEXT_MESSAGE_END", "messageId": "m"})
        except ProtocolViolation as error:
            raised.append(type(error))
            raise

    result = await run(agent)
    assert result.error is not None
    assert result.error["code"] == "agent_protocol_error"
    assert raised == [ProtocolViolation]


async def test_an_illegal_delta_is_raised_at_the_next_call():
    def agent(run: SyncRunContext) -> Iterator[Event]:
        yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": "unknown", "delta": "x"}
        run.flush()
        raise AssertionError("must not come here")

    result = await run(agent)
    assert result.error is not None
    assert result.error["code"] == "agent_protocol_error"


async def test_an_illegal_last_delta_is_not_lost():
    def agent(run: SyncRunContext) -> Iterator[Event]:
        yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": "unknown", "delta": "x"}

    result = await run(agent)
    assert result.error is not None
    assert result.error["code"] == "agent_protocol_error"


async def test_questions_and_the_pages_answers():
    def agent(run: SyncRunContext) -> list[Any]:
        name = run.interrupt("name", response_schema=str)
        first, second = run.ask("a"), run.ask("b", response_schema=int)
        pick = run.call_frontend_tool("pick")
        return [name, first.answer(), second.answer(), pick.answer(int)]

    result = await run(agent, tools=["pick"])
    assert list(result.interrupts) == ["name"]
    result = checked(await result.resume({"name": "x"}))
    assert list(result.interrupts) == ["a", "b"]
    result = checked(await result.resume({"a": 1, "b": 2}))
    assert list(result.pending.values()) == ["pick"]
    result = checked(await result.answer_frontend({"pick": 7}))
    assert result.result == ["x", 1, 2, 7]


async def test_a_sync_generator_may_suspend():
    def agent(run: SyncRunContext) -> Iterator[Event]:
        run.say("Let me check.", key="intro")
        yield f"You said {run.interrupt('q')}."

    result = checked(await (await run(agent)).resume({"q": "yes"}))
    assert result.said == ["Let me check.", "You said yes."]


async def test_an_async_tool_in_a_sync_agent():
    async def tool(run: RunContext, n: int) -> int:
        await asyncio.sleep(0)
        await run.say("async")
        return n + 1

    def agent(run: SyncRunContext) -> Any:
        return run.tool_call("tool", {"n": 1}).run(tool)

    result = await run(agent)
    assert result.result == 2
    assert result.said == ["async"]


async def test_stop_iteration_from_a_tool_is_an_ordinary_error():
    def tool() -> None:
        next(iter(()))

    async def agent(run: RunContext) -> None:
        await run.tool_call("t").run(tool)

    result = await run(agent)
    assert result.error is not None
    assert result.error["code"] == "agent_exception"


@pytest.mark.django_db(transaction=True)
async def test_the_orm_runs_in_the_runs_thread_on_one_connection_that_is_closed():
    from django.contrib.auth import get_user_model
    from django.db import connections

    model = get_user_model()
    seen: list[Any] = []

    def count() -> int:
        found = model.objects.count()
        connection = connections["default"]  # this thread's
        seen.append((threading.current_thread(), connection, connection.connection))
        return found

    async def agent(run: RunContext) -> list[int]:
        return [await run.tool_call("count", key="1").run(count), await model.objects.acount(),
                await run.tool_call("count", key="2").run(count)]  # fmt: skip

    result = await run(agent)
    assert result.result == [0, 0, 0]
    thread, connection, raw = seen[0]
    assert raw is not None
    assert all(one is thread and two is connection and three is raw for one, two, three in seen)
    thread.join(5)
    assert not thread.is_alive()
    assert connection.connection is None
