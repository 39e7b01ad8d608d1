"""What a stream of events makes of a thread: its messages, its state, its usage.

Law: the result equals what the official TypeScript client holds after the same events (its ``apply/default.ts``),
message by message, in the same order. A delta costs one list append; text is joined when somebody looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from agui_django.protocol.conversation import Conversation, Message, own_copy
from agui_django.protocol.json_patch import PatchError, apply_patch, json_equal
from agui_django.protocol.snapshots import reconcile

Event = dict[str, Any]


def _ignore(_text: str) -> None:
    pass


class Reducer(Conversation):
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
        super().__init__(messages)
        self.warn = warn
        self.state = state
        self.usage: list[dict[str, Any]] = []
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

    def append_text(self, message_id: str, delta: str) -> bool:
        """The short way for a delta without metadata; False where the message has no text yet: use `apply`."""
        parts = self._text.get(message_id)
        if parts is None:
            return False
        parts.append(delta)
        return True

    def append_args(self, call_id: str, delta: str) -> bool:
        """As `append_text`, for a tool call's arguments."""
        parts = self._args.get(call_id)
        if parts is None:
            return False
        parts.append(delta)
        return True

    def follow_calls(self, told: Callable[[str, str, str], None]) -> None:
        """Have a function told of each step of the tool calls that start from now on: type, call id and tool."""

        def tell(kind: str, call_id: str) -> None:
            owner = self._calls.get(call_id)
            if owner is not None:
                told(kind, call_id, owner[1]["function"]["name"])

        def followed(handler: Callable[[Event], None]) -> Callable[[Event], None]:
            def handle(event: Event) -> None:
                handler(event)
                tell(event["type"], event["toolCallId"])

            return handle

        for kind in ("TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END"):
            self._handlers[kind] = followed(self._handlers[kind])
        append = self.append_args

        def append_args(call_id: str, delta: str) -> bool:
            taken = append(call_id, delta)
            if taken:
                tell("TOOL_CALL_ARGS", call_id)
            return taken

        # The short way of a call takes this method when the call starts.
        self.append_args = append_args  # type: ignore[method-assign]

    def watch_calls(self, told: Callable[[Event], None]) -> None:
        """Have a function told of the events that start tool calls, and of those that answer them, from now on."""

        def watched(handler: Callable[[Event], None]) -> Callable[[Event], None]:
            def handle(event: Event) -> None:
                handler(event)
                told(event)

            return handle

        for kind in ("TOOL_CALL_START", "TOOL_CALL_RESULT"):
            self._handlers[kind] = watched(self._handlers[kind])

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
                self._append(own_copy(message))

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
                return
        else:
            message = self._by_id.get(entity)
            # An activity message cannot hold one (events/reasoning).
            if message is not None and message["role"] != "activity":
                _set_encrypted(message, event)
                self._touch(entity)
                return
        self.warn(f"REASONING_ENCRYPTED_VALUE: there is no {event['subtype']} {entity!r} to hold it")

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
        before = {message["id"]: self._seen(message) for message in reversed(self._order)}
        for message_id in list(self._text):
            self._flush_text(message_id)
        self._flush_args()
        self._order = reconcile(self._order, event)
        self._index()
        for message_id in before:
            if message_id not in self._by_id:
                self._touched.pop(message_id, None)
                self._removed[message_id] = None
        for message_id, message in self._by_id.items():
            if message_id not in before or not json_equal(before[message_id], message):
                self._removed.pop(message_id, None)
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
