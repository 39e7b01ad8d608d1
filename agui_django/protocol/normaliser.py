"""Whatever an agent does, the log gets a legal run: the producer's side of the protocol.

Law: what comes out is what a strict client accepts, and what the reducer holds is what such a client holds. An event
is refused at its line (`ProtocolViolation`) or repaired here, never later. No clock, no I/O: both are handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final

import orjson
from ag_ui.core import ReasoningMessageContentEvent, TextMessageContentEvent, ToolCallArgsEvent
from pydantic import BaseModel

from agui_django.protocol.chunks import ChunkExpander
from agui_django.protocol.codec import SurrogateJoiner, clean
from agui_django.protocol.enforcement import enforce, ignore, omit_nulls
from agui_django.protocol.errors import ProtocolViolation
from agui_django.protocol.events import DELTAS, EVENT_TYPES, FAMILIES, TERMINAL
from agui_django.protocol.json_patch import PatchError, apply_patch
from agui_django.protocol.reducer import Reducer
from agui_django.protocol.verifier import SequenceVerifier

Wire = dict[str, Any]

_KIND_OF_DELTA: Final = {family.continues: family for family in FAMILIES.values() if family.continues}
_KIND_OF_END: Final = {family.closes: family for family in FAMILIES.values() if family.continues}
_KIND_OF_START: Final = {family.opens: family for family in FAMILIES.values() if family.continues}
#: The official models of deltas -> type and the attribute of the id; and what makes one take the long way.
_DELTA_MODELS: Final = {
    TextMessageContentEvent: ("TEXT_MESSAGE_CONTENT", "message_id"),
    ToolCallArgsEvent: ("TOOL_CALL_ARGS", "tool_call_id"),
    ReasoningMessageContentEvent: ("REASONING_MESSAGE_CONTENT", "message_id"),
}
_UNPLAIN: Final = ("timestamp", "raw_event", "metadata", "subagent_run_id")
#: What a START that reopens an item repeats of the one that opened it.
_OPENER_FIELDS: Final = ("role", "name", "toolCallName", "parentMessageId", "subagentRunId")


class Delta:
    """The short way for deltas of one open item: its wire text up to the delta, and where the reducer keeps it."""

    __slots__ = ("append", "head", "id", "open", "type")

    def __init__(self, type: str, id_field: str, id: str, append: Callable[[str, str], bool]) -> None:
        self.type = type
        self.id = id
        self.open = True
        self.append = append
        name = orjson.dumps(id).decode()
        self.head = f'{{"type":"{type}","{id_field}":{name},"delta":'

    def event(self, delta: str) -> Wire:
        """The same delta as an event."""
        return {"type": self.type, DELTAS[self.type]: self.id, "delta": delta}


class Normaliser:
    """Turns what one run's agent emits into the events to record.

    Args:
        thread_id: the run's thread, as the client names it.
        run_id: the run, as the client names it.
        reducer: what the run makes of the thread; it holds the history already.
        now: integer milliseconds since the epoch.
        state: the true state as plain JSON, for the snapshot that replaces a delta that does not apply.
        default: makes JSON of values that `codec.clean` does not know.
        warn: told what was repaired or dropped.

    Attributes:
        own_terminal: the RUN_FINISHED or RUN_ERROR that the agent emitted itself; it is absorbed, not sent.
        calls: names of the tool calls that the run has started, by id.
        violation: what was wrong with the first event that was refused; every later one is refused, too.
        refusal: why every later event is refused for another reason (the log is full).
    """

    def __init__(
        self,
        *,
        thread_id: str,
        run_id: str,
        reducer: Reducer,
        now: Callable[[], int],
        state: Callable[[], Any] | None = None,
        default: Callable[[Any], Any] | None = None,
        warn: Callable[[str], None] = ignore,
    ) -> None:
        self.thread_id = thread_id
        self.run_id = run_id
        self.reducer = reducer
        self.verifier = SequenceVerifier(producer=True, thread_id=thread_id, run_id=run_id)
        self.own_terminal: Wire | None = None
        self.violation: ProtocolViolation | None = None
        self.refusal: Exception | None = None
        self.calls: dict[str, str] = {}
        self._now = now
        self._state = state or (lambda: reducer.state)
        self._default = default
        self._warn = warn
        self._expander = ChunkExpander()
        self._joiner = SurrogateJoiner()
        self._started_by_agent = False
        self._opened: dict[tuple[str, str], Wire] = {}
        #: items that we opened again for a continuation after their END
        self._reopened: dict[tuple[str, str], None] = {}
        self._results: dict[str, Any] = {}
        #: True while deltas must take the long way
        self._long = False
        self._deltas: dict[str, tuple[str, dict[str, Delta]]] = {
            family.continues: (family.id_field, {}) for family in _KIND_OF_DELTA.values()
        }

    # ---- in ------------------------------------------------------------------------------------------------------

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
        known = _DELTA_MODELS.get(type(event))
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
        if not delta or self._long or type(delta) is not str or "\0" in delta or not item.open:
            return None
        try:
            text = orjson.dumps(delta).decode()
        except TypeError:  # lone surrogates
            return None
        if not item.append(item.id, delta):
            return None
        return f'{item.head}{text},"timestamp":{self._now()}}}'

    def delta_of(self, type: str, item_id: str) -> Delta | None:
        """The short way for deltas of an item that is open."""
        return self._deltas[type][1].get(item_id)

    def accept(self, event: Any) -> list[Wire]:
        """The events to record for one event of the agent: an official model or a mapping.

        Raises:
            ProtocolViolation: the event is not legal here; the run is lost whatever becomes of the exception.
            NotJson: it holds a value that is not JSON.
        """
        if self.own_terminal is not None:
            self._warn(f"{_type_of(event)} after {self.own_terminal['type']} was dropped.")
            return []
        wire = self._read(event)
        if type(wire.get("type")) is str and wire["type"] in TERMINAL:
            return self._guarded(self._absorb_terminal, wire)
        return self._guarded(self._admit, wire)

    def own(self, event: Wire, *, applied: bool = False) -> list[Wire]:
        """The same for an event that we made: plain JSON, nothing unset.

        Args:
            event: the wire dict; it becomes part of the log.
            applied: the reducer knows already (edits of the live state).
        """
        if self.own_terminal is not None:
            self._warn(f"{event['type']} after {self.own_terminal['type']} was dropped.")
            return []
        return self._guarded(self._admit, event, applied)

    def started(self, event: Wire) -> list[Wire]:
        """The engine's own first events."""
        self.verifier.feed(event)
        event.setdefault("timestamp", self._now())
        return [event]

    def _guarded(self, take: Callable[..., list[Wire]], *args: Any) -> list[Wire]:
        if self.refusal is not None:
            raise self.refusal
        if self.violation is not None:
            raise ProtocolViolation(
                self.violation.message, event_type=self.violation.event_type, path=self.violation.path
            )
        try:
            return take(*args)
        except ProtocolViolation as error:
            self.violation = error
            raise
        finally:
            self._long = self._expander.pending or self._joiner.holding or self._lost

    @property
    def _lost(self) -> bool:
        return self.violation is not None or self.refusal is not None

    def refuse(self, error: Exception) -> None:
        """Refuse every later event of the agent with this error; what closes something still passes."""
        self.refusal = self.refusal or error
        self._long = True

    def _read(self, event: Any) -> Wire:
        if type(event) is not dict:
            if isinstance(event, BaseModel):
                event = read_model(event)
            elif not isinstance(event, Mapping):
                raise self._refused(ProtocolViolation(f"A {type(event).__name__} is not an event."))
        wire: Wire = clean(event, nan="null", default=self._default)
        delta = event.get("delta")
        if type(delta) is str and delta != wire["delta"]:
            wire["delta"] = delta  # half a character at its end may find its other half
        return wire

    def _enforce(self, wire: Wire) -> Wire | None:
        try:
            return enforce(wire, self._warn)
        except ProtocolViolation:
            # Nulls where a field is unset are repaired; looked for only here, as they are rare.
            slim = omit_nulls(wire)
            if slim is wire:
                raise
            return enforce(slim, self._warn)

    def _refused(self, error: ProtocolViolation) -> ProtocolViolation:
        self.violation = self.violation or error
        self._long = True
        return error

    # ---- the long way --------------------------------------------------------------------------------------------

    def _admit(self, event: Wire, applied: bool = False) -> list[Wire]:
        enforced = self._enforce(event)
        if enforced is None:
            return []
        if enforced["type"] == "RUN_STARTED":
            self._absorb_start(enforced)
            return []
        out: list[Wire] = []
        for step in self._expander.feed(enforced):
            for repaired in self._repair(step):
                out.extend(self._pass(repaired, applied))
        return out

    def _pass(self, event: Wire, applied: bool) -> list[Wire]:
        self.verifier.feed(event)
        kind = event["type"]
        if kind == "STATE_DELTA" and not applied and not self.reducer.patch_state(event["delta"]):
            # What does not apply here does not apply at the client: tell the truth instead.
            self._warn("STATE_DELTA does not apply to the state; a STATE_SNAPSHOT was sent instead.")
            event = {"type": "STATE_SNAPSHOT", "snapshot": self._state()}
        elif kind == "STATE_DELTA" or applied:
            pass
        else:
            self.reducer.apply(event)
            self._remember(event)
        if "timestamp" not in event:
            event = {**event, "timestamp": self._now()}
        return [event]

    def _repair(self, event: Wire) -> list[Wire]:
        kind = event["type"]
        if kind in _KIND_OF_DELTA:
            return self._repair_delta(event)
        if kind in _KIND_OF_END:
            return self._repair_end(event)
        if kind in _KIND_OF_START:
            family = _KIND_OF_START[kind]
            key = (family.kind, event[family.id_field])
            if key in self._reopened:  # the agent opens again what we opened for it
                del self._reopened[key]
                return []
        elif kind == "TOOL_CALL_RESULT":
            return self._repair_result(event)
        elif kind == "ACTIVITY_DELTA":
            return self._repair_activity(event)
        return [event]

    def _repair_delta(self, event: Wire) -> list[Wire]:
        family = _KIND_OF_DELTA[event["type"]]
        key = (family.kind, event[family.id_field])
        verifier = self.verifier
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

    def _repair_end(self, event: Wire) -> list[Wire]:
        family = _KIND_OF_END[event["type"]]
        key = (family.kind, event[family.id_field])
        self._reopened.pop(key, None)
        rest = self._joiner.flush(key)
        if not rest or not self.verifier.is_open(*key):
            return [event]
        return [{"type": family.continues, family.id_field: key[1], "delta": rest}, event]

    def _repair_result(self, event: Wire) -> list[Wire]:
        call_id = event["toolCallId"]
        if call_id in self._results:
            if self._results[call_id] == event["content"]:
                return []
            raise ProtocolViolation(
                f"Cannot send TOOL_CALL_RESULT: the call '{call_id}' has another result already.",
                event_type="TOOL_CALL_RESULT",
            )
        return [event]

    def _repair_activity(self, event: Wire) -> list[Wire]:
        message = self.reducer.message(event["messageId"])
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

    def _remember(self, event: Wire) -> None:
        kind = event["type"]
        family = _KIND_OF_START.get(kind)
        if family is not None:
            item_id = event[family.id_field]
            self._opened[family.kind, item_id] = {
                "type": kind,
                family.id_field: item_id,
                **{name: event[name] for name in _OPENER_FIELDS if name in event},
            }
            append = self.reducer.append_args if family.kind == "tool_call" else self.reducer.append_text
            self._deltas[family.continues][1][item_id] = Delta(family.continues, family.id_field, item_id, append)
            if family.kind == "tool_call":
                self.calls.setdefault(item_id, event["toolCallName"])
        elif kind in _KIND_OF_END:
            family = _KIND_OF_END[kind]
            item = self._deltas[family.continues][1].pop(event[family.id_field], None)
            if item is not None:
                item.open = False
        elif kind == "TOOL_CALL_RESULT":
            self._results[event["toolCallId"]] = event["content"]

    # ---- the agent's own run events ------------------------------------------------------------------------------

    def _absorb_start(self, event: Wire) -> None:
        if self._started_by_agent:
            raise ProtocolViolation("Cannot send RUN_STARTED: the run is active.", event_type="RUN_STARTED")
        self._own_ids(event)
        self._started_by_agent = True

    def _absorb_terminal(self, event: Wire) -> list[Wire]:
        closing = self.close_chunks()
        enforced = self._enforce(event)
        if enforced is None:
            return closing
        if enforced["type"] == "RUN_FINISHED":
            self._own_ids(enforced)
            closing += self.close_reopened()
            items = self.verifier.open_items()
            if items:
                names = ", ".join(f"{item.kind} '{item.id}'" for item in items)
                raise ProtocolViolation(f"Cannot send RUN_FINISHED: still open: {names}.", event_type="RUN_FINISHED")
            self._check_outcome(enforced.get("outcome") or {})
        self.own_terminal = enforced
        return closing

    def _check_outcome(self, outcome: Wire) -> None:
        ids = [interrupt["id"] for interrupt in outcome.get("interrupts", ())]
        if len(ids) != len(set(ids)):
            raise ProtocolViolation(
                "Cannot send RUN_FINISHED: two interrupts have one id.", event_type="RUN_FINISHED", path="/outcome"
            )
        pending = outcome.get("pendingToolCallIds")
        if pending is not None and sorted(pending) != sorted(self.verifier.unanswered_calls):
            raise ProtocolViolation(
                "Cannot send RUN_FINISHED: pendingToolCallIds are not the calls that have no result.",
                event_type="RUN_FINISHED",
                path="/outcome/pendingToolCallIds",
            )

    def _own_ids(self, event: Wire) -> None:
        for name, expected in (("threadId", self.thread_id), ("runId", self.run_id)):
            if event[name] != expected:
                raise ProtocolViolation(
                    f"{event['type']}: the {name} is not this run's.", event_type=event["type"], path=f"/{name}"
                )

    # ---- the end -------------------------------------------------------------------------------------------------

    def close_chunks(self) -> list[Wire]:
        """The ENDs of what chunks opened."""
        return self._closing(self._expander.close_all())

    def close_reopened(self) -> list[Wire]:
        """The ENDs of what was opened again for a continuation after its END."""
        ends = [{"type": FAMILIES[kind].closes, FAMILIES[kind].id_field: item_id} for kind, item_id in self._reopened]
        return self._closing(ends)

    def close_item(self, event: Wire) -> list[Wire]:
        """The closing event of a block, also of a run that is lost; nothing where the item is not open."""
        return self._closing([event])

    def close_all(self, *, error: str | None = None, suspended: Mapping[str, list[str]] | None = None) -> list[Wire]:
        """Everything that closes what is open, innermost first."""
        closing = self.close_chunks() + self.close_reopened()
        return closing + self._closing(self.verifier.closing_events(error=error, suspended=suspended))

    def terminal(self, event: Wire) -> Wire:
        """The run's last event, checked and stamped.

        Raises:
            ProtocolViolation: something is still open, or the event does not tell the truth.
        """
        self.verifier.feed(event)
        event.setdefault("timestamp", self._now())
        return event

    def _closing(self, events: list[Wire]) -> list[Wire]:
        out: list[Wire] = []
        for event in events:
            for repaired in self._repair(event):
                try:
                    out.extend(self._pass(repaired, applied=False))
                except ProtocolViolation as error:  # closed meanwhile
                    self._warn(f"{repaired['type']} was not needed: {error.message}")
        return out


