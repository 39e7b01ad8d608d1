"""Input that wants to hurt: the right status in JSON, nothing stored, nothing leaked, nothing echoed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from agui_django.models import Message, Run, Thread
from agui_django.runs.database import get_pool
from agui_django.testing import override_agent
from tests.transports.asgi import Exchange, ask, error_of

pytestmark = pytest.mark.asyncio

MARK = "squeamish-ossifrage"
#: What would tell a stranger how the site is made.
LEAKS = (b"Traceback", b"/work", b"site-packages", b"django.", b"sqlite", b"psycopg", b"Error(")


async def counts() -> tuple[int, int, int]:
    """Stored threads, runs and messages."""
    return await get_pool().run(lambda: (Thread.objects.count(), Run.objects.count(), Message.objects.count()))


async def refused(exchange: Exchange, status: int, code: str) -> dict[str, Any]:
    """Check a refusal and that it left nothing behind; returns the error."""
    assert exchange.status == status
    error = error_of(exchange)
    assert error["code"] == code
    told = b"".join(exchange.chunks)
    assert MARK.encode() not in told
    assert not [leak for leak in LEAKS if leak in told]
    assert await counts() == (0, 0, 0)
    return error


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"[", b"nul", b"{'a': 1}", b'{"a": 1,}', b'{"a": 1} {}', b"\xff\xfe\x00", b'{"a": "\xff"}', b"\x00",
        b'{"threadId": NaN}', b'{"state": Infinity}', b'{"state": -Infinity}', b'{"state": 1e400}', b'{"state": 01}',
        b'{"a": "' + MARK.encode(), b"[" * 100_000, b'{"state":' * 100_000,
        b'{"state": ' + b"[" * 101 + b"]" * 101 + b"}",
    ],
    ids=lambda raw: repr(raw[:20]),
)  # fmt: skip
async def test_not_json(raw: bytes, headers: dict[str, str]) -> None:
    await refused(await ask("POST", "/agui/agents/echo", raw, headers), 400, "invalid_json")


@pytest.mark.parametrize("raw", [b"[]", b"1", b'"text"', b"null", b"true", b"{}"])
async def test_not_a_run_input(raw: bytes, headers: dict[str, str]) -> None:
    error = await refused(await ask("POST", "/agui/agents/echo", raw, headers), 422, "invalid_input")
    assert error["fields"]


USER = {"id": "u", "role": "user", "content": "x"}
WRONG: list[tuple[str, Any, str]] = [
    *[(name, wrong, f"/{name}") for name in ("threadId", "runId") for wrong in (1, None, [], {}, True, "")],
    *[("parentRunId", wrong, "/parentRunId") for wrong in (1, [], {}, True)],
    *[(name, wrong, f"/{name}") for name in ("messages", "tools", "context") for wrong in (1, "x", {}, True)],
    ("threadId", "a\0b", "/threadId"), ("runId", "x" * 256, "/runId"), ("threadId", "x" * 256, "/threadId"),
    ("messages", [1], "/messages/0"), ("messages", [None], "/messages/0"), ("messages", [[]], "/messages/0"),
    ("messages", [{}], "/messages/0"),
    ("messages", [{**USER, "id": 1}], "/messages/0/id"), ("messages", [{**USER, "id": ""}], "/messages/0/id"),
    ("messages", [{**USER, "id": "x" * 256}], "/messages/0/id"), ("messages", [{**USER, "id": "\0"}], "/messages/0/id"),
    ("messages", [{**USER, "content": 1}], "/messages/0/content"),
    ("messages", [{**USER, "content": {}}], "/messages/0/content"),
    ("messages", [{**USER, "content": [1]}], "/messages/0/content/0"),
    ("messages", [{**USER, "content": [{"type": "text", "text": 1}]}], "/messages/0/content/0/text"),
    ("messages", [{**USER, "name": 1}], "/messages/0/name"),
    ("messages", [{"id": "t", "role": "tool", "content": "x", "toolCallId": 1}], "/messages/0/toolCallId"),
    ("messages", [{"id": "a", "role": "assistant", "toolCalls": 1}], "/messages/0/toolCalls"),
    ("tools", [1], "/tools/0"), ("tools", [{"name": 1, "description": "d", "parameters": {}}], "/tools/0/name"),
    ("context", [{"description": 1, "value": "v"}], "/context/0/description"),
    ("resume", 1, "/resume"), ("resume", [1], "/resume/0"),
    ("resume", [{"interruptId": 1, "status": "resolved"}], "/resume/0/interruptId"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "wrong", "path"), WRONG, ids=lambda value: repr(value)[:40])
async def test_wrong_types(
    name: str, wrong: Any, path: str, headers: dict[str, str], body: Callable[..., bytes]
) -> None:
    exchange = await ask("POST", "/agui/agents/echo", body(**{name: wrong, "forwardedProps": {"a": MARK}}), headers)
    error = await refused(exchange, 422, "invalid_input")
    assert any(field["path"].startswith(path) for field in error["fields"])
    assert all(field["message"] for field in error["fields"])


async def test_another_major_version(headers: dict[str, str], body: Callable[..., bytes]) -> None:
    exchange = await ask("POST", "/agui/agents/echo", body(protocolVersion="2.0"), headers)
    await refused(exchange, 422, "unsupported_version")


@pytest.mark.parametrize("digits", [20, 400, 5000])
async def test_huge_integers(digits: int, headers: dict[str, str], body: Callable[..., bytes]) -> None:
    number = b"7" * digits
    raw = body(state={"n": 1}).replace(b'"n": 1', b'"n": ' + number)
    exchange = await ask("POST", "/agui/agents/echo", raw, headers)
    assert exchange.status in (200, 400)
    if exchange.status == 200:
        thread = await get_pool().run(Thread.objects.get)
        assert thread.state.encode() == b'{"n":' + number + b"}"
    else:
        await refused(exchange, 400, "invalid_json")


async def test_nul_and_lone_surrogates_in_text(headers: dict[str, str], body: Callable[..., bytes]) -> None:
    text = body(text="a?b").replace(b"a?b", rb"a\u0000b\ud83dc\ude00")
    exchange = await ask("POST", "/agui/agents/echo", text, headers)
    assert exchange.status == 200
    assert exchange.so_far()[-1][1]["type"] == "RUN_FINISHED"
    message = await get_pool().run(Message.objects.get, role="user")
    assert json.loads(message.wire)["content"] == "a\ufffdb\ufffdc\ufffd"


async def test_fifty_megabytes(headers: dict[str, str], body: Callable[..., bytes]) -> None:
    big = body(text="x" * 50_000_000)
    await refused(await ask("POST", "/agui/agents/echo", big, headers), 413, "body_too_large")
    # a length that lies is not believed
    await refused(await ask("POST", "/agui/agents/echo", big, headers, declared=100), 413, "body_too_large")


async def test_the_limit_is_ours(settings: Any, headers: dict[str, str], body: Callable[..., bytes]) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    settings.AGUI_DJANGO = {"MAX_BODY": 3000}
    exchange = await ask("POST", "/agui/agents/echo", body(text="x" * 2000), headers)
    assert exchange.status == 200
    thread = await get_pool().run(Thread.objects.count)
    assert thread == 1
    assert (await ask("POST", "/agui/agents/echo", body(text="x" * 3000), headers)).status == 413


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/json", "",
             "application/json; charset=utf-16", "application/jsonp"],
)  # fmt: skip
async def test_other_content_types(kind: str, headers: dict[str, str], body: Callable[..., bytes]) -> None:
    named = {**headers, "Content-Type": kind}
    if not kind:
        del named["Content-Type"]
    await refused(await ask("POST", "/agui/agents/echo", body(), named), 415, "unsupported_media_type")


async def test_json_with_a_charset(headers: dict[str, str], body: Callable[..., bytes]) -> None:
    named = {**headers, "Content-Type": "Application/JSON; charset=UTF-8"}
    assert (await ask("POST", "/agui/agents/echo", body(), named)).status == 200


async def test_nobody(body: Callable[..., bytes], agui_runtime: None) -> None:
    json_only = {"Content-Type": "application/json"}
    for method, path in (("POST", "/agui/agents/echo"), ("POST", "/agui/agents/nobody"), ("GET", "/agui/")):
        exchange = await ask(method, path, body(), json_only)
        await refused(exchange, 401, "not_authenticated")
        assert exchange.headers["www-authenticate"] == "Token"
    bad = {**json_only, "Authorization": f"Token {MARK}"}
    await refused(await ask("POST", "/agui/agents/echo", body(), bad), 401, "not_authenticated")


async def test_unknown_agent(headers: dict[str, str], body: Callable[..., bytes]) -> None:
    await refused(await ask("POST", f"/agui/agents/{MARK}", body(), headers), 404, "not_found")


@pytest.mark.parametrize("origin", ["https://evil.example", None])
async def test_a_foreign_page_with_a_session(origin: str | None, ada: Any, body: Callable[..., bytes]) -> None:
    def log_in() -> str:
        browser = Client()
        browser.force_login(ada)
        return str(browser.cookies["sessionid"].value)

    session = await get_pool().run(log_in)
    named = {"Content-Type": "application/json", "Cookie": f"sessionid={session}; csrftoken={'a' * 32}"}
    if origin is not None:
        named |= {"Origin": origin, "X-CSRFToken": "a" * 32}
    exchange = await ask("POST", "/agui/agents/echo", body(), named)
    await refused(exchange, 403, "permission_denied")
    assert b"evil" not in b"".join(exchange.chunks)
    # the same from the site's own page
    named |= {"Origin": "http://testserver", "X-CSRFToken": "a" * 32}
    assert (await ask("POST", "/agui/agents/echo", body(), named)).status == 200


async def test_another_users_thread_and_run(
    ada: Any, bob: Any, headers: dict[str, str], token: Any, body: Callable[..., bytes]
) -> None:
    assert (await ask("POST", "/agui/agents/echo", body(text=MARK), headers)).status == 200
    run = await get_pool().run(Run.objects.get)
    foreign = await get_pool().run(token, bob)
    for path, method in ((f"/agui/runs/{run.pk}/events", "GET"), (f"/agui/runs/{run.pk}/cancel", "POST")):
        exchange = await ask(method, path, b"", foreign)
        assert exchange.status == 404
        unknown = await ask(method, path.replace(str(run.pk), "0" * 8 + str(run.pk)[8:]), b"", foreign)
        theirs, nobodys = error_of(exchange), error_of(unknown)
        assert theirs.pop("reference") != nobodys.pop("reference")
        assert theirs == nobodys
    # the same thread id is another thread
    exchange = await ask("POST", "/agui/agents/echo", body(text="hi"), foreign)
    assert MARK.encode() not in b"".join(exchange.chunks)
    threads = await get_pool().run(lambda: sorted(Thread.objects.values_list("owner__username", "thread_id")))
    assert threads == [("ada", "t1"), ("bob", "t1")]
    hydration = await ask("POST", "/agui/agents/echo", body(messages=[]), foreign)
    assert MARK.encode() not in b"".join(hydration.chunks)


@pytest.mark.parametrize("size", [10, 200_000])  # a large body is parsed elsewhere
async def test_a_permission_is_missing(
    size: int, ada: Any, headers: dict[str, str], body: Callable[..., bytes]
) -> None:
    async def never(run: Any) -> None:
        raise AssertionError("called")

    async def no(user: Any) -> bool:
        return False

    for permission in ("auth.delete_user", lambda user: user.username == "bob", no):
        with override_agent("echo", never, permission=permission):
            exchange = await ask("POST", "/agui/agents/echo", body(text="x" * size), headers)
            await refused(exchange, 403, "permission_denied")


async def test_an_exception_of_the_site_stays_inside(
    headers: dict[str, str], body: Callable[..., bytes], caplog: pytest.LogCaptureFixture
) -> None:
    def fails(user: Any) -> bool:
        raise OSError(f"/srv/{MARK}.db")

    async def never(run: Any) -> None:
        raise AssertionError("called")

    with override_agent("echo", never, permission=fails):
        exchange = await ask("POST", "/agui/agents/echo", body(), headers)
    error = await refused(exchange, 500, "internal_error")
    assert MARK in caplog.text
    assert error["reference"] in caplog.text
