"""What a stream of events makes of a thread: its messages, its state, its usage.

Law: the result equals what the official TypeScript client holds after the same events (its ``apply/default.ts``),
message by message, in the same order. A delta costs one list append; text is joined when somebody looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from agui_django.protocol.json_patch import PatchError, apply_patch, json_equal

Message = dict[str, Any]
Event = dict[str, Any]

#: Where a snapshot may say which activity types it lists completely (a convention of the official client).
_CLIENT_METADATA = "@ag-ui/client"


def _ignore(_text: str) -> None:
    pass


class Reducer:
    """Applies verified events, chunks already expanded, to messages and state.

    Values inside events (parts, metadata, activity content) are kept by reference and never changed: an event is
    not to be edited after it was applied. What the properties return is the caller's to keep; only such values
    inside are shared.

    Args:
        messages: the messages before the first event, as wire dicts; they are not changed.
        state: the state before the first event.
        warn: called with a text for everything that could not be applied.
    """

    def __init__(
        self, messages: Iterable[Message] = (), state: Any = None, *, warn: Callable[[str], None] = _ignore
    ) -> None:
        """Start from these messages and this state."""
        self.warn = warn
        self.state = state
        self.usage: list[dict[str, Any]] = []
        self._order: list[Message] = [_own(message) for message in messages]
        self._touched: dict[str, None] = {}
        self._removed: dict[str, None] = {}
        #: message id -> the pieces of its content, while text is appended to it
        self._text: dict[str, list[str]] = {}
        #: tool call id -> the pieces of its arguments
        self._args: dict[str, list[str]] = {}
        self._by_id: dict[str, Message] = {}
        self._calls: dict[str, tuple[Message, dict[str, Any]]] = {}
        self._index()
        self._handlers: dict[str, Callable[[Event], None]] = {
            "RUN_STARTED": self._run_started,
            "RUN_FINISHED": self._terminal,
            "RUN_ERROR": self._terminal,
            "TEXT_MESSAGE_START": self._message_start,
            "TEXT_MESSAGE_CONTENT": self._message_content,
            "TEXT_MESSAGE_END": self._message_end,
            "REASONING_MESSAGE_START": self._message_start,
            "REASONING_MESSAGE_CONTENT": self._message_content,
            "REASONING_MESSAGE_END": self._message_end,
            "REASONING_ENCRYPTED_VALUE": self._encrypted_value,
            "TOOL_CALL_START": self._call_start,
            "TOOL_CALL_ARGS": self._call_args,
            "TOOL_CALL_END": self._call_end,
            "TOOL_CALL_RESULT": self._call_result,
            "STATE_SNAPSHOT": self._state_snapshot,
            "STATE_DELTA": self._state_delta,
            "MESSAGES_SNAPSHOT": self._messages_snapshot,
            "ACTIVITY_SNAPSHOT": self._activity_snapshot,
            "ACTIVITY_DELTA": self._activity_delta,
        }

    def apply(self, event: Event) -> None:
        """Apply one event. Events that change neither messages nor state are accepted and ignored."""
        handler = self._handlers.get(event["type"])
        if handler is not None:
            handler(event)

    # ---- what came of it ----

    @property
    def messages(self) -> list[Message]:
        """All messages in order, as wire dicts."""
        return [self._seen(message) for message in self._order]

    def message(self, message_id: str) -> Message | None:
        """One message by id, the first where the id occurs twice."""
        message = self._by_id.get(message_id)
        return None if message is None else self._seen(message)

    @property
    def touched(self) -> list[str]:
        """Ids of the messages created or changed by events, in the order of their first change."""
        return list(self._touched)

    @property
    def removed(self) -> list[str]:
        """Ids of messages that a MESSAGES_SNAPSHOT dropped and nothing brought back."""
        return list(self._removed)

    # ---- the state, for subclasses that hold it elsewhere ----

    def set_state(self, value: Any) -> None:
        """Replace the state (STATE_SNAPSHOT)."""
        self.state = value

    def patch_state(self, ops: list[dict[str, Any]]) -> bool:
        """Apply a STATE_DELTA; False and a warning where it does not apply, and the state is as before."""
        try:
            self.state = apply_patch(self.state, ops)
        except PatchError as error:
            self.warn(f"STATE_DELTA does not apply: {error}")
            return False
        return True

    # ---- runs and state ----

    def _run_started(self, event: Event) -> None:
        for message in (event.get("input") or {}).get("messages") or ():
            if message["id"] not in self._by_id:
                self._append(_own(message))

    def _terminal(self, event: Event) -> None:
        self.usage = list(event.get("usage") or ())

    def _state_snapshot(self, event: Event) -> None:
        self.set_state(event["snapshot"])

    def _state_delta(self, event: Event) -> None:
        self.patch_state(event["delta"])

    # ---- text and reasoning: both append to the message of that id, whatever its role ----

    def _message_start(self, event: Event) -> None:
        message_id = event["messageId"]
        message = self._by_id.get(message_id)
        if message is None:
            reasoning = event["type"] == "REASONING_MESSAGE_START"
            message = {
                "id": message_id,
                "role": "reasoning" if reasoning else event.get("role", "assistant"),
                "content": "",
            }
            if not reasoning and "name" in event:
                message["name"] = event["name"]
            if "subagentRunId" in event:
                message["subagentRunId"] = event["subagentRunId"]
            self._append(message)
        elif message["role"] == "activity":
            self._warn_activity(event)
            return
        if "metadata" in event:
            _merge_metadata(message, event)
            self._touch(message_id)

    def _message_content(self, event: Event) -> None:
        message_id = event["messageId"]
        parts = self._text.get(message_id)
        if parts is None:
            message = self._by_id.get(message_id)
            if message is None:
                self.warn(f"{event['type']}: there is no message {message_id!r}")
                return
            if message["role"] == "activity":
                self._warn_activity(event)
                return
            # Structured content gives way to the text, as in the client.
            content = message.get("content")
            parts = self._text[message_id] = [content] if isinstance(content, str) else []
            message.setdefault("content", "")
            self._touch(message_id)
        parts.append(event["delta"])
        if "metadata" in event:
            _merge_metadata(self._by_id[message_id], event)

    def _message_end(self, event: Event) -> None:
        message = self._by_id.get(event["messageId"])
        if message is None:
            self.warn(f"{event['type']}: there is no message {event['messageId']!r}")
        elif message["role"] == "activity":
            self._warn_activity(event)
        elif "metadata" in event:
            _merge_metadata(message, event)
            self._touch(message["id"])

    def _warn_activity(self, event: Event) -> None:
        self.warn(f"{event['type']}: {event['messageId']!r} is an activity message; ids must be unique")

    def _encrypted_value(self, event: Event) -> None:
        entity = event["entityId"]
        if event["subtype"] == "tool-call":
            owner = self._calls.get(entity)
            if owner is not None:
                _set_encrypted(owner[1], event)
                self._touch(owner[0]["id"])
        else:
            message = self._by_id.get(entity)
            if message is not None and message["role"] != "activity":
                _set_encrypted(message, event)
                self._touch(entity)

    # ---- tool calls ----

    def _call_start(self, event: Event) -> None:
        call_id, name = event["toolCallId"], event["toolCallName"]
        owner = self._calls.get(call_id)
        if owner is not None:  # a restated call is continued, not doubled
            message, call = owner
            if call["function"]["name"] != name:
                self.warn(f"TOOL_CALL_START: the call {call_id!r} is renamed to {name!r}")
                call["function"]["name"] = name
                self._touch(message["id"])
            if "metadata" in event:
                _merge_metadata(call, event)
                self._touch(message["id"])
            return
        parent_id = event.get("parentMessageId")
        found = self._by_id.get(parent_id) if parent_id else None
        if found is not None and found["role"] == "assistant":
            message = found
            self._touch(message["id"])
        else:
            if found is not None:
                self.warn(f"TOOL_CALL_START: {parent_id!r} is a {found['role']} message, not an assistant's")
            message = {"id": parent_id if parent_id and found is None else call_id, "role": "assistant"}
            if "subagentRunId" in event and message["id"] not in self._by_id:
                message["subagentRunId"] = event["subagentRunId"]
            self._append(message)
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
        if "metadata" in event:
            _merge_metadata(call, event)
        message.setdefault("toolCalls", []).append(call)
        self._calls[call_id] = (message, call)

    def _call_args(self, event: Event) -> None:
        call_id = event["toolCallId"]
        parts = self._args.get(call_id)
        if parts is None:
            owner = self._calls.get(call_id)
            if owner is None:
                self.warn(f"TOOL_CALL_ARGS: there is no tool call {call_id!r}")
                return
            parts = self._args[call_id] = [owner[1]["function"]["arguments"]]
            self._touch(owner[0]["id"])
        parts.append(event["delta"])
        if "metadata" in event:
            _merge_metadata(self._calls[call_id][1], event)

    def _call_end(self, event: Event) -> None:
        owner = self._calls.get(event["toolCallId"])
        if owner is None:
            self.warn(f"TOOL_CALL_END: there is no tool call {event['toolCallId']!r}")
        elif "metadata" in event:
            _merge_metadata(owner[1], event)
            self._touch(owner[0]["id"])

    def _call_result(self, event: Event) -> None:
        message: Message = {
            "id": event["messageId"],
            "toolCallId": event["toolCallId"],
            "role": "tool",
            "content": event["content"],
        }
        if "subagentRunId" in event:
            message["subagentRunId"] = event["subagentRunId"]
        if "metadata" in event:
            _merge_metadata(message, event)
        owner = self._calls.get(event["toolCallId"])
        if owner is None:
            self._append(message)
            return
        # Directly behind its call and the results already there: model providers demand that order.
        where = len(self._order)
        while self._order[where - 1] is not owner[0]:
            where -= 1
        while where < len(self._order) and self._order[where]["role"] == "tool":
            where += 1
        self._order.insert(where, message)
        self._created(message)

    # ---- snapshots and activities ----

    def _messages_snapshot(self, event: Event) -> None:
        new = [_own(message) for message in event["messages"]]
        by_id = {message["id"]: message for message in new}
        keeps_activity = _activity_rule(event, new)
        keeps_reasoning = not any(message["role"] == "reasoning" for message in new)
        before = {message["id"]: self._seen(message) for message in reversed(self._order)}
        order: list[Message] = []
        for message in self._order:
            if message["id"] in by_id:
                order.append(by_id[message["id"]])
            elif message["role"] == "activity":
                if keeps_activity(message):
                    order.append(message)
            elif message["role"] == "reasoning" and keeps_reasoning:
                order.append(message)
        known = {message["id"] for message in order}
        order += [message for message in new if message["id"] not in known]
        for message_id in by_id.keys() & self._text.keys():
            del self._text[message_id]
        self._flush_args()
        self._order = order
        self._index()
        for message_id in before:
            if message_id not in self._by_id:
                self._text.pop(message_id, None)
                self._touched.pop(message_id, None)
                self._removed[message_id] = None
        for message_id, message in by_id.items():
            if message_id not in before or not json_equal(before[message_id], message):
                self._touch(message_id)

    def _activity_snapshot(self, event: Event) -> None:
        message_id = event["messageId"]
        message = self._by_id.get(message_id)
        fresh: Message = {
            "id": message_id,
            "role": "activity",
            "activityType": event["activityType"],
            "content": event["content"],
        }
        if "subagentRunId" in event:
            fresh["subagentRunId"] = event["subagentRunId"]
        if message is None:
            self._append(fresh)
            message = fresh
        elif event.get("replace", True):
            was_activity = message["role"] == "activity"
            if was_activity and "metadata" in message:
                # The snapshot replaces the content, not the metadata gathered so far.
                fresh["metadata"] = message["metadata"]
            message.clear()
            message.update(fresh)
            self._text.pop(message_id, None)
            if not was_activity:
                self._flush_args()
                self._index()
            self._touch(message_id)
        elif message["role"] != "activity":
            return
        if "metadata" in event:
            _merge_metadata(message, event)
            self._touch(message_id)

    def _activity_delta(self, event: Event) -> None:
        message = self._by_id.get(event["messageId"])
        if message is None:
            return
        if message["role"] != "activity":
            self.warn(f"ACTIVITY_DELTA: {event['messageId']!r} is not an activity message")
            return
        if "metadata" in event:  # kept even where the patch does not apply
            _merge_metadata(message, event)
            self._touch(message["id"])
        try:
            content = apply_patch(message.get("content", {}), event["patch"])
        except PatchError as error:
            self.warn(f"ACTIVITY_DELTA for {event['messageId']!r} does not apply: {error}")
            return
        message["content"] = content
        message["activityType"] = event["activityType"]
        self._touch(message["id"])

    # ---- bookkeeping ----

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


def _own(message: Message) -> Message:
    """A copy whose top level and tool calls may be changed in place."""
    own = dict(message)
    if "toolCalls" in own:
        own["toolCalls"] = [{**call, "function": dict(call["function"])} for call in own["toolCalls"]]
    return own


def _merge_metadata(target: dict[str, Any], event: Event) -> None:
    """Fold an event's metadata into what the event builds; the last write of a key wins (basic/metadata)."""
    target["metadata"] = {**target.get("metadata", {}), **event["metadata"]}


