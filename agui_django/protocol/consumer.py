"""The specification's whole pipeline over one stream: enforce, expand, verify, reduce (basic/processing.mdx).

Law: what `feed` returns is what an application may see. Nothing comes out of an event that was refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from agui_django.protocol.chunks import ChunkExpander
from agui_django.protocol.enforcement import enforce
from agui_django.protocol.errors import ProtocolViolation
from agui_django.protocol.reducer import Reducer
from agui_django.protocol.verifier import SequenceVerifier

#: The version of the protocol that is spoken here.
PROTOCOL_VERSION: Final = "1.1"
_VERSION: Final = re.compile(r"[0-9]+\.[0-9]+")


class Consumer:
    """What a client makes of a stream.

    Args:
        messages: the conversation the client already holds.
        state: the state it already holds.
        thread_id: the thread it asked about; a stream about another one is refused.
        run_id: the run it asked for (runs before it on the stream are replayed history).

    Attributes:
        warnings: what was dropped, stripped or not applied, in order.
        run_errors: the RUN_ERROR events: failures that runs reported themselves.
    """

    def __init__(
        self,
        messages: Iterable[Mapping[str, Any]] = (),
        state: Any = None,
        thread_id: str | None = None,
        run_id: str | None = None,
    ) -> None:
        """Wait for the first event."""
        self.warnings: list[str] = []
        self.run_errors: list[dict[str, Any]] = []
        self._chunks = ChunkExpander()
        self._verifier = SequenceVerifier(thread_id=thread_id, run_id=run_id)
        self._reducer = Reducer([dict(message) for message in messages], state, warn=self.warnings.append)
        self._refused: ProtocolViolation | None = None

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation as it stands, as wire dicts."""
        return self._reducer.messages

    @property
    def state(self) -> Any:
        """The state as it stands."""
        return self._reducer.state

    def feed(self, event: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Takes one event off the wire.

        Returns:
            The events an application may see: none for a dropped one, several for a chunk.

        Raises:
            ProtocolViolation: the stream is refused, now and from here on. What came before stays delivered.
        """
        if self._refused is not None:
            raise self._refused
        try:
            known = enforce(event, self.warnings.append)
            return [] if known is None else self._deliver(self._chunks.feed(known))
        except ProtocolViolation as violation:
            self._refused = violation
            raise

    def end(self) -> list[dict[str, Any]]:
        """The stream has ended.

        Raises:
            ProtocolViolation: code `truncated`: no terminal event came; a run without one never counts as a success
                (basic/transports/index.mdx).
        """
        if self._refused is not None:
            raise self._refused
        self._deliver(self._chunks.close_all())
        if self._verifier.terminal is None:
            self._refused = ProtocolViolation("The stream ended without a terminal event.", code="truncated")
            raise self._refused
        return []

    def _deliver(self, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for event in events:
            self._verifier.feed(event)
            kind = event["type"]
            if kind == "RUN_STARTED":
                self._judge_version(event.get("protocolVersion", PROTOCOL_VERSION))
            elif kind == "RUN_ERROR":
                self.run_errors.append(event)
            self._reducer.apply(event)
        return events

    def _judge_version(self, declared: str) -> None:
        """A newer minor is served with a warning, and so is what is no version at all (basic/versioning.mdx)."""
        if not _VERSION.fullmatch(declared):
            self.warnings.append(f"RUN_STARTED: cannot interpret protocolVersion {declared[:40]!r}.")
        elif _numbers(declared) > _numbers(PROTOCOL_VERSION):
            self.warnings.append(f"RUN_STARTED: the producer speaks {declared[:40]}, we speak {PROTOCOL_VERSION}.")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version[:40].split("."))
