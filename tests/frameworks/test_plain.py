"""The stories told by an agent of no framework: what the others are compared with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from agui_django import RunContext
from agui_django.agents.contents import text_of
from agui_django.agents.openai_chat import feed, to_messages, to_tools
from agui_django.protocol.codec import encode
from agui_django.testing.replies import Reply, Script
from tests.frameworks.stories import Stories, Story


def count(run: RunContext) -> str:
    """Count."""
    run.state["count"] += 1
    run.state["items"] = ["a"]
    return "counted"


async def completion(script: Script, messages: list[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    """A model server's stream."""
    reply = script.next([(each["role"], text_of(each["content"])) for each in messages])
    for delta in deltas(reply):
        if callable(delta):
            await delta()
        else:
            yield {"model": "scripted", "choices": [{"index": 0, "delta": delta}]}
    if reply.raises is not None:
        raise reply.raises
    usage = {"prompt_tokens": reply.input_tokens, "completion_tokens": reply.output_tokens}
    yield {"model": "scripted", "choices": [], "usage": usage}


def deltas(reply: Reply) -> list[Any]:
    out: list[Any] = [{"reasoning_content": reply.reasoning}] if reply.reasoning else []
    out += [{"content": piece} if isinstance(piece, str) else piece for piece in reply.pieces]
    for index, (name, args) in enumerate(reply.calls):
        function = {"name": name, "arguments": encode(args)}
        out.append({"tool_calls": [{"index": index, "id": f"call_{index}", "function": function}]})
    return out


class Plain:
    """The loop of docs/howto/agents.md."""

    name = "plain"

    def agent(self, story: Story) -> Any:
        tools = [count if name == "count" else getattr(story, name) for name in story.tools]

        async def agent(run: RunContext) -> None:
            while True:
                await run.dispatch_tool_calls(*tools)
                async with run.message() as message:
                    offered = to_tools(*tools, *run.tools)
                    assert {each["function"]["name"] for each in offered} >= set(story.tools)
                    await feed(message, completion(story.script, to_messages(run.messages)))
                if not message.tool_calls:
                    return

        return agent


class TestPlain(Stories):
    framework = Plain()
