"""What a run context emits, and what it tells."""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import pytest
from ag_ui.core import AssistantMessage, RunAgentInput, UserMessage

from agui_django import Event, RunContext
from agui_django.protocol.errors import NotJson, ProtocolViolation
from tests.running import bodies, run

pytestmark = pytest.mark.asyncio


# ---- law 1: an event is out when the call returns ----


async def test_forgetting_await_loses_nothing():
    async def agent(run: RunContext) -> None:
        run.say("one")
        async with run.message() as m:
            m.reasoning("hm")
            m.write("two")
            m.tool_call_delta(0, name="f", args="{}")
        run.custom("n", 1)
        run.emit({"type": "RAW", "event": 1})
        run.tool_call("g", {"a": 1}).result("ok")

    result = await run(agent)
    assert [body[0] for body in bodies(result)] == [
        "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END",
        "REASONING_START", "REASONING_MESSAGE_START", "REASONING_MESSAGE_CONTENT", "REASONING_MESSAGE_END",
        "REASONING_END", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TOOL_CALL_START", "TOOL_CALL_ARGS",
        "TOOL_CALL_END", "TEXT_MESSAGE_END", "CUSTOM", "RAW",
        "TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT",
    ]  # fmt: skip


async def test_an_illegal_event_raises_at_its_line():
    lines: list[str] = []

    async def agent(run: RunContext) -> None:
        lines.append("before")
        try:
            run.emit({"type": "TEXT_MESSAGE_END", "messageId": "m"})
        except ProtocolViolation:
            lines.append("raised")
            raise

    await run(agent)
    assert lines == ["before", "raised"]


async def test_every_64th_emission_gives_the_loop_a_turn():
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def agent(run: RunContext) -> None:
        counting = asyncio.get_running_loop().create_task(count())
        for number in range(640):
            await run.custom("n", number)
        counting.cancel()

    await run(agent)
    assert turns == 10


# ---- messages ----


async def test_say_gives_its_text():
    async def pieces() -> AsyncIterator[str]:
        for piece in ("a", "", "b"):
            yield piece

    async def agent(run: RunContext) -> list[str]:
        return [await run.say("whole"), await run.say(pieces()), await run.say("")]

    result = await run(agent)
    assert result.result == ["whole", "ab", ""]
    assert result.said == ["whole", "ab"]


async def test_an_empty_block_emits_nothing():
    async def agent(run: RunContext) -> None:
        async with run.message() as m:
            await m.write(None)
            await m.write("")
            await m.reasoning(None)

    assert bodies(await run(agent)) == []


async def test_with_works_as_well_as_async_with():
    async def agent(run: RunContext) -> None:
        with run.step("s"), run.message() as m:
            m.write("a")

    assert [body[0] for body in bodies(await run(agent))] == [
        "STEP_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "STEP_FINISHED"
    ]  # fmt: skip


@pytest.mark.parametrize("late", [False, True])
async def test_writing_outside_the_block_is_an_error(late: bool):
    async def agent(run: RunContext) -> None:
        m = run.message()
        if late:
            async with m:
                await m.write("x")
        with pytest.raises(RuntimeError, match="ended" if late else "async with run"):
            await m.write("x")

    assert (await run(agent)).outcome == "success"


async def test_a_message_says_who_and_what():
    async def agent(run: RunContext) -> str:
        async with run.message(id="mine", role="system", name="Ada", metadata={"n": 1}) as m:
            await m.write("a")
            await m.write("b")
            return f"{m.id} {m.text}"

    result = await run(agent)
    assert result.result == "mine ab"
    assert result.wire_messages[-1] == {
        "id": "mine", "role": "system", "name": "Ada", "content": "ab", "metadata": {"n": 1}
    }  # fmt: skip


