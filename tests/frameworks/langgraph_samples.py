"""Small graphs, and short forms of what came of them."""

from __future__ import annotations

import operator
from typing import Annotated, Any

from langchain_core.messages import AnyMessage
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from typing_extensions import TypedDict

from agui_django.agents.langgraph import to_own_tools, unless_page, with_page_tools
from agui_django.testing import AgentRun
from agui_django.testing.langchain import ScriptedChatModel


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    plan: list[str]
    notes: Annotated[list[str], operator.add]


def chain(*nodes: Any, schema: Any = State, **compiled: Any) -> Any:
    """A graph whose nodes follow each other."""
    graph = StateGraph(schema)
    graph.add_sequence([(getattr(node, "__name__", "sub"), node) for node in nodes])
    graph.add_edge(START, getattr(nodes[0], "__name__", "sub"))
    return graph.compile(**compiled)


def model(*replies: Any) -> ScriptedChatModel:
    return ScriptedChatModel(*replies)


def calling(scripted: ScriptedChatModel, name: str = "answer") -> Any:
    async def node(state: State) -> State:
        return {"messages": [await scripted.ainvoke(state["messages"])]}

    node.__name__ = name
    return node


@tool
def look() -> str:
    """Look."""
    return "seen"


def tooled(scripted: ScriptedChatModel, *tools: Any, **options: Any) -> StateGraph:
    """A model and its tools, those of the page among them."""

    async def answer(state: State) -> State:
        return {"messages": [await scripted.bind_tools(with_page_tools(*tools)).ainvoke(state["messages"])]}

    graph = StateGraph(State)
    graph.add_node("answer", answer)
    graph.add_node("tools", ToolNode(tools, **options))
    graph.add_edge(START, "answer")
    graph.add_conditional_edges("answer", to_own_tools())
    graph.add_conditional_edges("tools", unless_page("answer"))
    return graph


def roles(result: AgentRun) -> list[tuple[str, str]]:
    return [(each["role"], each.get("content") or "") for each in result.wire_messages]


def lanes(result: AgentRun) -> list[tuple[str, str]]:
    """Each message's text and the node that it is a subagent of."""
    turn = f"{result.setup.turn}:"
    owners = [(each, each.get("subagentRunId", "-").rpartition(turn)[2]) for each in result.wire_messages]
    return [
        (each.get("content") or "", owner.rpartition("/")[2].partition(":")[0])
        for each, owner in owners
        if each["role"] == "assistant"
    ]
