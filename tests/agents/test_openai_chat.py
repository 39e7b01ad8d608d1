"""Chat completions: what a request holds, and what a stream becomes."""

from __future__ import annotations

import base64
import enum
from collections.abc import AsyncIterator, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import pytest
from ag_ui.core import AssistantMessage, FunctionCall, Tool, ToolMessage, UserMessage
from ag_ui.core import ToolCall as WireCall
from pydantic import BaseModel, Field

from agui_django import RunContext, SyncRunContext, approval_required
from agui_django.agents.openai_chat import FILES_FOLLOW, feed, feed_sync, to_messages, to_tools, with_files
from tests.agents.completions import ROUND, as_objects, chunk, piece
from tests.running import bodies, run

PIXEL = base64.b64encode(b"pixel").decode()


def call(id: str, name: str = "f", arguments: str = "{}") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def assistant(*calls: dict[str, Any], content: str | None = None, **more: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"id": "a", "role": "assistant", **more}
    if content is not None:
        message["content"] = content
    return {**message, "toolCalls": list(calls)} if calls else message


def tool(call_id: str, content: Any) -> dict[str, Any]:
    return {"id": f"r-{call_id}", "role": "tool", "toolCallId": call_id, "content": content}


# ---- messages --------------------------------------------------------------------------------------------------------


def test_texts_of_all_roles():
    assert to_messages([
        {"id": "1", "role": "system", "content": "Be kind."},
        {"id": "2", "role": "developer", "content": "In English.", "name": "ops"},
        {"id": "3", "role": "user", "content": "hello", "name": "ada"},
        {"id": "4", "role": "reasoning", "content": "Hm."},
        {"id": "5", "role": "activity", "activityType": "PLAN", "content": {"a": 1}},
        {"id": "6", "role": "assistant", "content": "hi", "metadata": {"x": 1}, "encryptedValue": "secret"},
    ]) == [
        {"role": "system", "content": "Be kind."},
        {"role": "developer", "content": "In English.", "name": "ops"},
        {"role": "user", "content": "hello", "name": "ada"},
        {"role": "assistant", "content": "hi"},
    ]  # fmt: skip


def test_official_models():
    messages = [
        UserMessage(id="u", role="user", content="2 + 3?"),
        AssistantMessage(
            id="a", role="assistant", content="",
            tool_calls=[
                WireCall(id="c", type="function", function=FunctionCall(name="add", arguments='{"a":2,"b":3}')),
            ],
        ),
        ToolMessage(id="t", role="tool", tool_call_id="c", content="5"),
    ]  # fmt: skip
    assert to_messages(messages) == [
        {"role": "user", "content": "2 + 3?"},
        {"role": "assistant", "content": None, "tool_calls": [call("c", "add", '{"a":2,"b":3}')]},
        {"role": "tool", "tool_call_id": "c", "content": "5"},
    ]


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"type": "text", "text": "look"}, {"type": "text", "text": "look"}),
        (
            {"type": "image", "source": {"type": "url", "value": "https://x/y.png"}},
            {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
        ),
        (
            {"type": "image", "source": {"type": "data", "value": PIXEL, "mimeType": "image/png"}},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        ),
        (
            {"type": "audio", "source": {"type": "data", "value": PIXEL, "mimeType": "audio/mpeg"}},
            {"type": "input_audio", "input_audio": {"data": PIXEL, "format": "mp3"}},
        ),
        (
            {"type": "audio", "source": {"type": "data", "value": PIXEL, "mimeType": "audio/wav; rate=8000"}},
            {"type": "input_audio", "input_audio": {"data": PIXEL, "format": "wav"}},
        ),
        (
            {"type": "audio", "source": {"type": "url", "value": "https://x/y.ogg"}},
            {"type": "audio_url", "audio_url": {"url": "https://x/y.ogg"}},
        ),
        (
            {"type": "video", "source": {"type": "url", "value": "https://x/y.mp4"}},
            {"type": "video_url", "video_url": {"url": "https://x/y.mp4"}},
        ),
        (
            {
                "type": "document",
                "source": {"type": "data", "value": PIXEL, "mimeType": "application/pdf"},
                "metadata": {"filename": "bill.pdf"},
            },
            {"type": "file", "file": {"filename": "bill.pdf", "file_data": f"data:application/pdf;base64,{PIXEL}"}},
        ),
        (
            {"type": "document", "source": {"type": "data", "value": PIXEL, "mimeType": "text/plain"}},
            {"type": "file", "file": {"filename": "document.txt", "file_data": f"data:text/plain;base64,{PIXEL}"}},
        ),
        (
            {"type": "document", "source": {"type": "file", "value": "file-7", "provider": "openai"}},
            {"type": "file", "file": {"file_id": "file-7"}},
        ),
        (
            {"type": "image", "source": {"type": "file", "value": "file-8"}},
            {"type": "file", "file": {"file_id": "file-8"}},
        ),
    ],
    ids=lambda value: str(value.get("type")) if isinstance(value, dict) else "",
)
def test_parts(part: dict[str, Any], expected: dict[str, Any]):
    wire = {"id": "u", "role": "user", "content": [part]}
    assert to_messages([wire]) == [{"role": "user", "content": [expected]}]
    assert to_messages([UserMessage.model_validate(wire)]) == [{"role": "user", "content": [expected]}]


