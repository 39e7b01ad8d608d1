"""The compact spelling: TEXT_MESSAGE_CHUNK, TOOL_CALL_CHUNK, REASONING_MESSAGE_CHUNK become START, CONTENT, END.

A theory of operation (basic/patterns/streaming.mdx): each owner (the parent agent, or one subagent) has a lane; a lane
assembles at most one item; the item ends when its lane can no longer continue it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from agui_django.protocol.errors import ProtocolViolation
from agui_django.protocol.events import CHUNKS, EVENT_TYPES, Family

#: Stand aside from assembly: they close nothing. SUBAGENT_STARTED opens another lane.
_ASIDE: Final = frozenset({
    "RAW", "ACTIVITY_SNAPSHOT", "ACTIVITY_DELTA", "REASONING_ENCRYPTED_VALUE", "SUBAGENT_STARTED",
})  # fmt: skip
#: Speak of the run or of the whole conversation: they close every lane.
_RUN_LEVEL: Final = frozenset({"RUN_STARTED", "RUN_FINISHED", "RUN_ERROR", "MESSAGES_SNAPSHOT"})
_CLOSES_LANE: Final = frozenset(EVENT_TYPES) - _ASIDE - _RUN_LEVEL - CHUNKS.keys()

#: What a chunk may repeat, with the opener's value only.
_REPEATABLE: Final[Mapping[str, tuple[str, ...]]] = {
    "TEXT_MESSAGE_CHUNK": ("role", "name"),
    "TOOL_CALL_CHUNK": ("toolCallName", "parentMessageId"),
    "REASONING_MESSAGE_CHUNK": (),
}


@dataclass(slots=True)
class _Stream:
    """The item a lane assembles."""

    family: Family
    id: str
    owner: str | None
    fields: dict[str, Any]  # what the opener said, or established by leaving it out

    def end(self) -> dict[str, Any]:
        return _owned({"type": self.family.closes, self.family.id_field: self.id}, self.owner)


class ChunkExpander:
    """Expands the chunks of one stream of enforced events."""

    __slots__ = ("_lanes",)

    def __init__(self) -> None:
        """Start with no lane open."""
        self._lanes: dict[str | None, _Stream] = {}

    @property
    def pending(self) -> bool:
        """Whether an item is being assembled; if not, only chunks need `feed`."""
        return bool(self._lanes)

    def feed(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        """The events an event stands for, closings it brings about first. A refused event changes nothing.

        Raises:
            ProtocolViolation: a first chunk without its ids, a conflicting repeat, an ambiguous continuation.
        """
        kind = event["type"]
        if kind in CHUNKS:
            return self._expand(event, CHUNKS[kind])
        if not self._lanes:
            return [event]
        if kind in _CLOSES_LANE:
            # SUBAGENT_FINISHED and SUBAGENT_ERROR close the lane of the subagent they name, which is this lane too.
            return [*self.close(event.get("subagentRunId")), event]
        return [*self.close_all(), event] if kind in _RUN_LEVEL else [event]

    def close_all(self) -> list[dict[str, Any]]:
        """The ENDs of everything that is being assembled, in opening order."""
        closing = [stream.end() for stream in self._lanes.values()]
        self._lanes.clear()
        return closing

    def close(self, lane: str | None) -> list[dict[str, Any]]:
        """The END of what one lane assembles."""
        stream = self._lanes.pop(lane, None)
        return [] if stream is None else [stream.end()]

    def _expand(self, event: dict[str, Any], family: Family) -> list[dict[str, Any]]:
        kind = event["type"]
        item_id = event.get(family.id_field)
        lane = self._lane_of(event, family, item_id)
        stream = self._lanes.get(lane)
        out: list[dict[str, Any]] = []
        if stream is not None and stream.family is family and item_id in (None, stream.id):
            for name in _REPEATABLE[kind]:
                if name in event and event[name] != stream.fields.get(name):
                    raise ProtocolViolation(
                        f"{kind}: {name} does not match the one that opened '{stream.id}'.",
                        event_type=kind,
                        path=f"/{name}",
                    )
        else:
            opened = self._opened_by(event, family)
            out = self.close(lane)
            stream = self._lanes[lane] = opened
            out.append(_with(_opening(stream), event, "metadata"))

        delta = event.get("delta")
        # A payload, or a last chunk with metadata only (usage, finish reason), still has to reach the item.
        if delta is not None or "rawEvent" in event or ("metadata" in event and not out):
            content = {"type": family.continues, family.id_field: stream.id, "delta": delta or ""}
            owner = event.get("subagentRunId", stream.owner)
            out.append(_with(_owned(content, owner), event, "metadata", "rawEvent"))
        return out

    def _opened_by(self, event: dict[str, Any], family: Family) -> _Stream:
        kind = event["type"]
        needed = (family.id_field, "toolCallName") if kind == "TOOL_CALL_CHUNK" else (family.id_field,)
        for name in needed:
            if name not in event:
                raise ProtocolViolation(f"The first {kind} must have a {name}.", event_type=kind, path=f"/{name}")
        fields = {name: event[name] for name in _REPEATABLE[kind] if name in event}
        if kind == "TEXT_MESSAGE_CHUNK":
            fields.setdefault("role", "assistant")  # an absent role means assistant (events/text-messages.mdx)
        return _Stream(family, event[family.id_field], event.get("subagentRunId"), fields)

    def _lane_of(self, event: dict[str, Any], family: Family, item_id: str | None) -> str | None:
        tag: str | None = event.get("subagentRunId")
        kind = event["type"]
        streams = [(lane, stream) for lane, stream in self._lanes.items() if stream.family is family]
        if item_id is not None:
            # A named item continues wherever it is open.
            for lane, stream in streams:
                if stream.id == item_id:
                    if tag is not None and tag != lane:
                        raise ProtocolViolation(
                            f"{kind}: subagentRunId does not match the one that opened '{item_id}'.",
                            event_type=kind,
                            path="/subagentRunId",
                        )
                    return lane
            return tag
        if tag is not None or not streams:
            return tag
        # Neither id nor tag: the parent's own stream, else the only one there is.
        lanes = [lane for lane, _ in streams]
        if None in lanes:
            return None
        if len(lanes) > 1:
            raise ProtocolViolation(
                f"{kind} is ambiguous: {len(lanes)} subagents have an open stream of its kind.", event_type=kind
            )
        return lanes[0]


def _opening(stream: _Stream) -> dict[str, Any]:
    event = {"type": stream.family.opens, stream.family.id_field: stream.id, **stream.fields}
    if stream.family.kind == "reasoning_message":
        event["role"] = "reasoning"
    return _owned(event, stream.owner)


def _owned(event: dict[str, Any], owner: str | None) -> dict[str, Any]:
    if owner is not None:
        event["subagentRunId"] = owner
    return event


def _with(event: dict[str, Any], chunk: dict[str, Any], *names: str) -> dict[str, Any]:
    for name in names:
        if name in chunk:
            event[name] = chunk[name]
    return event
