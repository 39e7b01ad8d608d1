"""docs/howto/recipes.md: its code, as it stands, lives through the twelve stories."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, ClassVar

import httpx
import pytest
from agents import Agent, FunctionTool, Model, RunContextWrapper, function_tool
from openai import APIConnectionError, AsyncOpenAI
from openai.types import responses as types
from openai.types.responses.response_reasoning_summary_text_delta_event import ResponseReasoningSummaryTextDeltaEvent

from agui_django.agents.contents import text_of
from agui_django.testing.replies import Reply, Request, Script
from tests.frameworks.stories import Stories, Story
from tests.frameworks.test_plain import count, deltas
from tests.live import live_server
from tests.parts import ROOT
from tests.running import run

PAGE = (ROOT / "docs" / "howto" / "recipes.md").read_text()
LOOP, SDK, DESK = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


# ---- a model server --------------------------------------------------------------------------------------------------


class ModelServer:
    """Speaks the stream of chat completions; the first part of the path says which script."""

    def __init__(self) -> None:
        self.scripts: dict[str, Script] = {}
        self.refuses: dict[str, int] = {}
        self.asked: list[dict[str, Any]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (event := await receive())["type"] == "http.request":
            body += event["body"]
            if not event["more_body"]:
                break
        asked = json.loads(body)
        self.asked.append(asked)
        name = scope["path"].split("/")[1]
        status = self.refuses.get(name, 200)
        headers = [(b"content-type", b"text/event-stream" if status == 200 else b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if status != 200:
            await send({"type": "http.response.body", "body": b'{"error": {"message": "secret"}}'})
            return
        reply = self.scripts[name].next([(each["role"], text_of(each["content"])) for each in asked["messages"]])
        async for data in lines(reply):
            await send({"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def lines(reply: Reply) -> AsyncIterator[str]:
    """The data of a stream."""

    def chunk(**members: Any) -> str:
        about = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
        return json.dumps({**about, "choices": [], **members})

    for delta in deltas(reply):
        if callable(delta):
            await delta()
        else:
            yield chunk(choices=[{"index": 0, "delta": delta, "finish_reason": None}])
    if isinstance(reply.raises, RuntimeError):  # breaks off in the middle of a line
        yield '{"choices": ' + str(reply.raises)
        return
    if reply.raises is not None:
        yield json.dumps({"error": {"message": str(reply.raises), "code": "server_error"}})
        return
    yield chunk(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
    read, written = reply.input_tokens, reply.output_tokens
    yield chunk(usage={"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written})
    yield "[DONE]"


@pytest.fixture(scope="module")
def models() -> Iterator[ModelServer]:
    """The model server; its address is in `Loop`."""
    app = ModelServer()
    with live_server(app) as running:
        Loop.url, Loop.app = running.url, app
        yield app


class Loop:
    """The page's first recipe, with a story's tools in the place of the page's."""

    name = "loop"
    url: ClassVar[str]
    app: ClassVar[ModelServer]

    def agent(self, story: Story) -> Any:
        key = f"s{id(story)}"
        self.app.scripts[key] = story.script
        tools = [count if name == "count" else getattr(story, name) for name in story.tools]
        return loop(f"{self.url}/{key}", tools)


def loop(url: str, tools: list[Callable[..., Any]]) -> Any:
    """What the recipe defines."""
    code, defined, rest = re.split(r'(?s)(def find_order.*?)(?=@agent\("support"\))', LOOP)
    assert "TOOLS = [find_order, refund]" in defined
    names: dict[str, Any] = {"__name__": "shop.agents", "TOOLS": tools}
    exec(code.replace("AsyncOpenAI()", "None") + rest.replace('@agent("support")', ""), names)
    # A connection belongs to a loop, which ends with the test.
    client = httpx.AsyncClient(limits=httpx.Limits(max_keepalive_connections=0))
    names["client"] = AsyncOpenAI(base_url=url, api_key="x", http_client=client, max_retries=0)
    return names["support"]


