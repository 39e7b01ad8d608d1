"""A subagent's lane: a `RunSink` of its own inside of its run's.

Law: what is emitted through it carries its ``subagentRunId``, deltas, too; all else is the run's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar, cast
from uuid import uuid4

from pydantic import BaseModel

from agui_django.agents.asking import plain, use_key
from agui_django.agents.calls import ToolCall
from agui_django.agents.items import MessageBlock
from agui_django.agents.sink import READY, Event, Handle, RunSink, Wire
from agui_django.agents.state import StateDocument
from agui_django.protocol.enforcement import enforce, omit_nulls
from agui_django.protocol.errors import Declined, KeyReused, RunSuspended
from agui_django.protocol.events import DELTAS, EVENTS, TERMINAL
from agui_django.protocol.models import read_model

C = TypeVar("C")

#: What clients are told of a subagent that did not end by itself; exceptions' texts are not ours to show.
FAILED: Final = "The subagent failed."
CANCELLED: Final = "The subagent was cancelled."

_TAG: Final = "subagentRunId"
_TAGGED: Final = frozenset(kind for kind, shape in EVENTS.items() if _TAG in shape.optional) | {"SUBAGENT_STARTED"}


class Lane:
    """The `RunSink` of a subagent. What it does not do itself is done by the run's.

    Attributes:
        id: the ``subagentRunId``. One that executes a tool call has the call's id and a colon in it, and one inside
            of another begins with the other's id and a slash.
        result: what SUBAGENT_FINISHED carries.
        context: the subagent's run context.
    """

    def __init__(
        self,
        sink: RunSink,
        name: str,
        description: str | None,
        text: str | None,
        call: ToolCall | str | None,
        key: str | None,
    ) -> None:
        parent = sink if isinstance(sink, Lane) else None
        call_id = call.id if isinstance(call, ToolCall) else call
        self._run: Any = sink if parent is None else parent._run
        self._above = sink
        self._parent = parent
        self.id, label = _named(sink, name, call_id, key)
        if parent is not None:
            self.id = f"{parent.id}/{self.id}"
        self.prefix = sink.prefix + label
        self.setup = sink.setup
        if label:
            answers = {name[len(label) :]: a for name, a in self.setup.answers.items() if name.startswith(label)}
            self.setup = replace(self.setup, answers=answers)
        self._task: Wire | None = None
        if text is not None:
            self._task = {"id": f"{self.id}:task", "role": "user", "content": str(text)}
            self.setup = replace(self.setup, messages=[self._task])
        self.result: Any = None
        self.context: Any = None
        self._implicit: MessageBlock | None = None
        self._failed = False
        self._active = False
        self._announced: Wire = {"type": "SUBAGENT_STARTED", _TAG: self.id, "name": str(name)}
        if description is not None:
            self._announced["description"] = str(description)
        if parent is not None:
            self._announced["parentSubagentRunId"] = parent.id
        if call_id is not None:
            self._announced["parentToolCallId"] = call_id
        # What every delta asks for; the rest is looked up when it is wanted.
        self.thread: int = self._run.thread
        self.piece: Callable[[Any, str], Awaitable[None]] = self._run.piece

    def __getattr__(self, name: str) -> Any:
        return getattr(self._run, name)

    def open_with(self, kind: Callable[[RunSink], C]) -> C:
        """Make the subagent's context."""
        self.context = kind(cast(RunSink, self))
        return cast(C, self.context)

    # ---- its life ----

    def start(self) -> None:
        """Announce it."""
        self._run.settle()
        if self._parent is not None:
            self._parent._check()
        self._run.send(self._announced)
        self._active = True

    def end(self, error: BaseException | None) -> None:
        """Close it, and what was left open in it.

        Raises:
            NotJson: its result cannot be JSON.
        """
        try:
            self._run.settle()  # what threads wrote before comes first
        except Exception:
            self._run.logger.debug("What came before the end of a subagent was refused", exc_info=True)
        self._end_implicit()
        self._active = False
        leaves = list(_leaves(error))
        left = [leaf for leaf in leaves if isinstance(leaf, RunSuspended | asyncio.CancelledError)]
        if len(left) < len(leaves) or self._failed:
            declined = leaves and all(isinstance(leaf, Declined | asyncio.CancelledError) for leaf in leaves)
            self._run.stop_subagent(self.id, error=CANCELLED if declined else FAILED)
        elif leaves and (self._run.cancelled is not None or not self._run.suspended):
            self._run.stop_subagent(self.id, error=CANCELLED)
        elif leaves or self._run.suspensions().get(self.id):
            # Asked means open. And a sibling that stops to ask cancels this one, which goes on when that does.
            self._run.stop_subagent(self.id)
        else:
            self._finish()

    def _finish(self) -> None:
        event: Wire = {"type": "SUBAGENT_FINISHED", _TAG: self.id}
        try:
            if self.result is not None:
                event["result"] = plain(self.result)
        except Exception:
            self._run.stop_subagent(self.id, error=FAILED)
            raise
        self._run.finish_subagent(event)

    def _check(self) -> None:
        if not self._active:
            raise RuntimeError("The subagent has ended.")

    # ---- what it emits ----

    def yielded(self, event: Event) -> Awaitable[None]:
        """As `emitted`."""
        return self.emitted(event)

    def emitted(self, event: Event) -> Awaitable[None]:
        """An event of the subagent; the run events of an agent that has one of its own are this one's."""
        self._check()
        if isinstance(event, str):
            return self._implicitly(event)
        self._end_implicit()
        if not isinstance(event, BaseModel | Mapping):
            return cast("Awaitable[None]", self._run.emitted(event))
        wire = read_model(event) if isinstance(event, BaseModel) else dict(event)
        kind = wire.get("type")
        if not isinstance(kind, str):
            return cast("Awaitable[None]", self._run.emitted(wire))
        if kind in DELTAS and len(wire) == 3 and type(wire.get("delta")) is str:
            handle = self._run.handle(kind, wire.get(DELTAS[kind]))
            if handle is not None and handle.owner == self.id:
                return self.piece(handle, wire["delta"])
        if kind == "RUN_STARTED" or kind in TERMINAL:
            self._absorb(wire)
            return READY
        tag = "parentSubagentRunId" if kind == "SUBAGENT_STARTED" else _TAG
        if kind in _TAGGED and wire.get(tag) is None:
            wire[tag] = self.id
        return cast("Awaitable[None]", self._run.emitted(wire))

    def _absorb(self, wire: Wire) -> None:
        event: Any = enforce(omit_nulls(plain(wire)))
        if event["type"] == "RUN_ERROR":
            self._failed = True
        for entry in event.get("usage") or ():
            self._run.add_usage(entry)
        if event["type"] == "RUN_FINISHED":
            self.result = event.get("result", self.result)
            for interrupt in (event.get("outcome") or {}).get("interrupts", ()):
                self.ask(interrupt["id"], dict(interrupt), "")

    def send(self, event: Wire) -> Awaitable[None]:
        """One of our own events."""
        self._check()
        event[_TAG] = self.id
        return cast("Awaitable[None]", self._run.send(event))

    def send_closing(self, event: Wire) -> None:
        """The event that closes a block; never raises."""
        event[_TAG] = self.id
        self._run.send_closing(event)

    def live(self, value: Any, emit: Callable[[Any], Wire]) -> StateDocument:
        """A document whose edits are emitted in time."""
        return cast(StateDocument, self._run.live(value, lambda edits: {**emit(edits), _TAG: self.id}))

    def handle(self, kind: str, item_id: str) -> Handle | None:
        """The short way for deltas of an open item."""
        return cast("Handle | None", self._run.handle(kind, item_id))

    def _implicitly(self, text: str) -> Awaitable[None]:
        if not text:
            return READY
        if self._implicit is None:
            self._implicit = MessageBlock(cast(RunSink, self), uuid4().hex).__enter__()
        return self._implicit.write(text)

    def _end_implicit(self) -> None:
        block, self._implicit = self._implicit, None
        if block is not None:
            block.__exit__(None, None, None)

    def ask(self, key: str, interrupt: Wire, permission: str) -> None:
        """Note a question that has no answer."""
        self._run.ask(self.prefix + key, {**interrupt, _TAG: self.id}, permission)

    # ---- what was said ----

    def messages(self) -> list[Wire]:
        """What the subagent sees: with a task of its own that and what was said in it, else what is around it, too."""
        if self._task is None:
            return self._above.messages()
        everything = self._run.messages()
        said = {id(message) for message in everything if self._is_in(message.get(_TAG))}
        calls = {call["id"] for message in everything if id(message) in said for call in message.get("toolCalls") or ()}
        # The page's answers belong to nobody but their calls.
        return [
            self._task,
            *(m for m in everything if id(m) in said or (m["role"] == "tool" and m["toolCallId"] in calls)),
        ]

    def turn_messages(self) -> list[Wire]:
        """What the subagent has said in this turn, and every result of a call."""
        return cast("list[Wire]", self._run.turn_messages(self.id))

    def _is_in(self, owner: str | None) -> bool:
        return owner is not None and (owner == self.id or owner.startswith(f"{self.id}/"))


def _named(sink: RunSink, name: str, call_id: str | None, key: str | None) -> tuple[str, str]:
    """A subagent's id, and what stands before its keys."""
    label = key if call_id is None else f"{call_id}:{name if key is None else key}"
    if label is None:
        return uuid4().hex, ""
    if key is not None:
        wire = use_key(sink, key)
        return wire if call_id is None else label, f"{key}/"
    if label in sink.keys:
        raise KeyReused(f"The call {call_id!r} has two subagents named {name!r} in one pass; give them keys.")
    sink.keys.add(label)
    return label, f"{label}/"


def _leaves(error: BaseException | None) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    elif error is not None:
        yield error