# ---- official models ------------------------------------------------------------------------------------------------

_FIELDS: Final[dict[type[BaseModel], list[tuple[str, str, bool]]]] = {}


def read_model(model: BaseModel) -> Wire:
    """A model's fields under their wire names, unset ones left out; cheaper than a dump."""
    cls = type(model)
    fields = _FIELDS.get(cls)
    if fields is None:
        fields = _FIELDS[cls] = [
            (name, field.serialization_alias or field.alias or name, not field.is_required() and field.default is None)
            for name, field in cls.model_fields.items()
        ]
    values = model.__dict__
    out: Wire = {}
    for name, alias, optional in fields:
        value = values.get(name)
        if value is None:
            if not optional:
                out[alias] = None
            continue
        out[alias] = value if type(value) is str else _plain(value)
    extra = model.__pydantic_extra__
    if extra:
        out.update({name: _plain(value) for name, value in extra.items()})
    return out


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return read_model(value)
    if isinstance(value, Enum):
        return value.value
    if type(value) is list:
        return [_plain(item) for item in value]
    return value


def _type_of(event: Any) -> str:
    kind = event.get("type") if isinstance(event, Mapping) else getattr(event, "type", None)
    kind = kind.value if isinstance(kind, Enum) else kind
    return kind if kind in EVENT_TYPES else "An event"
