"""The samples of the documentation that talk to a model or delegate, as printed there."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import pytest

from agui_django import RunContext, agent, approval_required
from agui_django.agents.openai_chat import feed, to_messages, to_tools
from tests.agents.completions import Model, calls, chunk, piece, texts
from tests.running import checked, run

pytestmark = pytest.mark.asyncio

LLM = Model
default_llm = Model()


class Order:
    """Stands for a model of a shop."""

    refunds: ClassVar[list[tuple[int, int]]] = []

    def __init__(self, pk: int) -> None:
        self.pk = pk

    def refund(self, amount: int) -> str:
        self.refunds.append((self.pk, amount))
        return f"refunded {amount}"

    def first(self) -> dict[str, Any]:
        return {"id": self.pk, "total": 40}

    def values(self) -> Order:
        return self

    class objects:
        @staticmethod
        def get(pk: int) -> Order:
            return Order(pk)

        filter = get


def find_order(order_id: int) -> dict[str, Any] | None:  # sync ORM; runs in the run's thread
    return Order.objects.filter(pk=order_id).values().first()


@approval_required("Refund {amount} € for order {order_id}?", edit=True)
def refund_order(order_id: int, amount: int) -> str:
    return Order.objects.get(pk=order_id).refund(amount)


@agent("sample-support")  # raw OpenAI deltas, tools, approvals, front-end tools, resume
async def support(run: RunContext, *, llm: LLM = default_llm) -> None:
    while True:
        await run.dispatch_tool_calls(find_order, refund_order)  # may end the run here
        async with run.message() as m:
            async for chunk in llm.stream(
                to_messages(run.messages), tools=to_tools(find_order, refund_order, *run.tools)
            ):
                d = chunk.choices[0].delta
                await m.reasoning(d.reasoning_content)
                await m.write(d.content)
                for c in d.tool_calls or ():
                    await m.tool_call_delta(c.index, id=c.id, name=c.function.name, args=c.function.arguments)
        if not m.tool_calls:
            return


async def write(run: RunContext, *, llm: LLM = default_llm) -> None:  # predictive state
    run.predict_state("document", tool="write_document", argument="text")
    async with run.message() as m:
        await feed(m, llm.stream(to_messages(run.messages)))
    for call in m.tool_calls:
        await call.result("written")


async def research(run: RunContext) -> None:
    await run.say(f"Looking up {run.text}.", key="looking")
    await run.say(f"Found it in {run.interrupt('year', message='Which year?', response_schema=int)}.")


async def desk(run: RunContext) -> None:  # an agent as subagent; its question passes through
    async with run.subagent("researcher", text="the year", key="r") as sub:
        await research(sub)
    await run.say("The researcher is done.")


# ---- what they do ----------------------------------------------------------------------------------------------------


async def test_support():
    """A search, an approval with a correction, and the words after it; the model sees every step in order."""
    Order.refunds.clear()
    llm = Model(
        [chunk({"reasoning_content": "First the order."}), *calls("find_order", ['{"order', '_id": 7}'], id="c1")],
        calls("refund_order", ['{"order_id": 7, "amount": 400}'], id="c2"),
        texts(["Refunded ", "40 €."]),
    )
    first = await run(partial(support, llm=llm), "refund 7", tools=["pick_color"])
    assert first.outcome == "interrupt"
    [question] = first.interrupts.values()
    assert question.message == "Refund 400 € for order 7?"
    assert Order.refunds == []
    key = next(iter(first.interrupts))
    second = checked(await first.resume({key: {"approved": True, "editedArgs": {"order_id": 7, "amount": 40}}}))
    assert second.outcome == "success"
    assert second.said == ["Refunded 40 €."]
    assert Order.refunds == [(7, 40)]
    messages, tools = llm.asked[-1]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant", "tool"]
    assert [messages[2]["tool_call_id"], messages[4]["tool_call_id"]] == ["c1", "c2"]
    assert [tool["function"]["name"] for tool in tools] == ["find_order", "refund_order", "pick_color"]
    assert tools[0]["function"]["parameters"]["properties"] == {"order_id": {"type": "integer"}}


async def test_support_waits_for_the_page_first():
    """Two calls in one answer: the page's ends the run, and the approval is asked for when the page has answered."""
    Order.refunds.clear()
    both = [
        chunk({"tool_calls": [piece(0, "c1", "pick_color", "{}"), piece(1, "c2", "refund_order", "")]}),
        chunk({"tool_calls": [piece(1, None, None, '{"order_id": 1, "amount": 2}')]}),
    ]
    llm = Model(both, texts(["Done."]))
    first = await run(partial(support, llm=llm), tools=["pick_color"])
    assert first.outcome == "success"
    second = checked(await first.answer_frontend({"pick_color": "red"}))
    assert second.outcome == "interrupt"
    third = checked(await second.resume({next(iter(second.interrupts)): {"approved": False, "reason": "no"}}))
    assert third.said == ["Done."]
    assert Order.refunds == []
    assert [m["role"] for m in llm.asked[-1][0]] == ["user", "assistant", "tool", "tool"]


async def test_write():
    llm = Model(calls("write_document", ['{"title": "x", "text": "Dear', " Ada,\\n", 'hello"', "}"]))
    result = await run(partial(write, llm=llm), "write a letter")
    assert result.state == {"document": "Dear Ada,\nhello"}
    assert result.wire_messages[-1]["content"] == "written"
    assert "STATE_SNAPSHOT" in result.types


async def test_desk():
    first = await run(desk, "when was it?")
    assert first.said == ["Looking up the year."]
    assert first.interrupts["r/year"].message == "Which year?"
    second = checked(await first.resume({"r/year": 1869}))
    assert second.said == ["Looking up the year.", "Found it in 1869.", "The researcher is done."]
    assert second.outcome == "success"
    # The same agent for itself.
    alone = await run(research, "the place")
    assert (await alone.resume({"year": 1870})).said == ["Looking up the place.", "Found it in 1870."]