def _set_encrypted(target: dict[str, Any], event: Event) -> None:
    """The value and, since 1.1, the producer's name for its kind; a value without a name has none."""
    target["encryptedValue"] = event["encryptedValue"]
    if "encryptedValueType" in event:
        target["encryptedValueType"] = event["encryptedValueType"]
    else:
        target.pop("encryptedValueType", None)


def _activity_rule(event: Event, new: list[Message]) -> Callable[[Message], bool]:
    """Which of the activity messages that a snapshot leaves out survive it.

    A snapshot with any activity lists them all; one without says nothing about them. The client's own metadata key
    overrides this: null owns every type, a list the types in it, anything malformed none.
    """
    has_activity = any(message["role"] == "activity" for message in new)
    declared = (event.get("metadata") or {}).get(_CLIENT_METADATA, _ignore)
    if declared is _ignore or (isinstance(declared, dict) and "authoritativeActivityTypes" not in declared):
        return lambda message: not has_activity
    types = declared.get("authoritativeActivityTypes") if isinstance(declared, dict) else ()
    if isinstance(declared, dict) and types is None:
        return lambda message: False
    valid = isinstance(types, list) and all(isinstance(name, str) for name in types)
    owned = frozenset(types) if isinstance(types, list) and valid else frozenset()
    return lambda message: message["activityType"] not in owned
