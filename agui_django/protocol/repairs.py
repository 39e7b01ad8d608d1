"""What a producer's normaliser repairs instead of refusing it.

Law: a repair never invents content; it reopens, drops, joins or replaces by the truth, and what it cannot repair it
leaves to the verifier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from agui_django.protocol.codec import SurrogateJoiner
from agui_django.protocol.errors import ProtocolViolation
from agui_django.protocol.events import FAMILIES
from agui_django.protocol.json_patch import PatchError, apply_patch
from agui_django.protocol.reducer import Reducer
from agui_django.protocol.verifier import SequenceVerifier

Wire = dict[str, Any]

CONTINUED_BY: Final = {family.continues: family for family in FAMILIES.values() if family.continues}
CLOSED_BY: Final = {family.closes: family for family in FAMILIES.values() if family.continues}
OPENED_BY: Final = {family.opens: family for family in FAMILIES.values() if family.continues}
#: What a START that reopens an item repeats of the one that opened it.
_OPENER_FIELDS: Final = ("role", "name", "toolCallName", "parentMessageId", "subagentRunId")


class Repairs:
    """The repairs of one run's events.

    Args:
        verifier: knows what is open and what was closed.
        reducer: knows the activities.
        warn: told what was repaired.
    """

    def __init__(self, verifier: SequenceVerifier, reducer: Reducer, warn: Callable[[str], None]) -> None:
        self._verifier = verifier
        self._reducer = reducer
        self._warn = warn
        self._joiner = SurrogateJoiner()
        self._opened: dict[tuple[str, str], Wire] = {}
        #: items that we opened again for a continuation after their END
        self._reopened: dict[tuple[str, str], None] = {}
        self._results: dict[str, Any] = {}

    @property
    def holding(self) -> bool:
        """Whether half a character waits for its other half."""
        return self._joiner.holding

    def ends(self) -> list[Wire]:
        """The ENDs of what was opened again."""
        return [{"type": FAMILIES[kind].closes, FAMILIES[kind].id_field: item_id} for kind, item_id in self._reopened]

    def remember(self, event: Wire) -> None:
        """Take note of an event that was accepted."""
        kind = event["type"]
        family = OPENED_BY.get(kind)
        if family is not None:
            item_id = event[family.id_field]
            fields: Wire = {name: event[name] for name in _OPENER_FIELDS if name in event}
            self._opened[family.kind, item_id] = {"type": kind, family.id_field: item_id, **fields}
        elif kind == "TOOL_CALL_RESULT":
            self._results[event["toolCallId"]] = event["content"]

    def repair(self, event: Wire) -> list[Wire]:
        """The events that stand for one, before they are verified.

        Raises:
            ProtocolViolation: it cannot be repaired.
        """
        kind = event["type"]
        if kind in CONTINUED_BY:
            return self._delta(event)
        if kind in CLOSED_BY:
            return self._end(event)
        if kind in OPENED_BY:
            family = OPENED_BY[kind]
            key = (family.kind, event[family.id_field])
            if key in self._reopened:  # the agent opens again what we opened for it
                del self._reopened[key]
                return []
        elif kind == "TOOL_CALL_RESULT":
            return self._result(event)
        elif kind == "ACTIVITY_DELTA":
            return self._activity(event)
        return [event]

    def _delta(self, event: Wire) -> list[Wire]:
        family = CONTINUED_BY[event["type"]]
        key = (family.kind, event[family.id_field])
        verifier = self._verifier
        before: list[Wire] = []
        is_open = verifier.is_open(*key)
        if not is_open and verifier.was_closed(*key):
            # Clients append: a continuation after END opens the item again (events/text-messages.mdx).
            before = [dict(self._opened[key])]
            is_open = True
        if not is_open:
            return [event]  # the verifier says what is wrong
        delta = self._joiner.join(key, event["delta"])
        if not delta and "metadata" not in event:
            return []
        if before:
            self._reopened[key] = None
        return [*before, event if delta is event["delta"] else {**event, "delta": delta}]

    def _end(self, event: Wire) -> list[Wire]:
        family = CLOSED_BY[event["type"]]
        key = (family.kind, event[family.id_field])
        self._reopened.pop(key, None)
        rest = self._joiner.flush(key)
        if not rest or not self._verifier.is_open(*key):
            return [event]
        return [{"type": family.continues, family.id_field: key[1], "delta": rest}, event]

    def _result(self, event: Wire) -> list[Wire]:
        call_id = event["toolCallId"]
        if call_id in self._results:
            if self._results[call_id] == event["content"]:
                return []
            raise ProtocolViolation(
                f"Cannot send TOOL_CALL_RESULT: the call '{call_id}' has another result already.",
                event_type="TOOL_CALL_RESULT",
            )
        return [event]

    def _activity(self, event: Wire) -> list[Wire]:
        message = self._reducer.message(event["messageId"])
        if message is None or message["role"] != "activity":
            self._warn(f"ACTIVITY_DELTA: there is no activity {event['messageId']!r}; it was dropped.")
            return []
        try:
            content = apply_patch(message["content"], event["patch"])
        except PatchError:
            content = None
        if isinstance(content, dict):
            return [event]
        self._warn(f"ACTIVITY_DELTA does not apply to {event['messageId']!r}; an ACTIVITY_SNAPSHOT was sent instead.")
        snapshot = {
            "type": "ACTIVITY_SNAPSHOT",
            "messageId": event["messageId"],
            "activityType": message["activityType"],
            "content": message["content"],
        }
        if "subagentRunId" in message:
            snapshot["subagentRunId"] = message["subagentRunId"]
        return [snapshot]
