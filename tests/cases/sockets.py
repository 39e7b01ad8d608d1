"""A user's socket to the live server, as a browser on one of its pages opens it."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import TracebackType
from typing import Any

from django.test import Client
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.live import LiveServer

SECONDS = 30


class Socket:
    """One socket of a user; leaving the block closes it."""

    def __init__(self, server: LiveServer, user: Any, agent: str = "", *, query: str = "") -> None:
        session = Client()
        session.force_login(user)
        url = f"{server.url.replace('http', 'ws', 1)}/agui/ws/{agent}?{query}"
        cookie = {"Cookie": f"sessionid={session.cookies['sessionid'].value}"}
        self._opening = connect(url, origin=server.url, additional_headers=cookie, max_size=None)

    def __enter__(self) -> Socket:
        self.connection = self._opening.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opening.__exit__(kind, error, trace)

    def send(self, frame: Any) -> None:
        """Send a frame."""
        self.connection.send(json.dumps(frame) if isinstance(frame, dict) else bytes(frame).decode())

    def event(self) -> dict[str, Any]:
        """The next event."""
        found: dict[str, Any] = json.loads(self.connection.recv(SECONDS))
        return found

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """The events up to and with the next one that is meant."""
        got = [self.event()]
        while not condition(got[-1]):
            got.append(self.event())
        return got

    def closed(self) -> int:
        """The code that the server closes with, and nothing is sent before."""
        try:
            text = self.connection.recv(SECONDS)
        except ConnectionClosed as end:
            assert end.rcvd is not None
            return int(end.rcvd.code)
        raise AssertionError(f"not closed, but sent {text!r}")
