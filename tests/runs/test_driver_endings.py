"""The ending table, row by row and against each other: the highest row that applies wins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.utils.functional import lazy
from pydantic import BaseModel

from agui_django import AgentError, Declined, Event, RunContext, SyncRunContext
from agui_django.agents.registry import AgentEntry, AgentOptions
from agui_django.protocol.errors import OnceUnknown, ProviderError, RunSuspended, ToolArgumentsError
from tests.running import run

pytestmark = pytest.mark.asyncio

START = {"type": "TEXT_MESSAGE_START", "messageId": "m", "role": "assistant"}
CONTENT = {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "half"}
END = {"type": "TEXT_MESSAGE_END", "messageId": "m"}


def failed(result: Any, code: str) -> str:
    assert result.outcome == "error"
    assert result.error["code"] == code
    assert result.closing.status == "failed"
    assert result.failure.code == code
    return str(result.error["message"])


# ---- row by row ----


async def test_timeout():
    async def agent(run: RunContext) -> None:
        async with run.message() as m:
            await m.write("half")
            await asyncio.Event().wait()

    result = await run(agent, timeout=0.05)
    assert "took too long" in failed(result, "timeout")
    assert result.types[-2:] == ["TEXT_MESSAGE_END", "RUN_ERROR"]
    assert result.closing.end_reason == "timeout"


async def test_idle_timeout_counts_from_the_last_event():
    async def agent(run: RunContext) -> None:
        for number in range(6):
            await asyncio.sleep(0.03)
            run.custom("alive", number)
        await asyncio.Event().wait()

    result = await run(agent, idle_timeout=0.1)
    failed(result, "timeout")
    assert result.types.count("CUSTOM") == 6


async def test_too_large_a_log():
    async def agent(run: RunContext) -> None:
        async with run.message() as m:
            while True:
                await m.write("x" * 1000)

    result = await run(agent, max_log=20_000)
    failed(result, "log_limit")
    assert result.types[-2:] == ["TEXT_MESSAGE_END", "RUN_ERROR"]


@pytest.mark.parametrize("swallow", [False, True])
async def test_a_log_limit_that_is_swallowed_ends_the_run_all_the_same(swallow: bool):
    async def agent(run: RunContext) -> None:
        while True:
            try:
                run.custom("x", "x" * 1000)
            except Exception:
                if not swallow:
                    raise
                await asyncio.sleep(0)

    failed(await run(agent, max_log=20_000), "log_limit")


async def test_cancelled():
    async def agent(run: RunContext) -> None:
        async with run.message() as m:
            await m.write("half")
            await asyncio.Event().wait()

    result = await run(agent, cancel_after=0.02)
    assert result.outcome == "cancelled"
    assert result.terminal["outcome"] == {"type": "cancelled"}
    assert (result.closing.status, result.closing.end_reason) == ("cancelled", "user")
    assert result.types[-2:] == ["TEXT_MESSAGE_END", "RUN_FINISHED"]
    assert result.failure is None


ILLEGAL: list[list[Any]] = [
    [CONTENT],
    [START, START],
    [END],
    [{"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": "{}"}],
    [{"type": "STEP_FINISHED", "stepName": "s"}],
    [{"type": "RUN_STARTED", "threadId": "other", "runId": "other"}],
    [{"type": "RUN_FINISHED", "threadId": "other", "runId": "other"}],
    [{"type": "TEXT_MESSAGE_START", "messageId": 7}],
    [{"type": "TEXT_MESSAGE_CHUNK", "delta": "no id"}],
    [{"type": "CUSTOM", "name": "n", "value": 1, "timestamp": 1.5}],
    [{"nothing": True}],
    [7],
]


@pytest.mark.parametrize("events", ILLEGAL, ids=lambda events: str(events)[:60])
async def test_illegal_event(events: list[Any]):
    async def agent(run: RunContext) -> AsyncIterator[Event]:
        for event in events:
            yield event

    result = await run(agent)
    message = failed(result, "agent_protocol_error")
    assert "reference" in message
    assert result.failure.reference in message


async def test_an_illegal_event_that_is_swallowed():
    async def agent(run: RunContext) -> AsyncIterator[Event]:
        try:
            yield CONTENT
        except Exception:
            yield {"type": "CUSTOM", "name": "too late", "value": 1}

    result = await run(agent)
    failed(result, "agent_protocol_error")
    assert "CUSTOM" not in result.types


@pytest.mark.parametrize(
    ("events", "ends"),
    [
        ([START, CONTENT], ["TEXT_MESSAGE_END"]),
        ([{"type": "STEP_STARTED", "stepName": "s"}, START], ["TEXT_MESSAGE_END", "STEP_FINISHED"]),
        ([{"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "f"}], ["TOOL_CALL_END"]),
        (
            [{"type": "REASONING_START", "messageId": "r"},
             {"type": "REASONING_MESSAGE_START", "messageId": "r", "role": "reasoning"}],
            ["REASONING_MESSAGE_END", "REASONING_END"],
        ),
        ([{"type": "SUBAGENT_STARTED", "subagentRunId": "s", "name": "n"}], ["SUBAGENT_ERROR"]),
    ],
)  # fmt: skip
async def test_left_open_at_return(events: list[Any], ends: list[str]):
    async def agent(run: RunContext) -> AsyncIterator[Event]:
        for event in events:
            yield event

    result = await run(agent)
    failed(result, "agent_protocol_error")
    assert result.types[-1 - len(ends) : -1] == ends


async def test_chunks_need_no_end():
    async def agent(run: RunContext) -> AsyncIterator[Event]:
        yield {"type": "TEXT_MESSAGE_CHUNK", "messageId": "m", "delta": "a"}
        yield {"type": "TEXT_MESSAGE_CHUNK", "delta": "b"}

    result = await run(agent)
    assert result.outcome == "success"
    assert result.said == ["ab"]
    assert result.types[-2:] == ["TEXT_MESSAGE_END", "RUN_FINISHED"]


async def test_permission_denied():
    async def agent(run: RunContext) -> None:
        raise PermissionDenied("secret reason")

    result = await run(agent)
    assert failed(result, "permission_denied") == "The agent was refused by a permission."


@pytest.mark.parametrize(
    "error",
    [ValueError("secret"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit(),
     StopAsyncIteration(), ExceptionGroup("g", [ValueError("secret")]), TimeoutError("secret")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
async def test_any_other_exception(error: BaseException):
    async def agent(run: RunContext) -> None:
        await run.say("half")
        raise error

    result = await run(agent)
    message = failed(result, "agent_exception")
    assert message == f"The agent raised an exception. (reference {result.failure.reference})"
    assert "secret" not in "".join(result.wire)
    assert type(error).__name__ in result.failure.traceback or isinstance(error, StopAsyncIteration)
    assert result.said == ["half"]


@pytest.mark.parametrize("value", [object(), float("nan"), {1: 2}, {"a": {2}}], ids=["object", "nan", "key", "set"])
async def test_a_result_that_is_not_json(value: Any):
    async def agent(run: RunContext) -> Any:
        return value

    failed(await run(agent), "agent_exception")


async def test_a_key_used_twice():
    async def agent(run: RunContext) -> None:
        await run.say("a", key="k")
        await run.say("b", key="k")

    result = await run(agent)
    failed(result, "agent_exception")
    assert "number it" in result.failure.text


async def test_state_invalid():
    class State(BaseModel):
        done: bool = False

    async def agent(run: RunContext) -> None:
        run.state["done"] = "perhaps"

    entry = AgentEntry("a", agent, AgentOptions(state_schema=State))
    result = await run(entry, state={"done": True})
    failed(result, "state_invalid")
    assert result.state == {"done": True}
    assert "STATE_DELTA" not in result.types


async def test_a_state_that_never_fitted():
    class State(BaseModel):
        done: bool

    async def agent(run: RunContext) -> None:
        raise AssertionError("must not be called")

    result = await run(AgentEntry("a", agent, AgentOptions(state_schema=State)), state={"done": "no"})
    failed(result, "state_invalid")
    assert result.types == ["RUN_STARTED", "RUN_ERROR"]
    assert result.closing.spent is False


async def test_outcome_unknown():
    async def agent(run: RunContext) -> None:
        raise OnceUnknown

    failed(await run(agent), "outcome_unknown")


@pytest.mark.parametrize("swallow", [False, True])
async def test_flood(swallow: bool):
    async def agent(run: RunContext) -> None:
        for number in range(30_000):
            try:
                run.custom("n", number)
            except Exception:
                if not swallow:
                    raise
                return

    result = await run(agent)
    failed(result, "agent_flood")
    assert 20_000 <= len(result.events) < 20_100


async def test_awaiting_is_no_flood():
    async def agent(run: RunContext) -> None:
        for number in range(30_000):
            await run.custom("n", number)

    assert (await run(agent)).outcome == "success"


@pytest.mark.parametrize(
    ("error", "code"),
    [(AgentError("There is no order 7.", code="no_order"), "no_order"), (AgentError("x"), "agent_error"),
     (ToolArgumentsError("x"), "tool_arguments"), (ProviderError("x"), "provider_unavailable"),
     (AgentError(lazy(lambda: "Keine Bestellung.", str)()), "agent_error")],
)  # fmt: skip
async def test_agent_error_is_shown(error: AgentError, code: str):
    async def agent(run: RunContext) -> None:
        raise error

    result = await run(agent)
    assert failed(result, code) == str(error.message)
    assert result.failure.public


async def test_declined():
    async def agent(run: RunContext) -> None:
        raise Declined

    result = await run(agent)
    assert result.outcome == "cancelled"
    assert result.closing.end_reason == "declined"


async def test_the_agents_own_run_error():
    async def agent(run: RunContext) -> AsyncIterator[Event]:
        yield START
        yield {"type": "RUN_ERROR", "message": "secret", "code": "upstream",
               "usage": [{"model": "m", "inputTokens": 1}]}  # fmt: skip
        yield CONTENT

    result = await run(agent)
    message = failed(result, "upstream")
    assert "secret" not in message
    assert "secret" in result.failure.text
    assert result.types == ["RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_END", "RUN_ERROR"]
    assert result.error["usage"] == [{"model": "m", "inputTokens": 1}]


async def test_questions():
    async def agent(run: RunContext) -> None:
        run.interrupt("q", message="Sure?")

    result = await run(agent)
    assert result.outcome == "interrupt"
    assert result.closing.status == "interrupted"
    assert result.terminal["outcome"]["interrupts"] == [
        {"id": f"{result.setup.turn}:q", "reason": "input_required", "message": "Sure?"}
    ]
    assert result.closing.interrupt_keys == {f"{result.setup.turn}:q": "q"}


async def test_return():
    async def agent(run: RunContext) -> dict[str, int]:
        return {"pages": 3}

    result = await run(agent)
    assert result.outcome == "success"
    assert result.closing.status == "finished"
    assert result.result == {"pages": 3}
    assert "outcome" not in result.terminal


async def test_the_pages_calls_open():
    async def agent(run: RunContext) -> None:
        run.call_frontend_tool("pick")
        done = run.tool_call("ours")
        await done.result("x")

    result = await run(agent, tools=["pick"])
    pending = [event["toolCallId"] for event in result.events if event.get("toolCallName") == "pick"]
    assert result.terminal["outcome"] == {"type": "success", "pendingToolCallIds": pending}


# ---- which row wins ----


async def test_a_timeout_that_is_swallowed():
    async def agent(run: RunContext) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "fine"
        return ""

    failed(await run(agent, timeout=0.02), "timeout")


async def test_a_cancel_wins_over_what_the_clean_up_raises():
    async def agent(run: RunContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("in the clean-up")

    assert (await run(agent, cancel_after=0.02)).outcome == "cancelled"


async def test_a_cancel_wins_over_an_illegal_event():
    async def agent(run: RunContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await run.emit(CONTENT)

    assert (await run(agent, cancel_after=0.02)).outcome == "cancelled"


@pytest.mark.parametrize("asks", [True, False])
async def test_a_subagent_that_is_open_at_a_question_is_suspended(asks: bool):
    async def agent(run: RunContext) -> AsyncIterator[Event]:
        yield {"type": "SUBAGENT_STARTED", "subagentRunId": "s", "name": "helper"}
        if asks:
            run.interrupt("q")
        raise ValueError("bug")

    result = await run(agent)
    ending = {key: value for key, value in result.events[-2].items() if key != "timestamp"}
    if asks:
        assert ending == {
            "type": "SUBAGENT_FINISHED", "subagentRunId": "s", "outcome": {"type": "suspended"},
        }  # fmt: skip
    else:
        assert ending == {"type": "SUBAGENT_ERROR", "subagentRunId": "s", "message": "The subagent failed."}


async def test_an_illegal_event_wins_over_an_exception():
    async def agent(run: RunContext) -> AsyncIterator[Event]:
        try:
            yield CONTENT
        except Exception:
            raise AgentError("read me") from None

    failed(await run(agent), "agent_protocol_error")


async def test_a_bug_is_not_hidden_by_a_question():
    async def agent(run: RunContext) -> None:
        try:
            run.interrupt("q")
        except RunSuspended:
            raise KeyError("bug") from None

    failed(await run(agent), "agent_exception")


async def test_a_bug_in_a_group_beside_a_question():
    async def ask(run: RunContext) -> None:
        run.interrupt("q")

    async def bug(run: RunContext) -> None:
        raise ValueError

    async def agent(run: RunContext) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ask(run))
            group.create_task(bug(run))

    failed(await run(agent), "agent_exception")


async def test_a_question_in_a_group():
    async def ask(run: RunContext) -> None:
        run.interrupt("q")

    async def agent(run: RunContext) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ask(run))
            group.create_task(asyncio.Event().wait())

    assert (await run(agent)).outcome == "interrupt"


async def test_asked_means_open_also_when_swallowed():
    async def agent(run: RunContext) -> str:
        try:
            run.interrupt("q")
        except BaseException:
            return "nothing happened"
        return ""

    assert (await run(agent)).outcome == "interrupt"


async def test_asked_means_open_also_when_never_read():
    async def agent(run: RunContext) -> None:
        run.ask("q")
        await run.say("not read")

    result = await run(agent)
    assert list(result.interrupts) == ["q"]


async def test_declined_wins_over_a_question():
    async def agent(run: RunContext) -> None:
        run.ask("q")
        raise Declined

    assert (await run(agent)).outcome == "cancelled"


async def test_an_agents_run_error_wins_over_a_question():
    async def agent(run: RunContext) -> AsyncIterator[Event]:
        run.ask("q")
        yield {"type": "RUN_ERROR", "message": "x"}

    failed(await run(agent), "agent_exception")


# ---- the agent's own RUN_FINISHED ----


async def test_own_run_finished_gives_result_usage_and_questions():
    async def agent(run: RunContext) -> AsyncIterator[Event]:
        yield {"type": "RUN_STARTED", "threadId": run.input.thread_id, "runId": run.run_id}
        yield {
            "type": "RUN_FINISHED", "threadId": run.input.thread_id, "runId": run.run_id,
            "outcome": {"type": "interrupt", "interrupts": [{"id": "native", "reason": "ask"}]},
            "usage": [{"model": "m", "inputTokens": 3, "outputTokens": 4}],
        }  # fmt: skip

    result = await run(agent)
    assert result.types == ["RUN_STARTED", "RUN_FINISHED"]
    assert result.terminal["outcome"]["interrupts"] == [{"id": "native", "reason": "ask"}]
    assert result.closing.interrupt_keys == {"native": "native"}
    assert result.usage == [{"model": "m", "inputTokens": 3, "outputTokens": 4, "totalTokens": 7}]


async def test_own_run_finished_with_something_open():
    async def agent(run: RunContext) -> AsyncIterator[Event]:
        yield START
        yield {"type": "RUN_FINISHED", "threadId": run.input.thread_id, "runId": run.run_id}

    failed(await run(agent), "agent_protocol_error")


async def test_own_run_finished_that_lies_about_pending_calls():
    async def agent(run: RunContext) -> AsyncIterator[Event]:
        yield {
            "type": "RUN_FINISHED", "threadId": run.input.thread_id, "runId": run.run_id,
            "outcome": {"type": "success", "pendingToolCallIds": ["c"]},
        }  # fmt: skip

    failed(await run(agent), "agent_protocol_error")


async def test_two_interrupts_with_one_id():
    async def agent(run: RunContext) -> AsyncIterator[Event]:
        twice = [{"id": "i", "reason": "r"}, {"id": "i", "reason": "r"}]
        yield {
            "type": "RUN_FINISHED", "threadId": run.input.thread_id, "runId": run.run_id,
            "outcome": {"type": "interrupt", "interrupts": twice},
        }  # fmt: skip

    failed(await run(agent), "agent_protocol_error")


# ---- blocks on the way ----


async def test_blocks_close_whatever_is_raised():
    async def agent(run: RunContext) -> None:
        async with run.step("s"), run.tool_call("t", {"a": 1}), run.message() as m:
            await m.reasoning("hm")
            raise ValueError

    result = await run(agent)
    failed(result, "agent_exception")
    assert result.types[-5:] == [
        "REASONING_MESSAGE_END", "REASONING_END", "TOOL_CALL_RESULT", "STEP_FINISHED", "RUN_ERROR"
    ]  # fmt: skip
    assert result.events[-3]["content"] == "The tool failed."
    assert result.events[-3]["metadata"] == {"failed": True}


async def test_a_suspended_call_stays_pending():
    async def agent(run: RunContext) -> None:
        async with run.tool_call("t"):
            run.interrupt("q")

    result = await run(agent)
    assert result.outcome == "interrupt"
    assert "TOOL_CALL_RESULT" not in result.types


async def test_a_sync_agents_exceptions_take_the_same_rows():
    def agent(run: SyncRunContext) -> None:
        with run.step("s"):
            raise AgentError("read me", code="mine")

    result = await run(agent)
    assert failed(result, "mine") == "read me"
    assert result.types == ["RUN_STARTED", "STEP_STARTED", "STEP_FINISHED", "RUN_ERROR"]
