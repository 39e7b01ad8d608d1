"""The public test doubles do what a site's tests rely on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ag_ui.core import AssistantMessage, Interrupt, UserMessage

from agui_django import RunContext
from agui_django.protocol.errors import ResumeInvalid
from agui_django.testing import ScriptedAgent, assert_valid_run, run_agent

pytestmark = pytest.mark.asyncio


async def refund(run: RunContext) -> str:
    await run.say("Let me check.", key="intro")
    if run.interrupt("refund", message="Refund 40 €?", response_schema={"type": "object"})["approved"]:
        await run.say("Refunded.")
    run.state["done"] = True
    run.usage(model="m", output_tokens=1)
    return "done"


async def test_a_run_and_its_resume():
    r = await run_agent(refund, "refund 7", state={}, tools=["pick"], timeout=1, cancel_after=None)
    assert r.outcome == "interrupt"
    assert r.interrupts["refund"].message == "Refund 40 €?"
    assert isinstance(r.interrupts["refund"], Interrupt)
    r = await r.resume({"refund": {"approved": True}})
    assert r.said == ["Let me check.", "Refunded."]
    assert (r.outcome, r.result, r.state, r.error) == ("success", "done", {"done": True}, None)
    assert r.usage == [{"model": "m", "outputTokens": 1}]
    assert [type(message) for message in r.messages] == [UserMessage, AssistantMessage, AssistantMessage]
    assert r.types[0] == r.events[0]["type"] == "RUN_STARTED"
    assert r.terminal is not None
    assert r.terminal["type"] == "RUN_FINISHED"
    again = await r.say("and now 8")
    assert again.said == ["Let me check."]


async def test_what_a_server_would_refuse_is_refused():
    r = await run_agent(refund)
    with pytest.raises(ResumeInvalid):
        await r.resume({"refund": "yes"})


async def test_a_call_that_does_not_wait_cannot_be_answered():
    r = await run_agent(refund)
    with pytest.raises(LookupError, match="0 calls"):
        await r.answer_frontend({"pick": 1})


async def test_a_scripted_agent():
    async def later(run: RunContext) -> str:
        await asyncio.sleep(0)
        return f"you said {run.text}"

    script = ScriptedAgent(
        [{"type": "RUN_STARTED"}, "a ", later, lambda run: None, {"type": "RUN_FINISHED", "result": 7}]
    )
    r = await run_agent(script, "x")
    assert r.said == ["a you said x"]
    assert r.result == 7
    [given] = script.inputs
    assert given.messages[0].content == "x"
    failing = await run_agent(ScriptedAgent(["half", ValueError("no")]))
    assert failing.said == ["half"]
    assert failing.error is not None


VALID: list[dict[str, Any]] = [
    {"type": "RUN_STARTED", "threadId": "t", "runId": "r"},
    {"type": "TEXT_MESSAGE_START", "messageId": "m", "role": "assistant"},
    {"type": "TEXT_MESSAGE_END", "messageId": "m"},
    {"type": "RUN_FINISHED", "threadId": "t", "runId": "r"},
]


async def test_valid_runs_pass():
    assert_valid_run(VALID)


@pytest.mark.parametrize(
    "events",
    [
        [], VALID[:-1], VALID[1:], [*VALID[:2], *VALID[3:]], [*VALID, VALID[1]],
        [*VALID[:1], {"type": "TEXT_MESSAGE_START", "messageId": 7}, *VALID[2:]],
        [*VALID[:1], {"type": "UNKNOWN"}, *VALID[3:]],
        [*VALID[:1], {"type": "CUSTOM", "name": "n", "value": 1, "unknown": 1}, *VALID[3:]],
    ],
)  # fmt: skip
async def test_others_fail(events: list[dict[str, Any]]):
    with pytest.raises(AssertionError):
        assert_valid_run(events)
