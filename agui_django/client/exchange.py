"""One stream over as many connections as it takes: what to ask for, what came, whether to ask again.

Law: no I/O and no clock here; the synchronous and the asynchronous client do the same with the same object. Behind a
cursor come exactly the events after it, so that a cut anywhere loses nothing and doubles nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

from agui_django.client.errors import ClientError, Refused, StreamRefused, Unreachable
from agui_django.client.fold import Fold
from agui_django.client.older import Wire
from agui_django.client.sse import MAX_FRAME, MAX_STREAM, EventStream, Frame
from agui_django.protocol.codec import decode
from agui_django.protocol.errors import InvalidJson
from agui_django.protocol.headers import retry_after

#: Bytes of an error's body that are read.
MAX_ERROR = 64 * 1024
#: Answers that may be other ones a moment later.
PASSING = frozenset({429, 502, 503, 504})
LONGEST_WAIT = 30.0


@dataclass(frozen=True)
class Limits:
    """What a stream may cost, and how often it is gone on with.

    Attributes:
        reconnects: connections in a row that bring no event; then it is given up.
        max_frame, max_stream: bytes.
    """

    reconnects: int = 5
    max_frame: int = MAX_FRAME
    max_stream: int = MAX_STREAM


@dataclass(frozen=True)
class Call:
    """A request to make."""

    method: str
    url: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Exchange:
    """A run that is started, or a thread that is followed.

    Args:
        fold: what the events are folded into.
        limits: see there.
        begun: called before the first event.

    Attributes:
        cursor: the place behind the last event that was handed out.
        location: the address of the run's events, where the server keeps them.
    """

    def __init__(self, fold: Fold, limits: Limits, begun: Callable[[], None]) -> None:
        self.fold = fold
        self.limits = limits
        self.cursor = ""
        self.location: str | None = None
        self._begun: Callable[[], None] | None = begun
        self._stream = self._reader()
        self._fruitless = 0
        self._nothing = False  # the server says that there is nothing more

    def _reader(self) -> EventStream:
        return EventStream(max_frame=self.limits.max_frame, max_stream=self.limits.max_stream)

    # ---- what differs ----

    def call(self) -> Call:
        """The next request."""
        raise NotImplementedError

    @property
    def complete(self) -> bool:
        """Whether all has come that there is."""
        raise NotImplementedError

    @property
    def _known(self) -> bool:
        """Whether the server holds what a further connection can go on with."""
        raise NotImplementedError

    # ---- one connection ----

    def opened(self, status: int, headers: Mapping[str, str]) -> bool:
        """An answer has come; False: an error, whose body `refusal` reads.

        Raises:
            StreamRefused: it is no stream of events.
        """
        self._stream = self._reader()
        if status == 204:
            self._nothing = True
            return True
        if status != 200:
            return False
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "text/event-stream":
            raise StreamRefused("The answer is no stream of events.", code="invalid_response")
        if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
            raise StreamRefused("The answer is compressed, which was not asked for.", code="invalid_response")
        self.fold.connected()
        self._opened(headers)
        return True

    def _opened(self, headers: Mapping[str, str]) -> None:
        pass

    def _has(self, frame: Frame) -> bool:
        """Whether a frame has come before."""
        return False

    def feed(self, chunk: bytes) -> Iterator[Wire]:
        """The events that a chunk completes. `cursor` is exact at each of them.

        Raises:
            StreamRefused: what came is not AG-UI, or too large.
        """
        for frame in self._stream.feed(chunk):
            if self._has(frame) or not frame.data.strip():  # some servers keep a connection alive so
                continue
            events = self.fold.feed(frame.data)
            self._fruitless = 0
            if self._begun is not None:
                begun, self._begun = self._begun, None
                begun()
            yield from events[:-1]
            self.cursor = frame.id
            yield from events[-1:]

    def over(self, error: Exception | None = None, *, never_sent: bool = False) -> float | None:
        """A connection has ended.

        Args:
            error: how, unless in order.
            never_sent: the request cannot have reached the server.

        Returns:
            Seconds to wait before the next one; None: the stream is complete.

        Raises:
            Unreachable, StreamRefused: it is not, and cannot be gone on with.
        """
        if self.complete:
            return None
        if (self._known or never_sent) and not self._nothing and self._fruitless < self.limits.reconnects:
            return self._pause(self._stream.retry)
        if error is not None:
            code = "timeout" if "Timeout" in type(error).__name__ else "unreachable"
            raise Unreachable(f"The connection failed ({type(error).__name__}).", code=code) from error
        self.fold.end()
        return None

    def refusal(self, status: int, headers: Mapping[str, str], body: bytes) -> float:
        """Seconds to wait where an error may pass and there is something to go on with.

        Raises:
            Refused: the server's error.
        """
        refused = refused_by(status, headers, body)
        if self._known and status in PASSING and self._fruitless < self.limits.reconnects:
            return self._pause(refused.retry_after)
        raise refused

    def _pause(self, wanted: float | None) -> float:
        self._fruitless += 1
        backoff = 0.05 * 2**self._fruitless if self._fruitless > 1 else 0.0
        return min(max(wanted or 0.0, backoff), LONGEST_WAIT)


class RunExchange(Exchange):
    """A run: a POST, then its events behind the cursor.

    Args:
        url: the agent's address.
        body: the run input.
        fold, limits, begun: see `Exchange`.
    """

    def __init__(self, url: str, body: bytes, fold: Fold, limits: Limits, begun: Callable[[], None]) -> None:
        super().__init__(fold, limits, begun)
        self._url = url
        self._body = body
        self._behind = False  # this connection is one behind the cursor

    def call(self) -> Call:
        """The next request."""
        if self.location is None:
            return Call("POST", self._url, self._body, {"Content-Type": "application/json"})
        after = self.cursor or "0"
        self._behind = True
        return Call("GET", f"{self.location}?{urlencode({'after': after})}", headers={"Last-Event-ID": after})

    @property
    def complete(self) -> bool:
        """Whether the run's end has come."""
        return self.fold.outcome is not None and not self.fold.open

    def _opened(self, headers: Mapping[str, str]) -> None:
        if self.location is None and (named := headers.get("content-location")):
            address = urljoin(self._url, named)
            # The caller's credentials go with it.
            if urlsplit(address)[:2] == urlsplit(self._url)[:2]:
                self.location = address

    @property
    def _known(self) -> bool:
        return self.location is not None

    def _has(self, frame: Frame) -> bool:
        # Only behind a cursor of ours do numbers count: elsewhere they may mean anything.
        given, held = frame.id, self.cursor
        return self._behind and frame.named and given.isdigit() and held.isdigit() and int(given) <= int(held)


