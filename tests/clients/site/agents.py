"""Agents that the stories need beside the demo site's: front-end calls, questions, everything written by blocks."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

from agui_django import RunContext, agent
from project.script import play

#: What runs of `gated` wait for, by thread.
_gates: dict[str, asyncio.Event] = defaultdict(asyncio.Event)


@agent("paint")
async def paint(run: RunContext) -> None:
    """Asks the page for a color and a size in one run, and paints in the next."""
    color = run.call_frontend_tool("pick_color", {"choices": ["red", "blue"]})
    size = run.call_frontend_tool("pick_size")
    await run.say(f"Painting it {color.answer()}, {size.answer(int)}.")


@agent("measure")
async def measure(run: RunContext) -> None:
    """Says how large the conversation's first file is, and its digest."""
    parts = [part for message in run.messages if isinstance(message.content, list) for part in message.content]
    data = await run.attachment(next(part for part in parts if part.type == "image"))
    await run.say(f"{len(data)} {hashlib.sha256(data).hexdigest()}")


@agent("trip")
async def trip(run: RunContext) -> None:
    """Asks two questions that one resume answers."""
    await run.say("Planning.", key="intro")
    hotel = run.ask("hotel", message="Which hotel?", response_schema={"enum": ["Ritz", "Ibis"]})
    breakfast = run.ask("breakfast", message="And breakfast?", response_schema={"enum": ["Ritz", "Ibis"]})
    await run.say(f"Booked {hotel.answer()}, breakfast at {breakfast.answer()}.")


@agent("blocks")
async def blocks(run: RunContext) -> dict[str, Any]:
    """Reasoning, text and a call in one message block, a step, the state, and a result."""
    async with run.step("answer"), run.message() as message:
        await message.reasoning("Let me ")
        await message.reasoning("think.")
        await message.write("It is ")
        await message.write("fine.")
    call = run.tool_call("find_order", {"order_id": 7})
    await call.result({"status": "sent"})
    run.state["order"] = {"id": 7, "items": []}
    run.state["order"]["items"].append("kettle")
    await run.say("The kettle is on its way.")
    return {"orders": 1}


@agent("gated")
async def gated(run: RunContext) -> AsyncIterator[dict[str, Any]]:
    """Plays a script of two parts; before the second it waits for a run of `release` that names its thread."""
    ids = {"thread_id": run.input.thread_id, "run_id": run.input.run_id}
    first, second = json.loads(run.text)
    async for event in play(json.dumps(first), **ids):
        yield event
    await _gates[run.input.thread_id].wait()
    async for event in play(json.dumps(second), **ids):
        yield event


@agent("release")
async def release(run: RunContext) -> None:
    """Lets the run of the named thread go on."""
    _gates[run.text].set()


@agent("archive_desk")
async def desk(run: RunContext) -> None:
    """Delegates to somebody who has a question."""
    async with run.subagent("researcher", description="looks things up", text="the year", key="r") as sub:
        await sub.say(f"Looking up {sub.text}.", key="looking")
        await sub.say(f"Found it in {sub.interrupt('year', message='Which year?', response_schema=int)}.")
    await run.say("The researcher is done.")


@agent("team")
async def team(run: RunContext) -> None:
    """Subagents at once, one inside of another, one that executes a call and one that fails; a predicted document."""
    run.predict_state("document", tool="write_document", argument="text", every=0)

    async def work(name: str) -> None:
        async with run.subagent(name, text=f"task of {name}", key=name) as sub, sub.step(f"work of {name}"):
            progress = sub.activity("progress", {"done": 0, "of": name}, key="progress")
            async with sub.message() as message:
                await message.reasoning(f"I am {name}.")
                for number in range(5):
                    await message.write(f"{name}{number} ")
                    progress["done"] = number
                    await asyncio.sleep(0)
                await message.tool_call_delta(0, name="write_document", args='{"text": "')
                for piece in ("by ", name, '"}'):
                    await message.tool_call_delta(0, args=piece)
                    await asyncio.sleep(0)
            await message.tool_calls[0].result("written")
            sub.state["last"] = name
            async with sub.subagent("checker", key="check") as inner:
                await inner.say(f"{name} is checked.")

    async with asyncio.TaskGroup() as group:
        for name in ("a", "b", "c"):
            group.create_task(work(name))
    call = run.tool_call("ask_expert", {"about": "tea"})
    async with call, run.subagent("expert", text="tea", call=call) as sub:
        await sub.say("Four minutes.")
        await call.result("Four minutes.")
    try:
        async with run.subagent("clumsy") as sub, sub.message() as message:
            await message.write("Oh")
            raise ValueError("secret")
    except ValueError:
        await run.say("It goes on.")
