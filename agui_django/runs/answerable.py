"""Which tool calls a page may answer: those that went to it. A result of our own tools is nobody else's to give.

Law: judged by what the run that made the call was started with, never by what the answering request says of itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from agui_django.agents.registry import get_agent
from agui_django.models import Interrupt, Message, Thread
from agui_django.protocol.codec import decode
from agui_django.protocol.errors import NotFound
from agui_django.runs.ledger import Ledger
from agui_django.runs.setup import Wire


def not_the_pages(
    alias: str, thread: Thread, messages: Iterable[Wire], stored: Iterable[Wire], ledger: Ledger
) -> set[str]:
    """The calls of a thread that the new tool messages of a client cannot answer.

    Args:
        alias: the database.
        thread: the row.
        messages: what the client sent.
        stored: the messages in play.
        ledger: where they stand.

    Returns:
        Call ids: of calls that people were asked about, and of calls to what was no tool of the page when they were
        made, or is one that the agent declares as its own: whoever declares its name gets no say. Calls that the agent
        itself made in so many words have an id of their turn; they are the agent's to judge. So are those of messages
        that no run of ours has made.
    """
    brought = {each["toolCallId"] for each in messages if each["role"] == "tool" and each["id"] not in ledger.orders}
    wanted = brought & ledger.calls.keys()
    if not wanted:
        return set()
    asked = Interrupt.objects.using(alias).filter(thread=thread, tool_call_id__in=wanted, reason="tool_call")
    found = set(asked.values_list("tool_call_id", flat=True))
    names = {call["id"]: call["function"]["name"] for each in stored for call in each.get("toolCalls") or ()}
    rows = Message.objects.using(alias).filter(thread=thread, superseded_by=None, run__isnull=False)
    makers = rows.filter(message_id__in={ledger.calls[call] for call in wanted})
    for maker, turn, agent, text in makers.values_list("message_id", "run__turn", "run__agent", "run__input"):
        tools = {tool["name"] for tool in decode(text).get("tools") or ()} - _own_tools(agent)
        found |= {
            call
            for call in wanted
            if ledger.calls[call] == maker and names.get(call) not in tools and not call.startswith(f"{turn}:")
        }
    return found


def _own_tools(agent: str) -> set[str]:
    """The tools that an agent declares in its capabilities."""
    try:
        declared = get_agent(agent).capabilities
    except NotFound:
        return set()
    tools = declared.tools.items if declared is not None and declared.tools is not None else None
    return {tool.name for tool in tools or ()}