def test_results_stand_behind_their_calls():
    """Parallel calls, answered late and in another order, with something in between."""
    assert to_messages([
        {"id": "u", "role": "user", "content": "go"},
        assistant(call("c1", "f", ""), call("c2", "g", '{"x":1}'), content="Two at once."),
        {"id": "u2", "role": "user", "content": "well?"},
        tool("c2", "two"),
        tool("c1", "one"),
    ]) == [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": "Two at once.", "tool_calls": [call("c1"), call("c2", "g", '{"x":1}')]},
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": "two"},
        {"role": "user", "content": "well?"},
    ]  # fmt: skip


def test_what_a_provider_would_refuse_is_left_out():
    """A call without a result, a result without a call, a second result, a message that has nothing left."""
    assert to_messages([
        assistant(call("open")),
        assistant(call("c"), call("open2"), content="I look."),
        tool("c", "seen"),
        tool("c", "seen again"),
        tool("unknown", "?"),
        assistant(content=""),
        assistant(),
    ]) == [
        {"role": "assistant", "content": "I look.", "tool_calls": [call("c")]},
        {"role": "tool", "tool_call_id": "c", "content": "seen"},
    ]  # fmt: skip


def test_an_id_that_comes_again():
    """Some providers count their calls anew in every answer."""
    told = to_messages([
        assistant(call("call_0", "f")), tool("call_0", "one"), assistant(call("call_0", "g")), tool("call_0", "two"),
    ])  # fmt: skip
    assert [(m["role"], m.get("content")) for m in told] == [
        ("assistant", None), ("tool", "one"), ("assistant", None), ("tool", "two"),
    ]  # fmt: skip
    assert [m["tool_calls"][0]["function"]["name"] for m in told if m["role"] == "assistant"] == ["f", "g"]


def test_files_in_results():
    image = {"type": "image", "source": {"type": "url", "value": "https://x/1.png"}}
    told = to_messages([
        assistant(call("c1"), call("c2"), call("c3")),
        tool("c1", [image]),
        tool("c2", [{"type": "text", "text": "a "}, image, {"type": "text", "text": "b"}]),
        tool("c3", []),
    ])  # fmt: skip
    assert told[1:] == [
        {"role": "tool", "tool_call_id": "c1", "content": FILES_FOLLOW},
        {"role": "tool", "tool_call_id": "c2", "content": "a b"},
        {"role": "tool", "tool_call_id": "c3", "content": ""},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/1.png"}}] * 2},
    ]


def test_what_executed_a_call_is_seen_until_its_result_stands_for_it():
    caller = assistant(call("c1", "research"))
    inside = assistant(content="It was 1869.", subagentRunId="turn:lead/c1:researcher")
    deeper = assistant(content="I count.", subagentRunId="c1:researcher/turn:counter")
    other = assistant(content="Not tied to a call.", subagentRunId="turn:c1x")
    assert [m["content"] for m in to_messages([caller, inside, deeper, other])] == [
        "It was 1869.", "I count.", "Not tied to a call.",
    ]  # fmt: skip
    answered = to_messages([caller, tool("c1", "1869"), inside, deeper, other])
    assert [m["content"] for m in answered] == [None, "1869", "Not tied to a call."]


@pytest.mark.asyncio
async def test_the_threads_own_files_are_put_in():
    address = "https://site/agui/attachments/0f8fad5b-d9cb-469f-a165-70867728950e"
    user = {"id": "u", "role": "user", "content": [
        {"type": "text", "text": "see"},
        {"type": "image", "source": {"type": "url", "value": address, "mimeType": "image/png"}},
        {"type": "image", "source": {"type": "url", "value": "https://else/1.png"}},
    ]}  # fmt: skip
    asked = []

    async def attachment(part: Any) -> bytes:
        asked.append(part["source"]["value"])
        return b"pixel"

    told = to_messages(await with_files(SimpleNamespace(attachment=attachment, messages=[user])))
    assert [part.get("image_url") for part in told[0]["content"]] == [
        None, {"url": f"data:image/png;base64,{PIXEL}"}, {"url": "https://else/1.png"},
    ]  # fmt: skip
    assert asked == [address]
    assert user["content"][1]["source"]["value"] == address


