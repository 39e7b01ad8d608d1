"""What an agent's context needs of the engine: the `RunSink` protocol and the awaitables that emitting gives back.

Law: agents know this interface, never the engine behind it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Generic, Literal, NoReturn, Protocol, TypeVar, cast

from ag_ui.core import BaseEvent

from agui_django.agents.costs import Cost
from agui_django.agents.state import StateDocument

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Wire = dict[str, Any]

#: What an agent may yield or emit: an official model, a wire dict, or text.
Event = BaseEvent | Mapping[str, Any] | str


class Answer(Protocol):
    """What became of a question of this turn, or of one that was dropped because the user wrote on."""

    @property
    def key(self) -> str:
        """The key it was asked under."""

    @property
    def interrupt_id(self) -> str:
        """Its id on the wire."""

    @property
    def status(self) -> str:
        """``resolved``, ``cancelled`` or ``expired``."""

    @property
    def value(self) -> Any:
        """The answer as plain JSON; None unless resolved."""

    @property
    def user(self) -> Any:
        """Who answered, or None."""

    @property
    def at(self) -> datetime | None:
        """When it was closed."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What came with the answer and is no part of it."""


@dataclass(frozen=True)
class OnceClaim:
    """A claim on something that happens once per turn.

    Attributes:
        key: names it within the turn.
        by: names this very claim.
        state: ``mine``: do it, and settle it. ``done``: here is its value. ``unknown``: somebody who is gone may have
            done it.
        value: plain JSON.
    """

    key: str
    by: str
    state: Literal["mine", "done", "unknown"] = "mine"
    value: Any = None

    def found(self, state: Literal["mine", "done", "unknown"], value: Any = None) -> OnceClaim:
        """The same claim, and what it met."""
        return replace(self, state=state, value=value)


class Handle(Protocol):
    """An open item that deltas may be appended to on the short way."""

    id: str
    open: bool
    owner: str | None


class CallFollower(Protocol):
    """Somebody who follows the arguments of a tool's calls while they are streamed, for a key of the state."""

    key: str
    tool: str

    def began(self, call_id: str) -> None:
        """A call of the tool was started."""

    def grew(self, call_id: str) -> None:
        """A piece of a call's arguments has come; of any call."""

    def ended(self, call_id: str) -> None:
        """A call's arguments have ended; of any call."""

    def finish(self) -> bool:
        """The run ends. Gives whether anything was written to the state."""


