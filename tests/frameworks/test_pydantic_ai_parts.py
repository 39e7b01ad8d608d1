"""What an agent of pydantic-ai can do beyond the stories: deferred calls, state, files, reasoning, errors."""

from __future__ import annotations

import asyncio
import base64
import threading
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from ag_ui.core import CustomEvent
from django.db import connection
from pydantic import BaseModel
from pydantic_ai import Agent, ApprovalRequired, CallDeferred, ModelRetry, ToolReturn
from pydantic_ai import RunContext as ToolContext
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError
from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    TextPart,
    ThinkingPart,
    ToolReturnPart,
    UploadedFile,
    UserPromptPart,
)
from pydantic_ai.models.function import DeltaThinkingPart, FunctionModel
from pydantic_ai.ui import StateDeps

from agui_django import Retry, RunContext, approval_required, register
from agui_django.agents.pydantic_ai import PydanticAIAgent
from agui_django.agents.registry import AgentEntry, AgentOptions, swap
from agui_django.protocol.errors import ResumeInvalid
from agui_django.testing.pydantic_ai import ScriptedModel
from agui_django.testing.replies import Reply
from tests.running import checked, run

pytestmark = pytest.mark.asyncio


def made(*replies: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*replies), **options)


def answer(r: Any, **payload: Any) -> dict[str, Any]:
    """The same answer to all questions."""
    return dict.fromkeys(r.interrupts, payload)


# ---- deferred calls ----------------------------------------------------------------------------------------------


def shop(*calls: tuple[str, dict[str, Any]]) -> tuple[Agent[Any, Any], list[Any]]:
    paid: list[Any] = []
    agent = made(Reply(calls=calls), "Settled.")

    @agent.tool_plain(requires_approval=True)
    def refund(amount: int) -> dict[str, int]:
        paid.append(amount)
        return {"refunded": amount}

    @agent.tool
    async def big(ctx: ToolContext[RunContext], amount: int) -> str:
        if amount > 100 and not ctx.tool_call_approved:
            raise ApprovalRequired(metadata={"message": f"Really {amount}?", "level": 2})
        paid.append(amount)
        return "done"

    @agent.tool_plain
    def deliver(to: str) -> str:
        raise CallDeferred(metadata={"message": f"Tracking number for {to}?", "response_schema": {"type": "string"}})

    return agent, paid


async def test_arguments_that_a_person_changed() -> None:
    agent, paid = shop(("refund", {"amount": 40}))
    first = await run(PydanticAIAgent(agent, edit=["refund"]))
    (question,) = first.interrupts.values()
    assert question.message == "Run refund?" and question.reason == "tool_call"
    assert question.response_schema["properties"]["editedArgs"]["properties"]["amount"] == {"type": "integer"}
    last = checked(await first.resume(answer(first, approved=True, editedArgs={"amount": 25})))
    assert paid == [25]
    result = next(each for each in last.wire_messages if each["role"] == "tool")
    assert (result["content"], result["metadata"]) == ('{"refunded":25}', {"editedArgs": {"amount": 25}})


async def test_changes_that_nobody_allowed() -> None:
    agent, paid = shop(("refund", {"amount": 40}))
    first = await run(PydanticAIAgent(agent))
    (question,) = first.interrupts.values()
    assert "editedArgs" not in question.response_schema["properties"]
    with pytest.raises(ResumeInvalid, match="fit"):
        await first.resume(answer(first, approved=True, editedArgs={"amount": 1}))
    last = await first.resume(cancelled=list(first.interrupts))
    assert (paid, last.said) == ([], ["Settled."])
    result = next(each for each in last.wire_messages if each["role"] == "tool")
    assert (result["content"], result["metadata"]) == ("Not approved.", {"failed": True, "declined": True})


async def test_a_tool_that_decides_itself_to_ask() -> None:
    agent, paid = shop(("big", {"amount": 500}), ("big", {"amount": 5}))
    first = await run(PydanticAIAgent(agent))
    (question,) = first.interrupts.values()
    assert (question.message, question.metadata) == ("Really 500?", {"level": 2})
    assert paid == [5]
    last = checked(await first.resume(answer(first, approved=True)))
    assert (sorted(paid), last.said) == ([5, 500], ["Settled."])


