"""Tools that a person has to allow: asked once, executed at most once, and only what was shown."""

from __future__ import annotations

import functools
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any

import pytest
from django.utils.translation import gettext_lazy
from pydantic import AfterValidator

from agui_django import AgentError, Declined, RunContext, SyncRunContext, approval_required
from agui_django.agents.approvals import approval_of
from agui_django.protocol.errors import ResumeInvalid, ToolArgumentsError
from agui_django.testing import AgentRun
from tests.running import checked, run

pytestmark = pytest.mark.asyncio

paid: list[Any] = []


def even(value: int) -> int:
    if value % 2:
        raise ValueError("odd")
    return value


Even = Annotated[int, AfterValidator(even)]


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    paid.clear()


@approval_required("Refund {amount} € for order {order_id}?", edit=True)
def refund(order_id: int, amount: int, note: str = "") -> dict[str, int]:
    paid.append((order_id, amount, note))
    return {"refunded": amount}


@approval_required
async def close(run: RunContext, order_id: int) -> str:
    paid.append(run.user)
    return f"closed {order_id}"


async def waits(run: RunContext) -> Any:
    return await run.tool_call("refund", {"order_id": 7, "amount": 40}, key="refund").run(refund)


def blocks(run: SyncRunContext) -> Any:
    return run.tool_call("refund", {"order_id": 7, "amount": 40}, key="refund").run(refund)


async def catches(run: RunContext) -> Any:
    try:
        return await waits(run)
    except Declined as error:
        return f"Declined: {error}"


both = pytest.mark.parametrize("agent", [waits, blocks])


def question(result: AgentRun) -> tuple[str, Any]:
    [(key, asked)] = result.interrupts.items()
    return key, asked


def results(result: AgentRun) -> list[Any]:
    return [message for message in result.wire_messages if message["role"] == "tool"]


@both
async def test_a_person_is_asked_before_anything_is_done(agent: Any):
    first = await run(agent)
    assert first.outcome == "interrupt"
    key, asked = question(first)
    assert asked.reason == "tool_call"
    assert asked.message == "Refund 40 € for order 7?"
    assert asked.tool_call_id == f"{first.setup.turn}:refund"
    assert asked.response_schema == {
        "type": "object",
        "properties": {
            "approved": {"type": "boolean"},
            "reason": {"type": "string"},
            "editedArgs": {
                "type": "object",
                "properties": {
                    "order_id": {"type": "integer"}, "amount": {"type": "integer"},
                    "note": {"type": "string", "default": ""},
                },
                "required": ["order_id", "amount"],
                "additionalProperties": False,
            },
        },
        "required": ["approved"],
        "additionalProperties": False,
    }  # fmt: skip
    assert key.startswith("approve:refund:")
    assert paid == []
    assert results(first) == []


@both
async def test_yes_carries_it_out_once(agent: Any):
    first = await run(agent)
    key, _ = question(first)
    second = checked(await first.resume({key: {"approved": True}}))
    assert second.result == {"refunded": 40}
    assert paid == [(7, 40, "")]
    [message] = results(second)
    assert message["content"] == '{"refunded":40}'
    assert "metadata" not in message


@both
@pytest.mark.parametrize(
    ("answer", "told"),
    [({"approved": False}, "Not approved."), ({"approved": False, "reason": "too much"}, "Not approved: too much"),
     (None, "Not approved.")],
)  # fmt: skip
async def test_no_is_a_failed_result(agent: Any, answer: Any, told: str):
    first = await run(agent)
    key, _ = question(first)
    second = checked(await (first.resume({key: answer}) if answer else first.resume(cancelled=[key])))
    assert second.outcome == "cancelled"
    assert paid == []
    [message] = results(second)
    assert (message["content"], message["metadata"]) == (told, {"failed": True, "declined": True})


async def test_a_declined_call_is_declined_in_every_later_pass():
    seen: list[str] = []

    async def agent(run: RunContext) -> Any:
        seen.append(await catches(run))
        return run.interrupt("and now")

    first = await run(agent)
    key, _ = question(first)
    second = checked(await first.resume({key: {"approved": False, "reason": "no"}}))
    third = checked(await second.resume({"and now": "bye"}))
    assert third.result == "bye"
    assert seen == ["Declined: Not approved: no"] * 2


