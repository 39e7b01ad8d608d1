"""What the store remembers of a run between its open and its close, and the plain columns made from wire values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import orjson

from agui_django.protocol.codec import encode
from agui_django.runs.setup import Failure, Wire

#: Distance between two messages' order numbers: stand-ins go in between.
STEP = 1_024
#: Length of `Thread.title` and of what it is made of.
TITLE = 120
#: Length of `Thread.last_words`.
LAST_WORDS = 200
#: Where our own marks stand in a message's metadata.
METADATA_KEY = "agui_django"


@dataclass
class Ledger:
    """The notes of one run: where its thread's messages stand.

    Attributes:
        thread: primary key of the thread.
        resumed: whether the run answers interrupts.
        began: the version of the state that it began with.
        version: the version of the last edit that it has taken in; at first that it began with.
        orders: message id -> order number, of all messages in play.
        calls: tool call id -> id of the message that made it.
        results: ids of the tool messages.
        top: the highest order number so far.
    """

    thread: int
    resumed: bool = False
    began: int = 0
    version: int = 0
    orders: dict[str, int] = field(default_factory=dict)
    calls: dict[str, str] = field(default_factory=dict)
    results: set[str] = field(default_factory=set)
    top: int = 0

    def copy(self) -> Ledger:
        """Notes that may be changed without changing these."""
        return replace(self, orders=dict(self.orders), calls=dict(self.calls), results=set(self.results))

    def note(self, message: Wire, order: int) -> None:
        """Remember a message in play."""
        message_id = message["id"]
        self.orders[message_id] = order
        self.top = max(self.top, order)
        if message["role"] == "tool":
            self.results.add(message_id)
        for call in message.get("toolCalls") or ():
            self.calls.setdefault(call["id"], message_id)

    def forget(self, message_ids: Iterable[str]) -> None:
        """Messages went out of play."""
        for message_id in message_ids:
            self.orders.pop(message_id, None)

    def place(self, message: Wire) -> tuple[int, bool]:
        """Find the order number of a new message, and remember it.

        A tool message stands directly behind its call and the results already there: model providers demand it.

        Returns:
            The number, and whether all rows from it on must first move up by `STEP`.
        """
        caller = self.calls.get(message["toolCallId"]) if message["role"] == "tool" else None
        order, shift = self.top + STEP, False
        if caller in self.orders:
            order, following = self._behind(self.orders[caller])
            if following is None:
                order = self.top + STEP
            elif order >= following:
                shift = True
                for message_id, known in self.orders.items():
                    if known >= order:
                        self.orders[message_id] = known + STEP
                self.top += STEP
        self.note(message, order)
        return order, shift

    def _behind(self, order: int) -> tuple[int, int | None]:
        """The number behind a message and its results, and the next message's number."""
        for later, message_id in sorted((known, key) for key, known in self.orders.items() if known > order):
            if message_id not in self.results:
                return order + 1, later
            order = later
        return order + 1, None


def readable(message: Wire) -> str:
    """The text of a message that people read, for searching and for last words."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if part.get("type") == "text")
    return ""


def last_words(messages: Iterable[Wire]) -> str:
    """The start of the latest text message; empty where there is none."""
    found = ""
    for message in messages:
        if message["role"] in ("user", "assistant"):
            found = " ".join(readable(message)[: 4 * LAST_WORDS].split())[:LAST_WORDS] or found
    return found


def title(messages: Iterable[Wire]) -> str:
    """A thread's title, from its first user message."""
    for message in messages:
        if message["role"] == "user" and (text := " ".join(readable(message)[: 4 * TITLE].split())):
            return text if len(text) <= TITLE else f"{text[: TITLE - 3].rstrip()}..."
    return ""


def state_digest(state: Any) -> str:
    """Names a JSON value: equal values (``1`` equals ``1.0``, key order does not count) have equal digests."""
    return hashlib.sha256(_canonical(state)).hexdigest()


def _canonical(value: Any) -> bytes:
    plain = _whole_numbers(value)
    try:
        return orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # integers beyond 64 bits
        return encode(_sorted(plain)).encode()


def _whole_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def expiry(text: Any) -> datetime | None:
    """``expiresAt`` as a time; None where it is absent or no date (the protocol leaves its format open)."""
    if not isinstance(text, str):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    try:
        # A plain date or a time without zone is read as UTC, as the official client's Date does with dates.
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except OverflowError:
        return None


def token_totals(usage: Sequence[Wire]) -> dict[str, int]:
    """The sums of a usage list by `Run` column; parts are parts of the totals, never added to them."""
    columns = {
        "input_tokens": "inputTokens",
        "cached_tokens": "cachedInputTokens",
        "output_tokens": "outputTokens",
        "reasoning_tokens": "reasoningTokens",
    }
    return {column: sum(entry.get(name) or 0 for entry in usage) for column, name in columns.items()}


def fingerprint(failure: Failure) -> str:
    """Names an error's place: equal for the same code, exception class and innermost frame outside libraries."""
    return hashlib.sha256(f"{failure.code}|{failure.kind}|{failure.place}".encode()).hexdigest()