@pytest.mark.usefixtures("models")
class TestLoop(Stories):
    framework = Loop()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("status", "code"),
    [(429, "provider_rate_limited"), (503, "provider_unavailable"), (401, "agent_exception")],
    ids=["429", "503", "401"],
)
async def test_a_model_server_that_refuses(models: ModelServer, status: int, code: str):
    models.refuses["refused"] = status
    result = await run(loop(f"{Loop.url}/refused", []))
    assert result.error["code"] == code and "secret" not in str(result.wire)


@pytest.mark.asyncio
async def test_a_model_server_that_fails_or_is_away(models: ModelServer):
    models.scripts["fails"] = Script(Reply("half", raises=OSError("secret")))
    result = await run(loop(f"{Loop.url}/fails", []))
    assert (result.error["code"], result.said) == ("provider_unavailable", ["half"]) and "secret" not in str(
        result.wire
    )
    away = await run(loop("http://127.0.0.1:9", []))
    assert away.error["code"] == "provider_unavailable"


@pytest.mark.asyncio
async def test_the_loop_of_the_page(models: ModelServer):
    """As it stands, its own tools and approval among it."""
    names: dict[str, Any] = {"__name__": "shop.agents", "pay": lambda amount: f"paid {amount}"}
    code = LOOP.replace('@agent("support")', "").replace("AsyncOpenAI()", "None")
    exec(code, names)
    models.scripts["page"] = Script(Reply(calls=[("refund", {"amount": 40})]), "Settled.")
    client = httpx.AsyncClient(limits=httpx.Limits(max_keepalive_connections=0))
    names["client"] = AsyncOpenAI(base_url=f"{Loop.url}/page", api_key="x", http_client=client)
    first = await run(names["support"], "refund 40")
    ((key, question),) = first.interrupts.items()
    assert question.message == "Refund 40 €?"
    assert (await first.resume({key: {"approved": True}})).said == ["Settled."]
    offered = [tool["function"]["name"] for tool in models.asked[-1]["tools"]]
    assert offered == ["find_order", "refund"] and models.asked[-1]["messages"][-1]["content"] == "paid 40"


# ---- the OpenAI Agents SDK -------------------------------------------------------------------------------------------


class ScriptedModel(Model):
    """The SDK's model: says what a script says."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.tools: list[str] = []

    async def get_response(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def stream_response(
        self, system: Any, input: Any, settings: Any, tools: Any, *args: Any, **kwargs: Any
    ) -> AsyncIterator[Any]:
        self.tools = [tool.name for tool in tools]
        reply = self.script.next(request(input))
        yield types.ResponseCreatedEvent(response=response(reply, []), sequence_number=0, type="response.created")
        if reply.reasoning:
            yield ResponseReasoningSummaryTextDeltaEvent(
                delta=reply.reasoning, item_id="r", output_index=0, sequence_number=0, summary_index=0,
                type="response.reasoning_summary_text.delta",
            )  # fmt: skip
        for piece in reply.pieces:
            if isinstance(piece, str):
                yield types.ResponseTextDeltaEvent(
                    content_index=0, delta=piece, item_id="m", logprobs=[], output_index=0, sequence_number=0,
                    type="response.output_text.delta",
                )  # fmt: skip
            else:
                await piece()
        items = output(reply)
        for index, item in enumerate(items):
            if isinstance(item, types.ResponseFunctionToolCall):
                yield types.ResponseOutputItemAddedEvent(
                    item=item, output_index=index, sequence_number=0, type="response.output_item.added"
                )
                yield types.ResponseFunctionCallArgumentsDeltaEvent(
                    delta=item.arguments, item_id=str(item.id), output_index=index, sequence_number=0,
                    type="response.function_call_arguments.delta",
                )  # fmt: skip
        if reply.raises is not None:
            await asyncio.sleep(0.01)  # as over a network: the SDK drops what it has not handed on when it hears of it
            raise reply.raises
        done = response(reply, items)
        yield types.ResponseCompletedEvent(response=done, sequence_number=0, type="response.completed")


def request(items: Any) -> Request:
    """The SDK's input as (role, text) of each message; a message and its calls are one."""
    out: Request = []
    for item in [{"role": "user", "content": items}] if isinstance(items, str) else items:
        kind = item.get("type", "message")
        if kind == "function_call_output":
            out.append(("tool", item["output"]))
        elif kind == "function_call":
            if not out or out[-1][0] != "assistant":
                out.append(("assistant", ""))
        elif kind == "message":
            content = item["content"]
            text = content if isinstance(content, str) else "".join(part["text"] for part in content)
            out.append((item["role"], text))
    return out


