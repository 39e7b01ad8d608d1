"""What a client that declared no protocol version may be sent: the 0.x shape of one event.

Law: a pure function of the event (basic/versioning): it removes and reshapes, never reorders, renames or invents.
Client 0.0.59 drops the rest of a stream, silently, at the first event it cannot parse. The log keeps the true event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agui_django.protocol.events import EVENT_TYPES

Event = dict[str, Any]
Warn = Callable[[str], None]

_DROPPED = frozenset({"SUBAGENT_STARTED", "SUBAGENT_FINISHED", "SUBAGENT_ERROR"})
#: 0.x keeps steps by name alone: a subagent's step would collide with its parent's once the attribution is gone.
_STEPS = frozenset({"STEP_STARTED", "STEP_FINISHED"})
_KNOWN = frozenset(EVENT_TYPES) - _DROPPED


def needs_downgrade(event: Event) -> bool:
    """Whether `downgrade` would change this event. Cheap for the events that are many."""
    kind = event["type"]
    if "subagentRunId" in event or kind not in _KNOWN:
        return True
    check = _CHECKS.get(kind)
    return check is not None and check(event)


def _ignore(_text: str) -> None:
    pass


def downgrade(event: Event, warn: Warn = _ignore) -> Event | None:
    """The 0.x shape of an event; None where there is none. The event itself is not changed.

    Dropped: subagent events, attribution, and steps inside a subagent; unknown types. RUN_FINISHED loses a cancelled
    or success outcome (absent means success), a tool result made of parts becomes its text, parts whose source is
    a provider's file are left out; the same in MESSAGES_SNAPSHOT and in RUN_STARTED's input.

    Args:
        event: an enforced event, chunks expanded.
        warn: told what was lost that a reader would have seen.
    """
    if not needs_downgrade(event):
        return event
    kind = event["type"]
    if kind not in _KNOWN or kind in _STEPS:
        warn(f"{kind} is not sent to a client from before 1.0")
        return None
    shaped = _untagged(event)
    if kind == "RUN_FINISHED":
        outcome = shaped.get("outcome")
        if _has_new_outcome(shaped):
            if shaped.pop("outcome")["type"] == "cancelled":
                warn("RUN_FINISHED: the cancelled outcome is lost")
        elif outcome is not None and outcome["type"] == "interrupt":
            shaped["outcome"] = {**outcome, "interrupts": [_untagged(item) for item in outcome["interrupts"]]}
    elif kind == "TOOL_CALL_RESULT":
        shaped["content"] = _text(shaped["content"], warn)
    elif kind == "MESSAGES_SNAPSHOT":
        shaped["messages"] = [_message(message, warn) for message in shaped["messages"]]
    elif kind == "RUN_STARTED":
        given = shaped["input"]
        messages = [_message(message, warn) for message in given["messages"]]
        shaped["input"] = {"tools": [], "context": [], **given, "messages": messages}
    return shaped


# ---- may this event need it? ----------------------------------------------------------------------------------------


def _has_new_outcome(event: Event) -> bool:
    outcome = event.get("outcome")
    return outcome is not None and (outcome["type"] == "cancelled" or "pendingToolCallIds" in outcome)


def _has_tagged_interrupt(event: Event) -> bool:
    return any("subagentRunId" in item for item in (event.get("outcome") or {}).get("interrupts", ()))


def _has_new_input(event: Event) -> bool:
    given = event.get("input")
    return given is not None and (
        "tools" not in given or "context" not in given or any(map(_is_new_message, given["messages"]))
    )


def _is_new_message(message: Event) -> bool:
    if "subagentRunId" in message:
        return True
    content = message.get("content")
    return isinstance(content, list) and (message["role"] == "tool" or any(map(_is_file_part, content)))


def _is_file_part(part: Event) -> bool:
    source = part.get("source")
    return isinstance(source, dict) and source["type"] == "file"


_CHECKS: dict[str, Callable[[Event], bool]] = {
    "RUN_STARTED": _has_new_input,
    "RUN_FINISHED": lambda event: _has_new_outcome(event) or _has_tagged_interrupt(event),
    "TOOL_CALL_RESULT": lambda event: not isinstance(event["content"], str),
    "MESSAGES_SNAPSHOT": lambda event: any(map(_is_new_message, event["messages"])),
}


# ---- the older shapes -----------------------------------------------------------------------------------------------


def _untagged(value: Event) -> Event:
    return {key: item for key, item in value.items() if key != "subagentRunId"}


def _text(content: Any, warn: Warn) -> str:
    """The text parts in a row; media is lost, nothing stands in for it."""
    if isinstance(content, str):
        return content
    for part in content:
        if part["type"] != "text":
            warn(f"the {part['type']} part of a tool result is lost")
    return "".join(part["text"] for part in content if part["type"] == "text")


def _message(message: Event, warn: Warn) -> Event:
    if not _is_new_message(message):
        return message
    shaped = _untagged(message)
    content = shaped.get("content")
    if isinstance(content, list):
        if shaped["role"] == "tool":
            shaped["content"] = _text(content, warn)
        else:
            for part in filter(_is_file_part, content):
                warn(f"the {part['type']} part of a message is lost: its source is a provider's file")
            shaped["content"] = [part for part in content if not _is_file_part(part)]
    return shaped