class FollowExchange(Exchange):
    """A thread: its present, then whatever runs in it.

    Args:
        url: the address of threads' events.
        query: ``threadId`` and so on.
        after: the cursor to begin behind; empty: the present is restated.
        until_idle: end as soon as nothing runs.
        fold, limits, begun: see `Exchange`.
    """

    def __init__(
        self,
        url: str,
        query: Mapping[str, str],
        fold: Fold,
        limits: Limits,
        begun: Callable[[], None],
        *,
        after: str = "",
        until_idle: bool = False,
    ) -> None:
        super().__init__(fold, limits, begun)
        self._url = url
        self._query = {**query, "until": "idle"} if until_idle else dict(query)
        self._until_idle = until_idle
        self.cursor = after

    def call(self) -> Call:
        """The next request."""
        query = {**self._query, "after": self.cursor} if self.cursor else self._query
        headers = {"Last-Event-ID": self.cursor} if self.cursor else {}
        return Call("GET", f"{self._url}?{urlencode(query)}", headers=headers)

    @property
    def complete(self) -> bool:
        """Whether there is nothing more to tell, and it was not to wait for more."""
        at_rest = self.fold.outcome is not None and not self.fold.open
        return not self.fold.open and (self._nothing or (self._until_idle and at_rest))

    @property
    def _known(self) -> bool:
        return True


def refused_by(status: int, headers: Mapping[str, str], body: bytes) -> Refused:
    """The error that an answer tells."""
    if 300 <= status < 400:
        return Refused("The server answers by a redirect, which is not followed.", code="redirect", status=status)
    told: Any = None
    with contextlib.suppress(InvalidJson):
        told = decode(body)
    told = told.get("error") if isinstance(told, dict) else None
    told = told if isinstance(told, dict) else {}
    fields = told.get("fields")
    return Refused(
        str(told.get("message") or f"The server refused the request ({status})."),
        code=str(told.get("code") or f"http_{status}"),
        status=status,
        fields=[entry for entry in fields if isinstance(entry, dict)] if isinstance(fields, list) else [],
        details={name: value for name, value in told.items() if name not in ("message", "code", "fields")},
        retry_after=retry_after(headers),
    )


def unreachable(error: Exception) -> ClientError:
    """A request without a stream has failed."""
    code = "timeout" if "Timeout" in type(error).__name__ else "unreachable"
    return Unreachable(f"The connection failed ({type(error).__name__}).", code=code)
