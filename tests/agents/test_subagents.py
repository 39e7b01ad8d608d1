"""Subagents: their lane, their task, their keys and questions, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from ag_ui.core import TextMessageChunkEvent, TextMessageContentEvent, TextMessageEndEvent, TextMessageStartEvent

from agui_django import AgentError, Declined, Event, RunContext, RunSuspended, SyncRunContext, approval_required
from agui_django.agents.openai_chat import to_messages
from tests.running import checked, run

pytestmark = pytest.mark.asyncio


def lanes(result: Any) -> list[tuple[str, str | None]]:
    """The agent's events: type and lane, with the turn's name left out."""
    turn = f"{result.setup.turn}:"
    return [
        (event["type"], event.get("subagentRunId", "-").replace(turn, ""))
        for event in result.events[1:-1]
    ]  # fmt: skip


def ends(result: Any) -> list[tuple[str, str, Any]]:
    """How subagents ended: type, lane, and what is told."""
    turn = f"{result.setup.turn}:"
    return [
        (event["type"], event["subagentRunId"].replace(turn, ""), event.get("outcome", event.get("message")))
        for event in result.events
        if event["type"] in ("SUBAGENT_FINISHED", "SUBAGENT_ERROR")
    ]


# ---- the lane --------------------------------------------------------------------------------------------------------


async def test_everything_in_it_carries_its_lane():
    async def agent(run: RunContext) -> None:
        await run.say("before")
        async with run.subagent("helper", description="helps", key="h") as sub:
            assert sub.text == "hello"
            async with sub.step("work"):
                async with sub.message() as m:
                    await m.reasoning("hm")
                    await m.reasoning("m")
                    await m.write("one")
                    await m.write(" two")
                    await m.tool_call_delta(0, id="c", name="f", args="{")
                    await m.tool_call_delta(0, args="}")
                    await m.encrypted_value("e")
                await m.tool_calls[0].result("done")
            progress = sub.activity("progress", {"done": 0, "what": "a long text, so that a patch is the shorter way"})
            progress["done"] = 1
            await sub.custom("mood", "fine")
            sub.usage(model="m", input_tokens=1)
            sub.result = {"found": 1}
        await run.say("after")

    result = await run(agent)
    [start] = [e for e in result.events if e["type"] == "SUBAGENT_STARTED"]
    assert start == {
        "type": "SUBAGENT_STARTED", "subagentRunId": f"{result.setup.turn}:h", "name": "helper", "description": "helps",
        "timestamp": start["timestamp"],
    }  # fmt: skip
    assert [kind for kind, lane in lanes(result) if lane == "-"] == [
        "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END",
    ] * 2  # fmt: skip
    assert [kind for kind, lane in lanes(result) if lane == "h"] == [
        "SUBAGENT_STARTED", "STEP_STARTED", "REASONING_START", "REASONING_MESSAGE_START",
        "REASONING_MESSAGE_CONTENT", "REASONING_MESSAGE_CONTENT", "REASONING_MESSAGE_END", "REASONING_END",
        "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_CONTENT", "TOOL_CALL_START",
        "TOOL_CALL_ARGS", "TOOL_CALL_ARGS", "REASONING_ENCRYPTED_VALUE", "TOOL_CALL_END", "TEXT_MESSAGE_END",
        "TOOL_CALL_RESULT", "STEP_FINISHED", "ACTIVITY_SNAPSHOT", "ACTIVITY_DELTA", "CUSTOM", "SUBAGENT_FINISHED",
    ]  # fmt: skip
    assert result.events[-5]["result"] == {"found": 1}
    assert [m.get("subagentRunId") is not None for m in result.wire_messages] == [False, False, *[True] * 4, False]
    assert result.usage == [{"model": "m", "inputTokens": 1}]
    # Clients from before 1.0 are sent other texts than these.
    assert all(("subagentRunId" in event) or event["type"] in _PARENTS for event in result.events)


_PARENTS = {"RUN_STARTED", "RUN_FINISHED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"}


async def test_what_is_emitted_or_yielded_by_others_is_the_subagents():
    """Official models, wire dicts, chunks and text; the run events of an agent that thinks it is alone are absorbed."""

    async def foreign(run: RunContext) -> AsyncIterator[Event]:
        yield {"type": "RUN_STARTED", "threadId": "theirs", "runId": "theirs"}
        yield TextMessageStartEvent(message_id="m1")
        yield TextMessageContentEvent(message_id="m1", delta="official")
        yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m1", "delta": " and plain"}
        yield TextMessageEndEvent(message_id="m1")
        yield "implicit "
        yield "text"
        yield TextMessageChunkEvent(message_id="m2", delta="chunk")
        yield {"type": "SUBAGENT_STARTED", "subagentRunId": "inner", "name": "inner"}
        yield {"type": "STEP_STARTED", "stepName": "s", "subagentRunId": "inner"}
        yield {"type": "STEP_FINISHED", "stepName": "s", "subagentRunId": "inner"}
        yield {"type": "SUBAGENT_FINISHED", "subagentRunId": "inner"}
        yield {
            "type": "RUN_FINISHED", "threadId": "theirs", "runId": "theirs", "result": 7,
            "usage": [{"model": "m", "outputTokens": 2}],
        }  # fmt: skip

    async def agent(run: RunContext) -> str:
        async with run.subagent("other", key="o") as sub:
            async for event in foreign(sub):
                await sub.emit(event)
        return "ours"

    result = await run(agent)
    assert result.said == ["official and plain", "implicit text", "chunk"]
    assert {lane for kind, lane in lanes(result) if "inner" not in lane} == {"o"}
    assert [e.get("parentSubagentRunId", "").split(":")[-1] for e in result.events if e["type"] == "SUBAGENT_STARTED"] \
        == ["", "o"]  # fmt: skip
    assert result.events[-2]["result"] == 7
    assert result.result == "ours"
    assert result.usage == [{"model": "m", "outputTokens": 2}]


async def test_an_error_of_an_agent_that_thinks_it_is_alone():
    async def agent(run: RunContext) -> None:
        async with run.subagent("other", key="o") as sub:
            await sub.emit({"type": "RUN_ERROR", "message": "secret", "code": "x"})

    result = await run(agent)
    assert result.outcome == "success"
    assert ends(result) == [("SUBAGENT_ERROR", "o", "The subagent failed.")]
    assert "secret" not in str(result.wire)


async def test_a_question_of_an_agent_that_thinks_it_is_alone():
    async def agent(run: RunContext) -> None:
        async with run.subagent("other", key="o") as sub:
            if sub.answers:
                await sub.say(sub.answers["native"].value)
                return
            outcome = {"type": "interrupt", "interrupts": [{"id": "native", "reason": "input_required"}]}
            await sub.emit({"type": "RUN_FINISHED", "threadId": "x", "runId": "y", "outcome": outcome, "result": None})

    first = await run(agent)
    assert list(first.interrupts) == ["o/native"]
    assert ends(first) == [("SUBAGENT_FINISHED", "o", {"type": "suspended", "interruptIds": ["native"]})]
    assert (await first.resume({"o/native": "yes"})).said == ["yes"]


async def test_malformed_run_events_of_others_are_refused():
    async def agent(run: RunContext) -> None:
        async with run.subagent("other") as sub:
            await sub.emit({"type": "RUN_FINISHED", "threadId": "x", "runId": "y", "outcome": {"type": "interrupt"}})

    result = await run(agent)
    assert result.error is not None and result.error["code"] == "agent_protocol_error"


async def test_concurrent_subagents_keep_to_their_lanes():
    async def work(run: RunContext, name: str) -> None:
        async with run.subagent(name, key=name) as sub, sub.message(id=f"m-{name}") as m:
            for n in range(40):
                await m.write(f"{name}{n} ")
                await asyncio.sleep(0)

    async def agent(run: RunContext) -> None:
        async with run.message(id="own") as m, asyncio.TaskGroup() as group:
            await m.write("I wait. ")
            for name in "abc":
                group.create_task(work(run, name))

    result = await run(agent)
    said = {m["id"]: m for m in result.wire_messages}
    for name in "abc":
        assert said[f"m-{name}"]["content"] == "".join(f"{name}{n} " for n in range(40))
        assert said[f"m-{name}"]["subagentRunId"] == f"{result.setup.turn}:{name}"
    deltas = [
        e["subagentRunId"][-1]
        for e in result.events
        if e["type"] == "TEXT_MESSAGE_CONTENT" and "own" not in e["messageId"]
    ]
    assert deltas[:6] == ["a", "b", "c", "a", "b", "c"]
    assert "subagentRunId" not in said["own"]


async def test_nested():
    async def agent(run: RunContext) -> None:
        async with run.subagent("outer", text="big task", key="o") as outer:
            await outer.say("delegating")
            async with outer.subagent("inner", text="small task", key="i") as inner:
                await inner.say(inner.text, key="task")
                assert [m.content for m in inner.messages] == ["small task", "small task"]
            async with outer.subagent("same", key="s") as same:
                assert same.text == "big task"
            assert [m.content for m in outer.messages] == ["big task", "delegating", "small task"]
        assert [m.content for m in run.messages] == ["hello", "delegating", "small task"]

    result = await run(agent)
    starts = [e for e in result.events if e["type"] == "SUBAGENT_STARTED"]
    turn = result.setup.turn
    assert [(e["subagentRunId"], e.get("parentSubagentRunId")) for e in starts] == [
        (f"{turn}:o", None), (f"{turn}:o/{turn}:o/i", f"{turn}:o"), (f"{turn}:o/{turn}:o/s", f"{turn}:o"),
    ]  # fmt: skip
    assert [e["messageId"] for e in result.events if e["type"] == "TEXT_MESSAGE_START"][-1] == f"{turn}:o/i/task"


async def test_state_is_the_runs():
    async def agent(run: RunContext) -> None:
        run.state["n"] = 1
        async with run.subagent("helper") as sub:
            sub.state["n"] += 1
            with sub.edit_state() as state:
                state["n"] += 1
        assert run.state == {"n": 3}

    assert (await run(agent)).state == {"n": 3}


async def test_in_a_thread():
    def agent(run: SyncRunContext) -> None:
        with run.subagent("helper", text="count", key="h") as sub:
            assert isinstance(sub, SyncRunContext)
            with sub.message() as m:
                m.write("one ")
                m.write(sub.text)
            with sub.subagent("inner") as inner:
                inner.say("deep")
            call = run.tool_call("f", {})
            with sub.subagent("tool", call=call) as executing:
                executing.say("executing")
            call.result("x")

    result = await run(agent)
    assert result.said == ["one count", "deep", "executing"]
    assert {lane.split("/")[0] for kind, lane in lanes(result) if kind == "TEXT_MESSAGE_CONTENT"} == {"h"}


async def test_a_block_is_used_once_and_its_context_ends_with_it():
    async def agent(run: RunContext) -> None:
        block = run.subagent("helper")
        async with block as sub:
            pass
        with pytest.raises(RuntimeError, match="has ended"):
            await sub.say("late")
        with pytest.raises(RuntimeError, match="has ended"):
            await sub.emit("late")
        with pytest.raises(RuntimeError, match="has ended"), sub.subagent("later"):
            pass
        with pytest.raises(RuntimeError, match="once"):
            async with block:
                pass

    result = await run(agent)
    assert [kind for kind, _ in lanes(result)] == ["SUBAGENT_STARTED", "SUBAGENT_FINISHED"]


# ---- tied to a call --------------------------------------------------------------------------------------------------


async def test_a_subagent_that_executes_a_call():
    async def agent(run: RunContext) -> None:
        call = run.tool_call("research", {"q": "year"})
        async with call, run.subagent("researcher", text="year", call=call) as sub:
            await sub.say("Thinking.", key="t")
            inner = sub.tool_call("look")
            assert [pending.name for pending in sub.pending_calls] == ["look"]
            assert [pending.name for pending in run.pending_calls] == ["research"]
            await inner.result("1869")
            told = to_messages(sub.messages)
            assert [m["role"] for m in told] == ["user", "assistant", "assistant", "tool"]
            await call.result("It was 1869.")
        assert [m["role"] for m in to_messages(run.messages)] == ["user", "assistant", "tool"]
        with pytest.raises(Exception, match="two subagents"):
            run.subagent("researcher", call=call)
        async with run.subagent("researcher", call=call.id, key="again") as sub:
            pass

    result = await run(agent)
    starts = [e for e in result.events if e["type"] == "SUBAGENT_STARTED"]
    call_id = starts[0]["parentToolCallId"]
    assert [e["subagentRunId"] for e in starts] == [f"{call_id}:researcher", f"{call_id}:again"]
    [thinking] = [e["messageId"] for e in result.events if e["type"] == "TEXT_MESSAGE_START"]
    assert thinking == f"{result.setup.turn}:{call_id}:researcher/t"


async def test_a_call_of_the_page_inside():
    async def agent(run: RunContext) -> None:
        async with run.subagent("painter", key="p") as sub:
            color = sub.call_frontend_tool("pick_color")
            size = sub.call_frontend_tool("pick_size")
            await sub.say(f"{color.answer()} {size.answer(int)}")

    first = await run(agent, tools=["pick_color", "pick_size"])
    assert first.outcome == "success"
    assert len(first.terminal["outcome"]["pendingToolCallIds"]) == 2
    assert ends(first) == [("SUBAGENT_FINISHED", "p", {"type": "suspended"})]
    # Both calls are in one message, which is the subagent's.
    assert [len(m.get("toolCalls", ())) for m in first.wire_messages] == [0, 2]
    second = checked(await first.answer_frontend({"pick_color": "red", "pick_size": "12"}))
    assert second.said == ["red 12"]
    assert ends(second) == [("SUBAGENT_FINISHED", "p", None)]


async def test_the_parents_calls_are_not_settled_by_a_subagent_nor_the_other_way_round():
    def look() -> str:
        return "seen"

    async def agent(run: RunContext) -> None:
        run.tool_call("research")
        async with run.subagent("researcher", key="r") as sub:
            sub.tool_call("look")
            await sub.dispatch_tool_calls(look)
            assert not sub.pending_calls
        assert [call.name for call in run.pending_calls] == ["research"]
        async with run.subagent("sloppy", key="s") as sub:
            sub.tool_call("left")
        await run.dispatch_tool_calls(research=look)

    result = await run(agent)
    answered = [e for e in result.events if e["type"] == "TOOL_CALL_RESULT"]
    assert [("subagentRunId" in e, e["content"]) for e in answered] == [(True, "seen"), (False, "seen")]


# ---- questions, passes -----------------------------------------------------------------------------------------------


async def test_a_question_passes_through_and_the_same_subagent_goes_on():
    seen: list[Any] = []

    async def agent(run: RunContext) -> None:
        async with run.subagent("researcher", text="the year", key="r") as sub:
            await sub.say("Looking.", key="looking")
            note = sub.activity("note", {"n": 0}, key="note")
            year = sub.ask("year", message="Which?", response_schema=int)
            sub.ask("place", response_schema=str)
            seen.append((sub.answer("year"), dict(sub.answers), run.answer("r/year"), list(run.answers)))
            note["n"] = year.answer()
        await run.say("done")

    first = await run(agent)
    assert list(first.interrupts) == ["r/year", "r/place"]
    lane = f"{first.setup.turn}:r"
    assert [wire["subagentRunId"] for wire in first.terminal["outcome"]["interrupts"]] == [lane, lane]
    assert ends(first) == [(
        "SUBAGENT_FINISHED", "r", {"type": "suspended", "interruptIds": [f"{lane}/year", f"{lane}/place"]},
    )]  # fmt: skip
    second = checked(await first.resume({"r/year": 1869, "r/place": "Rome"}))
    assert [kind for kind, _ in lanes(second)] == [
        "SUBAGENT_STARTED", "ACTIVITY_SNAPSHOT", "ACTIVITY_SNAPSHOT", "SUBAGENT_FINISHED",
        "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END",
    ]  # fmt: skip
    assert {lane for _, lane in lanes(second)} == {"r", "-"}
    assert ends(second) == [("SUBAGENT_FINISHED", "r", None)]
    answer, answers, full, names = seen[1]
    assert answer.value == 1869
    assert list(answers) == ["year", "place"]
    assert full.value == 1869
    assert names == ["r/year", "r/place"]


async def test_two_subagents_with_the_same_keys():
    async def ask(run: RunContext) -> str:
        await run.say(f"I am {run.text}.", key="intro")
        return run.interrupt("q", response_schema=str)

    async def agent(run: RunContext) -> list[str]:
        out = []
        for name in ("a", "b"):
            async with run.subagent(name, text=name, key=name) as sub:
                out.append(await ask(sub))
        return out

    first = await run(agent)
    assert list(first.interrupts) == ["a/q"]
    second = checked(await first.resume({"a/q": "x"}))
    assert list(second.interrupts) == ["b/q"]
    third = checked(await second.resume({"b/q": "y"}))
    assert third.result == ["x", "y"]
    assert third.said == ["I am a.", "I am b."]


async def test_a_key_used_twice():
    async def agent(run: RunContext) -> None:
        async with run.subagent("a", key="k"):
            pass
        async with run.subagent("b", key="k"):
            pass

    result = await run(agent)
    assert result.failure is not None and "KeyReused" in result.failure.text


async def test_a_parent_is_suspended_by_what_its_descendant_asks():
    async def agent(run: RunContext) -> None:
        async with run.subagent("outer", key="o") as outer, outer.subagent("inner", key="i") as inner:
            inner.interrupt("q")

    result = await run(agent)
    inner, outer = ends(result)
    assert inner[2]["interruptIds"] == [f"{result.setup.turn}:o/i/q"]
    assert outer == ("SUBAGENT_FINISHED", "o", {"type": "suspended"})
    assert list(result.interrupts) == ["o/i/q"]
    assert (await result.resume({"o/i/q": None})).outcome == "success"


async def test_asked_means_open_where_the_exception_is_swallowed():
    async def agent(run: RunContext) -> None:
        async with run.subagent("a", key="a") as sub:
            try:
                sub.interrupt("q")
            except BaseException:
                await sub.say("never mind")
        async with run.subagent("b", key="b") as sub:
            sub.ask("q")
        async with run.subagent("c", key="c"):
            pass

    result = await run(agent)
    assert [(lane, (told or {}).get("type")) for _, lane, told in ends(result)] == [
        ("a", "suspended"), ("b", "suspended"), ("c", None),
    ]  # fmt: skip
    assert list(result.interrupts) == ["a/q", "b/q"]


async def test_the_first_that_asks_suspends_its_siblings():
    passes: list[str] = []

    async def asks(run: RunContext) -> None:
        async with run.subagent("asks", key="asks") as sub:
            await sub.say(f"Got {sub.interrupt('q', response_schema=str)}.")

    async def works(run: RunContext) -> None:
        async with run.subagent("works", key="works") as sub, sub.message(key="m") as m:
            await m.write("I begin")
            passes.append("works")
            await asyncio.sleep(0.05 if len(passes) > 1 else 10)

    async def agent(run: RunContext) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(works(run))
            await asyncio.sleep(0)
            group.create_task(asks(run))

    first = await run(agent)
    assert first.outcome == "interrupt"
    assert {lane: told["type"] for _, lane, told in ends(first)} == {"works": "suspended", "asks": "suspended"}
    second = checked(await first.resume({"asks/q": "it"}))
    assert second.outcome == "success"
    assert sorted(second.said) == ["Got it.", "I begin"]
    assert [told for *_, told in ends(second)] == [None, None]


async def test_approvals_inside():
    done: list[int] = []

    @approval_required("Pay {amount}?")
    def pay(amount: int) -> str:
        done.append(amount)
        return "paid"

    async def agent(run: RunContext) -> None:
        call = run.tool_call("delegate", key="d")
        async with call, run.subagent("payer", call=call) as sub:
            await sub.dispatch_tool_calls(pay)
            if not sub.pending_calls and len(done) == 0:
                sub.tool_call("pay", {"amount": 7}, key="pay")
                await sub.dispatch_tool_calls(pay)
            await call.result("all paid")

    first = await run(agent)
    assert first.outcome == "interrupt"
    [key] = first.interrupts
    assert key.startswith(f"{first.setup.turn}:d:payer/")
    second = checked(await first.resume({key: {"approved": True}}))
    assert (second.outcome, done) == ("success", [7])


async def test_once_inside():
    counted: list[str] = []

    async def agent(run: RunContext) -> None:
        for name in ("a", "b"):
            async with run.subagent(name, key=name) as sub:
                await sub.once("count", counted.append, name)
        async with run.subagent("c", key="c") as sub:
            sub.interrupt("q")

    first = await run(agent)
    await first.resume({"c/q": None})
    assert counted == ["a", "b"]


# ---- errors, cancel --------------------------------------------------------------------------------------------------


async def test_an_error_ends_the_subagent_and_the_parent_may_go_on():
    async def agent(run: RunContext) -> None:
        for error in (ValueError("secret"), AgentError("also secret"), ExceptionGroup("g", [ValueError("secret")])):
            try:
                async with run.subagent("fails") as sub, sub.step("s"):
                    await sub.emit({"type": "TEXT_MESSAGE_START", "messageId": repr(error), "role": "assistant"})
                    raise error
            except Exception:
                await run.say("I go on.")

    result = await run(agent)
    assert result.outcome == "success"
    assert [(kind, told) for kind, _, told in ends(result)] == [("SUBAGENT_ERROR", "The subagent failed.")] * 3
    assert [kind for kind, _ in lanes(result)][:5] == [
        "SUBAGENT_STARTED", "STEP_STARTED", "TEXT_MESSAGE_START", "STEP_FINISHED", "TEXT_MESSAGE_END",
    ]  # fmt: skip
    assert not any("secret" in text for text in result.wire if "SUBAGENT" in text)
    assert result.said.count("I go on.") == 3


async def test_an_error_that_nobody_handles():
    async def agent(run: RunContext) -> None:
        async with run.subagent("outer", key="o") as outer, outer.subagent("inner", key="i"):
            raise ValueError("secret")

    result = await run(agent)
    assert result.outcome == "error"
    assert [lane.rsplit("/")[-1] for _, lane, _ in ends(result)] == ["i", "o"]
    assert "secret" not in str(result.wire)


async def test_declined():
    async def agent(run: RunContext) -> None:
        async with run.subagent("asks", key="a") as sub:
            sub.interrupt("q")

    first = await run(agent)
    result = checked(await first.resume(cancelled=["a/q"]))
    assert result.outcome == "cancelled"
    assert ends(result) == [("SUBAGENT_ERROR", "a", "The subagent was cancelled.")]

    async def handles(run: RunContext) -> None:
        try:
            await agent(run)
        except Declined:
            await run.say("All right.")

    assert (await (await run(handles)).resume(cancelled=["a/q"])).said == ["All right."]


async def test_cancel_closes_the_lanes_from_the_inside():
    async def agent(run: RunContext) -> None:
        async with run.subagent("outer", key="o") as outer, outer.message() as m:
            await m.write("working")
            async with outer.subagent("inner", key="i") as inner, inner.step("s"):
                await asyncio.sleep(10)

    result = await run(agent, cancel_after=0.05, timeout=20)
    assert result.outcome == "cancelled"
    assert [kind for kind, _ in lanes(result)][-4:] == [
        "STEP_FINISHED", "SUBAGENT_ERROR", "TEXT_MESSAGE_END", "SUBAGENT_ERROR",
    ]  # fmt: skip
    assert {told for *_, told in ends(result)} == {"The subagent was cancelled."}


async def test_a_time_limit_of_the_agents_own():
    async def agent(run: RunContext) -> None:
        try:
            async with asyncio.timeout(0.02), run.subagent("slow", key="s"):
                await asyncio.sleep(10)
        except TimeoutError:
            await run.say("Too slow.")

    result = await run(agent)
    assert result.said == ["Too slow."]
    assert ends(result) == [("SUBAGENT_ERROR", "s", "The subagent was cancelled.")]


async def test_what_an_agent_left_open_that_does_not_end():
    """The engine closes it: a task that swallows every cancel is left behind."""

    async def agent(run: RunContext) -> None:
        async with run.subagent("deaf", key="d"):
            for _ in range(200):
                try:
                    await asyncio.sleep(0.1)
                except asyncio.CancelledError:
                    continue
                if run.cancelled is not None and _gone.is_set():
                    return

    _gone = asyncio.Event()
    result = await run(agent, cancel_after=0.02, timeout=20)
    _gone.set()
    assert result.outcome == "cancelled"
    assert ends(result) == [("SUBAGENT_ERROR", "d", "The subagent was cancelled.")]
    await asyncio.sleep(0.25)


async def test_a_result_that_is_not_json():
    async def agent(run: RunContext) -> None:
        async with run.subagent("odd", key="o") as sub:
            sub.result = object()

    result = await run(agent)
    assert result.outcome == "error"
    assert ends(result) == [("SUBAGENT_ERROR", "o", "The subagent failed.")]


async def test_an_event_of_somebody_elses_lane_is_refused_at_its_line():
    async def agent(run: RunContext) -> None:
        async with run.message(id="m") as m:
            await m.write("mine")
            async with run.subagent("thief", key="t") as sub:
                await sub.emit({"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": " theirs"})

    result = await run(agent)
    assert result.error is not None and result.error["code"] == "agent_protocol_error"
    assert result.said == ["mine"]
    assert "ProtocolViolation" in str(result.failure)


async def test_left_open_by_a_yield_is_the_agents_fault():
    async def agent(run: RunContext) -> None:
        async with run.subagent("sloppy", key="s") as sub:
            await sub.emit({"type": "STEP_STARTED", "stepName": "x"})

    result = await run(agent)
    assert result.error is not None and result.error["code"] == "agent_protocol_error"


async def test_suspended_is_a_base_exception_inside_too():
    async def agent(run: RunContext) -> None:
        async with run.subagent("asks", key="a") as sub:
            try:
                sub.interrupt("q")
            except Exception:
                raise AssertionError("caught") from None
            except RunSuspended:
                raise

    assert list((await run(agent)).interrupts) == ["a/q"]


async def test_a_snapshot_that_takes_a_message_away_from_its_lane():
    """What was given to another one is not written to on the short way either."""

    async def agent(run: RunContext) -> None:
        async with run.subagent("writer", key="w") as sub, sub.message(id="m") as m:
            await m.write("one")
            messages = [{"id": "m", "role": "assistant", "content": "one"}]
            await run.emit({"type": "MESSAGES_SNAPSHOT", "messages": messages})
            await m.write(" two")

    result = await run(agent)
    assert result.error is not None and result.error["code"] == "agent_protocol_error"
    assert result.said == ["one"]
