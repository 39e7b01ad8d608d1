"""Peers from before 1.0: what they are sent, and what they send.

Law: pure; whatever is lost on the way is told to `warn`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import uuid4

from agui_django.protocol.consumer import PROTOCOL_VERSION
from agui_django.protocol.downgrade import downgrade
from agui_django.protocol.run_input import upgrade_parts

Wire = dict[str, Any]
Warn = Callable[[str], None]

#: The last version whose messages hold text only.
_TEXT_ONLY: Final = (0, 0, 39)
_SUBAGENTS: Final = frozenset({"SUBAGENT_STARTED", "SUBAGENT_FINISHED", "SUBAGENT_ERROR"})


def numbers(version: str) -> tuple[int, ...]:
    """A version as numbers that can be compared.

    Raises:
        ValueError: it is none.
    """
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})*", version):
        raise ValueError(f"{version!r} is no protocol version.")
    return tuple(map(int, version.split(".")))


def predates(peer: str | None) -> bool:
    """Whether a peer of this version, if one is known, is from before 1.0."""
    return peer is not None and numbers(peer) < (1,)


def prepare_input(body: Mapping[str, Any], peer: str | None, warn: Warn) -> Wire:
    """A run input as a peer understands it; `body` is not changed.

    Args:
        body: the input in today's shape, but that messages may hold ``binary`` parts.
        peer: the version the peer is known to speak; None: today's.
        warn: told what is lost.
    """
    given = copy.deepcopy(dict(body))
    upgrade_parts(given)
    if not predates(peer):
        return {**given, "protocolVersion": PROTOCOL_VERSION}
    given.pop("protocolVersion", None)
    shaped = downgrade({"type": "RUN_STARTED", "threadId": "", "runId": "", "input": given}, warn)
    ready: Wire = shaped["input"] if shaped is not None else given
    if numbers(peer or "") <= _TEXT_ONLY:
        ready["messages"] = [_flat(message, warn) for message in ready["messages"]]
    return ready


def _flat(message: Wire, warn: Warn) -> Wire:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    texts = [part["text"] for part in content if part["type"] == "text"]
    if len(texts) < len(content):
        warn(f"message {message['id']!r}: its parts that are not text are not sent to a peer this old")
    return {**message, "content": "".join(texts)}


class Translator:
    """Turns the retired THINKING_* events of one stream into today's reasoning events.

    Args:
        warn: told what is translated, and what is lost.
    """

    def __init__(self, warn: Warn) -> None:
        self._warn = warn
        self._span = ""
        self._message = ""

    def __call__(self, event: Any) -> Any:
        """The event in today's shape; whatever else there is comes back as it is."""
        kind = event.get("type") if type(event) is dict else None
        if type(kind) is not str or not kind.startswith("THINKING_"):
            return event
        match kind:
            case "THINKING_START":
                self._span = uuid4().hex
                self._warn("THINKING_START is read as REASONING_START; its title is lost")
                return _kept(event, type="REASONING_START", messageId=self._span)
            case "THINKING_END":
                return _kept(event, type="REASONING_END", messageId=self._span)
            case "THINKING_TEXT_MESSAGE_START":
                self._message = uuid4().hex
                return _kept(event, type="REASONING_MESSAGE_START", messageId=self._message, role="reasoning")
            case "THINKING_TEXT_MESSAGE_CONTENT":
                content = _kept(event, type="REASONING_MESSAGE_CONTENT", messageId=self._message)
                return {**content, "delta": event.get("delta")}
            case "THINKING_TEXT_MESSAGE_END":
                return _kept(event, type="REASONING_MESSAGE_END", messageId=self._message)
            case _:
                return event


def _kept(event: Wire, **members: str) -> Wire:
    """The new event, with what every event may have."""
    return {**members, **{name: event[name] for name in ("timestamp", "rawEvent") if name in event}}


def without_subagents(event: Wire, warn: Warn) -> Wire | None:
    """An event as it is understood where subagents are unknown; None for one that is about nothing else."""
    if event["type"] in _SUBAGENTS:
        warn(f"{event['type']} is dropped: the peer is from before subagents")
        return None
    return {key: value for key, value in event.items() if key != "subagentRunId"}