class RunSink(Protocol):
    """The engine's side of one run. Methods are called in the event loop's thread, unless they say otherwise."""

    setup: Any  # a runs.setup.RunSetup; read only
    document: StateDocument
    #: The loop thread's ident.
    thread: int
    #: The run's context, for functions that take one.
    context: Any
    #: Names of the tools that the request brought.
    tool_names: frozenset[str]
    #: Wire ids of the keys used in this pass.
    keys: set[str]
    #: What stands before every key in its wire id: empty but in a subagent with a key.
    prefix: str
    #: By call id, how people are asked about calls that have to be approved.
    approvals: dict[str, Any]
    #: What RUN_FINISHED carries unless the function returns something.
    result: Any
    #: Why the run was cancelled, or None.
    cancelled: str | None
    #: The function was told to leave with what it asked.
    suspended: bool
    logger: Any

    def yielded(self, event: Event) -> Awaitable[None]:
        """An event as an agent yields it: text goes to the implicit message, other kinds close that."""

    def emitted(self, event: Event) -> Awaitable[None]:
        """An event as it comes through ``run.emit``."""

    def send(self, event: Wire) -> Awaitable[None]:
        """One of our own events: plain JSON already."""

    def send_closing(self, event: Wire) -> None:
        """As `send`, for the event that closes a block: never raises."""

    def finish_subagent(self, event: Wire) -> None:
        """The event that ends a subagent that did what it had to; never raises."""

    def stop_subagent(self, run_id: str, *, error: str | None = None) -> None:
        """End a subagent by an error, else as suspended, with all that it left open, innermost first; never raises."""

    def suspensions(self) -> dict[str, list[str]]:
        """Of every open subagent, the ids of the questions that it asked."""

    def handle(self, kind: str, item_id: str) -> Handle | None:
        """The short way for deltas of an open item."""

    def piece(self, handle: Any, delta: str) -> Awaitable[None]:
        """A delta on the short way; from any thread."""

    def messages(self) -> list[Wire]:
        """The thread's messages now, as wire dicts."""

    def message(self, message_id: str) -> Wire | None:
        """One of them."""

    def call_of(self, call_id: str) -> Wire | None:
        """A tool call of the messages now, as a wire dict."""

    def result_of(self, call_id: str) -> Wire | None:
        """The tool message that answers a call."""

    def turn_messages(self) -> list[Wire]:
        """What this agent has said so far behind the last message of the user, and every result of a call."""

    def repeated(self, message_id: str) -> None:
        """A message without a key has ended: tell the developer where an earlier pass said the same."""

    def live(self, value: Any, emit: Callable[[Any], Wire]) -> StateDocument:
        """A document whose edits are emitted in time; `emit` makes the event of what its ``take()`` gives."""

    def follow_calls(self, follower: CallFollower) -> None:
        """Tell somebody of the tool calls from now on; who follows for the same key is let go."""

    def ask(self, key: str, interrupt: Wire, permission: str) -> None:
        """Note a question that has no answer; the run ends with it."""

    def asked(self) -> set[str]:
        """The keys of the questions noted so far."""

    def withdraw(self, keys: set[str]) -> None:
        """Take questions back that will be asked again in a later pass."""

    def claim_once(self, key: str) -> Awaitable[OnceClaim]:
        """Claim something that happens once per turn; what it gives is committed.

        Raises:
            RunClosed: the run was taken away; nothing may be done for it.
        """

    def settle_once(self, claim: OnceClaim, text: str | None) -> Awaitable[None]:
        """Keep a claim's value, as JSON, in the transaction of the events so far; None releases the claim."""

    def suspend(self) -> NoReturn:
        """Leave the agent's function: what was asked is open now."""

    def add_usage(self, entry: Wire, cost: Cost | None = None) -> None:
        """Sum up usage for the terminal event; ``cost`` is the agent's own figure for it."""

    def flush(self) -> Awaitable[None]:
        """Until all so far is stored and visible."""

    def attachment(self, part: Wire) -> Awaitable[bytes]:
        """The bytes of a message's part; see `RunContext.attachment`."""

    def executing(self, call_id: str, tool: str) -> AbstractContextManager[None]:
        """Around the execution of a tool's function: what it does shows below the call in a trace. From any thread."""

    def in_thread(self, fn: Callable[[], T]) -> Awaitable[T]:
        """Run a synchronous function in the run's own thread."""

    def settle(self) -> None:
        """Do what waits: what threads handed over, then edits. At the beginning of whatever emits."""

    def post(self, fn: Callable[..., Any], *args: Any) -> None:
        """From another thread: have the loop call this, in order; do not wait.

        Raises:
            RunCancelled: once, after the run was cancelled.
            RunClosed: the run has ended.
        """

    def call(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """From any thread: have the loop call this, in order, and give what it gives.

        Raises:
            RunCancelled: once per thread, after the run was cancelled.
            RunClosed: the run has ended.
        """

    def wait(self, fn: Callable[[], Awaitable[T]], *, check: bool = True) -> T:
        """From another thread: wait for something that the loop waits for.

        Args:
            fn: what is awaited.
            check: hear of a cancel first; not for what has to be told in any case.
        """

    def check(self) -> None:
        """Raise RunCancelled if the run is cancelled. From any thread."""

    def hint(self, text: str, *args: Any) -> None:
        """Tell the developer, where DEBUG is on."""


# ---- awaitables ------------------------------------------------------------------------------------------------------


class Ready(Generic[T_co]):
    """An awaitable that has its value already; need not be awaited."""

    __slots__ = ("value",)

    def __init__(self, value: T_co) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, Any, T_co]:
        return self.value
        yield


class _Nothing:
    """The awaitable that nearly every emission gives back, shared by all."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, None]:
        return _DONE


#: An exhausted iterator is all that await needs.
_DONE = cast("Generator[Any, Any, None]", iter(()))
READY: Awaitable[None] = _Nothing()


class After(Generic[T_co]):
    """A value that is there already, and a wait (the loop's turn, the writer) that comes with awaiting it."""

    __slots__ = ("pause", "value")

    def __init__(self, pause: Awaitable[None], value: T_co) -> None:
        self.pause = pause
        self.value = value

    def __await__(self) -> Generator[Any, Any, T_co]:
        yield from self.pause.__await__()
        return self.value
