"""A remote run as events of ours: which of the stream's events are this run's, and under which ids.

Law: no I/O. What the events may be is judged by the run's own pipeline; here only the run's borders are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from agui_django.client.errors import StreamRefused
from agui_django.client.older import Translator
from agui_django.client.sse import EventStream
from agui_django.protocol.codec import decode
from agui_django.protocol.errors import InvalidJson, ProtocolViolation

Wire = dict[str, Any]

_TERMINAL = frozenset({"RUN_FINISHED", "RUN_ERROR"})


class RemoteStream:
    """Reads one answer of a remote agent.

    Args:
        asked: the threadId and runId that the remote agent was given.
        ours: those of our run.
        max_frame, max_stream: bytes.
        warn: told what was dropped.

    Attributes:
        ended: the run's terminal event has come.
        any: an event of the stream has come.
    """

    def __init__(
        self,
        asked: tuple[str, str],
        ours: tuple[str, str],
        *,
        max_frame: int,
        max_stream: int,
        warn: Callable[[str], None],
    ) -> None:
        self.ended = False
        self.any = False
        self._asked = dict(zip(("threadId", "runId"), asked, strict=True))
        self._ours = dict(zip(("threadId", "runId"), ours, strict=True))
        self._warn = warn
        self._frames = EventStream(max_frame=max_frame, max_stream=max_stream)
        self._translate = Translator(warn)
        self._started = False
        self._older = False  # a peer from before 1.0, which was not held to its ids
        self._replayed = False  # an earlier run is told

    @property
    def lines(self) -> int:
        """How many lines have come, comments among them."""
        return self._frames.lines

    def feed(self, chunk: bytes) -> Iterator[Wire]:
        """The run's events that a chunk completes, without RUN_STARTED.

        Raises:
            ProtocolViolation: it is no AG-UI, or too large.
        """
        try:
            for frame in self._frames.feed(chunk):
                if not frame.data.strip():  # some servers keep a connection alive so
                    continue
                event = self._translate(decode(frame.data))
                if type(event) is not dict:
                    raise ProtocolViolation("The remote agent sent a value that is no event.")
                self.any = True
                if self._is_ours(event):
                    yield event if event["type"] != "RUN_FINISHED" else {**event, **self._ours}
                if self.ended:
                    return
        except InvalidJson as error:
            raise ProtocolViolation("The remote agent sent what is no JSON.") from error
        except StreamRefused as error:
            raise ProtocolViolation(error.message) from error

    def _is_ours(self, event: Wire) -> bool:
        kind = event.get("type")
        if self._replayed:
            self._replayed = kind not in _TERMINAL
            return False
        if kind == "RUN_STARTED":
            return self._begins(event)
        if kind == "RUN_ERROR":  # also before the run: it can fail before it begins
            self.ended = True
            return True
        if not self._started:
            raise ProtocolViolation("The remote agent did not begin with RUN_STARTED.")
        if kind == "RUN_FINISHED":
            self._agree(event, "runId")
            self.ended = True
        elif kind == "MESSAGES_SNAPSHOT" and event.get("messages") == []:
            self._warn("An empty MESSAGES_SNAPSHOT of the remote agent was dropped: it would delete the conversation.")
            return False
        return True

    def _begins(self, event: Wire) -> bool:
        self._older = self._older or "protocolVersion" not in event
        if self._started:
            raise ProtocolViolation("The remote agent began its run twice.")
        self._agree(event, "threadId")
        if not self._older and event.get("runId") != self._asked["runId"]:
            self._replayed = True
        else:
            self._started = True
        return False

    def _agree(self, event: Wire, *more: str) -> None:
        for name in ("threadId", *more):
            if not self._older and event.get(name) != self._asked[name]:
                raise ProtocolViolation(f"The remote agent's {event['type']} names another {name}.")