async def test_reasoning_closes_when_text_or_a_call_begins():
    async def agent(run: RunContext) -> None:
        async with run.message(id="m") as m:
            await m.reasoning("one")
            await m.reasoning(" more")
            await m.write("text")
            await m.reasoning("two")
            await m.tool_call_delta(0, id="c", name="f")
            await m.tool_call_delta(0, args='{"a":')
            await m.write(" goes on")
            await m.tool_call_delta(0, args="1}")

    result = await run(agent)
    assert [body[0] for body in bodies(result)] == [
        "REASONING_START", "REASONING_MESSAGE_START", "REASONING_MESSAGE_CONTENT", "REASONING_MESSAGE_CONTENT",
        "REASONING_MESSAGE_END", "REASONING_END", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT",
        "REASONING_START", "REASONING_MESSAGE_START", "REASONING_MESSAGE_CONTENT", "REASONING_MESSAGE_END",
        "REASONING_END", "TOOL_CALL_START", "TOOL_CALL_ARGS", "TEXT_MESSAGE_CONTENT", "TOOL_CALL_ARGS",
        "TOOL_CALL_END", "TEXT_MESSAGE_END",
    ]  # fmt: skip
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    assert result.wire_messages[1:] == [
        {"id": "m:reasoning", "role": "reasoning", "content": "one more"},
        {"id": "m", "role": "assistant", "content": "text goes on", "toolCalls": [call]},
        {"id": "m:reasoning2", "role": "reasoning", "content": "two"},
    ]


async def test_a_block_of_reasoning():
    async def agent(run: RunContext) -> str:
        async with run.reasoning() as r:
            await r.write("hm ")
            await r.write("so")
            return r.text

    result = await run(agent)
    assert result.result == "hm so"
    assert result.wire_messages[-1]["role"] == "reasoning"


async def test_encrypted_values_belong_to_the_reasoning_or_a_call():
    async def agent(run: RunContext) -> None:
        async with run.message(id="m") as m:
            await m.reasoning("hm")
            await m.encrypted_value("sealed")
            await m.tool_call_delta(0, id="c", name="f")
            await m.encrypted_value("of the call", call="c")
        async with run.message(id="n") as m:
            await m.encrypted_value("nothing visible")

    result = await run(agent)
    by_id = {message["id"]: message for message in result.wire_messages}
    assert by_id["m:reasoning"]["encryptedValue"] == "sealed"
    assert by_id["m"]["toolCalls"][0]["encryptedValue"] == "of the call"
    assert by_id["n:reasoning"]["encryptedValue"] == "nothing visible"


async def test_streamed_calls_are_told_apart_by_index_or_by_a_new_id():
    async def agent(run: RunContext) -> list[Any]:
        async with run.message() as m:
            m.tool_call_delta(1, id="b", name="g")
            m.tool_call_delta(0, id="a", name="f", args='{"x":')
            m.tool_call_delta(1, args="{}")
            m.tool_call_delta(0, args="1}")
            m.tool_call_delta(0, id="c", name="h", args='{"y":2}')
            with pytest.raises(ValueError, match="must have its name"):
                m.tool_call_delta(7, args="{}")
        return [[call.id, call.name, call.args] for call in m.tool_calls]

    assert (await run(agent)).result == [["b", "g", {}], ["a", "f", {"x": 1}], ["c", "h", {"y": 2}]]


# ---- the rest of what is shown ----


async def test_activities_are_live():
    async def agent(run: RunContext) -> None:
        progress = run.activity("progress", {"done": 0, "of": 3, "note": "a text that makes it longer than a patch"})
        for n in range(1, 3):
            progress["done"] = n
            await run.custom("n", n)
        progress["done"] = 3

    result = await run(agent)
    assert bodies(result)[1:] == [
        ("ACTIVITY_DELTA", [{"op": "replace", "path": "/done", "value": 1}]), ("CUSTOM", 1),
        ("ACTIVITY_DELTA", [{"op": "replace", "path": "/done", "value": 2}]), ("CUSTOM", 2),
        ("ACTIVITY_DELTA", [{"op": "replace", "path": "/done", "value": 3}]),
    ]  # fmt: skip
    activity = result.closing.messages[0]
    assert activity["content"]["done"] == 3


async def test_edits_leave_at_the_latest_on_the_loops_next_turn():
    seen: list[int] = []

    async def agent(run: RunContext) -> None:
        run.state["x"] = 1
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        seen.append(run._sink.count)  # type: ignore[attr-defined]
        run.emit({"type": "CUSTOM", "name": "after", "value": 1})

    result = await run(agent)
    assert [body[0] for body in bodies(result)] == ["STATE_SNAPSHOT", "CUSTOM"]
    assert seen == [2]  # RUN_STARTED, and the edit


