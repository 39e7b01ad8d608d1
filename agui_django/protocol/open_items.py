"""What a run has opened and not yet closed, and the events that close it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agui_django.protocol.events import FAMILIES

#: kind, id, and for steps (whose names are only unique within an owner) the owner.
Key = tuple[str, str, str | None]

_OF_THE_MOMENT = frozenset({"timestamp", "metadata", "rawEvent"})


@dataclass(slots=True)
class OpenItem:
    """Something that was opened and not yet closed.

    Attributes:
        kind: text, tool_call, reasoning (a span), reasoning_message, step or subagent.
        id: messageId, toolCallId, stepName or subagentRunId.
        subagent_run_id: who owns it; None is the parent agent.
        tag: the subagentRunId that its opener carried.
        parent_run_id: of a subagent: the invocation that spawned it.
        opener: the event that opened it.
    """

    kind: str
    id: str
    subagent_run_id: str | None = None
    tag: str | None = None
    parent_run_id: str | None = None
    opener: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def opening(self) -> dict[str, Any]:
        """The event that opens it again for somebody who joins in the middle.

        Without what says when the item was opened, and without metadata, which later events may have overwritten.
        """
        event = {name: value for name, value in self.opener.items() if name not in _OF_THE_MOMENT}
        if self.tag is not None and self.tag != self.subagent_run_id:  # a snapshot has given it to somebody else
            del event["subagentRunId"]
        return event

    def closing(self) -> dict[str, Any]:
        """The plain event that closes it."""
        family = FAMILIES[self.kind]
        event = {"type": family.closes, family.id_field: self.id}
        if self.tag is not None and self.tag == self.subagent_run_id:
            event["subagentRunId"] = self.tag
        return event


def closing_events(
    items: Mapping[Key, OpenItem],
    *,
    error: str | None,
    suspended: Mapping[str, Sequence[str]] | None,
    subagent: str | None = None,
) -> list[dict[str, Any]]:
    """The events that close items given in opening order, innermost first (see `SequenceVerifier.closing_events`)."""
    remaining = dict(reversed(list(items.items())))
    events: list[dict[str, Any]] = []

    def close(key: Key, item: OpenItem) -> None:
        if remaining.pop(key, None) is None:
            return
        if item.kind != "subagent":
            events.append(item.closing())
            return
        # An item closes no later than the subagent that owns it.
        for other_key, other in list(remaining.items()):
            owner = other.parent_run_id if other.kind == "subagent" else other.subagent_run_id
            if owner == item.id:
                close(other_key, other)
        events.append(_subagent_end(item.id, error, suspended))

    for key, item in list(remaining.items()):
        if subagent is None or key == ("subagent", subagent, None):
            close(key, item)
    return events


def _subagent_end(run_id: str, error: str | None, suspended: Mapping[str, Sequence[str]] | None) -> dict[str, Any]:
    if error is not None:
        return {"type": "SUBAGENT_ERROR", "subagentRunId": run_id, "message": error}
    event: dict[str, Any] = {"type": "SUBAGENT_FINISHED", "subagentRunId": run_id}
    if suspended is not None and run_id in suspended:
        event["outcome"] = {"type": "suspended"}
        if suspended[run_id]:
            event["outcome"]["interruptIds"] = list(suspended[run_id])
    return event
