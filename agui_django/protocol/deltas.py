"""The short way of deltas: most events of a run are pieces of text of an item that is open.

Law: the short way does exactly what the long one would, or declines; it looks up, appends and formats, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import orjson
from ag_ui.core import ReasoningMessageContentEvent, TextMessageContentEvent, ToolCallArgsEvent

from agui_django.protocol.events import DELTAS
from agui_django.protocol.reducer import Reducer
from agui_django.protocol.repairs import CLOSED_BY, CONTINUED_BY, OPENED_BY

Wire = dict[str, Any]

#: The official models of deltas -> type and the attribute of the id; and what makes one take the long way.
_MODELS: Final = {
    TextMessageContentEvent: ("TEXT_MESSAGE_CONTENT", "message_id"),
    ToolCallArgsEvent: ("TOOL_CALL_ARGS", "tool_call_id"),
    ReasoningMessageContentEvent: ("REASONING_MESSAGE_CONTENT", "message_id"),
}
_UNPLAIN: Final = ("timestamp", "raw_event", "metadata", "subagent_run_id")


class Delta:
    """The short way for deltas of one open item: its wire text up to the delta, and where the reducer keeps it."""

    __slots__ = ("append", "head", "id", "open", "owner", "plain", "type")

    def __init__(self, type: str, id: str, append: Callable[[str, str], bool], owner: str | None = None) -> None:
        self.type = type
        self.id = id
        self.open = True
        self.append = append
        self.owner = owner
        #: Clients from before 1.0 may be sent it unchanged: they know no subagents.
        self.plain = owner is None
        self.head = orjson.dumps(self._head()).decode()[:-1] + ',"delta":'

    def _head(self) -> Wire:
        head = {"type": self.type, DELTAS[self.type]: self.id}
        return head if self.owner is None else {**head, "subagentRunId": self.owner}

    def event(self, delta: str) -> Wire:
        """The same delta as an event."""
        return {**self._head(), "delta": delta}


class ShortWay:
    """The open items of one run, and how their deltas become wire text.

    Args:
        reducer: where the pieces are appended.
        now: integer milliseconds since the epoch.

    Attributes:
        blocked: everything takes the long way.
    """

    def __init__(self, reducer: Reducer, now: Callable[[], int]) -> None:
        self.blocked = False
        self._reducer = reducer
        self._now = now
        self._deltas: dict[str, tuple[str, dict[str, Delta]]] = {
            family.continues: (family.id_field, {}) for family in CONTINUED_BY.values()
        }
        #: What a subagent owns: its deltas carry its tag, so that an event that has none is not one of them.
        self._owned: dict[str, dict[str, Delta]] = {kind: {} for kind in CONTINUED_BY}

    def fast(self, event: Any) -> str | None:
        """The wire text of a plain delta of an open item, taken on the short way; None: use `accept`."""
        if type(event) is not dict:
            return self._fast_model(event)
        if len(event) != 3:
            return None
        known = self._deltas.get(event.get("type"))  # type: ignore[arg-type]  # None is simply not in it
        if known is None:
            return None
        item_id = event.get(known[0])
        item = known[1].get(item_id) if type(item_id) is str else None
        return None if item is None else self.piece(item, event.get("delta"))

    def _fast_model(self, event: Any) -> str | None:
        known = _MODELS.get(type(event))
        if known is None or event.__pydantic_extra__:
            return None
        values = event.__dict__
        for name in _UNPLAIN:
            if values[name] is not None:
                return None
        item = self._deltas[known[0]][1].get(values[known[1]])
        return None if item is None else self.piece(item, values["delta"])

    def piece(self, item: Delta, delta: Any) -> str | None:
        """The wire text of a delta of an item from `delta_of`; None: use `accept`."""
        if self.blocked or type(delta) is not str or not delta or not item.open or "\0" in delta:
            return None
        try:
            text = orjson.dumps(delta).decode()
        except TypeError:  # lone surrogates
            return None
        if not item.append(item.id, delta):
            return None
        return f'{item.head}{text},"timestamp":{self._now()}}}'

    def of(self, type: str, item_id: str) -> Delta | None:
        """The short way for deltas of an item that is open."""
        return self._deltas[type][1].get(item_id) or self._owned[type].get(item_id)

    def register(self, event: Wire) -> None:
        """Take note of an event that was accepted: START opens an item's short way, END closes it."""
        kind = event["type"]
        family = OPENED_BY.get(kind)
        if family is not None:
            item_id, owner = event[family.id_field], event.get("subagentRunId")
            append = self._reducer.append_args if family.kind == "tool_call" else self._reducer.append_text
            items = self._deltas[family.continues][1] if owner is None else self._owned[family.continues]
            items[item_id] = Delta(family.continues, item_id, append, owner)
        elif kind in CLOSED_BY:
            family = CLOSED_BY[kind]
            for items in (self._deltas[family.continues][1], self._owned[family.continues]):
                item = items.pop(event[family.id_field], None)
                if item is not None:
                    item.open = False
