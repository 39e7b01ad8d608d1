"""All calls of a model's turn, settled at once."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied

from agui_django import AgentError, RunContext, SyncRunContext, approval_required
from agui_django.protocol.errors import OnceUnknown
from agui_django.testing import AgentRun
from tests.running import checked, run

pytestmark = pytest.mark.asyncio

done: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    done.clear()


def find(order_id: int) -> dict[str, int]:
    done.append(("find", order_id))
    return {"total": order_id * 10}


@approval_required("Refund {amount} €?")
def refund(amount: int) -> str:
    done.append(("refund", amount))
    return f"refunded {amount}"


@approval_required("Close?")
async def close() -> str:
    done.append("close")
    return "closed"


async def ask_back(run: RunContext, what: str) -> str:
    done.append(("asks", what))
    return f"{what}: {run.interrupt(what)}"


def fail() -> None:
    raise ValueError("secret")


def refuse() -> None:
    raise AgentError("Order 7 is locked.")


def forbid() -> None:
    raise PermissionDenied("secret")


def no_json() -> object:
    return object()


TOOLS = (find, refund, close, ask_back, fail, refuse, forbid, no_json)
Turn = list[tuple[str, dict[str, Any] | str]]


def model(*turns: Turn) -> Callable[[RunContext[Any]], Any]:
    """An agent whose model makes these calls, one list per turn, and then says what it read."""

    async def agent(run: RunContext) -> None:
        while True:
            await run.dispatch_tool_calls(*TOOLS, lookup=find)
            asked = sum(message.role == "assistant" for message in run.messages)
            async with run.message() as m:
                if asked == len(turns):
                    await m.write("done")
                    return
                for index, (name, args) in enumerate(turns[asked]):
                    text = args if isinstance(args, str) else json.dumps(args)
                    await m.tool_call_delta(index, id=f"c{asked}.{index}", name=name, args=text)

    return agent


def sync_model(*turns: Turn) -> Callable[[SyncRunContext[Any]], Any]:
    def agent(run: SyncRunContext) -> None:
        while True:
            run.dispatch_tool_calls(*TOOLS, lookup=find)
            asked = sum(message.role == "assistant" for message in run.messages)
            with run.message() as m:
                if asked == len(turns):
                    m.write("done")
                    return
                for index, (name, args) in enumerate(turns[asked]):
                    text = args if isinstance(args, str) else json.dumps(args)
                    m.tool_call_delta(index, id=f"c{asked}.{index}", name=name, args=text)

    return agent


both = pytest.mark.parametrize("make", [model, sync_model])


def results(result: AgentRun) -> dict[str, Any]:
    return {m["toolCallId"]: m["content"] for m in result.wire_messages if m["role"] == "tool"}


def yes(result: AgentRun) -> dict[str, Any]:
    return {key: {"approved": True} for key in result.interrupts}


@both
async def test_our_calls_are_carried_out_in_order(make: Any):
    result = await run(make([("find", {"order_id": 1}), ("lookup", {"order_id": 2})], [("find", {"order_id": 3})]))
    assert result.said == ["done"]
    assert done == [("find", 1), ("find", 2), ("find", 3)]
    assert results(result) == {"c0.0": '{"total":10}', "c0.1": '{"total":20}', "c1.0": '{"total":30}'}


async def test_nothing_to_do_is_fine():
    assert (await run(model())).said == ["done"]


@both
async def test_failures_are_the_models_to_read(make: Any, caplog: pytest.LogCaptureFixture):
    calls: Turn = [
        ("fail", {}), ("refuse", {}), ("forbid", {}), ("no_json", {}), ("nothing", {}), ("find", {"order": 1}),
        ("find", "{"), ("refund", {}), ("find", {"order_id": 4}),
    ]  # fmt: skip
    caplog.set_level(logging.ERROR)
    result = await run(make(calls))
    told = results(result)
    assert result.said == ["done"]
    assert told["c0.0"].startswith("The tool failed. Reference: ")
    assert told["c0.1"] == "Order 7 is locked."
    assert told["c0.2"] == "Not permitted."
    assert told["c0.3"].startswith("The tool failed. Reference: ")
    assert told["c0.4"] == "There is no tool 'nothing'."
    assert "order_id" in told["c0.5"]
    assert told["c0.6"].startswith("find was called with arguments that do not fit")
    assert "amount" in told["c0.7"]
    assert told["c0.8"] == '{"total":40}'
    failed = [m["toolCallId"] for m in result.wire_messages if m["role"] == "tool" and "metadata" in m]
    assert failed == [f"c0.{n}" for n in range(8)]
    assert "secret" not in "".join(result.wire)
    logged = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(logged) == 2
    for record, call in zip(logged, ("c0.0", "c0.3"), strict=True):
        assert told[call].rpartition(" ")[2] in record.getMessage()
        assert record.exc_info is not None


@both
async def test_approvals_are_asked_for_together(make: Any):
    first = await run(make([("refund", {"amount": 1}), ("find", {"order_id": 1}), ("close", {})]))
    assert [asked.message for asked in first.interrupts.values()] == ["Refund 1 €?", "Close?"]
    assert done == [("find", 1)]
    assert list(results(first)) == ["c0.1"]
    no, okay = first.interrupts
    second = checked(await first.resume({no: {"approved": False, "reason": "too much"}, okay: {"approved": True}}))
    assert second.said == ["done"]
    assert done == [("find", 1), "close"]
    assert results(second) == {"c0.0": "Not approved: too much", "c0.1": '{"total":10}', "c0.2": "closed"}
    assert "TOOL_CALL_START" not in second.types


@both
async def test_the_page_comes_before_the_questions(make: Any):
    first = await run(make([("refund", {"amount": 1}), ("pick", {}), ("find", {"order_id": 1})]), tools=["pick"])
    assert first.outcome == "success"
    assert first.interrupts == {}
    assert first.pending == {"c0.0": "refund", "c0.1": "pick"}
    with pytest.raises(LookupError):
        await first.answer_frontend({"refund": "forged"})
    second = checked(await first.answer_frontend({"pick": "red"}))
    assert [asked.message for asked in second.interrupts.values()] == ["Refund 1 €?"]
    third = checked(await second.resume(yes(second)))
    assert third.said == ["done"]
    assert done == [("find", 1), ("refund", 1)]
    assert results(third)["c0.1"] == "red"


@both
async def test_a_tool_that_asks_waits_for_the_page_too(make: Any):
    first = await run(make([("ask_back", {"what": "size"}), ("pick", {})]), tools=["pick"])
    assert (first.outcome, first.interrupts) == ("success", {})
    second = checked(await first.answer_frontend({"pick": "red"}))
    assert list(second.interrupts) == ["size"]
    third = checked(await second.resume({"size": "L"}))
    assert results(third) == {"c0.0": "size: L", "c0.1": "red"}
    assert third.said == ["done"]


@both
async def test_questions_of_tools_and_approvals_are_asked_together(make: Any):
    calls: Turn = [("ask_back", {"what": "size"}), ("refund", {"amount": 1}), ("ask_back", {"what": "color"})]
    first = await run(make(calls))
    keys = list(first.interrupts)
    assert [keys[0], keys[1]] == ["size", "color"]
    assert len(keys) == 3
    second = checked(await first.resume({"size": "L", "color": "red", keys[2]: {"approved": True}}))
    assert results(second) == {"c0.0": "size: L", "c0.1": "refunded 1", "c0.2": "color: red"}
    assert second.said == ["done"]


@both
async def test_a_question_that_is_declined_is_the_models_to_read(make: Any):
    first = await run(make([("ask_back", {"what": "size"})]))
    second = checked(await first.resume(cancelled=["size"]))
    assert results(second) == {"c0.0": "The question 'size' was cancelled."}
    assert second.said == ["done"]


@both
async def test_a_client_that_claims_our_tool_gets_nothing(make: Any):
    calls: Turn = [("find", {"order_id": 1}), ("refund", {"amount": 2}), ("refuse", {}), ("close", {})]
    first = await run(make(calls), tools=["find", "refund", "refuse", "close"])
    paid, closed = first.interrupts
    second = checked(await first.resume({paid: {"approved": True}, closed: {"approved": False}}))
    assert done == [("find", 1), ("refund", 2)]
    assert results(second) == {
        "c0.0": '{"total":10}', "c0.1": "refunded 2", "c0.2": "Order 7 is locked.", "c0.3": "Not approved."
    }  # fmt: skip
    assert second.said == ["done"]


async def test_one_call_may_be_held_back():
    async def agent(run: RunContext) -> None:
        for n in (10, 1000):
            run.tool_call("find", {"order_id": n}, key=f"find {n}")
        for call in run.pending_calls:
            if call.args["order_id"] > 100:
                call.require_approval("Look at {order_id}?")
        await run.dispatch_tool_calls(find)

    first = await run(agent)
    assert done == [("find", 10)]
    second = checked(await first.resume(yes(first)))
    assert done == [("find", 10), ("find", 1000)]
    assert second.outcome == "success"


async def test_an_unknown_outcome_ends_the_run():
    """No model may decide to do it again."""

    @approval_required("Pay?")
    def pay() -> None:
        raise OnceUnknown

    async def agent(run: RunContext) -> None:
        run.tool_call("pay", key="pay")
        await run.dispatch_tool_calls(pay)

    first = await run(agent)
    second = checked(await first.resume(yes(first)))
    assert second.error is not None
    assert second.error["code"] == "outcome_unknown"


async def test_names_are_told_apart():
    async def agent(run: RunContext) -> None:
        with pytest.raises(TypeError, match="find"):
            await run.dispatch_tool_calls(find, find=find)
        with pytest.raises(TypeError, match="no name"):
            await run.dispatch_tool_calls(lambda: None)
        await run.dispatch_tool_calls(nothing=lambda: None)

    assert (await run(agent)).outcome == "success"


async def test_a_cancel_in_a_tool_ends_the_run():
    async def wait(run: RunContext) -> None:
        import asyncio

        await asyncio.Event().wait()

    async def agent(run: RunContext) -> None:
        run.tool_call("wait", key="wait")
        run.tool_call("find", {"order_id": 1}, key="find")
        await run.dispatch_tool_calls(wait, find)

    result = await run(agent, cancel_after=0.05)
    assert result.outcome == "cancelled"
    assert list(results(result).values()) == ["The tool was cancelled; a part of its work may have been done."]
    assert done == []


async def test_ids_that_a_provider_uses_again_name_other_calls():
    async def agent(run: RunContext) -> None:
        for n in (1, 2, 3):
            await run.dispatch_tool_calls(find, close)
            async with run.message() as m:
                if n < 3:
                    for index in (0, 1):
                        # the id and the name with every piece, as some do
                        m.tool_call_delta(index, id="call_0", name="find", args='{"order_id": ')
                        m.tool_call_delta(index, id="call_0", name="find", args=f"{n}{index}}}")

    first = await run(agent)
    assert done == [("find", 10), ("find", 11), ("find", 20), ("find", 21)]
    assert len(results(first)) == 4
    done.clear()
    await first.say("and again")
    assert len(done) == 4


@both
async def test_a_call_of_ours_does_not_wait_where_a_page_has_that_name(make: Any):
    calls: Turn = [("refund", {"amount": 1}), ("ask_back", {"what": "size"}), ("pick", {}), ("find", {"order_id": 1})]
    result = await run(make(calls), tools=["pick", "refund", "ask_back", "find"])
    taken = "A tool of the page has the same name: this one was not called."
    assert results(result) == {"c0.0": taken, "c0.1": taken, "c0.3": '{"total":10}'}
    assert result.terminal["outcome"] == {"type": "success", "pendingToolCallIds": ["c0.2"]}
    assert done == [("asks", "size"), ("find", 1)]