async def test_a_call_that_is_carried_out_elsewhere() -> None:
    agent, _ = shop(("deliver", {"to": "Rome"}), ("refund", {"amount": 1}))
    first = await run(PydanticAIAgent(agent))
    refund, deliver = sorted(first.interrupts.items(), key=lambda item: item[1].message)
    assert deliver[1].message == "Tracking number for Rome?" and deliver[1].response_schema == {"type": "string"}
    last = checked(await first.resume({refund[0]: {"approved": True}, deliver[0]: "XY 7"}))
    results = [each["content"] for each in last.wire_messages if each["role"] == "tool"]
    assert sorted(results) == ["XY 7", '{"refunded":1}']
    assert last.said == ["Settled."]


async def test_the_page_comes_first() -> None:
    agent, paid = shop(("pick", {}), ("big", {"amount": 200}))
    target = PydanticAIAgent(agent)
    first = await run(target, tools=["pick"])
    assert (first.outcome, first.interrupts) == ("success", {})
    assert first.terminal["outcome"]["pendingToolCallIds"] == list(first.pending)
    second = checked(await first.answer_frontend({"pick": "red"}))
    assert [question.message for question in second.interrupts.values()] == ["Really 200?"]
    last = checked(await second.resume(answer(second, approved=True)))
    assert (paid, last.said) == ([200], ["Settled."])
    results = [each["content"] for each in last.wire_messages if each["role"] == "tool"]
    assert sorted(results) == ["done", "red"]


async def test_what_was_approved_is_done_once() -> None:
    """The process dies behind the tool, before its result is shown; the same answer comes again."""
    agent, paid = shop(("refund", {"amount": 40}))
    first = await run(PydanticAIAgent(agent))
    again = await first.resume(answer(first, approved=True))
    assert paid == [40]
    assert again.said == ["Settled."]
    last = await first.resume(answer(first, approved=True))
    assert (paid, last.said) == ([40], ["Settled."])
    assert '{"refunded":40}' in [each.get("content") for each in last.wire_messages]


async def test_an_approved_tool_that_fails() -> None:
    """It ended by itself, so the call has a failed result; what was cut off by it stays without one."""
    began = asyncio.Event()
    agent = made(Reply(calls=[("charge", {}), ("transfer", {})]), "Never said.")

    @agent.tool_plain(requires_approval=True)
    async def charge() -> str:
        await asyncio.wait_for(began.wait(), 30)
        raise ValueError("hunter2")

    @agent.tool_plain(requires_approval=True)
    async def transfer() -> str:
        began.set()
        await asyncio.Event().wait()
        return "never"

    first = await run(PydanticAIAgent(agent))
    r = await first.resume(answer(first, approved=True))
    assert r.error is not None and r.error["code"] == "agent_exception"
    assert "hunter2" not in str(r.events)
    assert [(each["toolCallId"], each["content"]) for each in r.wire_messages if each["role"] == "tool"] == [
        ("call_1", "The tool failed.")
    ]


@pytest.mark.parametrize(
    "value", ["half \ud83d", {"size": float("nan"), "raw": b"\xff", 7: {1}}], ids=["text", "mapping"]
)
async def test_an_approved_tool_whose_value_is_no_json(value: Any) -> None:
    """It was done; so it is not done again, and the model reads what can be told of it."""
    agent, done = made(Reply(calls=[("read", {})]), "Read."), []

    @agent.tool_plain(requires_approval=True)
    def read() -> Any:
        done.append(1)
        return value

    first = await run(PydanticAIAgent(agent))
    for _ in range(2):
        r = await first.resume(answer(first, approved=True))
        assert (done, r.said) == ([1], ["Read."])


@pytest.mark.parametrize("approved", [False, True])
async def test_a_tool_that_leaves_the_run_to_ask(approved: bool) -> None:
    """Its answer would be lost: the developer is told what to do instead."""
    agent = made(Reply(calls=[("ask", {})]), "Never said.")

    @agent.tool(requires_approval=approved)
    async def ask(ctx: ToolContext[RunContext]) -> str:
        return str(ctx.deps.interrupt("sure", message="Sure?"))

    r = await run(PydanticAIAgent(agent))
    if approved:
        r = await r.resume(answer(r, approved=True))
    assert r.outcome != "interrupt" and not r.interrupts
    assert r.failure is not None and "ApprovalRequired or CallDeferred" in r.failure.text
    assert [each["content"] for each in r.wire_messages if each["role"] == "tool"] == ["The tool failed."]


