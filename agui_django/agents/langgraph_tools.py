"""What a graph's own code needs of its run: the run, the page's tools, and edges that leave the page's calls alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from langgraph.config import get_config
from langgraph.graph import END
from langgraph.types import Send

from agui_django.agents.context import RunContext
from agui_django.agents.openai_chat import to_tools

#: The key of the run in a graph's configuration.
RUN = "agui_run"
#: The same for the names of the graph's own tools.
OWN = "agui_tools"


def current_run() -> RunContext[Any]:
    """The run, in a node or a tool of a graph; in a thread use its ``sync``.

    Raises:
        LookupError: the graph was not called by a `LangGraphAgent`.
    """
    return _configured(RUN)  # type: ignore[no-any-return]


def with_page_tools(*own: Any) -> list[Any]:
    """What a model's ``bind_tools`` is given: the graph's own tools, and those that the page of this run executes.

    A page's tool with the name of one of ours is left out.
    """
    page = _page(current_run(), frozenset(_configured(OWN)) | {_name(tool) for tool in own})
    return [*own, *to_tools(*(tool for tool in current_run().tools if tool.name in page))]


def to_own_tools(tools: str = "tools", *, messages: str = "messages") -> Callable[[Any], Any]:
    """A conditional edge from the model: each call of ours goes to the node `tools`; END where there is none.

    Each call is a task of its own: one that asks with ``interrupt()`` does not have the others executed twice.

    Args:
        tools: the name of a `ToolNode`.
        messages: the key of the conversation.
    """

    def route(state: Any) -> Any:
        page = page_tools()
        waiting = [call for call in _waiting(state, messages) if call["name"] not in page]
        return [
            Send(tools, {"__type": "tool_call_with_context", "tool_call": call, "state": state}) for call in waiting
        ] or END

    return route


def unless_page(model: str, *, messages: str = "messages") -> Callable[[Any], str]:
    """A conditional edge from the tools: to the node `model`; END where the page has a call to answer first."""

    def route(state: Any) -> str:
        page = page_tools()
        return END if any(call["name"] in page for call in _waiting(state, messages)) else model

    return route


def page_tools() -> frozenset[str]:
    """The names of the tools that the page of this run executes, without those that the graph has itself."""
    return _page(current_run(), frozenset(_configured(OWN)))


def own_tools(graph: Any) -> dict[str, Any]:
    """The tools of a graph's `ToolNode`s, and of its subgraphs', by name."""
    found: dict[str, Any] = {}
    for node in graph.nodes.values():
        found |= getattr(node.bound, "tools_by_name", None) or {}
        for subgraph in node.subgraphs:
            if hasattr(subgraph, "nodes"):
                found |= own_tools(subgraph)
    return found


def _page(run: RunContext[Any], own: frozenset[str]) -> frozenset[str]:
    return run._sink.tool_names - own


def _configured(key: str) -> Any:
    try:
        return get_config()["configurable"][key]
    except (KeyError, RuntimeError):
        raise LookupError("No LangGraphAgent has called this.") from None


def _waiting(state: Any, key: str) -> list[Any]:
    """The calls of the last answer that have no result yet."""
    messages = state.get(key) if isinstance(state, Mapping) else getattr(state, key, None)
    answered = set()
    for message in reversed(messages or ()):
        if isinstance(message, AIMessage):
            return [call for call in message.tool_calls if call["id"] not in answered]
        if isinstance(message, ToolMessage):
            answered.add(message.tool_call_id)
    return []


def _name(tool: Any) -> str:
    named = tool if isinstance(tool, Mapping) else vars(tool) if hasattr(tool, "__dict__") else {}
    found = named.get("name") or getattr(tool, "__name__", "") or (named.get("function") or {}).get("name", "")
    return str(found)
