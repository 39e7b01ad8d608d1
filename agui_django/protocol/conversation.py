"""The messages of a thread in order, with texts and arguments kept in pieces while they grow.

Law: finding a message or a call by id and adding a piece cost no more on a long thread than on a short one; pieces are
joined when somebody looks. Ids may occur twice: the first in the list is the one that is found.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Message = dict[str, Any]


class Conversation:
    """An ordered list of messages that events change.

    What the properties return is the caller's to keep; values inside (parts, metadata, activity content) are shared.

    Args:
        messages: the messages to start from, as wire dicts; they are not changed.
    """

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        """Start from these messages."""
        self._order: list[Message] = [own_copy(message) for message in messages]
        self._touched: dict[str, None] = {}
        self._removed: dict[str, None] = {}
        #: message id -> the pieces of its content, while text is appended to it
        self._text: dict[str, list[str]] = {}
        #: tool call id -> the pieces of its arguments
        self._args: dict[str, list[str]] = {}
        self._by_id: dict[str, Message] = {}
        self._calls: dict[str, tuple[Message, dict[str, Any]]] = {}
        self._index()

    @property
    def messages(self) -> list[Message]:
        """All messages in order, as wire dicts."""
        return [self._seen(message) for message in self._order]

    def message(self, message_id: str) -> Message | None:
        """One message by id, the first where the id occurs twice."""
        message = self._by_id.get(message_id)
        return None if message is None else self._seen(message)

    def tool_call(self, call_id: str) -> dict[str, Any] | None:
        """One tool call by id, the first where the id occurs twice."""
        found = self._calls.get(call_id)
        return None if found is None else self._seen_call(found[1])

    @property
    def touched(self) -> list[str]:
        """Ids of the messages created or changed by events, in the order of their first change."""
        return list(self._touched)

    @property
    def removed(self) -> list[str]:
        """Ids of messages that a MESSAGES_SNAPSHOT dropped and nothing brought back."""
        return list(self._removed)

    # ---- for the reducer ----

    def _touch(self, message_id: str) -> None:
        self._touched.setdefault(message_id)

    def _append(self, message: Message) -> None:
        self._order.append(message)
        self._created(message)

    def _created(self, message: Message) -> None:
        message_id = message["id"]
        if message_id in self._by_id:  # a doubled id: the first in the list is the one that is found
            self._flush_text(message_id)
            self._by_id[message_id] = next(known for known in self._order if known["id"] == message_id)
        else:
            self._by_id[message_id] = message
        for call in message.get("toolCalls") or ():
            self._calls.setdefault(call["id"], (message, call))
        self._removed.pop(message_id, None)
        self._touch(message_id)

    def _index(self) -> None:
        self._by_id = {}
        self._calls = {}
        for message in self._order:
            self._by_id.setdefault(message["id"], message)
            for call in message.get("toolCalls") or ():
                self._calls.setdefault(call["id"], (message, call))

    def _flush_text(self, message_id: str) -> None:
        parts = self._text.pop(message_id, None)
        if parts is not None:
            self._by_id[message_id]["content"] = "".join(parts)

    def _flush_args(self) -> None:
        for call_id, parts in self._args.items():
            self._calls[call_id][1]["function"]["arguments"] = "".join(parts)
        self._args = {}

    def _seen(self, message: Message) -> Message:
        seen = dict(message)
        parts = self._text.get(message["id"])
        if parts is not None and self._by_id[message["id"]] is message:
            parts[:] = ["".join(parts)]
            seen["content"] = parts[0]
        if "toolCalls" in message:
            seen["toolCalls"] = [self._seen_call(call) for call in message["toolCalls"]]
        return seen

    def _seen_call(self, call: dict[str, Any]) -> dict[str, Any]:
        function = dict(call["function"])
        parts = self._args.get(call["id"])
        if parts is not None and self._calls[call["id"]][1] is call:
            parts[:] = ["".join(parts)]
            function["arguments"] = parts[0]
        return {**call, "function": function}


def own_copy(message: Message) -> Message:
    """A copy whose top level and tool calls may be changed in place."""
    own = dict(message)
    if "toolCalls" in own:
        own["toolCalls"] = [{**call, "function": dict(call["function"])} for call in own["toolCalls"]]
    return own
