"""What a graph tells of itself, as AG-UI's capabilities."""

from __future__ import annotations

from typing import Any

from ag_ui.core import AgentCapabilities
from langchain_core.utils.function_calling import convert_to_openai_tool

from agui_django.agents.langgraph_tools import own_tools


def capabilities_of(graph: Any, *, shared: bool, subagents: bool) -> AgentCapabilities:
    """The capabilities that can be read off a compiled graph.

    Args:
        graph: the graph.
        shared: whether it shares state with the page.
        subagents: whether its subgraphs are shown as subagents.
    """
    asks = graph.checkpointer not in (None, True, False)
    tools = [_tool(tool) for tool in own_tools(graph).values()]
    inner = [{"name": name} for name, _ in graph.get_subgraphs()]
    about: dict[str, Any] = {
        "identity": {"type": "langgraph"},
        "transport": {"streaming": True, "resumable": True},
        "tools": {"supported": bool(tools), "items": tools},
        "state": {"snapshots": shared, "deltas": shared, "persistentState": shared},
        "humanInTheLoop": {"supported": asks, "interrupts": asks},
    }
    if inner and subagents:
        about["multiAgent"] = {"supported": True, "subagents": inner}
    if graph.get_name() != "LangGraph":  # the name of those that have none
        about["identity"]["name"] = graph.get_name()
    return AgentCapabilities.model_validate(about)


def _tool(tool: Any) -> dict[str, Any]:
    function = convert_to_openai_tool(tool)["function"]
    return {
        "name": function["name"],
        "description": function.get("description", ""),
        "parameters": function.get("parameters", {"type": "object", "properties": {}}),
    }