@both
async def test_changed_arguments_are_taken(agent: Any):
    first = await run(agent)
    key, _ = question(first)
    edited = {"order_id": 7, "amount": 30, "note": "sorry"}
    second = checked(await first.resume({key: {"approved": True, "editedArgs": edited}}))
    assert second.result == {"refunded": 30}
    assert paid == [(7, 30, "sorry")]
    assert results(second)[0]["metadata"] == {"editedArgs": edited}


@pytest.mark.parametrize(
    "answer",
    [
        {}, {"approved": "true"}, {"approved": 1}, True, None, [], {"approved": True, "other": 1},
        {"approved": True, "editedArgs": {"amount": 30}}, {"approved": True, "editedArgs": "x"},
        {"approved": True, "editedArgs": {"order_id": 7, "amount": "30"}},
        {"approved": True, "editedArgs": {"order_id": 7, "amount": 30, "to": "mallory"}},
    ],
    ids=str,
)  # fmt: skip
async def test_an_answer_that_is_none_leaves_the_question_open(answer: Any):
    first = await run(waits)
    key, _ = question(first)
    with pytest.raises(ResumeInvalid):
        await first.resume({key: answer})
    assert paid == []


async def test_changes_are_refused_where_they_are_not_asked_for():
    async def agent(run: RunContext) -> Any:
        call = run.tool_call("pay", {"amount": 4}, key="pay")
        call.require_approval("Pay {amount}?")
        return await call.run(lambda amount: paid.append(amount))

    first = await run(agent)
    key, asked = question(first)
    assert asked.message == "Pay 4?"
    assert set(asked.response_schema["properties"]) == {"approved", "reason"}
    with pytest.raises(ResumeInvalid):
        await first.resume({key: {"approved": True, "editedArgs": {"amount": 4000}}})
    # as where a schema could not be used: nothing that was not shown is done
    forged = replace(
        first, closing=replace(first.closing, interrupts=[{"id": w["id"]} for w in first.closing.interrupts])
    )
    second = checked(await forged.resume({key: {"approved": True, "editedArgs": {"amount": 4000}}}))
    assert second.outcome == "cancelled"
    assert paid == []


async def test_a_validator_that_json_schema_does_not_tell_holds_for_changes_too():
    @approval_required("Pay {amount}?", edit=True)
    def pay(amount: Even) -> None:
        paid.append(amount)

    async def agent(run: RunContext) -> None:
        await run.tool_call("pay", {"amount": 4}, key="pay").run(pay)

    first = await run(agent)
    key, _ = question(first)
    second = checked(await first.resume({key: {"approved": True, "editedArgs": {"amount": 5}}}))
    assert second.error is not None
    assert second.error["code"] == "tool_arguments"
    assert paid == []


async def test_arguments_that_do_not_fit_are_not_shown_to_anybody():
    async def agent(run: RunContext) -> None:
        with pytest.raises(ToolArgumentsError):
            await run.tool_call("refund", {"order_id": 7}, key="refund").run(refund)

    result = await run(agent)
    assert result.outcome == "success"
    assert "amount" in results(result)[0]["content"]


async def test_other_arguments_need_another_approval():
    """As with `HISTORY = "client"`, where a client may change the call that was approved."""
    first = await run(waits)
    key, _ = question(first)
    text = first.closing.messages[0]["toolCalls"][0]["function"]["arguments"]
    changed = [
        {**event, "delta": text.replace("40", "4000")} if event["type"] == "TOOL_CALL_ARGS" else event
        for event in first.events
    ]
    second = checked(await replace(first, events=changed).resume({key: {"approved": True}}))
    assert second.outcome == "interrupt"
    other, asked = question(second)
    assert other != key
    assert asked.message == "Refund 4000 € for order 7?"
    assert paid == []
    third = checked(await second.resume({other: {"approved": True}}))
    assert third.result == {"refunded": 4000}


async def test_two_calls_with_the_same_arguments_are_two_approvals():
    async def agent(run: RunContext) -> None:
        for n in (1, 2):
            await run.tool_call("refund", {"order_id": 7, "amount": 40}, key=f"refund {n}").run(refund)

    first = await run(agent)
    key, _ = question(first)
    second = checked(await first.resume({key: {"approved": True}}))
    other, _ = question(second)
    assert (len(paid), other != key) == (1, True)
    await second.resume({other: {"approved": True}})
    assert len(paid) == 2


