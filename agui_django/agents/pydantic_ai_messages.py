"""The stored conversation as pydantic-ai's messages.

Law: the stored history is the only source. What a client says of itself (metadata of its parts) is not passed on;
reasoning goes back with the signature that its provider gave it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, get_args

from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    DocumentUrl,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    NativeToolCallPart,
    NativeToolReturnPart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UploadedFile,
    UploadedFileProviderName,
    UserContent,
    UserPromptPart,
    VideoUrl,
)

from agui_django.agents.contents import text_of
from agui_django.agents.openai_chat import results_of
from agui_django.protocol.attachments import inline_content, inline_types
from agui_django.protocol.codec import decode
from agui_django.protocol.errors import InvalidJson

Wire = dict[str, Any]

#: Begins the wire id of a call that the model's provider executed itself.
NATIVE = "native:"
_URLS: Mapping[str, Any] = {"image": ImageUrl, "audio": AudioUrl, "video": VideoUrl, "document": DocumentUrl}
_PROVIDERS: Mapping[str, UploadedFileProviderName] = {name: name for name in get_args(UploadedFileProviderName)}


def to_history(
    messages: Iterable[Wire], waiting: Container[str] = (), *, provider_files: bool = False
) -> list[ModelMessage]:
    """Wire messages as pydantic-ai's; each says in its metadata which message it was made of.

    Activities are left out, calls that nobody has answered, and what a subagent said while it executed a call that has
    its result: that stands for it.

    Args:
        messages: the conversation.
        waiting: ids of unanswered calls that stay.
        provider_files: whether files that a provider keeps are told by their ids, which clients choose.
    """
    wires = list(messages)
    results = results_of(wires)
    executed = [f"/{call}:" for call in {call for _, call in results}]
    history = _History()
    thoughts: list[ThinkingPart] = []
    for position, wire in enumerate(wires):
        if any(call in f"/{wire.get('subagentRunId') or ''}" for call in executed):
            continue
        role = wire["role"]
        if role == "reasoning":
            thoughts += _thought(wire)
        elif role == "assistant":
            calls = [
                call
                for call in wire.get("toolCalls") or ()
                if (position, call["id"]) in results or call["id"] in waiting
            ]
            said = {call["id"]: results[position, call["id"]] for call in calls if (position, call["id"]) in results}
            history.answer(wire, [*thoughts, *_answer(wire, calls, said)])
            returns = [_return(call, said[call["id"]]) for call in calls if call["id"] in said]
            history.ask(wire, [part for part in returns if part is not None])
            thoughts = []
        elif role in ("system", "developer"):
            history.ask(wire, [SystemPromptPart(text_of(wire["content"]))])
        elif role == "user":
            history.ask(wire, [UserPromptPart(content_of_user(wire["content"], provider_files))])
            thoughts = []
    return history.messages


class _History:
    """Requests and responses as they grow."""

    def __init__(self) -> None:
        self.messages: list[ModelMessage] = []

    def ask(self, wire: Wire, parts: Sequence[ModelRequestPart]) -> None:
        if parts:
            self.messages.append(ModelRequest(list(parts), metadata={"messageId": wire["id"]}))

    def answer(self, wire: Wire, parts: Sequence[ModelResponsePart]) -> None:
        if parts:
            self.messages.append(ModelResponse(list(parts), metadata={"messageId": wire["id"]}))


def _answer(wire: Wire, calls: Sequence[Wire], results: Mapping[str, Wire]) -> list[ModelResponsePart]:
    parts: list[ModelResponsePart] = [TextPart(wire["content"])] if wire.get("content") else []
    for call in calls:
        name, text, id = call["function"]["name"], call["function"]["arguments"] or "{}", call["id"]
        if not id.startswith(NATIVE):
            parts.append(ToolCallPart(name, text, id))
            continue
        provider, _, own = id.removeprefix(NATIVE).partition(":")
        parts.append(NativeToolCallPart(name, text, own, provider_name=provider or None))
        content = results[id]["content"]
        parts.append(NativeToolReturnPart(name, _read(text_of(content)), own, provider_name=provider or None))
    return parts


def _return(call: Wire, result: Wire) -> ToolReturnPart | None:
    if call["id"].startswith(NATIVE):
        return None
    content = result["content"]
    metadata = result.get("metadata") or {}
    failed = bool(metadata.get("failed") or result.get("error"))
    return ToolReturnPart(
        call["function"]["name"],
        content if isinstance(content, str) else content_of_user(content),
        call["id"],
        outcome="denied" if metadata.get("declined") else "failed" if failed else "success",
    )


def _thought(wire: Wire) -> list[ThinkingPart]:
    """A reasoning message; its encrypted value is what `signed` made, or another producer's, which is let be."""
    about = _read(wire.get("encryptedValue") or "")
    known = about if isinstance(about, dict) and about.get("provider_name") else {}
    text = wire.get("content") or ""
    if not text and not known:
        return []
    names = ("id", "signature", "provider_name", "provider_details")
    return [ThinkingPart(text, **{name: known[name] for name in names if name in known})]


def _read(text: str) -> Any:
    try:
        return decode(text)
    except InvalidJson:
        return text


def content_of_user(content: str | Sequence[Wire], provider_files: bool = False) -> str | list[UserContent]:
    """A user's content: its text, or its parts; files whose bytes are here, as bytes."""
    if isinstance(content, str):
        return content
    return [found for part in content if (found := _part(part, provider_files)) is not None]


def _part(part: Wire, provider_files: bool) -> UserContent | None:
    if part["type"] == "text":
        return str(part["text"])
    source = part["source"]
    media_type = source.get("mimeType") or None
    try:
        data = inline_content(part)
    except ValueError:
        return None  # no base64; it would fail in every turn of the thread
    if data is not None:
        ((_, media_type),) = inline_types({"content": [part]})
        return BinaryContent(data, media_type=media_type or "application/octet-stream")
    if source["type"] == "file":
        provider = _PROVIDERS.get(source.get("provider") or "")
        if provider is None or not provider_files:
            return None
        return UploadedFile(source["value"], provider, media_type=media_type)
    address: UserContent = _URLS[part["type"]](source["value"], media_type=media_type)
    return address