async def test_a_marked_function() -> None:
    @approval_required("Pay {amount} €?", edit=True, expires=timedelta(hours=1))
    def pay(amount: int) -> str:
        return "paid"

    agent = made(Reply(calls=[("pay", {"amount": 3})]), "Paid.")
    agent.tool_plain(pay)
    with pytest.raises(TypeError, match="requires_approval=True"):
        PydanticAIAgent(agent)
    agent = made(Reply(calls=[("pay", {"amount": 3})]), "Paid.")
    agent.tool_plain(requires_approval=True)(pay)
    first = await run(PydanticAIAgent(agent))
    (question,) = first.interrupts.values()
    assert question.message == "Pay 3 €?" and question.expires_at
    assert "editedArgs" in question.response_schema["properties"]


async def test_a_tool_of_the_page_with_the_name_of_ours() -> None:
    agent, paid = shop(("refund", {"amount": 40}))
    r = await run(PydanticAIAgent(agent), tools=["refund"])
    assert r.error is not None and r.error["code"] == "tool_conflict"
    assert paid == []


# ---- the state, dependencies -------------------------------------------------------------------------------------


class Plan(BaseModel):
    items: list[str] = []
    done: int = 0


async def test_state_deps() -> None:
    agent = made(Reply(calls=[("add", {"item": "tea"})]), "Added.", deps_type=StateDeps[Plan])
    given = StateDeps(Plan())

    @agent.tool
    def add(ctx: ToolContext[StateDeps[Plan]], item: str) -> str:
        ctx.deps.state.items.append(item)
        return str(len(ctx.deps.state.items))

    # What the model does not know stays.
    state = {"items": ["milk"], "done": 1, "notes": "x" * 200}
    r = await run(PydanticAIAgent(agent, deps=given), state=state)
    assert r.state == {**state, "items": ["milk", "tea"]}
    assert given.state == Plan()
    assert r.types.index("STATE_DELTA") < r.types.index("TOOL_CALL_RESULT")
    # Only what was changed leaves: of the rest others may have made something.
    delta = next(event for event in r.events if event["type"] == "STATE_DELTA")
    assert {op["path"].split("/")[1] for op in delta["delta"]} == {"items"}


async def test_a_state_that_does_not_fit() -> None:
    agent = made("Never said.", deps_type=StateDeps[Plan])
    r = await run(PydanticAIAgent(agent, deps=StateDeps(Plan())), state={"done": "many"})
    assert r.error is not None and "many" not in str(r.error)


@dataclass
class Deps:
    user: str


async def test_dependencies_of_a_run() -> None:
    async def deps(run: RunContext) -> Deps:
        return Deps(run.user)

    agent = made(Reply(calls=[("who", {})]), "Told.", deps_type=Deps)

    @agent.tool
    def who(ctx: ToolContext[Deps]) -> str:
        return ctx.deps.user

    r = await run(PydanticAIAgent(agent, deps=deps), user="ada")
    assert next(each["content"] for each in r.wire_messages if each["role"] == "tool") == "ada"


async def test_synchronous_tools_share_the_runs_thread() -> None:
    seen: list[Any] = []
    agent = made(Reply(calls=[("look", {}), ("look", {})]), "Seen.")

    @agent.tool
    def look(ctx: ToolContext[RunContext]) -> str:
        seen.append((threading.current_thread().name, id(connection.settings_dict), ctx.deps.user))
        ctx.deps.sync.state["looked"] = len(seen)
        return "ok"

    r = await run(PydanticAIAgent(agent), user="ada")
    assert r.state == {"looked": 2}
    assert len({name for name, *_ in seen}) == 1 and seen[0][0].startswith("agui-run")


# ---- what is shown -----------------------------------------------------------------------------------------------


async def test_structured_output() -> None:
    agent = made(Reply(calls=[("final_result", {"items": ["tea"], "done": 2})]), output_type=Plan)
    r = await run(PydanticAIAgent(agent))
    assert r.result == {"items": ["tea"], "done": 2}
    assert [each["role"] for each in r.wire_messages] == ["user", "assistant", "tool"]
    assert r.pending == {}
    text = await run(PydanticAIAgent(made("Hello.")))
    assert text.result == "Hello."


async def test_a_tool_that_wants_to_be_called_again() -> None:
    agent = made(
        Reply(calls=[("guess", {"n": 1})]),
        Reply(calls=[("guess", {"n": 2})]),
        Reply(calls=[("guess", {"x": 1})]),
        "No.",
    )

    @agent.tool_plain(retries=3)
    def guess(n: int) -> str:
        if n == 1:
            raise ModelRetry("Higher.")
        return "right"

    r = await run(PydanticAIAgent(agent))
    results = [(each["content"], each.get("metadata")) for each in r.wire_messages if each["role"] == "tool"]
    assert "Higher." in results[0][0] and results[0][1] == {"failed": True}
    assert results[1] == ("right", None)
    assert results[2][1] == {"failed": True}
    assert len({call["id"] for each in r.wire_messages for call in each.get("toolCalls", ())}) == 3


