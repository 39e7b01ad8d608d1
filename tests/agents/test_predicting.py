"""Predictive state: on the way, at the end, put back."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from ag_ui.core import ToolCallArgsEvent, ToolCallEndEvent, ToolCallStartEvent
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import TypedDict

from agui_django import RunContext, SyncRunContext
from agui_django.agents.live import MISSING
from agui_django.agents.predicting import partial_json
from agui_django.agents.registry import AgentEntry, AgentOptions
from tests.running import run

PAD = {"pad": "so much else that a patch is always shorter than the whole state"}


def written(result: Any) -> list[Any]:
    """What the document was on its way, as a client was told."""
    found = []
    for event in result.events:
        if event["type"] == "STATE_DELTA":
            for op in event["delta"]:
                assert op["path"] == "/document"
                found.append(op.get("value", "(removed)"))
    return found


async def call(run: RunContext, *pieces: str, name: str = "write", id: str = "c") -> None:
    """A call whose arguments come in pieces, with a turn of the loop behind each."""
    await run.emit({"type": "TOOL_CALL_START", "toolCallId": id, "toolCallName": name})
    for piece in pieces:
        await run.emit({"type": "TOOL_CALL_ARGS", "toolCallId": id, "delta": piece})
        await asyncio.sleep(0)
    await run.emit({"type": "TOOL_CALL_END", "toolCallId": id})


# ---- half a JSON text ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", MISSING), ("{", {}), ('{"te', {}), ('{"text', {}), ('{"text"', {}), ('{"text":', {}),
        ('{"text": "', {"text": ""}),
        ('{"text": "a\\', {"text": "a"}), ('{"text": "a\\u00', {"text": "a"}), ('{"text": "a\\u00e4', {"text": "aä"}),
        ('{"text": "a\\ud83d', {"text": "a"}), ('{"text": "a\\ud83d\\ude00', {"text": "a😀"}),
        ('{"text": "12', {"text": "12"}), ('{"text": "\\\\"', {"text": "\\"}), ('{"text": "\\"1', {"text": '"1'}),
        ('{"n": 1', {}), ('{"n": 1.5e+', {}), ('{"n": -', {}), ('{"n": 12,', {"n": 12}), ('{"n": 12}', {"n": 12}),
        ('{"n": [1, 2', {"n": [1]}), ('{"n": [1, 2 ', {"n": [1, 2]}), ('{"b": tru', {}), ('{"b": nul', {}),
        ('{"b": true,', {"b": True}), ('{"a": [{"b": "x', {"a": [{"b": "x"}]}), ('{"a": "x", "b', {"a": "x"}),
        ("nonsense", MISSING), ('{"n": NaN,', MISSING), ("[[" * 2000, MISSING), ('{"text": "a\nb', MISSING),
    ],
)  # fmt: skip
def test_what_the_beginning_says(text: str, value: Any):
    assert partial_json(text) is MISSING if value is MISSING else partial_json(text) == value


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def is_beginning(part: Any, whole: Any) -> bool:
    if isinstance(part, str) and isinstance(whole, str):
        return whole.startswith(part)
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) <= len(whole) and all(is_beginning(a, b) for a, b in zip(part, whole, strict=False))
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and is_beginning(value, whole[key]) for key, value in part.items())
    return part == whole and type(part) is type(whole)


@given(st.dictionaries(st.text(max_size=4), json_values, max_size=3), st.booleans(), st.data())
def test_the_beginning_of_a_text_is_a_beginning_of_its_value(value: dict[str, Any], ascii: bool, data: Any):
    text = json.dumps(value, ensure_ascii=ascii)
    assert partial_json(text) == value
    cut = data.draw(st.integers(1, len(text)))
    assert is_beginning(partial_json(text[:cut]), value)


# ---- on the way ------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_the_state_follows_and_is_final_when_the_arguments_are_complete():
    async def agent(run: RunContext) -> None:
        run.predict_state("document", tool="write", argument="text", every=0)
        await call(run, '{"title": "T", "te', 'xt": "Dear ', "Ada,\\", "nhello", '"}')

    result = await run(agent, state=PAD)
    assert written(result) == ["Dear ", "Dear Ada,", "Dear Ada,\nhello"]
    assert result.state == {**PAD, "document": "Dear Ada,\nhello"}
    # In its place: behind the piece that says it.
    assert result.types[2:5] == ["TOOL_CALL_ARGS", "TOOL_CALL_ARGS", "STATE_DELTA"]


@pytest.mark.asyncio
async def test_whoever_emits_the_call():
    """A block, the short way, official models, whole calls, a subagent, a thread."""

    def in_thread(run: SyncRunContext) -> None:
        with run.message() as m:
            m.tool_call_delta(0, name="write", args='{"text": "thr')
            m.tool_call_delta(0, args='ead"}')

    async def agent(run: RunContext) -> list[Any]:
        seen = []
        run.predict_state("document", tool="write", argument="text", every=0)
        async with run.message() as m:
            for piece in ('{"text": "bl', "oc", 'k"}'):
                await m.tool_call_delta(0, name="write", args=piece)
                await m.tool_call_delta(1, name="other", args='{"text": "not this"}')
        seen.append(run.state["document"])
        await run.emit(ToolCallStartEvent(tool_call_id="c", tool_call_name="write"))
        await run.emit(ToolCallArgsEvent(tool_call_id="c", delta='{"text": "mod'))
        await run.emit(ToolCallArgsEvent(tool_call_id="c", delta='els"}'))
        await run.emit(ToolCallEndEvent(tool_call_id="c"))
        seen.append(run.state["document"])
        run.tool_call("write", {"text": "whole"})
        seen.append(run.state["document"])
        async with run.subagent("writer") as sub, sub.message() as m:
            await m.tool_call_delta(0, name="write", args='{"text": "sub')
            await m.tool_call_delta(0, args='agent"}')
        seen.append(run.state["document"])
        await run._sink.in_thread(lambda: in_thread(run.sync))
        seen.append(run.state["document"])
        return seen

    result = await run(agent)
    assert result.result == ["block", "models", "whole", "subagent", "thread"]


@pytest.mark.asyncio
async def test_all_arguments():
    async def agent(run: RunContext) -> None:
        run.predict_state("document", tool="write", every=0)
        await call(run, '{"title": "T", "n": 1', '2, "deep": {"x": [1', "]}}")

    result = await run(agent, state=PAD)
    assert written(result) == [
        {"title": "T"}, {"title": "T", "n": 12, "deep": {"x": []}}, {"title": "T", "n": 12, "deep": {"x": [1]}},
    ]  # fmt: skip


@pytest.mark.asyncio
async def test_at_most_so_often_and_the_rest_of_a_pause():
    async def agent(run: RunContext) -> None:
        run.predict_state("document", tool="write", argument="text", every=0.15)
        await run.emit({"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "write"})
        for piece in ('{"text": "', *"abcdefgh"):
            await run.emit({"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": piece})
            await asyncio.sleep(0)
        while run.state.get("document") != "abcdefgh":  # the model pauses
            await asyncio.sleep(0.01)
        await run.emit({"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": 'ij"}'})
        await run.emit({"type": "TOOL_CALL_END", "toolCallId": "c"})

    result = await run(agent, state=PAD)
    assert written(result) == ["", "abcdefgh", "abcdefghij"]


@pytest.mark.asyncio
async def test_several_calls():
    """One after the other, and two at once: what is written last is there."""

    async def agent(run: RunContext) -> None:
        run.predict_state("document", tool="write", argument="text", every=0)
        await call(run, '{"text": "one"}', id="a")
        await call(run, '{"text": "two', id="b")  # never complete
        assert run.state["document"] == "one"
        async with run.message() as m:
            await m.tool_call_delta(0, name="write", args='{"text": "x"}')
            await m.tool_call_delta(1, name="write", args='{"text": "y"}')

    result = await run(agent, state=PAD)
    assert written(result)[:3] == ["one", "two", "one"]
    assert set(written(result)[3:]) <= {"x", "y"}
    assert result.state["document"] == "y"


# ---- never complete --------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize("before", [{}, {"document": "old"}, {"document": {"deep": [1]}}], ids=str)
@pytest.mark.parametrize("rest", ["", "}", '"} and more', '", "text": 7 x'])
async def test_arguments_that_are_never_json(before: dict[str, Any], rest: str):
    async def agent(run: RunContext) -> None:
        run.predict_state("document", tool="write", argument="text", every=0)
        await call(run, '{"text": "half', rest)
        await run.say("on")

    result = await run(agent, state={**PAD, **before})
    assert written(result)[0] == "half"
    assert result.state == {**PAD, **before}
    assert result.outcome == "success"


@pytest.mark.asyncio
async def test_complete_json_without_the_argument():
    async def agent(run: RunContext) -> None:
        run.predict_state("document", tool="write", argument="text", every=0)
        await call(run, '{"title": "x"', "}", id="a")
        await call(run, "[1", "]", id="b")
        await call(run, id="c")

    assert (await run(agent, state=PAD)).state == PAD


@pytest.mark.asyncio
@pytest.mark.parametrize("end", ["error", "cancel", "question", "violation", "terminal"])
async def test_the_run_ends_before_they_are(end: str):
    async def agent(run: RunContext) -> None:
        run.predict_state("document", tool="write", argument="text", every=0)
        async with run.message() as m:
            await m.tool_call_delta(0, name="write", args='{"text": "half')
            await asyncio.sleep(0)
            if end == "violation":
                await run.emit({"type": "TEXT_MESSAGE_END", "messageId": "nobody's"})
            if end == "error":
                raise ValueError
            if end == "question":
                run.interrupt("q")
            if end == "terminal":
                await run.emit({"type": "RUN_ERROR", "message": "x"})
            else:
                await asyncio.sleep(10)

    result = await run(agent, state={**PAD, "document": "old"}, cancel_after=0.3 if end == "cancel" else None)
    assert written(result)[:1] == ["half"]
    assert result.state["document"] == result.closing.state["document"] == "old"
    # The client was told, too, however the run ended.
    held = dict(PAD)
    for event in result.events:
        if event["type"] == "STATE_DELTA":
            held["document"] = event["delta"][0]["value"]
        elif event["type"] == "STATE_SNAPSHOT":
            held = event["snapshot"]
    assert held["document"] == "old"


@pytest.mark.asyncio
async def test_complete_arguments_stay_whatever_comes():
    async def agent(run: RunContext) -> None:
        run.predict_state("document", tool="write", argument="text", every=10)
        async with run.message() as m:
            await m.tool_call_delta(0, name="write", args='{"text": "whole')
            await m.tool_call_delta(0, args='"}')
            raise ValueError  # the END that closes it is forced: JSON decides

    result = await run(agent, state=PAD)
    assert result.outcome == "error"
    assert result.state["document"] == "whole"


# ---- with others -----------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_edits_of_others_meanwhile():
    """They hold until the next piece, and are what is put back."""

    async def agent(run: RunContext) -> None:
        run.predict_state("document", tool="write", argument="text", every=0)
        await run.emit({"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "write"})
        await run.emit({"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": '{"text": "a'})
        await asyncio.sleep(0)
        run._sink.document.external([{"op": "replace", "path": "/document", "value": "staff"}])
        run.state["other"] = 1
        await run.emit({"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": "b"})
        assert run.state["document"] == "ab"
        await run.emit({"type": "TOOL_CALL_END", "toolCallId": "c"})
        assert run.state["document"] == "staff"
        await run.emit({"type": "TOOL_CALL_START", "toolCallId": "d", "toolCallName": "write"})
        await run.emit({"type": "TOOL_CALL_ARGS", "toolCallId": "d", "delta": '{"text": "c'})
        run.state["document"] = "mine"
        await run.emit({"type": "TOOL_CALL_END", "toolCallId": "d"})
        assert run.state["document"] == "mine"

    assert (await run(agent)).outcome in ("success",)


class Document(TypedDict, total=False):
    document: dict[str, int]
    text: str


@pytest.mark.asyncio
async def test_with_a_schema():
    """What does not fit is not shown; where the end does not fit, there was nothing."""

    async def agent(run: RunContext) -> None:
        run.predict_state("document", tool="write", every=0)
        await call(run, '{"a": "x', '"}', id="a")
        assert "document" not in run.state
        await call(run, '{"a": 1, ', '"b": "x"}', id="b")
        assert "document" not in run.state
        await call(run, '{"a": 1, "b": ', "2}", id="c")
        assert run.state["document"] == {"a": 1, "b": 2}

    entry = AgentEntry("typed", agent, AgentOptions(state_schema=Document), "here")
    result = await run(entry)
    assert result.outcome == "success", result.failure
    assert [event["snapshot"] for event in result.events if "STATE" in event["type"]] == [
        {"document": {"a": 1}}, {}, {"document": {"a": 1}}, {"document": {"a": 1, "b": 2}},
    ]  # fmt: skip


@pytest.mark.asyncio
async def test_a_state_that_is_no_object():
    async def agent(run: RunContext) -> None:
        run.predict_state("document", tool="write", argument="text", every=0)
        await run.emit({"type": "STATE_SNAPSHOT", "snapshot": [1]})
        await call(run, '{"text": "x', '"}')

    result = await run(agent)
    assert (result.outcome, result.state) == ("success", [1])


@pytest.mark.asyncio
async def test_one_key_has_one_prediction_and_calls_before_it_are_not_its():
    async def agent(run: RunContext) -> None:
        async with run.message() as m:
            await m.tool_call_delta(0, name="write", args='{"text": "before')
            run.predict_state("document", tool="other", argument="text", every=0)
            run.predict_state("document", tool="write", argument="text", every=0)
            await m.tool_call_delta(0, args=' it"}')
        assert "document" not in run.state
        run.tool_call("other", {"text": "x"})
        assert "document" not in run.state
        run.tool_call("write", {"text": "y"})
        assert run.state["document"] == "y"

    assert (await run(agent)).outcome == "success"


@pytest.mark.asyncio
async def test_a_thread_inside_of_its_block_is_not_waited_for():
    """It may be waiting for the loop itself."""

    def agent(run: SyncRunContext) -> None:
        run.predict_state("document", tool="write", argument="text", every=0)
        with run.message() as m:
            with run.edit_state() as state:
                state["x"] = 1
                m.tool_call_delta(0, name="write", args='{"text": "a')
                m.tool_call_delta(0, args="b")
                run.call_frontend_tool("y")  # waits for the loop
            m.tool_call_delta(0, args='c"}')

    result = await run(agent, tools=["y"])
    assert result.state == {"x": 1, "document": "abc"}, result.failure


@pytest.mark.asyncio
async def test_a_long_text_costs_little():
    """10 KB in pieces of 20 characters: some kilobytes of patches, not megabytes."""
    text = "x" * 10_000

    async def agent(run: RunContext) -> None:
        run.predict_state("document", tool="write", argument="text")
        async with run.message() as m:
            await m.tool_call_delta(0, name="write", args='{"text": "')
            for start in range(0, len(text), 20):
                await m.tool_call_delta(0, args=text[start : start + 20])
            await m.tool_call_delta(0, args='"}')

    result = await run(agent, timeout=60)
    assert result.state == {"document": text}
    deltas = [len(wire) for wire in result.wire if '"STATE_' in wire]
    assert len(deltas) <= 3 + result.closing.duration_ms / 200
