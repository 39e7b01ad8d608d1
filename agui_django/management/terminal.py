"""Shows AG-UI events in a terminal: text as it comes, everything else as one marked line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.management.base import OutputWrapper
from django.core.management.color import Style

from agui_django.protocol.codec import encode

Event = dict[str, Any]


class Printer:
    """Prints the events of one run.

    Attributes:
        failure: what the run failed with, as one line; empty while it did not.
    """

    def __init__(self, out: OutputWrapper, style: Style) -> None:
        """Print to a command's output in its style."""
        self.failure = ""
        self._out = out
        self._style = style
        self._in_text = False
        self._calls: dict[str, list[str]] = {}
        self._lines: dict[str, Callable[[Event], str]] = {
            "STEP_STARTED": lambda event: f"[step] {event['stepName']}",
            "STATE_SNAPSHOT": lambda event: f"[state] {encode(event['snapshot'])}",
            "STATE_DELTA": lambda event: f"[state] {encode(event['delta'])}",
            "ACTIVITY_SNAPSHOT": lambda event: f"[{event['activityType']}] {encode(event['content'])}",
            "ACTIVITY_DELTA": lambda event: f"[{event['activityType']}] {encode(event['patch'])}",
            "CUSTOM": lambda event: f"[custom] {event['name']} {encode(event.get('value'))}",
            "TOOL_CALL_END": self._call,
            "TOOL_CALL_RESULT": lambda event: f"[result] {_text(event['content'])}",
        }

    def take(self, event: Event, *, silent: bool = False) -> None:
        """Print an event; ``silent`` only keeps how the run ended."""
        kind = event["type"]
        if kind == "RUN_ERROR":
            self.failure = f"{event['message']} ({event.get('code', 'no code')})"
        if silent:
            return
        if kind in ("TEXT_MESSAGE_CONTENT", "REASONING_MESSAGE_CONTENT"):
            delta = event["delta"] if kind == "TEXT_MESSAGE_CONTENT" else self._style.HTTP_NOT_MODIFIED(event["delta"])
            self._out.write(delta, ending="")
            self._in_text = True
        elif kind in ("TEXT_MESSAGE_END", "REASONING_MESSAGE_END"):
            self._break()
        elif kind == "TOOL_CALL_START":
            self._calls[event["toolCallId"]] = [event["toolCallName"], ""]
        elif kind == "TOOL_CALL_ARGS":
            self._calls[event["toolCallId"]][1] += event["delta"]
        elif kind in self._lines:
            self._line(self._lines[kind](event))
        elif kind == "RUN_FINISHED":
            self._finished(event)

    def finish(self, thread_id: str) -> None:
        """Say how the thread is continued."""
        self._line(f"[thread] {thread_id}")

    def _finished(self, event: Event) -> None:
        outcome = event.get("outcome") or {}
        for interrupt in outcome.get("interrupts", ()):
            schema = interrupt.get("responseSchema")
            asked = interrupt.get("message") or interrupt["reason"]
            self._line(f"[question] {asked}" + (f" {encode(schema)}" if schema is not None else ""))
        if outcome.get("type") == "cancelled":
            self._line("[stopped]")
        if event.get("result") is not None:
            self._line(f"[value] {encode(event['result'])}")

    def _call(self, event: Event) -> str:
        name, arguments = self._calls.pop(event["toolCallId"])
        return f"[tool] {name} {arguments}".rstrip()

    def _line(self, text: str) -> None:
        self._break()
        self._out.write(self._style.NOTICE(text))

    def _break(self) -> None:
        if self._in_text:
            self._out.write("")
            self._in_text = False


def _text(content: Any) -> str:
    """A tool result's text; parts that are no text are named."""
    if isinstance(content, str):
        return content
    return " ".join(part.get("text", f"[{part['type']}]") for part in content)
