"""The stored conversation as LangChain's messages.

Law: the stored history is the truth. Of what a graph remembers only those messages are taken that say the same under
the same id; they may know more (a provider's signatures, citations).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from agui_django.agents.contents import text_of
from agui_django.agents.openai_chat import results_of
from agui_django.protocol.codec import decode
from agui_django.protocol.errors import InvalidJson

Wire = dict[str, Any]

#: What our parts are called there, where the name is another one.
_KINDS = {"document": "file"}


def to_langchain(messages: Iterable[Wire]) -> list[BaseMessage]:
    """Wire messages as LangChain's, with their ids.

    Reasoning and activities are left out, and calls that nobody has answered; a result stands behind its call.
    """
    wires = list(messages)
    results = results_of(wires)
    return [out for position, wire in enumerate(wires) for out in _converted(position, wire, results)]


def with_known(messages: Iterable[BaseMessage], known: Iterable[Any]) -> list[BaseMessage]:
    """The same messages, where it says the same as the graph's own object."""
    held = {each.id: each for each in known if isinstance(each, BaseMessage)}
    return [held[each.id] if each.id in held and _says(held[each.id]) == _says(each) else each for each in messages]


def text_in(message: BaseMessage) -> str:
    """The text of a message, without reasoning and files."""
    content = message.content
    if isinstance(content, str):
        return content
    parts = (part if isinstance(part, str) else part.get("text", "") for part in content if _is_text(part))
    return "".join(map(str, parts))


def parts_in(message: BaseMessage) -> str | list[Wire]:
    """A tool's result as our content: its text, or content parts where it holds files."""
    if isinstance(message.content, str):
        return message.content
    parts = [part for block in message.content_blocks for part in _part_of(dict(block))]
    return parts if any(part["type"] != "text" for part in parts) else "".join(part["text"] for part in parts)


# ---- ours to theirs ------------------------------------------------------------------------------------------------


def _converted(position: int, wire: Wire, results: Mapping[tuple[int, str], Wire]) -> Iterator[BaseMessage]:
    role, about = wire["role"], {"id": wire["id"], "name": wire.get("name")}
    if role in ("system", "developer"):
        yield SystemMessage(content=text_of(wire["content"]), **about)
    elif role == "user":
        yield HumanMessage(content=_content(wire["content"]), **about)
    elif role == "assistant":
        calls = [call for call in wire.get("toolCalls") or () if (position, call["id"]) in results]
        text = wire.get("content") or ""
        if not text and not calls:
            return
        yield AIMessage(content=text, tool_calls=[_call(call) for call in calls], **about)
        for call in calls:
            yield _result(call, results[position, call["id"]])


def _call(call: Wire) -> Any:
    function = call["function"]
    try:
        args = decode(function["arguments"] or "{}")
    except InvalidJson:
        args = {}
    return {
        "type": "tool_call", "id": call["id"], "name": function["name"], "args": args if isinstance(args, dict) else {},
    }  # fmt: skip


def _result(call: Wire, wire: Wire) -> ToolMessage:
    failed = bool(wire.get("error") or (wire.get("metadata") or {}).get("failed"))
    return ToolMessage(
        content=_content(wire["content"]),
        id=wire["id"],
        name=call["function"]["name"],
        tool_call_id=call["id"],
        status="error" if failed else "success",
    )


def _content(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [_block(part) for part in content]


def _block(part: Wire) -> Wire:
    """A content part as a standard block."""
    kind = part["type"]
    if kind == "text":
        return {"type": "text", "text": part["text"]}
    source = part["source"]
    block: Wire = {"type": _KINDS.get(kind, kind)}
    if source["type"] == "data":
        block["base64"] = source["value"]
    else:
        block["file_id" if source["type"] == "file" else "url"] = source["value"]
    if source.get("mimeType"):
        block["mime_type"] = source["mimeType"]
    return block


# ---- theirs to ours ------------------------------------------------------------------------------------------------


def _part_of(block: Wire) -> Iterator[Wire]:
    kind = {theirs: ours for ours, theirs in _KINDS.items()}.get(block["type"], block["type"])
    if kind == "text":
        yield {"type": "text", "text": block["text"]}
    elif kind in ("image", "audio", "video", "document"):
        for name, source in (("base64", "data"), ("url", "url"), ("file_id", "file")):
            if block.get(name):
                mime = {"mimeType": block["mime_type"]} if block.get("mime_type") else {}
                yield {"type": kind, "source": {"type": source, "value": block[name], **mime}}
                return


def _is_text(part: Any) -> bool:
    return isinstance(part, str) or part.get("type") == "text"


def _says(message: BaseMessage) -> tuple[Any, ...]:
    """What a message tells a model; equal for two that say the same."""
    if isinstance(message, AIMessage):
        calls = [(call["id"], call["name"], call["args"]) for call in message.tool_calls]
        return ("ai", text_in(message), calls)
    if isinstance(message, ToolMessage):
        return ("tool", message.tool_call_id, message.content, message.status)
    return (message.type, message.content)


def in_conversation(messages: Iterable[Wire], private: Callable[[Wire], bool]) -> list[Wire]:
    """The messages that a graph is given: without what its subagents keep to themselves."""
    return [message for message in messages if message["role"] != "activity" and not private(message)]
