"""Subagents and predictions in stored runs: who joins in the middle, clients from before 1.0, edits by staff."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from agui_django.models import Interrupt, Message, Run, RunEvents, Thread
from agui_django.protocol.consumer import Consumer
from agui_django.runs import recorder, supervisor
from agui_django.runs.answering import aanswer
from agui_django.runs.database import get_pool
from agui_django.runs.editing import aedit_state
from agui_django.runs.engine import get_engine
from agui_django.runs.feed import Feed, follow_thread
from agui_django.runs.start import astart_run
from agui_django.testing import override_agent

pytestmark = pytest.mark.asyncio

Wire = dict[str, Any]


@pytest.fixture(autouse=True)
def runtime(agui_runtime: None) -> None: ...


class Stage:
    """Where an agent waits for the test."""

    def __init__(self) -> None:
        self.entered, self.go = asyncio.Event(), asyncio.Event()

    async def pause(self, run: Any) -> None:
        await run.flush()
        self.entered.set()
        async with asyncio.timeout(60):
            await self.go.wait()
        self.go.clear()

    async def reached(self) -> None:
        async with asyncio.timeout(60):
            await self.entered.wait()
        self.entered.clear()


async def everything(feed: Feed) -> list[Wire]:
    async with asyncio.timeout(60):
        return [json.loads(line) async for batch in feed for _, line, _ in batch]


async def stored(run: Run) -> tuple[list[Wire], Any, list[Wire]]:
    def read() -> tuple[list[Wire], Any, list[Wire]]:
        messages = Message.objects.filter(thread=run.thread_id).in_play().values_list("wire", flat=True)
        rows = RunEvents.objects.filter(run=run).order_by("first_seq").values_list("text", flat=True)
        events = [json.loads(line) for text in rows for line in text.split("\n")]
        return [json.loads(wire) for wire in messages], json.loads(Thread.objects.get(pk=run.thread_id).state), events

    assert await get_engine().ended(run.pk, 60)
    await supervisor.settle()
    return await get_pool().run(read)


async def test_joining_in_the_middle_of_subagents() -> None:
    stage = Stage()

    async def agent(run: Any) -> None:
        async with run.message(id="own") as own:
            await own.write("I wait.")
            async with run.subagent("outer", key="o") as outer, outer.subagent("inner", key="i") as inner:
                async with inner.step("look"), inner.message(id="m") as m:
                    await m.write("half ")
                    await m.tool_call_delta(0, id="c", name="f", args="{")
                    await stage.pause(run)
                    await m.write("whole")
                    await m.tool_call_delta(0, args="}")
                await m.tool_calls[0].result("done")
                await outer.say("I am done.")
            await own.write(" Good.")

    with override_agent("delegating", agent):
        run = await astart_run("delegating", "t", "hi", scope="s", wait=False)
        early = follow_thread(run.thread_id, until_idle=True)
        first = [json.loads(line) for _, line, _ in await anext(early)]
        await stage.reached()
        late = follow_thread(run.thread_id, until_idle=True)
        begun = [json.loads(line) for _, line, _ in await anext(late)]
        old = follow_thread(run.thread_id, legacy=True, until_idle=True)
        begun_old = [json.loads(line) for _, line, _ in await anext(old)]
        stage.go.set()
        seen = [first + await everything(early), begun + await everything(late), begun_old + await everything(old)]
    messages, state, events = await stored(run)
    owners = [message.get("subagentRunId", "").rpartition("/")[2].rpartition(":")[2] for message in messages]
    assert owners == ["", "", "i", "i", "o"]
    for told in seen[:2]:
        client = Consumer()
        for event in told:
            client.feed(event)
        client.end()
        assert (client.messages, client.state, client.warnings) == (messages, state, [])
    # Whoever joined was told of both subagents, in their order, before what is open in them.
    assert [event["name"] for event in seen[1] if event["type"] == "SUBAGENT_STARTED"] == ["outer", "inner"]
    assert "subagentRunId" not in json.dumps(seen[2])
    assert not any(event["type"].startswith(("SUBAGENT", "STEP")) for event in seen[2])
    client = Consumer()
    for event in seen[2]:
        client.feed(event)
    assert client.messages == [
        {name: value for name, value in message.items() if name != "subagentRunId"} for message in messages
    ]
    assert all("subagentRunId" in event for event in events if event.get("messageId") == "m")


async def test_a_subagents_question_is_stored_with_its_key_and_lane() -> None:
    async def agent(run: Any) -> None:
        async with run.subagent("asks", key="a") as sub:
            await sub.say(f"It is {sub.interrupt('q', response_schema=int)}.")

    with override_agent("delegating", agent):
        run = await astart_run("delegating", "t", "hi", scope="s", wait=True)
        await stored(run)
        question = await get_pool().run(Interrupt.objects.get, run=run)
        assert question.key == "a/q"
        assert json.loads(question.wire)["subagentRunId"] == question.interrupt_id.removesuffix("/q")
        answered = await aanswer(question, user=None, status="resolved", payload=7)
        again = await get_pool().run(Run.objects.get, pk=answered.run)
        messages, _, events = await stored(again)
    assert messages[-1]["content"] == "It is 7."
    started = next(event for event in events if event["type"] == "SUBAGENT_STARTED")
    assert started["subagentRunId"] == messages[-1]["subagentRunId"] == question.interrupt_id.removesuffix("/q")


async def test_staff_edit_what_is_predicted() -> None:
    """The next piece writes over it; where the arguments are never complete it is what remains."""
    stage = Stage()

    async def agent(run: Any) -> None:
        run.predict_state("document", tool="write", argument="text", every=0)
        async with run.message() as m:
            await m.tool_call_delta(0, name="write", args='{"text": "one')
            await stage.pause(run)
            await m.tool_call_delta(0, args=" two")
            await stage.pause(run)

    with override_agent("predicting", agent):
        run = await astart_run("predicting", "t", "hi", scope="s", state={"document": "old", "n": 1}, wait=False)
        follower = follow_thread(run.thread_id, until_idle=True)
        first = [json.loads(line) for _, line, _ in await anext(follower)]
        await stage.reached()
        await aedit_state(run.thread, user=None, patch=None, merge={"document": "staff", "n": 2}, if_version=None)
        await until(run, lambda state: state == {"document": "staff", "n": 2})
        stage.go.set()
        await stage.reached()
        await until(run, lambda state: state == {"document": "one two", "n": 2})
        stage.go.set()
        told = first + await everything(follower)
    _, state, _ = await stored(run)
    assert state == {"document": "staff", "n": 2}
    client = Consumer()
    for event in told:
        client.feed(event)
    assert (client.state, client.warnings) == (state, [])


async def until(run: Run, condition: Any) -> None:
    async with asyncio.timeout(60):
        while True:
            here = recorder.get(run.pk)
            assert here is not None
            present = await here.present()
            if present is not None and condition(present.state):
                return
            await asyncio.sleep(0.01)
