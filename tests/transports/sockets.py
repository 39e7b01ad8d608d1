"""A client of the site's WebSocket inside the test process: what channels.testing offers, in events."""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any

from channels.testing import WebsocketCommunicator
from django.test import Client
from rest_framework.authtoken.models import Token

from agui_django.runs.database import get_pool

HOST = b"testserver"
ORIGIN = "http://testserver"
SECONDS = 20


class Socket:
    """One socket; leaving the block is the client going away.

    Args:
        agent: the agent of the address; "" for the address that only follows.
        query: without the question mark.
        headers: of the handshake.
    """

    def __init__(
        self,
        agent: str = "",
        query: str = "",
        *,
        headers: dict[str, str] | None = None,
        protocols: list[str] | None = None,
        scheme: str | None = "ws",
    ) -> None:
        from project.asgi import application

        path = f"/agui/ws/{agent}".rstrip("/") + (f"?{query}" if query else "")
        named = [(b"host", HOST), *((n.lower().encode(), v.encode("latin1")) for n, v in (headers or {}).items())]
        self.asgi = WebsocketCommunicator(application, path, headers=named, subprotocols=protocols)
        if scheme is not None:
            self.asgi.scope["scheme"] = scheme
        self.asgi.scope["client"], self.asgi.scope["server"] = ("127.0.0.1", 1234), ("testserver", 80)
        self.accepted = False
        self.subprotocol: Any = None
        self.refused_with: int | None = None

    async def __aenter__(self) -> Socket:
        self.accepted, answer = await self.asgi.connect(timeout=SECONDS)
        if self.accepted:
            self.subprotocol = answer
        else:
            self.refused_with = answer
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.leave()

    async def leave(self) -> None:
        """The connection is gone; the consumer ends at once."""
        if not self.asgi.future.done():
            await self.asgi.disconnect(timeout=1)

    async def send(self, frame: Any) -> None:
        """Send a frame: a value as JSON, or a text or bytes as they are."""
        if isinstance(frame, bytes) and frame[:1] != b"{":
            await self.asgi.send_to(bytes_data=frame)
        else:
            text = (
                frame.decode() if isinstance(frame, bytes) else frame if isinstance(frame, str) else json.dumps(frame)
            )
            await self.asgi.send_to(text_data=text)

    async def event(self) -> dict[str, Any]:
        """The next event."""
        found: dict[str, Any] = json.loads(await self.asgi.receive_from(SECONDS))
        return found

    async def events(self, count: int | None = None) -> list[dict[str, Any]]:
        """So many events, or those up to and with the next terminal one."""
        got: list[dict[str, Any]] = []
        while len(got) != count:
            got.append(await self.event())
            if count is None and got[-1]["type"] in ("RUN_FINISHED", "RUN_ERROR"):
                break
        return got

    async def until(self, kind: str) -> list[dict[str, Any]]:
        """The events up to and with the next one of a type."""
        got = [await self.event()]
        while got[-1]["type"] != kind:
            got.append(await self.event())
        return got

    async def closed(self) -> int:
        """The code that the server closes with, and nothing is sent before."""
        message = await self.asgi.receive_output(SECONDS)
        assert message["type"] == "websocket.close", message
        code: int = message["code"]
        return code


def session(user: Any, origin: str | None = ORIGIN) -> dict[str, str]:
    """Headers of a page of the site, by a user who is logged in."""
    client = Client()
    client.force_login(user)
    cookie = {"Cookie": f"sessionid={client.cookies['sessionid'].value}"}
    return cookie if origin is None else {**cookie, "Origin": origin}


def key(user: Any) -> str:
    """A user's token."""
    return str(Token.objects.get_or_create(user=user)[0].key)


def types(events: list[dict[str, Any]]) -> list[str]:
    """The events' types."""
    return [event["type"] for event in events]


async def asession(user: Any, origin: str | None = ORIGIN) -> dict[str, str]:
    """`session`, in a test's loop."""
    return await get_pool().run(session, user, origin)


async def akey(user: Any) -> str:
    """`key`, in a test's loop."""
    return await get_pool().run(key, user)
