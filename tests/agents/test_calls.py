"""Tool calls of ours and of the page."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import pytest
from ag_ui.core import TextPart
from pydantic import BaseModel, Field

from agui_django import AgentError, Declined, RunContext, SyncRunContext, ToolCall
from agui_django.protocol.errors import ToolArgumentsError
from tests.running import bodies, checked, run

pytestmark = pytest.mark.asyncio


class Point(BaseModel):
    x: int
    y: int


def results(result: Any) -> list[Any]:
    return [event["content"] for event in result.events if event["type"] == "TOOL_CALL_RESULT"]


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("text", "text"), ("", ""), (7, "7"), (None, "null"), ({"a": [1]}, '{"a":[1]}'), ([], "[]"),
        ([{"type": "row"}], '[{"type":"row"}]'), (Point(x=1, y=2), '{"x":1,"y":2}'),
        ([{"type": "text", "text": "x"}], [{"type": "text", "text": "x"}]),
        ([TextPart(type="text", text="x")], [{"type": "text", "text": "x"}]),
    ],
    ids=str,
)  # fmt: skip
async def test_results(value: Any, content: Any):
    async def agent(run: RunContext) -> None:
        await run.tool_call("f", {"a": 1}).result(value)

    result = await run(agent)
    assert results(result) == [content]
    assert result.wire_messages[-1]["role"] == "tool"
    assert result.closing.tool_calls == 1


async def test_awaiting_a_call_gives_itself():
    async def agent(run: RunContext) -> list[Any]:
        call = await run.tool_call("f", {"a": 1}, parent="p")
        assert isinstance(call, ToolCall)
        before = call.done
        await call.result("x")
        return [call.name, call.args, call.args_text, before, call.done, call.frontend]

    result = await run(agent)
    assert result.result == ["f", {"a": 1}, '{"a":1}', False, True, False]
    assert result.wire_messages[1]["id"] == "p"


async def test_run_calls_with_the_arguments_and_gives_the_value():
    def add(a: int, b: int = 10, *, c: Annotated[int, Field(ge=0)] = 0) -> int:
        return a + b + c

    async def point(run: RunContext, at: Point, **more: Any) -> dict[str, Any]:
        await run.say("inside")
        return {"x": at.x, **more}

    def sync_tool(run: SyncRunContext, json: str) -> str:
        run.say("in a thread")
        return json

    async def agent(run: RunContext) -> list[Any]:
        return [
            await run.tool_call("add", {"a": 1}).run(add),
            await run.tool_call("add", {"a": 1, "b": 2, "c": 3}).run(add),
            await run.tool_call("point", {"at": {"x": 1, "y": 2}, "z": 3}).run(point),
            await run.tool_call("sync_tool", {"json": "x"}).run(sync_tool),
            await run.tool_call("nothing").run(lambda: None),
        ]

    result = await run(agent)
    assert result.result == [11, 6, {"x": 1, "z": 3}, "x", None]
    assert results(result) == ["11", "6", '{"x":1,"z":3}', "x", "null"]
    assert result.said == ["inside", "in a thread"]


@pytest.mark.parametrize(
    ("args", "field"),
    [({}, "order_id"), ({"order_id": "x"}, "order_id"), ({"order_id": 1, "other": 2}, "other"),
     ({"order_id": 1, "at": {"x": 1}}, "at/y")],
)  # fmt: skip
async def test_arguments_that_do_not_fit(args: Any, field: str):
    def find(order_id: int, at: Point | None = None) -> None:
        raise AssertionError("must not be called")

    async def agent(run: RunContext) -> None:
        with pytest.raises(ToolArgumentsError) as caught:
            await run.tool_call("find", args).run(find)
        assert caught.value.fields[0]["path"] == f"/{field}"
        raise caught.value

    result = await run(agent)
    assert result.error is not None
    assert result.error["code"] == "tool_arguments"
    assert field in result.error["message"]
    assert results(result) == [result.error["message"]]


@pytest.mark.parametrize("text", ["{", "[]", "7", "nonsense"])
async def test_arguments_that_are_no_object(text: str):
    async def agent(run: RunContext) -> None:
        async with run.message() as m:
            await m.tool_call_delta(0, name="f", args=text)
        [call] = m.tool_calls
        assert call.args_text == text
        with pytest.raises(ToolArgumentsError):
            _ = call.args
        with pytest.raises(ToolArgumentsError):
            await call.run(lambda: None)

    assert (await run(agent)).outcome == "success"


async def test_a_tool_that_fails():
    def fail() -> None:
        raise ValueError("secret")

    async def refuse() -> None:
        raise AgentError("Order 7 is locked.")

    async def agent(run: RunContext) -> None:
        with pytest.raises(ValueError, match="secret"):
            await run.tool_call("fail").run(fail)
        with pytest.raises(AgentError):
            await run.tool_call("refuse").run(refuse)

    result = await run(agent)
    assert results(result) == ["The tool failed.", "Order 7 is locked."]
    assert [message.get("metadata") for message in result.wire_messages if message["role"] == "tool"] == [
        {"failed": True}, {"failed": True}
    ]  # fmt: skip


async def test_a_value_that_is_not_json_is_a_failed_result():
    async def agent(run: RunContext) -> None:
        await run.tool_call("f").run(lambda: object())

    result = await run(agent)
    assert result.outcome == "error"
    assert results(result) == ["The tool failed."]


async def test_a_tool_may_ask():
    async def refund(run: RunContext, amount: int) -> str:
        return "paid" if run.interrupt("ok", message=f"{amount}?") else "refused"

    async def agent(run: RunContext) -> str:
        result: str = await run.tool_call("refund", {"amount": 4}, key="refund").run(refund)
        return result

    first = await run(agent)
    assert first.outcome == "interrupt"
    assert results(first) == []
    second = checked(await first.resume({"ok": True}))
    assert second.result == "paid"
    assert results(second) == ["paid"]
    assert "TOOL_CALL_START" not in second.types


@pytest.mark.parametrize("shape", ["async", "sync"])
async def test_what_was_done_in_an_earlier_pass_is_not_done_again(shape: str):
    done: list[int] = []

    def pay(amount: int) -> dict[str, int]:
        done.append(amount)
        return {"paid": amount}

    async def waits(run: RunContext) -> Any:
        paid = await run.tool_call("pay", {"amount": 4}, key="pay").run(pay)
        return [paid, run.interrupt("q")]

    def blocks(run: SyncRunContext) -> Any:
        paid = run.tool_call("pay", {"amount": 4}, key="pay").run(pay)
        return [paid, run.interrupt("q")]

    first = await run(waits if shape == "async" else blocks)
    assert (first.outcome, done) == ("interrupt", [4])
    second = checked(await first.resume({"q": "go"}))
    assert second.result == [{"paid": 4}, "go"]
    assert done == [4]
    assert not {"TOOL_CALL_START", "TOOL_CALL_RESULT"} & set(second.types)


async def test_a_call_as_a_block():
    async def agent(run: RunContext) -> None:
        async with run.tool_call("a"):
            pass
        with run.tool_call("b") as call:
            await call.result("x")

    assert results(await run(agent)) == ["", "x"]


async def test_pending_calls_are_this_turns():
    async def agent(run: RunContext) -> list[str]:
        done = run.tool_call("done")
        await done.result("x")
        run.tool_call("ours")
        run.call_frontend_tool("pick")
        return [f"{call.name} {call.frontend}" for call in run.pending_calls]

    history = [
        {"id": "a", "role": "assistant", "toolCalls": [
            {"id": "old", "type": "function", "function": {"name": "old", "arguments": "{}"}}]},
        {"id": "u", "role": "user", "content": "x"},
    ]  # fmt: skip
    assert (await run(agent, history, tools=["pick"])).result == ["ours False", "pick True"]


# ---- the page's ----


async def paint(run: RunContext) -> None:
    color = run.call_frontend_tool("pick_color", {"choices": ["red", "blue"]})
    size = run.call_frontend_tool("pick_size")
    await run.say(f"Painting it {color.answer()}, {size.answer(int)}.")


async def test_two_calls_are_answered_in_the_next_run():
    first = await run(paint, tools=["pick_color", "pick_size"])
    assert first.outcome == "success"
    assert [body[1] for body in bodies(first) if body[0] == "TOOL_CALL_START"] == ["pick_color", "pick_size"]
    assert first.terminal["outcome"]["pendingToolCallIds"] == list(first.pending)
    second = checked(await first.answer_frontend({"pick_color": "red", "pick_size": 4}))
    assert second.said == ["Painting it red, 4."]
    assert "TOOL_CALL_START" not in second.types
    assert second.pending == {}


async def test_calls_of_the_page_that_follow_each_other_share_a_message():
    async def agent(run: RunContext) -> None:
        run.call_frontend_tool("a")
        run.call_frontend_tool("b")
        await run.say("And now:")
        run.call_frontend_tool("c")
        run.tool_call("ours")
        run.suspend()

    made = [message for message in (await run(agent, tools=["a", "b", "c"])).wire_messages if message["role"] != "user"]
    names = [[call["function"]["name"] for call in message.get("toolCalls", ())] for message in made]
    assert names == [["a", "b"], [], ["c"], ["ours"]]


async def test_an_answer_that_is_missing_still_waits():
    first = await run(paint, tools=["pick_color", "pick_size"])
    second = checked(await first.answer_frontend({"pick_color": "red"}))
    assert second.outcome == "success"
    assert second.said == []
    third = checked(await second.answer_frontend({"pick_size": 4}))
    assert third.said == ["Painting it red, 4."]


async def test_the_default_key_is_the_name_and_the_arguments():
    async def agent(run: RunContext) -> list[str]:
        return [run.call_frontend_tool("pick", {"n": n}, key=None).id.partition(":")[2] for n in (1, 2)]

    ids = (await run(agent, tools=["pick"])).result
    assert len(set(ids)) == 2
    assert all(key.startswith("pick:") for key in ids)


async def test_the_page_alone_answers_its_calls():
    async def agent(run: RunContext) -> None:
        call = run.call_frontend_tool("pick")
        with pytest.raises(RuntimeError, match="only it can answer"):
            await call.result("x")
        async with run.tool_call("pick", {"n": 1}):
            pass

    result = await run(agent, tools=["pick"])
    assert result.outcome == "success"
    assert results(result) == []
    assert len(result.terminal["outcome"]["pendingToolCallIds"]) == 2


async def test_what_the_page_could_not_do_is_declined():
    first = await run(paint, tools=["pick_color", "pick_size"])
    second = checked(await first.answer_frontend({"pick_size": 4}, failed={"pick_color": "the user closed it"}))
    assert second.outcome == "cancelled"


async def test_an_answer_of_the_wrong_type_is_told():
    first = await run(paint, tools=["pick_color", "pick_size"])
    second = checked(await first.answer_frontend({"pick_color": "red", "pick_size": "large"}))
    assert second.error is not None
    assert second.error["code"] == "tool_arguments"


async def test_answers_are_parsed():
    async def agent(run: RunContext) -> list[Any]:
        return [
            run.call_frontend_tool("point").answer(Point).x,
            run.call_frontend_tool("flag").answer(bool),
            run.call_frontend_tool("list").answer(list[int]),
            run.call_frontend_tool("text").answer(),
            Declined.__name__,
        ]

    result = await run(agent, tools=["point", "flag", "list", "text"])
    for tool, answer in {"point": {"x": 1, "y": 2}, "flag": True, "list": [1, 2], "text": "7"}.items():
        result = checked(await result.answer_frontend({tool: answer}))
    assert result.result == [1, True, [1, 2], "7", "Declined"]


async def test_a_tool_made_inside_of_an_agent_is_let_go_with_its_run():
    class Held:
        """What the tool closes over, as it would over the run."""

    alive: list[weakref.ref[Any]] = []

    async def agent(run: RunContext) -> Any:
        held = Held()
        alive.append(weakref.ref(held))

        def look(n: int) -> str:
            return f"{type(held).__name__} {n}"

        return await run.tool_call("look", {"n": 1}).run(look)

    result = await run(agent)
    assert result.result == "Held 1"
    del result
    gc.collect()
    assert [held() for held in alive] == [None]


async def test_tools_of_every_kind_take_their_arguments():
    @dataclass
    class Adds:  # has no hash
        number: int

        def __call__(self, n: int) -> int:
            return self.number + n

        def twice(self, n: int) -> int:
            return 2 * self(n)

    async def agent(run: RunContext) -> list[Any]:
        adds = Adds(1)
        tools = [adds, adds.twice, partial(Adds.twice, adds)]
        return [await run.tool_call("f", {"n": 2}).run(tool) for tool in tools]

    assert (await run(agent)).result == [3, 6, 6]