async def test_events_in_a_tools_metadata() -> None:
    agent = made(Reply(calls=[("ring", {})]), "Rang.")

    @agent.tool_plain
    def ring() -> ToolReturn:
        return ToolReturn("rung", metadata=[CustomEvent(name="bell", value=1)])

    r = await run(PydanticAIAgent(agent))
    assert [event["value"] for event in r.events if event["type"] == "CUSTOM"] == [1]


async def test_a_tool_that_fails_is_a_bug() -> None:
    agent = made(Reply(calls=[("fetch", {})]), "Never said.")

    @agent.tool_plain
    def fetch() -> str:
        raise ModelHTTPError(503, "somebody else's model, hunter2")

    r = await run(PydanticAIAgent(agent))
    assert r.error is not None and r.error["code"] == "agent_exception"
    assert "hunter2" not in str(r.events)
    assert next(each for each in r.wire_messages if each["role"] == "tool")["content"] == "The tool failed."


# ---- history -----------------------------------------------------------------------------------------------------


async def test_reasoning_goes_back_with_its_signature() -> None:
    given: list[Any] = []

    async def stream(messages: Any, info: Any) -> Any:
        given.append(messages)
        yield {0: DeltaThinkingPart(content="Hm.", signature="sig")}
        yield "Yes."

    agent = PydanticAIAgent(Agent(FunctionModel(stream_function=stream)))
    first = await run(agent)
    assert [each["role"] for each in first.wire_messages] == ["user", "reasoning", "assistant"]
    checked(await first.say("sure?"))
    _, response, _ = given[-1]
    assert response.parts == [ThinkingPart("Hm.", signature="sig", provider_name="function"), TextPart("Yes.")]
    assert response.metadata == {"messageId": first.wire_messages[2]["id"]}


async def test_what_a_provider_executed_itself() -> None:
    given: list[Any] = []

    async def stream(messages: Any, info: Any) -> Any:
        given.append(messages)
        yield {0: NativeToolCallPart("web_search", {"q": "tea"}, "s1", provider_name="function")}
        yield {1: NativeToolReturnPart("web_search", {"hits": 3}, "s1", provider_name="function")}
        yield "Found."

    first = await run(PydanticAIAgent(Agent(FunctionModel(stream_function=stream))))
    assert [each["content"] for each in first.wire_messages if each["role"] == "tool"] == ['{"hits":3}']
    await first.say("more")
    _, response, _ = given[-1]
    kinds = {type(part): part for part in response.parts}
    assert kinds[NativeToolCallPart].tool_call_id == kinds[NativeToolReturnPart].tool_call_id == "s1"
    assert kinds[NativeToolReturnPart].content == {"hits": 3}


async def test_files_of_the_user() -> None:
    data = base64.b64encode(b"pixels").decode()
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image", "source": {"type": "data", "value": data, "mimeType": "image/png"},
         "metadata": {"vendor_metadata": {"detail": "high"}, "force_download": "allow-local"}},
        {"type": "image", "source": {"type": "url", "value": "https://example.com/a.png", "mimeType": "image/png"},
         "metadata": {"force_download": "allow-local"}},
        {"type": "image", "source": {"type": "data", "value": "no base64", "mimeType": "image/png"}},
        {"type": "image", "source": {"type": "url", "value": f"data:image/png;base64,{data}"}},
        {"type": "document", "source": {"type": "file", "value": "file-1", "provider": "openai"}},
    ]  # fmt: skip
    model = ScriptedModel("A picture.")
    asked = [{"id": "u1", "role": "user", "content": parts}]
    await run(PydanticAIAgent(Agent(model)), asked)
    (part,) = model.messages[-1][-1].parts
    assert isinstance(part, UserPromptPart) and not isinstance(part.content, str)
    text, picture, address, other = part.content
    assert text == "What is this?"
    assert isinstance(other, BinaryContent) and (other.data, other.media_type) == (b"pixels", "image/png")
    assert isinstance(picture, BinaryContent) and picture.data == b"pixels" and picture.vendor_metadata is None
    assert isinstance(address, ImageUrl) and address.force_download is False and address.vendor_metadata is None
    await run(PydanticAIAgent(Agent(model), provider_files=True), asked)
    file = model.messages[-1][-1].parts[0].content[-1]
    assert isinstance(file, UploadedFile) and (file.file_id, file.provider_name) == ("file-1", "openai")


