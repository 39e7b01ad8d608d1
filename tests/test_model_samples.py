"""The samples of the documentation that talk to a model or delegate, as printed there."""

from __future__ import annotations

from functools import partial

import pytest

from agui_django import RunContext
from agui_django.agents.openai_chat import feed, to_messages
from tests.agents.completions import Model, calls
from tests.running import checked, run

pytestmark = pytest.mark.asyncio

LLM = Model
default_llm = Model()


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