async def test_values_are_what_djangos_encoder_takes():
    async def agent(run: RunContext) -> Any:
        await run.custom(
            "n", {"at": datetime.date(2026, 1, 2), "sum": Decimal("1.50"), "models": [UserMessage(id="u", content="x")]}
        )
        return datetime.timedelta(seconds=90)

    result = await run(agent)
    assert result.events[1]["value"] == {
        "at": "2026-01-02", "sum": "1.50", "models": [{"id": "u", "role": "user", "content": "x"}]
    }  # fmt: skip
    assert result.result == "P0DT00H01M30S"


@pytest.mark.parametrize(
    ("value", "path"), [({"a": [float("nan")]}, "/a/0"), ({"a": {1: 2}}, "/a"), ({"x/y": {2}}, "/x~1y")]
)
async def test_what_is_not_json_is_refused_with_its_path(value: Any, path: str):
    async def agent(run: RunContext) -> list[str]:
        paths = []
        for call in (
            lambda: run.custom("n", value),
            lambda: run.tool_call("f", value),
            lambda: run.activity("a", value),
            lambda: run.tool_call("g").result(value),
            lambda: run.state.update(v=value),
            lambda: run.interrupt("q", metadata=value),
        ):
            try:
                call()
            except NotJson as error:
                paths.append(error.fields[0]["path"])
        return paths

    result = await run(agent)
    assert result.outcome == "success"
    assert result.result == [path, path, path, path, f"/v{path}", f"/metadata{path}"]
    assert "CUSTOM" not in result.types


async def test_a_step_ends_where_its_block_ends():
    async def agent(run: RunContext) -> None:
        async with run.step("one"):
            await run.say("in")
            with run.step("two"):
                pass
        await run.say("out")

    told = [event for event in (await run(agent)).events if not event["type"].endswith(("_START", "_END"))][1:-1]
    assert [event.get("stepName", event.get("delta")) for event in told] == ["one", "in", "two", "two", "one", "out"]


async def test_usage_is_summed_per_model():
    async def agent(run: RunContext) -> None:
        run.usage(model="a", input_tokens=3, output_tokens=4, cached_input_tokens=1)
        run.usage(model="b", provider="p", output_tokens=1)
        run.usage(model="a", input_tokens=10, output_tokens=20, reasoning_tokens=5)
        with pytest.raises(TypeError, match="unknown part"):
            run.usage(model="a", thoughts=1)

    result = await run(agent)
    assert result.terminal["usage"] == [
        {"model": "a", "inputTokens": 13, "outputTokens": 24, "totalTokens": 37, "cachedInputTokens": 1,
         "reasoningTokens": 5},
        {"provider": "p", "model": "b", "outputTokens": 1},
    ]  # fmt: skip
    assert result.usage == result.terminal["usage"]


async def test_a_total_that_was_not_split_is_kept():
    async def agent(run: RunContext) -> None:
        # As other endpoints' terminal events have it.
        run._sink.add_usage({"model": "a", "totalTokens": 7})
        run._sink.add_usage({"model": "a", "inputTokens": 3, "outputTokens": 4, "totalTokens": 7})
        run._sink.add_usage({"model": "b", "inputTokens": 10})
        run._sink.add_usage({"model": "b", "outputTokens": 5})
        run._sink.add_usage({"model": "c", "inputTokens": 3, "totalTokens": 10})

    assert (await run(agent)).terminal["usage"] == [
        {"model": "a", "inputTokens": 3, "outputTokens": 4, "totalTokens": 14},
        {"model": "b", "inputTokens": 10, "outputTokens": 5, "totalTokens": 15},
        {"model": "c", "inputTokens": 3, "totalTokens": 10},
    ]


# ---- what it tells ----


async def test_messages_are_live_official_models_without_activities():
    async def agent(run: RunContext) -> list[int]:
        messages = run.messages
        counts = [len(messages)]
        run.activity("a", {})
        await run.say("one")
        counts.append(len(messages))
        first = messages[1]
        async with run.message() as m:
            await m.write("tw")
            assert messages[-1].content == "tw"
            await m.write("o")
        counts.append(len(messages))
        assert messages[-1].content == "two"
        assert messages[1] is first
        assert isinstance(messages[0], UserMessage)
        assert [type(message) for message in messages[1:]] == [AssistantMessage, AssistantMessage]
        return counts

    assert (await run(agent)).result == [1, 2, 3]


