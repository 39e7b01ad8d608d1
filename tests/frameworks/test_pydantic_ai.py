"""The stories told by agents of pydantic-ai."""

from __future__ import annotations

from typing import Any

from pydantic_ai import Agent
from pydantic_ai import RunContext as ToolContext

from agui_django import RunContext
from agui_django.agents.pydantic_ai import PydanticAIAgent
from agui_django.testing.pydantic_ai import ScriptedModel
from tests.frameworks.stories import Stories, Story


def count(ctx: ToolContext[RunContext]) -> str:
    """Count."""
    ctx.deps.state["count"] += 1
    ctx.deps.state["items"] = ["a"]
    return "counted"


class PydanticAI:
    name = "pydantic-ai"

    def agent(self, story: Story) -> Any:
        agent = Agent(ScriptedModel(story.script), deps_type=RunContext, instructions="Be brief.")
        for name in story.tools:
            if name == "count":
                agent.tool(count)
            else:
                agent.tool_plain(requires_approval=name == "refund")(getattr(story, name))
        return PydanticAIAgent(agent)


class TestPydanticAI(Stories):
    framework = PydanticAI()
