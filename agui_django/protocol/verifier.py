"""May this event come now? What is still open?

A theory of operation: a run is closed, open, finished or failed; an open run holds sets of open items, one per kind.
Every item has an owner (the parent agent, or a subagent) that outlives its end: ids are only unique within a kind and
a continuation must not disagree with its opener (events/lifecycle.mdx, events/subagents.mdx). The verdicts are those
of the official TypeScript client, plus the identity of run and thread and the uniqueness of interrupt ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

from agui_django.protocol.errors import ProtocolViolation
from agui_django.protocol.events import FAMILIES
from agui_django.protocol.open_items import Key, OpenItem, closing_events

Event = Mapping[str, Any]
#: kind of item -> the bucket that remembers its owner; a span and the message in it may not have different ones.
_OWNERS: Final = {
    "text": "message",
    "tool_call": "tool_call",
    "reasoning": "reasoning",
    "reasoning_message": "reasoning",
}
_STREAMED: Final = {
    family.continues: (family.kind, family.id_field) for family in FAMILIES.values() if family.continues
}
_OPENS: Final = {FAMILIES[kind].opens: (kind, FAMILIES[kind].id_field) for kind in _OWNERS}
_ENDS: Final = {FAMILIES[kind].closes: (kind, FAMILIES[kind].id_field) for kind in _OWNERS}


class SequenceVerifier:
    """Checks the order of enforced, expanded events.

    Args:
        producer: False judges a stream as the specification's consumer does: several runs in sequence, RUN_ERROR still
            legal after RUN_FINISHED. True judges what one run may emit: one terminal event and nothing behind it, its
            own ids, `pendingToolCallIds` that tell the truth.
        thread_id: the thread every RUN_STARTED must name; default: the first one's.
        run_id: the run that RUN_STARTED must name; only a producer is held to it (a stream may replay older runs).

    Attributes:
        started: whether a RUN_STARTED was accepted.
        terminal: the type of the event that ended the current run, or None.
    """

    def __init__(self, *, producer: bool = False, thread_id: str | None = None, run_id: str | None = None) -> None:
        """Wait for the first event."""
        self.producer = producer
        self.thread_id = thread_id
        self.run_id = run_id
        self.started = False
        self.terminal: str | None = None
        self._first = True
        self._streams: dict[str, dict[str, OpenItem]] = {kind: {} for kind in _OWNERS}
        self._handlers: dict[str, Callable[[Event], None]] = {
            "RUN_STARTED": self._run_started,
            "RUN_FINISHED": self._run_finished,
            "RUN_ERROR": self._run_error,
            "STEP_STARTED": self._step_started,
            "STEP_FINISHED": self._step_finished,
            "SUBAGENT_STARTED": self._subagent_started,
            "SUBAGENT_FINISHED": self._subagent_ended,
            "SUBAGENT_ERROR": self._subagent_ended,
            "TOOL_CALL_RESULT": self._tool_call_result,
            "MESSAGES_SNAPSHOT": self._messages_snapshot,
            "ACTIVITY_SNAPSHOT": self._activity_snapshot,
            "ACTIVITY_DELTA": self._activity_delta,
            "REASONING_ENCRYPTED_VALUE": self._encrypted_value,
        }
        for kind in _OWNERS:
            self._handlers[FAMILIES[kind].opens] = self._open
            self._handlers[FAMILIES[kind].closes] = self._end
        self._reset()

    def _reset(self) -> None:
        """A new run starts with nothing open and nobody owning anything."""
        self.terminal = None
        for items in self._streams.values():
            items.clear()
        self._order: dict[Key, OpenItem] = {}
        self._owners: dict[str, dict[str, str | None]] = {
            "message": {},
            "tool_call": {},
            "reasoning": {},
            "activity": {},
        }
        self._closed: set[Key] = set()
        self._called: dict[str, None] = {}
        self._answered: set[str] = set()

    # ---- the verdict -----------------------------------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        """Accepts the next event, or refuses it and stays as it was.

        Raises:
            ProtocolViolation: the event must not come here.
        """
        kind = event["type"]
        if not self._first and self.terminal is None:
            streamed = _STREAMED.get(kind)
            if streamed is not None:
                item_kind, id_field = streamed
                item = self._streams[item_kind].get(event[id_field])
                if item is None:
                    _refuse(kind, f"no {_noun(item_kind)} with the ID '{event[id_field]}' is open")
                if "subagentRunId" in event:
                    _agree(event, item.subagent_run_id, item_kind, item.id)
                return
        else:
            self._boundary(kind)
        handler = self._handlers.get(kind)
        if handler is not None:
            handler(event)

    def _boundary(self, kind: str) -> None:
        if self.terminal is not None:
            late = kind == "RUN_ERROR" and self.terminal == "RUN_FINISHED"
            if self.producer or not (kind == "RUN_STARTED" or late):
                _refuse(kind, f"the run has already ended with {self.terminal}")
        elif kind not in ("RUN_STARTED", "RUN_ERROR"):
            # RUN_ERROR may come first: a run can fail before it begins.
            _refuse(kind, "the first event must be RUN_STARTED")

    # ---- the run ---------------------------------------------------------------------------------------------------

    def _run_started(self, event: Event) -> None:
        if not self._first and self.terminal is None:
            _refuse("RUN_STARTED", f"the run '{self.run_id}' is still active")
        if self.thread_id is not None and event["threadId"] != self.thread_id:
            _refuse("RUN_STARTED", f"the threadId is not '{self.thread_id}', the one this stream is about")
        if self.producer and self.run_id is not None and event["runId"] != self.run_id:
            _refuse("RUN_STARTED", f"the runId is not '{self.run_id}'")
        self._first = False
        self._reset()
        self.started = True
        self.thread_id = event["threadId"]
        self.run_id = event["runId"]
        if "input" in event:
            self._seed(event["input"].get("messages", ()), authoritative=False)

    def _run_finished(self, event: Event) -> None:
        for name, expected in (("runId", self.run_id), ("threadId", self.thread_id)):
            if event[name] != expected:
                _refuse("RUN_FINISHED", f"the {name} is not '{expected}', the one RUN_STARTED has named")
        if self._order:
            names = ", ".join(f"{_noun(item.kind)} '{item.id}'" for item in self._order.values())
            _refuse("RUN_FINISHED", f"still open: {names}")
        outcome = event.get("outcome") or {}
        counted = Counter(interrupt["id"] for interrupt in outcome.get("interrupts", ()))
        for interrupt_id, times in counted.items():
            if times > 1:
                _refuse("RUN_FINISHED", f"{times} interrupts have the id '{interrupt_id}'")
        pending = outcome.get("pendingToolCallIds")
        if self.producer and pending is not None and sorted(pending) != sorted(self.unanswered_calls):
            _refuse("RUN_FINISHED", "pendingToolCallIds are not the calls that have no result")
        self.terminal = "RUN_FINISHED"

    def _run_error(self, event: Event) -> None:
        self._first = False
        for items in self._streams.values():
            items.clear()
        self._order.clear()  # the error ends whatever was open along with the run
        self.terminal = "RUN_ERROR"

    # ---- messages, calls, reasoning ----------------------------------------------------------------------------------

    def _open(self, event: Event) -> None:
        kind = event["type"]
        item_kind, id_field = _OPENS[kind]
        item_id = event[id_field]
        items = self._streams[item_kind]
        if item_id in items:
            _refuse(kind, f"the {_noun(item_kind)} '{item_id}' is already open")
        owners = self._owners[_OWNERS[item_kind]]
        tag = owner = event.get("subagentRunId")
        inherits = False
        if item_kind == "tool_call" and event.get("parentMessageId") in self._owners["message"]:
            # A call belongs to the message that carries it.
            holder = self._owners["message"][event["parentMessageId"]]
            if tag is not None and tag != holder:
                _refuse(kind, f"subagentRunId does not match the owner of message '{event['parentMessageId']}'")
            owner, inherits = holder, True
        if item_id in owners:
            if (tag is not None or inherits) and owner != owners[item_id]:
                _refuse(kind, f"subagentRunId does not match the owner of {_noun(item_kind)} '{item_id}'")
            owner = owners[item_id]
        else:
            owners[item_id] = owner
        item = items[item_id] = OpenItem(item_kind, item_id, owner, tag, opener=event)
        self._order[item_kind, item_id, None] = item
        if item_kind == "tool_call":
            self._called[item_id] = None

    def _end(self, event: Event) -> None:
        kind = event["type"]
        item_kind, id_field = _ENDS[kind]
        item = self._streams[item_kind].get(event[id_field])
        if item is None:
            _refuse(kind, f"no {_noun(item_kind)} with the ID '{event[id_field]}' is open")
        _agree(event, item.subagent_run_id, item_kind, item.id)
        del self._streams[item_kind][item.id]
        self._close((item_kind, item.id, None))

    def _close(self, key: Key) -> None:
        del self._order[key]
        self._closed.add(key)

    def _tool_call_result(self, event: Event) -> None:
        self._answered.add(event["toolCallId"])
        # It mints a message of its own; whoever executed the tool owns it.
        self._own("message", event["messageId"], event.get("subagentRunId"))

    def _messages_snapshot(self, event: Event) -> None:
        self._seed(event["messages"], authoritative=True)

    def _seed(self, messages: Iterable[Event], *, authoritative: bool) -> None:
        """Restated history has owners, too: later events may continue it."""
        for message in messages:
            owner = message.get("subagentRunId")
            bucket = message["role"] if message["role"] in ("reasoning", "activity") else "message"
            calls = [("tool_call", call["id"]) for call in message.get("toolCalls", ())]
            for name, item_id in [(bucket, message["id"]), *calls]:
                if authoritative or item_id not in self._owners[name]:
                    self._own(name, item_id, owner)

    def _own(self, bucket: str, item_id: str, owner: str | None) -> None:
        self._owners[bucket][item_id] = owner
        for kind, name in _OWNERS.items():
            item = self._streams[kind].get(item_id) if name == bucket else None
            if item is not None:
                item.subagent_run_id = owner

    def _activity_snapshot(self, event: Event) -> None:
        # A snapshot that does not replace leaves the activity, and so its owner, as it stands.
        if event.get("replace", True) or event["messageId"] not in self._owners["activity"]:
            self._owners["activity"][event["messageId"]] = event.get("subagentRunId")

    def _activity_delta(self, event: Event) -> None:
        self._agree_if_known(event, ("activity",), event["messageId"])

    def _encrypted_value(self, event: Event) -> None:
        buckets = ("tool_call",) if event["subtype"] == "tool-call" else ("message", "reasoning")
        self._agree_if_known(event, buckets, event["entityId"])

    def _agree_if_known(self, event: Event, buckets: Sequence[str], entity_id: str) -> None:
        for bucket in buckets:
            if entity_id in self._owners[bucket]:
                _agree(event, self._owners[bucket][entity_id], bucket, entity_id)
                return

    # ---- steps, subagents ------------------------------------------------------------------------------------------

    def _step_started(self, event: Event) -> None:
        owner = event.get("subagentRunId")
        key = ("step", event["stepName"], owner)
        if key in self._order:
            _refuse("STEP_STARTED", f"the step '{event['stepName']}' is already open")
        self._order[key] = OpenItem("step", event["stepName"], owner, owner, opener=event)

    def _step_finished(self, event: Event) -> None:
        name = event["stepName"]
        key = ("step", name, event.get("subagentRunId"))
        if key not in self._order:
            others = any(item.kind == "step" and item.id == name for item in self._order.values())
            _refuse("STEP_FINISHED", f"the step '{name}' was {'started by another' if others else 'not started'}")
        self._close(key)

    def _subagent_started(self, event: Event) -> None:
        run_id = event["subagentRunId"]
        key = ("subagent", run_id, None)
        if key in self._order or key in self._closed:
            _refuse("SUBAGENT_STARTED", f"the subagent '{run_id}' was already started in this run")
        parent = event.get("parentSubagentRunId")
        above = ("subagent", parent, None)
        if parent is not None and above not in self._order and above not in self._closed:
            _refuse("SUBAGENT_STARTED", f"its parent '{parent}' was not started in this run")
        self._order[key] = OpenItem("subagent", run_id, run_id, run_id, parent, opener=event)

    def _subagent_ended(self, event: Event) -> None:
        key = ("subagent", event["subagentRunId"], None)
        if key not in self._order:
            _refuse(event["type"], f"no subagent with the ID '{event['subagentRunId']}' is active")
        self._close(key)

    # ---- what is open ----------------------------------------------------------------------------------------------

    def open_items(self) -> list[OpenItem]:
        """What is open, in opening order."""
        return list(self._order.values())

    def is_open(self, kind: str, id: str, subagent_run_id: str | None = None) -> bool:
        """Whether an item is open; `subagent_run_id` tells steps of the same name apart."""
        return (kind, id, subagent_run_id if kind == "step" else None) in self._order

    def was_closed(self, kind: str, id: str, subagent_run_id: str | None = None) -> bool:
        """Whether an item was closed in this run and is not open again."""
        key = (kind, id, subagent_run_id if kind == "step" else None)
        return key in self._closed and key not in self._order

    @property
    def unanswered_calls(self) -> list[str]:
        """Ids of the tool calls this run has started and not answered, in the order they were made."""
        return [call_id for call_id in self._called if call_id not in self._answered]

    def closing_events(
        self,
        *,
        error: str | None = None,
        suspended: Mapping[str, Sequence[str]] | None = None,
        subagent: str | None = None,
    ) -> list[dict[str, Any]]:
        """The events that close everything open, innermost first. They are not fed.

        Args:
            error: given, open subagents end with SUBAGENT_ERROR and this text.
            suspended: subagentRunIds that end as suspended -> the ids of their interrupts (none for one whose
                descendant was interrupted). Other subagents end as finished.
            subagent: close this one only, and what it and its descendants have open.
        """
        return closing_events(self._order, error=error, suspended=suspended, subagent=subagent)


def _agree(event: Event, owner: str | None, kind: str, item_id: str) -> None:
    """No tag is no disagreement; the parent agent is an owner like any other (events/subagents.mdx)."""
    tag = event.get("subagentRunId")
    if tag is not None and tag != owner:
        _refuse(event["type"], f"subagentRunId '{tag}' does not match the owner of {_noun(kind)} '{item_id}'")


def _noun(kind: str) -> str:
    return {"text": "text message", "reasoning": "reasoning span"}.get(kind, kind.replace("_", " "))


def _refuse(kind: str, why: str) -> NoReturn:
    raise ProtocolViolation(f"Cannot send {kind}: {why}.", event_type=kind)
