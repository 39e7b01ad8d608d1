"""The demo's agents: scripted, no key needed. Each shows one thing that an agent can do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, TypedDict

from django.conf import settings

from agui_django import Declined, Event, RunContext, SyncRunContext, agent, approval_required
from project import script

LOAD = re.compile(r"\b(tokens|delay_ms|size):(\d+)")
FILLER = "streaming is text that arrives while it is written, "


class Item(TypedDict):
    """One line of the plan."""

    title: str
    hours: int
    done: bool


class PlanState(TypedDict):
    """What the page and the agent share."""

    goal: str
    items: list[Item]
    progress: int


@agent("echo", title="Echo", description="Repeats what you say. Try: tokens:200 delay_ms:20 size:24")
async def echo(run: RunContext) -> None:
    """Say it again, or stream as many deltas as the message asks for."""
    load = {name: int(value) for name, value in LOAD.findall(run.text)}
    if "tokens" not in load:
        await run.say(f"You said: {run.text}")
        return
    size, delay = max(load.get("size", 24), 1), load.get("delay_ms", 0) / 1000
    text = FILLER * (size // len(FILLER) + 2)
    started = asyncio.get_running_loop().time()
    async with run.message() as message:
        for number in range(load["tokens"]):
            at = number * size % len(FILLER)
            await message.write(text[at : at + size])
            # On a schedule, as a model streams: a slow step does not push back all later ones.
            await asyncio.sleep(max(started + (number + 1) * delay - asyncio.get_running_loop().time(), 0))


def estimate(task: str) -> dict[str, Any]:
    """The back-end tool: hours for a task, from a very simple theory of work."""
    return {"task": task, "hours": 1 + len(task) % 5}


@agent("plan", title="Planner", description="Thinks, estimates with a tool, and works on a plan that you see change.")
async def plan(run: RunContext[PlanState], *, pause: float = 0.15) -> dict[str, int]:
    """Fill the shared state step by step."""
    goal = run.text.strip() or "A quiet afternoon"
    async with run.message() as message:
        for word in f"The goal is {goal!r}. Three tasks will do: prepare, do it, tidy up.".split(" "):
            await message.reasoning(word + " ")
            await asyncio.sleep(pause / 10)
        await message.write(f"Here is a plan for **{goal}**.")
    run.state = {"goal": goal, "items": [], "progress": 0}
    async with run.step("estimate"):
        for title in ("Prepare", "Do it", "Tidy up"):
            found = await run.tool_call("estimate", {"task": title}).run(estimate)
            run.state["items"].append({"title": title, "hours": found["hours"], "done": False})
            await asyncio.sleep(pause)
    async with run.step("work"):
        for item in run.state["items"]:
            await asyncio.sleep(pause * 2)
            with run.edit_state() as state:
                item["done"] = True
                state["progress"] = round(100 * sum(each["done"] for each in state["items"]) / len(state["items"]))
    hours = sum(item["hours"] for item in run.state["items"])
    await run.say(f"All done: {hours} hours in {len(run.state['items'])} tasks.")
    run.usage(model="demo", input_tokens=len(goal), output_tokens=42)
    return {"hours": hours}


REFUND = {
    "type": "object",
    "title": "Refund",
    "required": ["approved"],
    "properties": {
        "approved": {"type": "boolean", "title": "Approve the refund"},
        "amount": {"type": "number", "title": "Amount in €", "minimum": 0, "maximum": 40, "default": 40},
        "reason": {"type": "string", "title": "Reason", "enum": ["damaged", "late", "goodwill"], "default": "damaged"},
        "note": {"type": "string", "title": "Note to the customer", "maxLength": 200},
    },
    "additionalProperties": False,
}


def find_order(order_id: int) -> dict[str, Any]:
    """The shop's only order."""
    return {"order_id": order_id, "total": 40, "item": "Blue teapot"}


@agent("refund", title="Refund desk", description="Looks an order up and asks for approval before it refunds.")
async def refund(run: RunContext) -> None:
    """Ask, end, and go on from the top when the answer is there: what stands above the question has a key."""
    await run.say("Let me look at that order.", key="intro")
    order = await run.tool_call("find_order", {"order_id": 7}, key="order").run(find_order)
    question = f"Refund {order['total']} € for order {order['order_id']} ({order['item']})?"
    try:
        answer = run.interrupt("refund", message=question, response_schema=REFUND)
    except Declined:
        await run.say("All right, nothing was refunded.")
        return
    if not answer["approved"]:
        await run.say("All right, nothing was refunded.")
        return
    await run.say(f"Refunded {answer.get('amount', order['total']):g} € ({answer.get('reason', 'no reason given')}).")


@approval_required("Order {item}, {quantity} of it?", edit=True, expires=timedelta(days=1))
def place_order(run: SyncRunContext[Any], item: str, quantity: int) -> dict[str, Any]:
    """The tool that acts: what it orders is in the shared state, so that a second execution would be seen."""
    placed = run.state.setdefault("orders", [])
    placed.append({"number": len(placed) + 1, "item": item, "quantity": quantity})
    return {"number": len(placed)}


@agent("orders", title="Order desk", description="Orders what you name, once you approve it: you, and just once.")
async def orders(run: RunContext) -> None:
    """Call a tool that a person has to allow; `call.run` asks, and carries out what was approved."""
    await run.say("I can order that for you.", key="intro")
    call = run.tool_call("place_order", {"item": run.text.strip() or "Blue teapot", "quantity": 1}, key="order")
    try:
        placed = await call.run(place_order)
    except Declined as declined:
        await run.say(f"Nothing was ordered. {declined}")
        return
    await run.say(f"Placed as order {placed['number']}.")


@agent("slow", title="Slow writer", description="Takes its time: stop it, or reload the page in the middle.")
async def slow(run: RunContext, *, pause: float = 0.4, lines: int = 60) -> None:
    """Write a line every now and then; clean up when it is stopped."""
    try:
        async with run.message() as message:
            for number in range(1, lines + 1):
                await message.write(f"Line {number} of {lines}.\n")
                await asyncio.sleep(pause)
    finally:
        if run.cancelled:
            run.log.info("stopped: %s", run.cancelled)


if settings.DEMO:
    from project import showcase  # noqa: F401 - registers the agents of the CopilotKit example

    @agent("script", title="Script", description="Yields the JSON list of events that you send. DEBUG only.")
    async def scripted(run: RunContext) -> AsyncIterator[Event]:
        """Yield the events of the last user message."""
        async for event in script.play(run.text, thread_id=run.input.thread_id, run_id=run.input.run_id):
            yield event