# ---- tools -----------------------------------------------------------------------------------------------------------


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int
    y: int = 0


def paint(
    run: RunContext, color: Color, at: Point, size: Annotated[int, Field(ge=1, description="In cm.")] = 1,
    tags: list[str] | None = None, mode: Literal["fast", "slow"] = "fast",
) -> None:  # fmt: skip
    """Paint it.

    Only in the colors there are.
    """


def test_functions_as_tools():
    [told] = to_tools(paint)
    assert told == {
        "type": "function",
        "function": {
            "name": "paint",
            "description": "Paint it.\n\nOnly in the colors there are.",
            "parameters": {
                "type": "object",
                "additionalProperties": False,
                "required": ["color", "at"],
                "properties": {
                    "color": {"enum": ["red", "blue"], "type": "string"},
                    "at": {
                        "type": "object", "required": ["x"],
                        "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
                    },
                    "size": {"type": "integer", "minimum": 1, "description": "In cm.", "default": 1},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "mode": {"enum": ["fast", "slow"], "type": "string", "default": "fast"},
                },
            },
        },
    }  # fmt: skip


def test_what_else_is_a_tool():
    class Shop:
        def find(self, order_id: int) -> None:
            """Find one."""

    @approval_required("Pay {amount}?")
    def pay(amount: int) -> None: ...

    async def anything(**given: int) -> None: ...

    page = {"type": "object", "properties": {"x": {"type": "string"}}}
    ready = {"type": "function", "function": {"name": "ready", "parameters": {}, "strict": True}}
    told = to_tools(
        Shop().find, pay, partial(pay, amount=1), anything, Tool(name="pick", description="Pick.", parameters=page),
        {"name": "bare", "description": "Bare."}, ready, other=lambda a: a,
    )  # fmt: skip
    named = {tool["function"]["name"]: tool["function"] for tool in told}
    assert list(named) == ["find", "pay", "anything", "pick", "bare", "ready", "other"]
    assert named["find"]["parameters"]["required"] == ["order_id"]
    assert named["find"]["description"] == "Find one."
    assert named["anything"]["parameters"] == {"type": "object", "properties": {}, "additionalProperties": True}
    assert named["pick"] == {"name": "pick", "description": "Pick.", "parameters": page}
    assert named["bare"]["parameters"] == {"type": "object", "properties": {}}
    assert told[6] == ready
    assert named["other"]["parameters"]["properties"] == {"a": {}}


def test_tools_that_cannot_be_told():
    def takes(it: SimpleNamespace) -> None: ...

    with pytest.raises(TypeError, match="takes"):
        to_tools(takes)
    with pytest.raises(TypeError, match="has no name"):
        to_tools(object())  # type: ignore[arg-type]


# ---- what is streamed back -------------------------------------------------------------------------------------------


async def stream(*chunks: Any) -> AsyncIterator[Any]:
    for each in chunks:
        yield each


@pytest.mark.asyncio
@pytest.mark.parametrize("shape", [list, as_objects], ids=["dicts", "objects"])
async def test_a_round_with_everything(shape: Any):
    reasons = []

    async def agent(run: RunContext) -> None:
        async with run.message(id="m") as m:
            reasons.append(await feed(m, stream(*shape(ROUND)), provider="openai"))
        for made in m.tool_calls:
            await made.result(made.args)

    result = await run(agent)
    assert reasons == ["tool_calls"]
    _, thought, said, first, second = result.wire_messages
    assert thought == {"id": "m:reasoning", "role": "reasoning", "content": "I should look."}
    assert said == {
        "id": "m", "role": "assistant", "content": "Let me see.",
        "toolCalls": [call("call_a", "find", '{"order_id": 7}'), call("call_b", "find", '{"order_id": 8}')],
    }  # fmt: skip
    assert (first["content"], second["content"]) == ('{"order_id":7}', '{"order_id":8}')
    assert result.usage == [{
        "provider": "openai", "model": "gpt-x", "inputTokens": 20, "outputTokens": 9, "totalTokens": 29,
        "reasoningTokens": 4, "cachedInputTokens": 12,
    }]  # fmt: skip
    # And back again.
    assert [m["role"] for m in to_messages(result.wire_messages)] == ["user", "assistant", "tool", "tool"]