async def test_calls_that_nobody_answered_are_not_told() -> None:
    model = ScriptedModel("Again.")
    call = {"id": "c1", "type": "function", "function": {"name": "pick", "arguments": "{}"}}
    history = [
        {"id": "u1", "role": "user", "content": "pick"},
        {"id": "a1", "role": "assistant", "content": "Pick one.", "toolCalls": [call]},
        {"id": "u2", "role": "user", "content": "never mind"},
    ]
    await run(PydanticAIAgent(Agent(model, system_prompt="Be brief.")), history)
    assert model.script.requests == [
        [("system", "Be brief."), ("user", "pick"), ("assistant", "Pick one."), ("user", "never mind")]
    ]
    response = next(each for each in model.messages[0] if isinstance(each, ModelResponse))
    assert response.parts == [TextPart("Pick one.")]


async def test_a_failed_answer_of_the_page() -> None:
    model = ScriptedModel(Reply(calls=[("pick", {})]), "Sorry.")
    first = await run(PydanticAIAgent(Agent(model)), tools=["pick"])
    await first.answer_frontend(failed={"pick": "closed"})
    part = model.messages[-1][-1].parts[0]
    assert isinstance(part, ToolReturnPart) and (part.content, part.outcome) == ("closed", "failed")


# ---- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ModelHTTPError(429, "m", {"error": "hunter2"}), "provider_rate_limited"),
        (ModelHTTPError(503, "m", "hunter2"), "provider_unavailable"),
        (ModelHTTPError(500, "m", "hunter2"), "provider_unavailable"),
        (ModelAPIError("m", "Connection error: hunter2"), "provider_unavailable"),
        (ModelHTTPError(401, "m", "key hunter2"), "agent_exception"),
        (ModelHTTPError(400, "m", "hunter2"), "agent_exception"),
        (RuntimeError("hunter2"), "agent_exception"),
    ],
    ids=["429", "503", "500", "network", "401", "400", "bug"],
)
@pytest.mark.parametrize("text", ["", "half"], ids=["before", "within"])
async def test_errors_of_the_model(error: Exception, code: str, text: str) -> None:
    r = await run(PydanticAIAgent(made(Reply(text, raises=error))))
    assert r.error is not None and r.error["code"] == code
    assert "hunter2" not in str(r.events)
    assert r.failure is not None and "hunter2" in r.failure.traceback
    assert r.said == ([text] if text else [])


async def test_a_model_that_was_busy_is_asked_again() -> None:
    agent = made(lambda request: Reply(raises=ModelHTTPError(429, "m")) if len(model.script.requests) == 1 else "Here.")
    model = agent.model
    assert isinstance(model, ScriptedModel)
    entry = AgentEntry("retried", PydanticAIAgent(agent), AgentOptions(retry=Retry(wait=0)))
    r = await run(entry)
    assert (r.said, len(model.script.requests)) == (["Here."], 2)


async def test_a_cancel_reaches_the_model() -> None:
    stopped = asyncio.Event()

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    r = await run(PydanticAIAgent(made(Reply(["One ", waits, "two"]))), cancel_after=0.2)
    assert r.outcome == "cancelled" and stopped.is_set()
    assert r.said == ["One "]


# ---- registration ------------------------------------------------------------------------------------------------


async def test_capabilities() -> None:
    agent, _ = shop()
    model = ScriptedModel(profile={"supports_thinking": True})
    told = PydanticAIAgent(agent, edit=True).capabilities()
    assert {tool.name for tool in told.tools.items} == {"refund", "big", "deliver"}
    assert (told.human_in_the_loop.approvals, told.human_in_the_loop.approve_with_edits) == (True, True)
    assert told.output.structured_output is False
    assert PydanticAIAgent(Agent(model, output_type=Plan)).capabilities().reasoning.supported is True
    assert PydanticAIAgent(Agent()).capabilities().reasoning is None


async def test_the_adapter_takes_bare_agents(settings: Any) -> None:
    settings.AGUI_DJANGO = {**settings.AGUI_DJANGO, "ADAPTERS": ["agui_django.agents.pydantic_ai.PydanticAIAgent"]}
    try:
        entry = register("pydantic-ai-bare", made("Hello."), title="Bare", edit=True)
        assert isinstance(entry.target, PydanticAIAgent)
        assert (await run(entry)).said == ["Hello."]
    finally:
        swap("pydantic-ai-bare", None)
