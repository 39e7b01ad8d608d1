"""Who may open a socket, from which pages, and what they may do: closed by default."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.sessions.models import Session

from agui_django.access import AccessPolicy
from agui_django.models import Run, Thread
from agui_django.runs.database import get_pool
from agui_django.testing import override_agent
from agui_django.transports import websocket
from tests.transports.sockets import ORIGIN, Socket, akey, asession, types

pytestmark = pytest.mark.asyncio


async def hello(run: Any) -> None:
    await run.say(f"Hello {run.user}, {run.extra.get('tenant', '-')}.")


@pytest.fixture(autouse=True)
def agent(agui_runtime: None) -> Any:
    with override_agent("hello", hello):
        yield


async def said(socket: Socket, frame: bytes) -> str:
    """What the agent says to whoever the socket is."""
    await socket.send(frame)
    events = await socket.events()
    assert events[-1]["type"] == "RUN_FINISHED", events
    return "".join(event.get("delta", "") for event in events)


async def refused(socket: Socket) -> tuple[str, int]:
    event = await socket.event()
    assert event["type"] == "RUN_ERROR"
    return event["code"], await socket.closed()


# ---- pages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("origin", "trusted", "scheme"),
    [
        ("http://testserver", [], "ws"),
        ("https://testserver", [], "wss"),
        # Daphne does not say the scheme
        ("https://testserver", [], None),
        ("https://app.example.org", ["https://app.example.org"], "ws"),
        ("https://a.b.example.org", ["https://*.example.org"], "ws"),
    ],
)
async def test_trusted_pages(ada: Any, body: Any, settings: Any, origin: str, trusted: Any, scheme: Any) -> None:
    settings.CSRF_TRUSTED_ORIGINS = trusted
    async with Socket("hello", headers=await asession(ada, origin), scheme=scheme) as socket:
        assert await said(socket, body()) == "Hello ada, -."


@pytest.mark.parametrize(
    ("origin", "trusted", "scheme"),
    [
        ("http://evil.example", [], "ws"),
        ("http://testserver.evil.example", [], "ws"),
        ("http://testserver:8000", [], "ws"),
        ("http://testserver", [], "wss"),
        ("http://app.example.org", ["https://app.example.org"], "ws"),
        ("https://evilexample.org", ["https://*.example.org"], "ws"),
        ("null", [], "ws"),
        ("http://[", [], "ws"),
        ("", [], "ws"),
    ],
)
async def test_other_pages(ada: Any, settings: Any, origin: str, trusted: Any, scheme: Any) -> None:
    settings.CSRF_TRUSTED_ORIGINS = trusted
    # a token does not help: the page may have been handed one
    for protocols in ([], ["agui", f"agui.token.{await akey(ada)}"]):
        async with Socket("hello", headers=await asession(ada, origin), protocols=protocols, scheme=scheme) as socket:
            assert (socket.accepted, socket.refused_with) == (False, 4403)


async def test_a_host_that_is_not_ours(ada: Any, settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["other.example"]
    async with Socket("hello", headers=await asession(ada)) as socket:
        assert (socket.accepted, socket.refused_with) == (False, 4403)


async def test_a_session_counts_only_on_a_page(ada: Any, body: Any) -> None:
    async with Socket("hello", headers=await asession(ada, None)) as socket:
        await socket.send(body())
        assert await refused(socket) == ("not_authenticated", 4401)


# ---- tokens ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("origin", [{}, {"Origin": ORIGIN}])
async def test_a_token_by_subprotocol(ada: Any, body: Any, origin: Any) -> None:
    async with Socket("hello", headers=origin, protocols=[f"agui.token.{await akey(ada)}", "agui"]) as socket:
        # the token is not echoed
        assert socket.subprotocol == "agui"
        assert await said(socket, body()) == "Hello ada, -."


async def test_a_token_in_the_header(ada: Any, body: Any) -> None:
    async with Socket("hello", headers={"Authorization": f"Token {await akey(ada)}"}) as socket:
        assert socket.subprotocol is None
        assert await said(socket, body()) == "Hello ada, -."


async def test_a_bearer_token_goes_to_the_sites_authenticator(ada: Any, body: Any, settings: Any) -> None:
    settings.AGUI_DJANGO = {"AUTHENTICATION_CLASSES": [f"{__name__}.Bearer"]}
    for first, frame in (
        ([f"agui.bearer.{await akey(ada)}"], None),
        ([], {"type": "auth", "token": await akey(ada), "scheme": "Bearer"}),
    ):
        async with Socket("hello", protocols=first) as socket:
            if frame is not None:
                await socket.send(frame)
            assert await said(socket, body()) == "Hello ada, -."


async def test_a_token_as_the_first_frame(ada: Any, body: Any) -> None:
    async with Socket("hello") as socket:
        # sent without waiting for an answer: there is none
        await socket.send({"type": "auth", "token": await akey(ada)})
        assert await said(socket, body()) == "Hello ada, -."
        await socket.send({"type": "auth", "token": await akey(ada)})
        assert await refused(socket) == ("invalid_input", 4422)


@pytest.mark.parametrize("token", ["wrong", "", "a b", "\u00fc", 5])
async def test_a_bad_token(agui_runtime: None, token: Any) -> None:
    async with Socket("hello") as socket:
        await socket.send({"type": "auth", "token": token})
        code, close = await refused(socket)
        assert (code, close) in [("not_authenticated", 4401), ("invalid_input", 4422)]
    if isinstance(token, str) and token.isalpha() and token.isascii():
        async with Socket("hello", protocols=[f"agui.token.{token}"]) as socket:
            assert await refused(socket) == ("not_authenticated", 4401)


async def test_nobody(agui_runtime: None, body: Any) -> None:
    for frame in (body(), {"type": "follow", "threadId": "t1"}, {"type": "cancel"}, "nonsense"):
        async with Socket("hello") as socket:
            await socket.send(frame)
            assert await refused(socket) == ("not_authenticated", 4401)


async def test_a_login_has_to_come_in_time(agui_runtime: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "AUTH_SECONDS", 0.05)
    async with Socket("hello", headers={"Origin": ORIGIN}) as socket:
        assert await refused(socket) == ("not_authenticated", 4401)


async def test_a_login_in_time_silences_the_alarm(ada: Any, body: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "AUTH_SECONDS", 0.3)
    async with Socket("hello") as socket:
        await socket.send({"type": "auth", "token": await akey(ada)})
        await asyncio.sleep(0.4)
        assert await said(socket, body()) == "Hello ada, -."


async def test_a_logout_counts_from_the_next_frame_on(ada: Any, body: Any) -> None:
    async with Socket("hello", headers=await asession(ada)) as socket:
        assert await said(socket, body()) == "Hello ada, -."
        await get_pool().run(Session.objects.all().delete)
        await socket.send(body(text="again"))
        assert await refused(socket) == ("not_authenticated", 4401)
    assert await get_pool().run(Run.objects.count) == 1


# ---- what they may do -----------------------------------------------------------------------------------------------


async def test_a_permission(ada: Any, body: Any) -> None:
    async def may(user: Any) -> bool:
        return user.username == "bob"  # type: ignore[no-any-return]

    for permission in ("auth.add_user", lambda user: False, may):
        with override_agent("closed", hello, permission=permission):
            async with Socket("closed", headers=await asession(ada)) as socket:
                await socket.send(body())
                assert await refused(socket) == ("permission_denied", 4403)


async def test_foreign_ids_answer_as_unknown_ones(ada: Any, bob: Any, body: Callable[..., bytes], gate: Any) -> None:
    async with Socket("gate", headers=await asession(ada)) as hers:
        await hers.send(body(text="ada's secret", runId="r1"))
        await hers.events(3)
        run = str((await get_pool().run(Run.objects.get)).pk)
        for frame in (
            {"type": "follow", "run": run},
            {"type": "follow", "threadId": "t1"},
            {"type": "follow", "threadId": "t1", "runId": "r1"},
            {"type": "cancel", "run": run},
        ):
            unknown = {**frame, **({"run": str(gate_id())} if "run" in frame else {"threadId": "t9"})}
            answers = []
            for asked in (frame, unknown):
                async with Socket(headers=await asession(bob)) as his:
                    await his.send(asked)
                    answers.append((await his.event(), await his.closed()))
            assert answers[0] == answers[1]
            assert answers[0][1] == 4404
        async with Socket("hello", headers=await asession(bob)) as his:
            assert await said(his, body()) == "Hello bob, -."
        gate.opened.set()
        assert types(await hers.events())[-1] == "RUN_FINISHED"
    assert await get_pool().run(Thread.objects.count) == 2


async def test_a_policy(ada: Any, body: Callable[..., bytes], gate: Any, settings: Any) -> None:
    settings.AGUI_DJANGO = {"ACCESS_POLICY": f"{__name__}.Policy"}
    async with Socket("hello", headers={**await asession(ada), "X-Tenant": "north"}) as socket:
        assert await said(socket, body()) == "Hello ada, north."
    async with Socket("hello", headers={"X-Tenant": "north"}) as socket:
        assert await said(socket, body("guest")) == "Hello None, north."
    async with Socket("gate", headers=await asession(ada)) as socket:
        await socket.send(body("t2"))
        await socket.events(3)
        await socket.send({"type": "cancel"})
        # The stream is cut, its run goes on: a RUN_ERROR would be a lie.
        assert await socket.closed() == 4403
    gate.opened.set()


async def test_the_language_of_the_site(ada: Any, body: Callable[..., bytes], settings: Any) -> None:
    from django.utils import translation

    async def speaks(run: Any) -> None:
        await run.say(translation.get_language())

    settings.LANGUAGES = [("en", "English"), ("de", "German")]
    asked = {**await asession(ada), "Accept-Language": "de"}
    with override_agent("speaks", speaks):
        async with Socket("speaks", headers=asked) as socket:
            assert await said(socket, body()) == "en-us"
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.middleware.locale.LocaleMiddleware"]
        async with Socket("speaks", headers=asked) as socket:
            assert await said(socket, body("t2")) == "de"


def gate_id() -> Any:
    import uuid

    return uuid.uuid4()


class Policy(AccessPolicy):
    """Lets guests in, and nobody stop anything."""

    allow_anonymous = True

    def scope_for(self, user: Any) -> str:
        return f"user:{user.pk}"

    def may_cancel(self, user: Any, run: Run) -> bool:
        return False

    def run_context(self, request: Any) -> dict[str, Any]:
        return {"tenant": request.headers.get("X-Tenant")}


def bearer() -> type:
    from rest_framework.authentication import TokenAuthentication

    class _Bearer(TokenAuthentication):
        keyword = "Bearer"

    return _Bearer


Bearer = bearer()
