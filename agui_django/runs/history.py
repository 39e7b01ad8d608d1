"""Whose history? What a request's message list does to the stored messages of its thread (docs: history).

Law: pure functions; in ``verified`` mode nothing a client sends deletes or edits what is stored, and only a regenerate
or an explicit ``supersedeAfter`` takes messages out of play.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agui_django.protocol.errors import InvalidInput
from agui_django.protocol.json_patch import json_equal
from agui_django.runs.ledger import METADATA_KEY
from agui_django.runs.setup import Wire

#: Reads as an answer to a model, and says the truth to a person.
NO_RESULT = "No result: the call was not answered."
#: The same, where somebody had approved it and its execution was cut off: a crash, a kill.
UNKNOWN = (
    "Outcome unknown: the call was approved and had begun, and was cut off. It may have been carried out. "
    "Find out before it is made again."
)


@dataclass
class Reconciled:
    """What becomes of a thread's messages.

    Attributes:
        kept: the stored messages that stay in play, in order.
        new: the messages to append, in the client's order.
        superseded: ids of the stored messages that go out of play.
    """

    kept: list[Wire]
    new: list[Wire] = field(default_factory=list)
    superseded: list[str] = field(default_factory=list)

    @property
    def user_moved_on(self) -> bool:
        """Whether the user wrote: calls that wait for the page will not be answered any more."""
        return any(message["role"] == "user" for message in self.new)


@dataclass(frozen=True)
class Request:
    """The part of a request that speaks about history.

    Attributes:
        messages: the client's list.
        supersede_after: the id behind which everything goes out of play, as it was sent; empty: everything does; None:
            the client did not ask.
        resuming: the request answers interrupts: its list regenerates nothing.
        gone: ids that went out of play earlier.
        roles: the roles that new messages may have.
        ours: the calls that no client can answer.
    """

    messages: Sequence[Wire]
    supersede_after: Any = None
    resuming: bool = False
    gone: Container[str] = ()
    roles: Container[str] = ("user", "tool")
    ours: Container[str] = ()


def reconcile(history: str, stored: list[Wire], request: Request, warn: Callable[[str], None]) -> Reconciled:
    """Decide what a request's list means.

    Args:
        history: ``verified``, ``client`` or ``server``.
        stored: the messages in play, in order.
        request: what the client sent.
        warn: told what was dropped.

    Raises:
        InvalidInput: `supersede_after` names no message in play.
    """
    result = _cut(stored, request.supersede_after)
    if history == "client":
        return _whole(result, list(_acceptable(request.messages, warn)))
    known = {message["id"] for message in result.kept}
    if history == "server":
        fresh = _last_turn(request.messages, known, request.roles)
    else:
        fresh = [message for message in request.messages if message["id"] not in known]
    result.new = list(_admitted(fresh, result, request, warn))
    regenerates = history == "verified" and not result.new and not request.resuming and not result.superseded
    if regenerates and request.messages:
        last = request.messages[-1]
        position = next((n for n, message in enumerate(result.kept) if message["id"] == last["id"]), None)
        if position is not None and result.kept[position]["role"] == "user":
            result.superseded = [message["id"] for message in result.kept[position + 1 :]]
            result.kept = result.kept[: position + 1]
    return result


def _cut(stored: list[Wire], after: Any) -> Reconciled:
    if after is None:
        return Reconciled(list(stored))
    if after == "":  # no message has this id: the beginning, so that the first one can be edited, too
        return Reconciled([], [], [message["id"] for message in stored])
    for position, message in enumerate(stored):
        if message["id"] == after:
            return Reconciled(stored[: position + 1], [], [later["id"] for later in stored[position + 1 :]])
    raise InvalidInput(fields=[{"path": "/forwardedProps/supersedeAfter", "message": "names no message of the thread"}])


def _whole(result: Reconciled, messages: list[Wire]) -> Reconciled:
    """The client's list counts: what agrees from the start on stays, the rest is replaced.

    Activities are never sent back; those between agreeing messages stay.
    """
    position = agreed = 0
    while position < len(result.kept):
        stored = result.kept[position]
        if agreed < len(messages) and stored["id"] == messages[agreed]["id"]:
            if not json_equal(stored, messages[agreed]):
                break
            agreed += 1
        elif stored["role"] != "activity":
            break
        position += 1
    result.superseded += [message["id"] for message in result.kept[position:]]
    result.kept = result.kept[:position]
    result.new = messages[agreed:]
    return result


def _acceptable(messages: Iterable[Wire], warn: Callable[[str], None]) -> Iterator[Wire]:
    seen: set[str] = set()
    for number, message in enumerate(messages):
        if message["role"] == "activity":
            warn(f"/messages/{number}: activity messages are not taken back")
        elif message["id"] in seen:
            warn(f"/messages/{number} repeats an id")
        else:
            seen.add(message["id"])
            yield message


def _last_turn(messages: Sequence[Wire], known: Container[str], roles: Container[str]) -> list[Wire]:
    start = len(messages)
    while start and messages[start - 1]["id"] not in known and messages[start - 1]["role"] in roles:
        start -= 1
    return list(messages[start:])


def _admitted(
    fresh: Iterable[Wire], result: Reconciled, request: Request, warn: Callable[[str], None]
) -> Iterator[Wire]:
    calls = {call["id"] for message in result.kept for call in message.get("toolCalls") or ()}
    answered = {message["toolCallId"] for message in result.kept if message["role"] == "tool"}
    seen: set[str] = set()
    for message in fresh:
        role, name = message["role"], f"The new {message['role']} message"
        if role == "activity" or role not in request.roles:
            warn(f"{name} is dropped: clients may not bring this role")
        elif message["id"] in seen:
            warn(f"{name} is dropped: it repeats an id")
        elif message["id"] in request.gone:
            warn(f"{name} is dropped: it went out of play earlier")
        elif role == "tool" and message["toolCallId"] not in calls:
            warn(f"{name} is dropped: the thread has no such call")
        elif role == "tool" and message["toolCallId"] in request.ours:
            warn(f"{name} is dropped: the call is not the page's to answer")
        elif role == "tool" and message["toolCallId"] in answered:
            warn(f"{name} is dropped: the call has a result already")
        else:
            if role == "tool":
                answered.add(message["toolCallId"])
            seen.add(message["id"])
            calls.update(call["id"] for call in message.get("toolCalls") or ())
            yield message


# ---- calls without a result -----------------------------------------------------------------------------------------


def dangling(messages: Sequence[Wire]) -> dict[str, str]:
    """The calls that have no result: call id -> id of the message that made it."""
    answered = {message["toolCallId"] for message in messages if message["role"] == "tool"}
    return {
        call["id"]: message["id"]
        for message in messages
        for call in message.get("toolCalls") or ()
        if call["id"] not in answered
    }


def passed(messages: Sequence[Wire], calls: Mapping[str, str]) -> Iterator[str]:
    """Those of these calls behind which a user message stands."""
    last = max((n for n, message in enumerate(messages) if message["role"] == "user"), default=-1)
    before = {message["id"] for message in messages[:last]}
    return (call for call, maker in calls.items() if maker in before)


def stand_in(call_id: str, text: str = NO_RESULT) -> Wire:
    """A tool message for a call that nobody will answer; flagged, so that it is not taken for a result."""
    return {
        "id": uuid.uuid4().hex,
        "role": "tool",
        "toolCallId": call_id,
        "content": text,
        "metadata": {METADATA_KEY: {"standIn": True}},
    }