def output(reply: Reply) -> list[Any]:
    text = "".join(piece for piece in reply.pieces if isinstance(piece, str))
    part = types.ResponseOutputText(annotations=[], text=text, type="output_text")
    said = types.ResponseOutputMessage(id="m", content=[part], role="assistant", status="completed", type="message")
    calls = [
        types.ResponseFunctionToolCall(
            id=f"fc_{index}", call_id=uuid.uuid4().hex, name=name, arguments=json.dumps(args), type="function_call"
        )
        for index, (name, args) in enumerate(reply.calls)
    ]
    return [*([said] if text else []), *calls]


def response(reply: Reply, items: list[Any]) -> types.Response:
    read, written = reply.input_tokens, reply.output_tokens
    usage = {
        "input_tokens": read, "output_tokens": written, "total_tokens": read + written,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip
    return types.Response.model_validate({
        "id": "resp", "created_at": 0, "model": "scripted", "object": "response", "output": items,
        "tool_choice": "auto", "tools": [], "parallel_tool_calls": True, "usage": usage,
    })  # fmt: skip


@function_tool(name_override="count", failure_error_function=None)
async def sdk_count(context: RunContextWrapper[Any]) -> str:
    """Count."""
    return count(context.context)


class Sdk:
    """The page's second recipe."""

    name = "sdk"

    def agent(self, story: Story) -> Any:
        tools: list[FunctionTool] = [
            sdk_count
            if name == "count"
            else function_tool(getattr(story, name), needs_approval=name == "refund", failure_error_function=None)
            for name in story.tools
        ]
        model = ScriptedModel(story.script)
        names: dict[str, Any] = {"__name__": "shop.openai_agents"}
        exec(SDK, names)

        async def agent(run: Any) -> None:
            await names["run_openai"](run, Agent(name="Desk", model=model, tools=tools))

        return agent


class TestSdk(Stories):
    framework = Sdk()


@pytest.mark.asyncio
async def test_a_provider_that_is_away_from_the_sdk():
    away = APIConnectionError(request=httpx.Request("POST", "https://example.com/secret"))
    result = await run(Sdk().agent(Story(Script(Reply("half", raises=away)))))
    assert (result.error["code"], result.said) == ("provider_unavailable", ["half"])
    assert "secret" not in str(result.wire)


@pytest.mark.asyncio
async def test_the_desk_of_the_page():
    names: dict[str, Any] = {"__name__": "shop.agents", "pay": lambda amount: f"paid {amount}"}
    exec(SDK, names)
    exec(DESK.replace('@agent("openai_desk", initial_state={"items": []})', ""), names)
    calls = [("add_item", {"title": "tea"}), ("refund", {"amount": 40}), ("pick", {})]
    names["desk"].model = model = ScriptedModel(Script(Reply(calls=calls[:1]), Reply(calls=calls[1:]), "Settled."))
    first = await run(names["openai_desk"], "tea, and my money", state={"items": []}, tools=["pick", "refund"])
    assert model.tools == ["refund", "add_item", "pick"] and first.state == {"items": ["tea"]}
    ((key, question),) = first.interrupts.items()
    assert question.message == 'refund {"amount": 40}?'
    second = await first.resume({key: {"approved": True}})
    assert list(second.pending.values()) == ["pick"]
    third = await second.answer_frontend({"pick": "red"})
    assert third.said[-1] == "Settled."
    assert [text for role, text in model.script.requests[-1] if role == "tool"] == ["added", "paid 40", "red"]
