"""Whatever an agent does, the log gets a legal run: the producer's side of the protocol.

Law: what comes out is what a strict client accepts, and what the reducer holds is what such a client holds. An event
is refused at its line (`ProtocolViolation`) or repaired here, never later. No clock, no I/O: both are handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from pydantic import BaseModel

from agui_django.protocol.chunks import ChunkExpander
from agui_django.protocol.codec import clean
from agui_django.protocol.deltas import ShortWay
from agui_django.protocol.enforcement import enforce, ignore, omit_nulls
from agui_django.protocol.errors import ProtocolViolation
from agui_django.protocol.events import EVENT_TYPES, TERMINAL
from agui_django.protocol.models import read_model
from agui_django.protocol.reducer import Reducer
from agui_django.protocol.repairs import Repairs
from agui_django.protocol.verifier import SequenceVerifier

Wire = dict[str, Any]


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
        self._short = ShortWay(reducer, now)
        #: Wire text of a plain delta (an event; a piece for an item), or None: use `accept`, `own`.
        self.fast = self._short.fast
        self.piece = self._short.piece
        self.delta_of = self._short.of
        self._state = state or (lambda: reducer.state)
        self._default = default
        self._warn = warn
        self._expander = ChunkExpander()
        self._repairs = Repairs(self.verifier, reducer, warn)
        self._started_by_agent = False

    # ---- in ------------------------------------------------------------------------------------------------------

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

    def aside(self, event: Wire) -> list[Wire]:
        """An event of the engine's own that has nothing to do with what the agent has open: it ends no chunks."""
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
            self._short.blocked = self._expander.pending or self._repairs.holding or self._lost

    @property
    def _lost(self) -> bool:
        return self.violation is not None or self.refusal is not None

    def refuse(self, error: Exception) -> None:
        """Refuse every later event of the agent with this error; what closes something still passes."""
        self.refusal = self.refusal or error
        self._short.blocked = True

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
        self._short.blocked = True
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
            for repaired in self._repairs.repair(step):
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
            self._repairs.remember(event)
            self._short.register(event)
            if kind == "TOOL_CALL_START":
                self.calls.setdefault(event["toolCallId"], event["toolCallName"])
        if "timestamp" not in event:
            event = {**event, "timestamp": self._now()}
        return [event]

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

    def close_subagent(self, event: Wire) -> list[Wire]:
        """The event that ends a subagent, also of a run that is lost, behind the END of what its chunks opened."""
        return self._closing([*self._expander.close(event["subagentRunId"]), event])

    def close_reopened(self) -> list[Wire]:
        """The ENDs of what was opened again for a continuation after its END."""
        return self._closing(self._repairs.ends())

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
            for repaired in self._repairs.repair(event):
                try:
                    out.extend(self._pass(repaired, applied=False))
                except ProtocolViolation as error:  # closed meanwhile
                    self._warn(f"{repaired['type']} was not needed: {error.message}")
        return out


def _type_of(event: Any) -> str:
    kind = event.get("type") if isinstance(event, Mapping) else getattr(event, "type", None)
    kind = kind.value if isinstance(kind, Enum) else kind
    return kind if kind in EVENT_TYPES else "An event"
