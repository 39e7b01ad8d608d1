"""What tool messages hold: texts, content parts, or any other value as JSON text."""

from __future__ import annotations

from typing import Any

from agui_django.agents.asking import plain
from agui_django.protocol.codec import encode
from agui_django.protocol.enforcement import enforce
from agui_django.protocol.errors import ProtocolViolation


def content_of(value: Any) -> str | list[Any]:
    """A tool's value as a tool message's content: a text, content parts, or JSON text."""
    clean = plain(value)
    if isinstance(clean, str):
        return clean
    if isinstance(clean, list) and clean and _are_parts(clean):
        return clean
    return encode(clean)


def text_of(content: Any) -> str:
    """The text of a content: of parts, that of the text parts."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content or () if part.get("type") == "text")


def _are_parts(value: list[Any]) -> bool:
    """Whether a list is exactly content parts; a list of a tool's own dicts is data."""
    event = {"type": "TOOL_CALL_RESULT", "messageId": "", "toolCallId": "", "content": value}
    try:
        return enforce(event) is event
    except ProtocolViolation:
        return False
