"""What a stream of frames makes of a conversation, and how its last run ended.

Law: an event is handed out only after it was folded in; a refused one is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from agui_django.client.errors import RunFailed, StreamRefused
from agui_django.client.older import Translator, Wire, predates, without_subagents
from agui_django.protocol.codec import clean, decode
from agui_django.protocol.consumer import Consumer
from agui_django.protocol.errors import InvalidJson, ProtocolViolation

Outcome = Literal["success", "interrupt", "cancelled", "error"]


class Fold:
    """One conversation as it is told.

    Args:
        messages: the messages held before.
        state: the state held before.
        thread_id: the only thread that it may be about.
        peer: the protocol version the peer is known to speak.
        warnings: the list that gets what was dropped, stripped or lost.

    Attributes:
        open: a run has begun and not ended.
        outcome: how the last run ended; None while there is none.
        result, interrupts, usage, pending_calls: what its RUN_FINISHED brought.
        run_id: its id.
        error: its RUN_ERROR.
    """

    def __init__(
        self,
        messages: Iterable[Mapping[str, Any]] = (),
        state: Any = None,
        *,
        thread_id: str | None = None,
        peer: str | None = None,
        warnings: list[str] | None = None,
    ) -> None:
        self.warnings: list[str] = [] if warnings is None else warnings
        self.thread_id = thread_id
        self._hides_subagents = predates(peer)
        self._halves = False  # a text may hold half a character
        self._fresh = False  # the next event is the first of a connection
        self._forget()
        self.open = False
        self.run_id: str | None = None
        self._begin(messages, state)

    def _begin(self, messages: Iterable[Mapping[str, Any]], state: Any) -> None:
        self._consumer = Consumer(messages, state, thread_id=self.thread_id)
        # One list for all there is to tell, also of the request and of earlier connections.
        self._told = 0
        self._translate = Translator(self.warnings.append)

    def _forget(self) -> None:
        self.outcome: Outcome | None = None
        self.error: Wire | None = None
        self.result: Any = None
        self.interrupts: list[Wire] = []
        self.usage: list[Wire] = []
        self.pending_calls: list[str] = []

    @property
    def messages(self) -> list[Wire]:
        """The conversation as it stands, as wire dicts."""
        messages = self._consumer.messages
        return clean(messages) if self._halves else messages

    @property
    def state(self) -> Any:
        """The state as it stands."""
        return self._consumer.state

    @property
    def run_errors(self) -> list[Wire]:
        """The RUN_ERROR events."""
        return self._consumer.run_errors

    def connected(self) -> None:
        """A connection begins: the present may be restated."""
        self._fresh = True

    def feed(self, text: str) -> list[Wire]:
        """The events that a frame's text stands for.

        Raises:
            StreamRefused: now and from here on.
        """
        if not self._halves and "\\ud" in text.lower():
            self._halves = True
        try:
            event = self._translate(decode(text))
            if type(event) is not dict:
                raise ProtocolViolation("What came is no event, but another JSON value.")
            if self._fresh:
                self._fresh = False
                if self.open and event.get("type") == "RUN_STARTED":
                    self._begin(self._consumer.messages, self._consumer.state)
            events = self._consumer.feed(event)
        except InvalidJson as error:
            raise StreamRefused("What came is no JSON.", code="agent_protocol_error") from error
        except ProtocolViolation as violation:
            raise StreamRefused(violation.message, code=violation.code, violation=violation) from violation
        finally:
            self._tell()
        for event in events:
            self._note(event)
        if self._hides_subagents:
            return [kept for event in events if (kept := without_subagents(event, self.warnings.append)) is not None]
        return events

    def end(self) -> None:
        """The stream is over.

        Raises:
            StreamRefused: code `truncated`: in the middle of a run, or before one.
        """
        try:
            self._consumer.end()
        except ProtocolViolation as violation:
            raise StreamRefused(violation.message, code=violation.code, violation=violation) from violation

    def raise_for_error(self) -> None:
        """Raise `RunFailed` where the last run has ended with RUN_ERROR."""
        if self.error is not None:
            raise RunFailed(self.error)

    def _tell(self) -> None:
        self.warnings += self._consumer.warnings[self._told :]
        self._told = len(self._consumer.warnings)

    def _note(self, event: Wire) -> None:
        kind = event["type"]
        if kind == "RUN_STARTED":
            self._forget()
            self.open, self.run_id = True, event["runId"]
        elif kind == "RUN_FINISHED":
            outcome = event.get("outcome") or {"type": "success"}
            self.open, self.outcome = False, outcome["type"]
            self.result = event.get("result")
            self.interrupts = outcome.get("interrupts", [])
            self.pending_calls = outcome.get("pendingToolCallIds", [])
            self.usage = event.get("usage", [])
        elif kind == "RUN_ERROR":
            self.open, self.outcome, self.error = False, "error", event
            self.usage = event.get("usage", [])
