"""What a client says on a socket: a run's input, or a control frame; and the one event that a socket adds.

Law: a control frame has a lower-case ``type``, a run's input has none, an event's is in capitals: the three are never
taken for one another. docs/reference/websocket.md is the contract.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from agui_django.protocol.codec import clean_text, decode, encode
from agui_django.protocol.errors import InvalidInput, InvalidJson

#: Control frames are never longer; what is, is a run's input and need not be parsed twice.
CONTROL = 16 * 1024

#: The name of the CUSTOM event that tells where a client is, for those that ask by ``?cursors=1``.
CURSOR = "agui_django.cursor"


@dataclass(frozen=True)
class Auth:
    """A token for the site's authenticators."""

    token: str
    scheme: str = "Token"


@dataclass(frozen=True)
class Target:
    """A run, by its address or by the ids that the client gave it; or a whole thread.

    Attributes:
        run: the run's address.
        thread_id: the thread, as the client named it.
        run_id: a run of it, as the client named it: the latest of that name.
    """

    run: UUID | None = None
    thread_id: str | None = None
    run_id: str | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing is named."""
        return self.run is None and self.thread_id is None and self.run_id is None

    @property
    def whole_thread(self) -> bool:
        """Whether no single run is named."""
        return self.thread_id is not None and self.run is None and self.run_id is None


@dataclass(frozen=True)
class Follow:
    """Show a run after a number, or a thread after a cursor.

    Attributes:
        after: a run's number, a thread's cursor; empty: from the start, or as the present is.
        until_idle: a thread's stream ends when nothing runs.
    """

    target: Target
    after: str = ""
    until_idle: bool = False


@dataclass(frozen=True)
class Cancel:
    """Stop a run; nothing named: the one that is shown."""

    target: Target


Control = Auth | Follow | Cancel


def control(text: str) -> Control | None:
    """The control frame that a text is; None: it is meant as a run's input.

    Raises:
        InvalidInput: a member is malformed.
    """
    if len(text) > CONTROL:
        return None
    try:
        frame = decode(text)
    except InvalidJson:
        return None  # told when it is read as an input
    kind = frame.get("type") if isinstance(frame, dict) else None
    if kind == "auth":
        return Auth(_text(frame, "token") or "", _text(frame, "scheme") or "Token")
    if kind == "cancel":
        return Cancel(_target(frame))
    if kind == "follow":
        return _follow(frame)
    return None


def cursor_event(value: dict[str, Any]) -> str:
    """The event that tells a client where it is: its value is what a follow frame has to say to go on from there."""
    return encode({"type": "CUSTOM", "name": CURSOR, "value": value})


def _follow(frame: dict[str, Any]) -> Follow:
    target = _target(frame)
    if target.empty:
        raise _bad("threadId", "a run or a thread must be named")
    after = frame.get("after")
    if isinstance(after, int) and not isinstance(after, bool) and after >= 0:
        after = str(after)
    if after is not None and not isinstance(after, str):
        raise _bad("after", "must be a cursor")
    until = _text(frame, "until")
    if until not in (None, "idle"):
        raise _bad("until", "must be idle")
    return Follow(target, after or "", until == "idle")


def _target(frame: dict[str, Any]) -> Target:
    run = _text(frame, "run")
    try:
        address = UUID(run) if run is not None else None
    except ValueError:
        raise _bad("run", "must be a run's address") from None
    return Target(address, _text(frame, "threadId"), _text(frame, "runId"))


def _text(frame: dict[str, Any], name: str) -> str | None:
    value = frame.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise _bad(name, "must be a string")
    return clean_text(value)


def _bad(name: str, message: str) -> InvalidInput:
    return InvalidInput("The control frame has malformed fields.", fields=[{"path": f"/{name}", "message": message}])
