"""The samples of the documentation that act in the world, as printed there: `refund` and `support`."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel

from agui_django import RunContext, agent, approval_required
from agui_django.agents.openai_chat import to_messages, to_tools
from tests.agents.completions import Model, calls, chunk, piece, texts
from tests.running import checked, run

pytestmark = pytest.mark.asyncio

LLM = Any
default_llm: LLM = None

ROWS: dict[int, dict[str, Any]] = {7: {"id": 7, "total": 40, "status": "paid"}}
refunded: list[tuple[int, int]] = []


class Row:
    """Stands for an instance of the shop's model."""

    def __init__(self, pk: int) -> None:
        self.pk = pk

    def refund(self, amount: int) -> str:
        refunded.append((self.pk, amount))
        return f"refunded {amount} €"


class Found:
    """Stands for a queryset."""

    def __init__(self, pk: int) -> None:
        self.pk = pk

    def values(self) -> Found:
        return self

    def first(self) -> dict[str, Any] | None:
        return ROWS.get(self.pk)


class Order:
    """Stands for a model of a shop."""

    class objects:
        @staticmethod
        def filter(pk: int) -> Found:
            return Found(pk)

        @staticmethod
        def get(pk: int) -> Row:
            return Row(pk)


class Decision(BaseModel):
    approved: bool


loaded: list[int] = []


def load_order(order_id: int) -> dict[str, Any]:
    loaded.append(order_id)
    return ROWS[order_id]


def pay(order_id: int, amount: int) -> str:
    refunded.append((order_id, amount))
    return "Refunded."


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


async def refund(run: RunContext) -> None:  # linear, so: keys above the question
    await run.say("Let me check.", key="intro")
    order = await run.once("order", load_order, 7)
    decision = run.interrupt("refund", message=f"Refund {order['total']} €?", response_schema=Decision)  # a Decision
    await run.say(
        await run.once("pay", pay, 7, order["total"]) if decision.approved else "All right, nothing was refunded."
    )


# ---- and what they do ----


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    refunded.clear()
    loaded.clear()


async def test_refund():
    r = await run(refund, "refund 7")
    assert r.outcome == "interrupt"
    assert r.interrupts["refund"].message == "Refund 40 €?"
    r = checked(await r.resume({"refund": {"approved": True}}))
    assert r.said == ["Let me check.", "Refunded."]
    assert (loaded, refunded) == ([7], [(7, 40)])


async def test_refund_refused():
    r = await run(refund, "refund 7")
    r = checked(await r.resume({"refund": {"approved": False}}))
    assert r.said == ["Let me check.", "All right, nothing was refunded."]
    assert refunded == []


def contents(asked: Any) -> list[Any]:
    """What the model was shown last, short."""
    messages, _ = asked
    return [
        (m["role"], m.get("content") or [call["function"]["name"] for call in m.get("tool_calls", ())])
        for m in messages
    ]


async def test_support():
    llm = Model(
        [chunk({"reasoning_content": "An order."}), *calls("find_order", ['{"order_id"', ": 7}"], id="c1")],
        calls("refund_order", ['{"order_id": 7, "amount": 40}'], id="c2"),
        calls("pick_color", ["{}"], id="c3"),
        texts(["All ", "done."]),
    )
    agent = partial(support, llm=llm)
    first = await run(agent, "my order 7 is broken", tools=["pick_color"])
    assert first.outcome == "interrupt"
    [(key, asked)] = first.interrupts.items()
    assert (asked.message, asked.tool_call_id) == ("Refund 40 € for order 7?", "c2")
    assert [tool["function"]["name"] for tool in llm.asked[0][1]] == ["find_order", "refund_order", "pick_color"]
    assert refunded == []
    edited = {"order_id": 7, "amount": 30}
    second = checked(await first.resume({key: {"approved": True, "editedArgs": edited}}))
    # the model was told, and called the page: that ends this run
    assert refunded == [(7, 30)]
    assert second.outcome == "success"
    assert second.pending == {"c3": "pick_color"}
    assert not any(event["type"] == "TOOL_CALL_START" and event["toolCallId"] != "c3" for event in second.events)
    third = checked(await second.answer_frontend({"pick_color": "red"}))
    assert third.said == ["All done."]
    assert contents(llm.asked[-1]) == [
        ("user", "my order 7 is broken"),
        ("assistant", ["find_order"]), ("tool", '{"id":7,"total":40,"status":"paid"}'),
        ("assistant", ["refund_order"]), ("tool", "refunded 30 €"),
        ("assistant", ["pick_color"]), ("tool", "red"),
    ]  # fmt: skip
    assert len(llm.asked) == 4
    assert refunded == [(7, 30)]


async def test_support_declined():
    llm = Model(calls("refund_order", ['{"order_id": 7, "amount": 40}'], id="c1"), texts(["Sorry."]))
    first = await run(partial(support, llm=llm), "refund, please")
    [key] = first.interrupts
    second = checked(await first.resume({key: {"approved": False, "reason": "too late"}}))
    assert second.said == ["Sorry."]
    assert contents(llm.asked[-1])[-1] == ("tool", "Not approved: too late")
    assert refunded == []


async def test_support_with_a_correction():
    """A search, an approval with a correction, and the words after it; the model sees every step in order."""
    llm = Model(
        [chunk({"reasoning_content": "First the order."}), *calls("find_order", ['{"order', '_id": 7}'], id="c1")],
        calls("refund_order", ['{"order_id": 7, "amount": 400}'], id="c2"),
        texts(["Refunded ", "40 €."]),
    )
    first = await run(partial(support, llm=llm), "refund 7", tools=["pick_color"])
    assert first.outcome == "interrupt"
    [question] = first.interrupts.values()
    assert question.message == "Refund 400 € for order 7?"
    assert refunded == []
    key = next(iter(first.interrupts))
    second = checked(await first.resume({key: {"approved": True, "editedArgs": {"order_id": 7, "amount": 40}}}))
    assert second.outcome == "success"
    assert second.said == ["Refunded 40 €."]
    assert refunded == [(7, 40)]
    messages, tools = llm.asked[-1]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant", "tool"]
    assert [messages[2]["tool_call_id"], messages[4]["tool_call_id"]] == ["c1", "c2"]
    assert [tool["function"]["name"] for tool in tools] == ["find_order", "refund_order", "pick_color"]
    assert tools[0]["function"]["parameters"]["properties"] == {"order_id": {"type": "integer"}}


async def test_support_waits_for_the_page_first():
    """Two calls in one answer: the page's ends the run, and the approval is asked for when the page has answered."""
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
    assert refunded == []
    assert [m["role"] for m in llm.asked[-1][0]] == ["user", "assistant", "tool", "tool"]