async def test_what_was_done_is_not_asked_or_done_again():
    async def agent(run: RunContext) -> Any:
        done = await waits(run)
        return [done, run.interrupt("q")]

    first = await run(agent)
    key, _ = question(first)
    second = checked(await first.resume({key: {"approved": True}}))
    assert list(second.interrupts) == ["q"]
    third = checked(await second.resume({"q": 1}))
    assert third.result == [{"refunded": 40}, 1]
    assert len(paid) == 1


async def test_a_resume_that_is_replayed_finds_it_done():
    """Both resumes of one approval begin from the same point; only one of them carries it out."""
    first = await run(waits)
    key, _ = question(first)
    second = checked(await first.resume({key: {"approved": True}}))
    again = checked(await first.resume({key: {"approved": True}}))
    assert second.result == again.result == {"refunded": 40}
    assert len(paid) == 1


async def test_a_tool_that_fails_is_not_called_again():
    @approval_required("Really?")
    def fail() -> None:
        paid.append("called")
        raise AgentError("The bank is closed.")

    async def agent(run: RunContext) -> Any:
        with pytest.raises(AgentError, match="bank"):
            await run.tool_call("fail", key="fail").run(fail)
        run.interrupt("q")

    first = await run(agent)
    second = checked(await first.resume({question(first)[0]: {"approved": True}}))
    third = checked(await second.resume({"q": 1}))
    assert third.outcome == "success"
    assert paid == ["called"]


async def test_a_tool_with_an_approval_may_ask_more():
    @approval_required("Really?")
    async def careful(run: RunContext) -> str:
        paid.append("called")
        return str(run.interrupt("sure"))

    async def agent(run: RunContext) -> Any:
        return await run.tool_call("careful", key="careful").run(careful)

    first = await run(agent)
    second = checked(await first.resume({question(first)[0]: {"approved": True}}))
    assert list(second.interrupts) == ["sure"]
    third = checked(await second.resume({"sure": "yes"}))
    assert third.result == "yes"
    assert paid == ["called", "called"]


async def test_an_approval_may_name_who_and_until_when():
    @approval_required("Really?", permission="shop.refund", expires=timedelta(hours=1))
    def pay() -> None: ...

    async def agent(run: RunContext) -> None:
        await run.tool_call("pay", key="pay").run(pay)

    result = await run(agent)
    _, asked = question(result)
    assert asked.expires_at is not None
    assert list(result.closing.interrupt_permissions.values()) == ["shop.refund"]


async def test_the_page_cannot_answer_for_us():
    """A client that calls itself the tool's home changes nothing."""
    first = await run(waits, tools=["refund"])
    key, _ = question(first)
    second = checked(await first.resume({key: {"approved": True}}))
    assert second.result == {"refunded": 40}
    assert len(paid) == 1


async def test_the_mark_is_found_wherever_the_function_went():
    class Shop:
        @approval_required("Really?")
        def pay(self, amount: int) -> None: ...

        @approval_required("Really?")
        def __call__(self) -> None: ...

    @functools.wraps(refund)
    def wrapped(*args: Any) -> Any:
        return refund(*args)

    for tool in (
        Shop().pay,
        Shop(),
        functools.partial(refund, 7),
        wrapped,
        functools.partial(functools.partial(refund)),
    ):
        assert approval_of(tool) is not None, tool
    assert approval_of(len) is None
    assert approval_of(functools.partial(len)) is None


async def test_the_decorator_gives_the_very_same_function():
    def tool(amount: int) -> None: ...

    assert approval_required("Pay {amount}?")(tool) is tool
    assert approval_required(tool) is tool
    assert approval_of(tool).message is None  # type: ignore[union-attr]


async def test_a_message_with_other_names_is_told_where_it_stands():
    with pytest.raises(TypeError, match="'total'"):
        approval_required("Pay {total}?")(refund)

    def anything(**more: Any) -> None: ...

    approval_required("Pay {total}?")(anything)
    approval_required(gettext_lazy("Pay {total}?"))(anything)


async def test_values_are_not_read_as_templates():
    @approval_required("Write {text}?")
    def write(text: str) -> None: ...

    async def agent(run: RunContext) -> None:
        await run.tool_call("write", {"text": "{text.__class__}{0}"}, key="write").run(write)

    _, asked = question(await run(agent))
    assert asked.message == "Write {text.__class__}{0}?"
