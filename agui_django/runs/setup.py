"""What passes between the store, the driver and the log: plain values, no behaviour.

The store makes a `RunSetup`, the driver (which knows no database) turns it into events on a `RunLog` and a `Closing`,
and the store writes the closing. `testing.run_agent` goes the same way with a log in memory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from time import time_ns
from typing import TYPE_CHECKING, Any, Literal, Protocol

from agui_django.agents.costs import OwnCosts

if TYPE_CHECKING:
    from agui_django.agents.sink import OnceClaim
    from agui_django.runs.started import FirstEvent

Wire = dict[str, Any]
Status = Literal["finished", "interrupted", "cancelled", "failed"]


@dataclass(frozen=True)
class Answer:
    """What became of a question of this turn (also of one dropped because the user wrote on).

    Attributes:
        status: ``resolved``, ``cancelled`` or ``expired``.
        value: the payload, plain JSON; None unless resolved.
        user: who answered, a user or None.
        at: when it was closed.
        metadata: the resume entry's metadata.
    """

    key: str
    interrupt_id: str
    status: str
    value: Any = None
    user: Any = None
    at: datetime | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    response_schema: Any = None


@dataclass
class RunSetup:
    """Everything an agent's run starts from.

    Attributes:
        run_id, thread_id: the client's ids.
        address: the run's uuid as hex: names it in logs and error references.
        agent: the registered name.
        input: the accepted RunAgentInput as a wire dict, with the messages and state IN PLAY (never the client's raw
            list).
        new_messages: the wire messages the thread did not have before; they ride in RUN_STARTED.input.
        messages: the wire messages in play, new ones included, stand-in tool messages for dangling calls included.
        state: plain JSON the run starts from.
        state_differs: the client sent (or holds) something else: a STATE_SNAPSHOT follows RUN_STARTED.
        answers: by key, every answer of the turn's passes so far; answers dropped by the user's writing on, too.
        resume: the accepted resume entries of this run (empty: not a resume).
        turn: the turn's name. A keyed message or call has the wire id ``<turn>:<key>``.
        user, actor, thread, extra: as the run context shows them. `thread` is a Thread row or any object.
        protocol_version: as the client declared it, "" for 0.x.
        first: the RUN_STARTED that was stored with the run; None: the driver makes it.
        ledger: the store's own notes for the close (a `store.Ledger`); nobody else reads them.
    """

    run_id: str
    thread_id: str
    address: str
    agent: str
    input: Wire
    new_messages: list[Wire] = field(default_factory=list)
    messages: list[Wire] = field(default_factory=list)
    state: Any = field(default_factory=dict)
    state_differs: bool = False
    answers: dict[str, Answer] = field(default_factory=dict)
    resume: list[Wire] = field(default_factory=list)
    turn: str = ""
    user: Any = None
    actor: Any = None
    thread: Any = None
    extra: dict[str, Any] = field(default_factory=dict)
    language: str = ""
    time_zone: str = ""
    protocol_version: str = ""
    parent_run_id: str | None = None
    first: FirstEvent | None = None
    ledger: Any = None


@dataclass(frozen=True)
class Settled:
    """What became of a claim of this run: its value as JSON text; None where it was released."""

    turn: str
    key: str
    by: str
    text: str | None


@dataclass(frozen=True)
class Failure:
    """Why a run failed: what staff read. Clients get `text` only where `public`.

    Attributes:
        kind: the exception's class.
        place: the innermost frame outside libraries, without its line.
    """

    code: str
    reference: str
    text: str
    traceback: str = ""
    public: bool = False
    kind: str = ""
    place: str = ""


@dataclass
class Closing:
    """The end of a run, to be written in one transaction with its last events.

    Attributes:
        events: the last events (closing ones, then exactly one terminal event), already recorded in the log as pending;
            the log's close writes them.
        messages: wire messages the run created or changed, in the order of the thread.
        removed: ids a MESSAGES_SNAPSHOT of the agent dropped.
        state: plain JSON; `state_changed` says whether a new version is due.
        interrupts: wire interrupts of the outcome, each with its key under `keys`.
        spent: whether the run acted (an event beyond RUN_STARTED and the engine's snapshots, or a claim); a resume that
            was not spent and failed opens its interrupts again.
    """

    status: Status
    terminal: Wire
    messages: list[Wire] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    state: Any = None
    state_changed: bool = False
    interrupts: list[Wire] = field(default_factory=list)
    interrupt_keys: dict[str, str] = field(default_factory=dict)
    interrupt_permissions: dict[str, str] = field(default_factory=dict)
    usage: list[Wire] = field(default_factory=list)
    costs: OwnCosts = field(default_factory=OwnCosts)
    tool_calls: int = 0
    failure: Failure | None = None
    end_reason: str = ""
    spent: bool = False
    first_event_ms: int | None = None
    duration_ms: int = 0


class RunLog(Protocol):
    """Where the driver records. Called in the loop's thread only."""

    def append(self, text: str, *, plain: bool, urgent: bool = False) -> None:
        """Add one event's wire text. ``plain``: every client may be sent it unchanged. ``urgent``: flush at once.

        Raises:
            AgentFlood: over 20,000 events or 16 MB are not stored yet.
            LogLimit: the run's log grew beyond its limit.
            RunClosed: the run was taken away (the fence) or has ended.
        """

    def crowded(self) -> bool:
        """Whether over 2,048 events or 1 MB are not stored yet: an emission's await should then wait in `room`."""

    def room(self) -> Awaitable[None]:
        """Wait until the writer caught up; asks it to flush early."""

    def flush(self) -> Awaitable[None]:
        """Wait until all so far is stored and visible."""

    def claim_once(self, wanted: OnceClaim) -> Awaitable[OnceClaim]:
        """Claim a key of the turn; what it gives is committed.

        Raises:
            RunClosed: the run was taken away (the fence).
        """

    def settle_once(self, claim: OnceClaim, text: str | None) -> Awaitable[None]:
        """Store a claim's value, or release it, in one transaction with the events so far; awaiting waits for that.

        Raises:
            RunClosed: the run was taken away, or has ended.
        """


class CancelHandle(Protocol):
    """How the driver hears of a cancel."""

    reason: str | None


def milliseconds() -> int:
    """Now as events tell it: integer milliseconds since the epoch."""
    return time_ns() // 1_000_000


def message_ids(messages: Sequence[Wire]) -> list[str]:
    """The ids of wire messages, in order."""
    return [m["id"] for m in messages]
