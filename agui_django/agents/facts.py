"""What a run context tells without emitting anything: who, which thread, what was asked, what was said.

Law: read only, from any thread; what the client sent is marked as such.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, NoReturn, cast, overload

from ag_ui.core import Context, Message, RunAgentInput, Tool
from pydantic import BaseModel, TypeAdapter
from typing_extensions import TypeVar

from agui_django.agents.asking import answer_to, wire_id
from agui_django.agents.calls import ToolCall
from agui_django.agents.contents import text_of
from agui_django.agents.sink import Answer, RunSink, Wire
from agui_django.protocol.models import read_model

if TYPE_CHECKING:
    from agui_django.models import Thread

S = TypeVar("S", bound=Mapping[str, Any], default=dict[str, Any])

_MESSAGE: TypeAdapter[Message] = TypeAdapter(Message)
_agent_logger = logging.getLogger("agui_django.agent")


class Facts(Generic[S]):
    """The reading half of a run context.

    Type parameter: a TypedDict that says what the shared state holds.
    """

    def __init__(self, sink: RunSink) -> None:
        self._sink = sink
        self._setup = sink.setup
        #: Fields for the logger: thread, run, agent.
        self.log: logging.LoggerAdapter[logging.Logger] = _RunLogger(
            _agent_logger, {"thread": self._setup.thread_id, "run": self._setup.run_id, "agent": self._setup.agent}
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of run {self._setup.run_id!r}>"

    # ---- who and what ----

    @property
    def user(self) -> Any:
        """Whom the run is for: the site's user, or AnonymousUser."""
        return self._setup.user

    @property
    def actor(self) -> Any:
        """Who started it, where that is somebody else (staff who answered a question)."""
        return self._setup.user if self._setup.actor is None else self._setup.actor

    @property
    def thread(self) -> Thread:
        """The conversation's row."""
        return cast("Thread", self._setup.thread)

    @property
    def run_id(self) -> str:
        """The run's id as the client gave it."""
        return str(self._setup.run_id)

    @property
    def turn(self) -> str:
        """The name shared by a run and the runs that continue it."""
        return str(self._setup.turn)

    @property
    def extra(self) -> dict[str, Any]:
        """What ``AccessPolicy.run_context(request)`` stored."""
        return cast("dict[str, Any]", self._setup.extra)

    @property
    def resumed(self) -> bool:
        """Whether this run continues a turn: with answers to questions, or with the page's answers to calls."""
        return bool(self._setup.resume) or self._setup.turn not in ("", self._setup.address)

    @property
    def cancelled(self) -> str | None:
        """Why the run was cancelled: user, staff, disconnect, superseded, timeout or shutdown; None while it is not."""
        return self._sink.cancelled

    # ---- the request ----

    @cached_property
    def input(self) -> RunAgentInput:
        """The request as accepted: its messages and state are the ones in play, never the client's raw list."""
        return RunAgentInput.model_validate(
            {**self._setup.input, "messages": self._setup.messages, "state": self._setup.state}
        )

    @property
    def tools(self) -> Sequence[Tool]:
        """Tools that the page executes; from the client."""
        return self.input.tools or []

    @property
    def context(self) -> Sequence[Context]:
        """What the page says about itself; from the client, not to be trusted."""
        return self.input.context or []

    @property
    def forwarded_props(self) -> dict[str, Any]:
        """Further properties from the client; not to be trusted."""
        props = self._setup.input.get("forwardedProps")
        return props if isinstance(props, dict) else {}

    @property
    def text(self) -> str:
        """The text of the last user message."""
        for message in reversed(self._setup.messages):
            if message["role"] == "user":
                return text_of(message.get("content"))
        return ""

    @cached_property
    def messages(self) -> Sequence[Message]:
        """The conversation as official models, without activities. Live: history plus what this run emitted."""
        return LiveMessages(self._sink)

    # ---- the state ----

    @property
    def state(self) -> S:
        """The shared state, live: every edit leaves as an exact patch before the next event."""
        return cast(S, self._sink.document.root)

    @state.setter
    def state(self, value: S) -> None:
        self._sink.document.assign(value)

    # ---- what was asked before ----

    @property
    def answers(self) -> Mapping[str, Answer]:
        """What became of this turn's questions, by key; also of those dropped because the user wrote on."""
        return cast("Mapping[str, Answer]", self._setup.answers)

    def answer(self, key: str) -> Answer | None:
        """Look at the answer of a question of this turn without asking it."""
        return answer_to(self._sink, key, wire_id(self._sink, key))

    # ---- what the run leaves ----

    @property
    def result(self) -> Any:
        """What RUN_FINISHED carries, unless the function returns something."""
        return self._sink.result

    @result.setter
    def result(self, value: Any) -> None:
        self._sink.result = value

    def suspend(self) -> NoReturn:
        """Leave the function; the run ends with what was asked, or waits for the page's calls.

        Raises:
            RunSuspended: always; RuntimeError where nothing waits outside.
        """
        self._sink.call(self._sink.suspend)
        raise AssertionError("suspend() returned")

    def _pending(self) -> list[ToolCall]:
        messages = self._sink.turn_messages()
        answered = {message["toolCallId"] for message in messages if message["role"] == "tool"}
        return [
            ToolCall(self._sink, call["id"], call["function"]["name"])
            for message in messages
            for call in message.get("toolCalls") or ()
            if call["id"] not in answered
        ]


class LiveMessages(Sequence[Message]):
    """The messages of a run as they are when one looks."""

    def __init__(self, sink: RunSink) -> None:
        self._sink = sink
        self._known: dict[str, tuple[Wire, Message]] = {}

    def __repr__(self) -> str:
        return repr(self._now())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._now() == list(other)

    __hash__ = None  # type: ignore[assignment]  # a mutable sequence, as a list

    def __len__(self) -> int:
        return len(self._now())

    def __iter__(self) -> Iterator[Message]:
        return iter(self._now())

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        return self._now()[index]

    def _now(self) -> list[Message]:
        known, self._known = self._known, {}
        out = []
        for wire in self._sink.call(self._sink.messages):
            if wire["role"] == "activity":
                continue
            held = known.get(wire["id"])
            # Only what changed is read again: a conversation grows at its end.
            model = held[1] if held is not None and held[0] == wire else _MESSAGE.validate_python(wire)
            self._known[wire["id"]] = (wire, model)
            out.append(model)
        return out


def wire_part(part: Any) -> Wire:
    """A part of a message as a wire dict."""
    return read_model(part) if isinstance(part, BaseModel) else dict(part)


class _RunLogger(logging.LoggerAdapter[logging.Logger]):
    """Says which run a line is about, in the text and as fields."""

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        extra = dict(self.extra or {})
        # "thread" is a field of every log record already.
        fields = {f"agui_{name}": value for name, value in extra.items()}
        kwargs["extra"] = {**fields, **(kwargs.get("extra") or {})}
        return f"[{extra['agent']} run {extra['run']}] {msg}", kwargs
