"""The samples of the documentation that need nothing but this part, as printed there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from ag_ui.core import CustomEvent, TextMessageContentEvent, TextMessageEndEvent, TextMessageStartEvent
from typing_extensions import TypedDict

from agui_django import AgentError, Event, RunContext, SyncRunContext, agent, get_agent
from tests.running import bodies, checked, run

pytestmark = pytest.mark.asyncio


class Order:
    """Stands for a model of a shop."""

    class objects:
        @staticmethod
        def get(pk: int) -> Any:
            return type("Row", (), {"pk": pk, "total": 40})()


class Item(TypedDict):
    title: str
    done: bool


class PlanState(TypedDict):
    items: list[Item]
    progress: int


async def work(title: str) -> None:
    await asyncio.sleep(0)


async def pages() -> AsyncIterator[int]:
    for n in (1, 2, 3):
        await asyncio.sleep(0)
        yield n


closed: list[str] = []


async def close_browser() -> None:
    await asyncio.sleep(0)
    closed.append("closed")


def find_order(order_id: int) -> dict[str, Any] | None:
    return {"id": 7, "status": "on its way"} if order_id == 7 else None


@agent("sample-echo")
async def echo(run: RunContext) -> None:
    await run.say(f"You said: {run.text}")


async def greet(run: RunContext) -> AsyncIterator[Event]:  # official events, blocks and text mixed
    yield TextMessageStartEvent(message_id="m1")
    yield TextMessageContentEvent(message_id="m1", delta="good morning")
    yield TextMessageEndEvent(message_id="m1")
    async with run.step("mixed"):
        yield CustomEvent(name="mood", value="sunny")
    yield "and good night"


def report(run: SyncRunContext) -> Iterator[Event]:  # sync generator, sync ORM
    with run.step("load"):
        order = Order.objects.get(pk=7)
    yield f"Order {order.pk}: {order.total} €"


async def lookup(run: RunContext) -> None:  # back-end tool; an error the user may read
    order = await run.tool_call("find_order", {"order_id": 7}).run(find_order)
    if order is None:
        raise AgentError("There is no order 7.", code="no_order")
    await run.say(f"It is {order['status']}.")


async def paint(run: RunContext) -> None:  # two front-end calls, answered in the next run
    color = run.call_frontend_tool("pick_color", {"choices": ["red", "blue"]})
    size = run.call_frontend_tool("pick_size")
    await run.say(f"Painting it {color.answer()}, {size.answer(int)}.")


async def plan(run: RunContext[PlanState]) -> None:  # shared state, edited from both sides
    for title in ("boil", "steep", "pour"):
        run.state["items"].append({"title": title, "done": False})
    for item in run.state["items"]:
        await work(item["title"])  # staff may remove items meanwhile
        with run.edit_state() as state:
            item["done"] = True
            state["progress"] = sum(i["done"] for i in state["items"])


async def crawl(run: RunContext) -> dict[str, int]:  # activity, step, clean-up, usage, result
    progress = run.activity("progress", {"done": 0, "of": 3})
    try:
        async with run.step("crawl"):
            async for n in pages():
                progress["done"] = n
    finally:
        await close_browser()  # also on cancel and timeout; run.cancelled says which
    run.usage(model="m", input_tokens=3, output_tokens=4)
    return {"pages": 3}


async def trip(run: RunContext) -> None:  # two questions, one resume
    hotel = run.ask("hotel", message="Which hotel?", response_schema={"enum": ["Ritz", "Ibis"]})
    seat = run.ask("seat", message="Which seat?", response_schema=str)
    await run.say(f"Booked {hotel.answer()}, seat {seat.answer()}.")


async def research(run: RunContext) -> None:
    await run.say(f"Looking up {run.text}.", key="looking")
    await run.say(f"Found it in {run.interrupt('year', message='Which year?', response_schema=int)}.")


# ---- and what they do ----


async def test_echo():
    assert get_agent("sample-echo").target is echo
    result = await run("sample-echo", "hi")
    assert result.said == ["You said: hi"]


async def test_greet():
    assert bodies(await run(greet)) == [
        ("TEXT_MESSAGE_START",), ("TEXT_MESSAGE_CONTENT", "good morning"), ("TEXT_MESSAGE_END",),
        ("STEP_STARTED", "mixed"), ("CUSTOM", "sunny"), ("STEP_FINISHED", "mixed"),
        ("TEXT_MESSAGE_START",), ("TEXT_MESSAGE_CONTENT", "and good night"), ("TEXT_MESSAGE_END",),
    ]  # fmt: skip


async def test_report():
    result = await run(report)
    assert result.types[1:3] == ["STEP_STARTED", "STEP_FINISHED"]
    assert result.said == ["Order 7: 40 €"]


async def test_lookup(monkeypatch: pytest.MonkeyPatch):
    result = await run(lookup)
    assert [body for body in bodies(result) if body[0].startswith("TOOL")] == [
        ("TOOL_CALL_START", "find_order"), ("TOOL_CALL_ARGS", '{"order_id":7}'), ("TOOL_CALL_END",),
        ("TOOL_CALL_RESULT", '{"id":7,"status":"on its way"}'),
    ]  # fmt: skip
    assert result.said == ["It is on its way."]

    def nothing(order_id: int) -> None: ...

    monkeypatch.setitem(globals(), "find_order", nothing)
    missing = await run(lookup)
    assert missing.error == {
        "type": "RUN_ERROR", "message": "There is no order 7.", "code": "no_order",
        "timestamp": missing.terminal["timestamp"],
    }  # fmt: skip


async def test_paint():
    first = await run(paint, tools=["pick_color", "pick_size"])
    assert first.outcome == "success"
    second = checked(await first.answer_frontend({"pick_color": "red", "pick_size": 4}))
    assert second.said == ["Painting it red, 4."]


async def test_plan():
    result = await run(plan, state={"items": [], "progress": 0})
    items = [{"title": title, "done": True} for title in ("boil", "steep", "pour")]
    assert result.state == {"items": items, "progress": 3}
    assert result.types.count("STATE_DELTA") + result.types.count("STATE_SNAPSHOT") == 4


async def test_crawl():
    closed.clear()
    result = await run(crawl)
    assert result.result == {"pages": 3}
    assert result.usage == [{"model": "m", "inputTokens": 3, "outputTokens": 4, "totalTokens": 7}]
    assert result.closing.messages[0]["content"] == {"done": 3, "of": 3}
    assert closed == ["closed"]


@pytest.mark.parametrize("how", [{"cancel_after": 0.0}, {"timeout": 0.0}])
async def test_crawl_cleans_up(how: dict[str, float], monkeypatch: pytest.MonkeyPatch):
    closed.clear()
    began = asyncio.Event()

    async def endless() -> AsyncIterator[int]:
        began.set()
        await asyncio.Event().wait()
        yield 0

    monkeypatch.setitem(globals(), "pages", endless)
    how = dict.fromkeys(how, 0.05)
    result = await run(crawl, **how)
    assert began.is_set()
    assert result.outcome in ("cancelled", "error")
    assert closed == ["closed"]
    assert result.types[-2] == "STEP_FINISHED"


async def test_trip():
    first = await run(trip)
    assert {key: question.message for key, question in first.interrupts.items()} == {
        "hotel": "Which hotel?", "seat": "Which seat?"
    }  # fmt: skip
    second = checked(await first.resume({"hotel": "Ritz", "seat": "12a"}))
    assert second.said == ["Booked Ritz, seat 12a."]


async def test_research():
    first = await run(research, "the year")
    assert first.said == ["Looking up the year."]
    second = checked(await first.resume({"year": 1969}))
    assert second.said == ["Looking up the year.", "Found it in 1969."]