@pytest.mark.asyncio
async def test_in_a_thread():
    def chunks() -> Iterator[Any]:
        yield from ROUND

    def agent(run: SyncRunContext) -> str | None:
        with run.message() as m:
            return feed_sync(m, chunks())

    result = await run(agent)
    assert result.result == "tool_calls"
    assert result.said == ["Let me see."]
    assert result.usage[0]["inputTokens"] == 20


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("deltas", "expected"),
    [
        ([{"reasoning": "Hm."}, {"content": "x"}], ["Hm.", "x"]),
        ([{"reasoning": "Hm.", "reasoning_content": "Hm."}], ["Hm."]),
        ([{"reasoning": {"no": "text"}, "content": "x"}], ["x"]),
        ([{"refusal": "I will not."}], ["I will not."]),
        ([{"content": None}, {"content": ""}, None, {}], []),
    ],
)
async def test_the_ways_of_servers(deltas: list[Any], expected: list[str]):
    async def agent(run: RunContext) -> None:
        async with run.message() as m:
            assert await feed(m, stream(*[chunk(delta) for delta in deltas])) is None

    result = await run(agent)
    assert [m["content"] for m in result.wire_messages[1:]] == expected


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "pieces",
    [
        # Every call is the first.
        [piece(0, "a", "f", "{}"), piece(0, "b", "g", "{"), piece(0, None, None, "}")],
        # Nothing is counted.
        [piece(None, "a", "f", "{}"), piece(None, "b", "g", "{"), piece(None, None, None, "}")],
        # Id and name come with every piece, or as empty texts.
        [piece(0, "a", "f", "{"), piece(0, "a", "f", "}"), piece(1, "b", "g", "{"), piece(1, "", "", "}")],
        # A call without arguments, and a function that is not there.
        [piece(0, "a", "f", "{}"), piece(1, "b", "g", None), piece(1, None, None, "{}"), {"index": 1}],
    ],
)
async def test_how_servers_count_calls(pieces: list[Any]):
    async def agent(run: RunContext) -> None:
        async with run.message() as m:
            await feed(m, stream(*[chunk({"tool_calls": [each]}) for each in pieces]))
        for made in m.tool_calls:
            await made.result("")

    result = await run(agent)
    assert result.wire_messages[1]["toolCalls"] == [call("a", "f"), call("b", "g")]


@pytest.mark.asyncio
async def test_only_the_first_of_several_answers():
    second = {"choices": [{"index": 1, "delta": {"content": "no"}}]}

    async def agent(run: RunContext) -> None:
        async with run.message() as m:
            await feed(m, stream(chunk({"content": "yes"}), second, {"choices": None}, {"choices": []}))

    assert (await run(agent)).said == ["yes"]


@pytest.mark.asyncio
async def test_usage_in_every_chunk_counts_once_and_odd_counts_not_at_all():
    def used(total: Any) -> dict[str, Any]:
        return {**chunk({"content": "x"}), "usage": {"prompt_tokens": total, "completion_tokens": None}}

    async def agent(run: RunContext) -> None:
        async with run.message() as m:
            await feed(m, stream(used(3), used(4), {**chunk({}), "usage": None}))
            await feed(m, stream({**chunk({}), "usage": {"prompt_tokens": "many"}}))

    assert (await run(agent)).usage == [{"model": "gpt-x", "inputTokens": 4}]


@pytest.mark.asyncio
@pytest.mark.parametrize(("code", "expected"), [(429, "provider_rate_limited"), ("server", "provider_unavailable")])
async def test_an_error_in_the_stream(code: Any, expected: str):
    broken = {"error": {"code": code, "message": "secret"}, "choices": [], "usage": {"prompt_tokens": 1}}

    async def agent(run: RunContext) -> None:
        async with run.message() as m:
            await feed(m, stream({**chunk({"content": "so far"}), "usage": {"prompt_tokens": 5}}, broken))

    result = await run(agent)
    assert result.error is not None
    assert result.error["code"] == expected
    assert "secret" not in str(result.wire)
    assert result.said == ["so far"]
    assert result.usage == [{"model": "gpt-x", "inputTokens": 5}]


@pytest.mark.asyncio
async def test_a_stream_is_awaited_and_closed():
    """As the package's: a coroutine gives it, and leaving it half read would keep its connection."""
    closed = []

    class Stream:
        def __aiter__(self) -> Stream:
            return self

        async def __anext__(self) -> Any:
            return chunk({"content": "x"})

        async def close(self) -> None:
            closed.append(True)

    async def create() -> Stream:
        return Stream()

    async def agent(run: RunContext) -> None:
        async with run.message() as m:
            await feed(m, create())

    result = await run(agent, cancel_after=0.05, timeout=20)
    assert result.outcome == "cancelled"
    assert closed == [True]
    assert bodies(result)[0][0] == "TEXT_MESSAGE_START"