async def test_the_request_is_told_as_it_was_accepted():
    async def agent(run: RunContext) -> dict[str, Any]:
        assert isinstance(run.input, RunAgentInput)
        assert run.input.messages == list(run.messages)
        assert run.input.state == {"s": 1}
        return {
            "text": run.text, "tools": [tool.name for tool in run.tools],
            "context": [item.value for item in run.context], "props": run.forwarded_props, "extra": run.extra,
            "user": run.user.username, "thread": run.thread, "resumed": run.resumed, "cancelled": run.cancelled,
            "same": run.run_id == run.input.run_id, "turn": bool(run.turn),
        }  # fmt: skip

    class User:
        username = "ada"

    messages = [
        {"id": "1", "role": "user", "content": "first"},
        {"id": "2", "role": "assistant", "content": "yes"},
        {"id": "3", "role": "user", "content": [{"type": "text", "text": "last "}, {"type": "text", "text": "one"}]},
    ]
    result = await run(
        agent, messages, state={"s": 1}, tools=["pick"], context=[{"description": "d", "value": "v"}],
        forwarded_props={"p": 1}, extra={"tenant": 7}, user=User(), thread="a row",
    )  # fmt: skip
    assert result.failure is None
    assert result.result == {
        "text": "last one", "tools": ["pick"], "context": ["v"], "props": {"p": 1}, "extra": {"tenant": 7},
        "user": "ada", "thread": "a row", "resumed": False, "cancelled": None, "same": True, "turn": True,
    }  # fmt: skip


async def test_the_logger_says_which_run(caplog: pytest.LogCaptureFixture):
    async def agent(run: RunContext) -> None:
        run.log.info("found %s", 7)

    with caplog.at_level(logging.INFO, "agui_django.agent"):
        result = await run(agent)
    [record] = [record for record in caplog.records if record.name == "agui_django.agent"]
    assert record.getMessage() == f"[agent run {result.setup.run_id}] found 7"
    assert record.agui_run == result.setup.run_id  # type: ignore[attr-defined]


async def test_flush_waits():
    async def agent(run: RunContext) -> None:
        run.state["x"] = 1
        await run.flush()

    assert (await run(agent)).types == ["RUN_STARTED", "STATE_SNAPSHOT", "RUN_FINISHED"]


async def test_the_state_can_be_replaced():
    async def agent(run: RunContext) -> None:
        run.state = {"a": 2, "b": "a text that makes the state longer than its patch", "c": "another such text here"}

    result = await run(
        agent, state={"a": 1, "b": "a text that makes the state longer than its patch", "c": "another such text here"}
    )
    assert bodies(result) == [("STATE_DELTA", [{"op": "replace", "path": "/a", "value": 2}])]


async def test_a_foreign_state_event_inside_a_block_is_refused():
    async def agent(run: RunContext) -> None:
        with run.edit_state() as state:
            state["a"] = 1
            with pytest.raises(RuntimeError):
                run.emit({"type": "STATE_SNAPSHOT", "snapshot": {}})

    result = await run(agent)
    assert result.state == {"a": 1}
    assert result.types.count("STATE_SNAPSHOT") == 1


async def test_foreign_state_events_and_edits_keep_their_order():
    async def agent(run: RunContext) -> AsyncIterator[Event]:
        held = run.state["a"]
        held["x"] = 1
        yield {"type": "STATE_DELTA", "delta": [{"op": "add", "path": "/a/y", "value": 2}]}
        held["z"] = 3
        yield {"type": "STATE_SNAPSHOT", "snapshot": {"a": {"x": 1, "y": 2, "z": 3}, "b": 0}}
        held["w"] = 4

    result = await run(agent, state={"a": {}})
    assert result.state == {"a": {"x": 1, "y": 2, "z": 3, "w": 4}, "b": 0}


async def test_a_yield_inside_an_edit_block_is_rolled_back():
    async def agent(run: RunContext) -> AsyncIterator[Event]:
        try:
            with run.edit_state() as state:
                state["a"] = 1
                yield "x"
        except RuntimeError as error:
            yield str(error)

    result = await run(agent)
    assert "rolled back" in result.said[0]
    assert result.state == {}


async def test_json_of_the_state_works():
    async def agent(run: RunContext) -> str:
        run.state["a"] = {"b": [1]}
        return json.dumps(run.state)

    assert (await run(agent)).result == '{"a": {"b": [1]}}'
