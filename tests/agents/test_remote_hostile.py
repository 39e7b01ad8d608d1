"""Remote agents that behave badly: each ends the run in order, soon, and with bounded memory."""

from __future__ import annotations

import asyncio
import gzip
import resource
from typing import Any

import pytest

from agui_django.agents.remote import RemoteAgent
from agui_django.testing import run_agent
from agui_django.testing.running import AgentRun
from tests.scripted import Handler, Request, gone, scripted

pytestmark = pytest.mark.asyncio

FRAME = 1 << 20


async def result_of(handler: Handler, *, wanted_requests: int = 1, **options: Any) -> AgentRun:
    """The run at such a server; it leaves no connection behind."""
    with scripted(handler) as server:
        remote = RemoteAgent(
            f"{server.url}/agent", **{"hosts": ["127.0.0.1"], "max_frame": FRAME, "first_event_timeout": 10, **options}
        )
        result = await asyncio.wait_for(run_agent(remote, "hi", timeout=30), 40)
        await remote.aclose()
        assert len(server.requests) == wanted_requests
    assert result.events[0]["type"] == "RUN_STARTED"
    assert [event["type"] for event in result.events].count("RUN_ERROR") <= 1
    return result


async def code_of(handler: Handler, **options: Any) -> str:
    result = await result_of(handler, **options)
    assert result.error is not None, result.types
    return str(result.error["code"])


def text(*deltas: str) -> list[dict[str, Any]]:
    return [
        {"type": "TEXT_MESSAGE_START", "messageId": "m1", "role": "assistant"},
        *({"type": "TEXT_MESSAGE_CONTENT", "messageId": "m1", "delta": delta} for delta in deltas),
    ]


async def test_never_ends() -> None:
    async def endless(request: Request) -> None:
        await request.begin()
        await request.started()
        await request.events(*text())
        while True:
            await request.events({"type": "TEXT_MESSAGE_CONTENT", "messageId": "m1", "delta": "x" * 10_000})

    assert await code_of(endless, max_stream=3 << 20) == "agent_protocol_error"


async def test_silence_before_and_after_the_first_event() -> None:
    async def silent(request: Request) -> None:
        await request.begin()
        await gone(request)

    async def falls_silent(request: Request) -> None:
        await request.begin()
        await request.started()
        await request.events(*text("half"))
        await gone(request)

    async def no_head(request: Request) -> None:
        await gone(request)

    assert await code_of(silent, first_event_timeout=0.3) == "provider_unavailable"
    assert await code_of(no_head, first_event_timeout=0.3) == "provider_unavailable"
    result = await result_of(falls_silent, idle_timeout=0.3)
    assert result.error is not None
    assert result.error["code"] == "provider_unavailable"
    assert result.said == ["half"]
    assert result.types[-2:] == ["TEXT_MESSAGE_END", "RUN_ERROR"]


async def test_slow_drip() -> None:
    """A byte now and then is no sign of life; a whole line is."""

    async def drip(request: Request) -> None:
        await request.begin()
        await request.started()
        for _ in range(200):
            await request.send(b"x")
            await asyncio.sleep(0.02)

    async def heartbeats(request: Request) -> None:
        await request.begin()
        await request.started()
        for _ in range(10):
            await request.send(b":\n\n")
            await asyncio.sleep(0.3)
        await request.finished()

    assert await code_of(drip, idle_timeout=0.4) == "provider_unavailable"
    assert (await result_of(heartbeats, idle_timeout=2)).outcome == "success"


@pytest.mark.parametrize(
    "line",
    [
        b"data: 7",
        b"data: []",
        b"data: null",
        b"data: nonsense",
        b'data: {"type": 7}',
        b'data: {"type": ["RUN_FINISHED"]}',
        b'data: {"type": "TEXT_MESSAGE_START", "messageId": 7}',
        b'data: {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m9", "delta": "x"}',
        b'data: {"type": "STATE_DELTA", "delta": "x"}',
        b'data: {"type": "MESSAGES_SNAPSHOT", "messages": 7}',
        b'data: {"type": "RUN_STARTED"}',
        b'data: {"type": "RUN_FINISHED", "threadId": "other", "runId": "other"}',
        b"data: " + b"[" * 50_000,
        b'data: {"type": "STATE_SNAPSHOT", "snapshot": NaN}',
        b"data: \xff\xfe",
    ],
)
async def test_wrong_types(line: bytes) -> None:
    async def wrong(request: Request) -> None:
        await request.begin()
        await request.started()
        await request.events(*text("before"))
        await request.send(line + b"\n\n")
        await gone(request)

    result = await result_of(wrong)
    assert result.error is not None
    assert result.error["code"] == "agent_protocol_error"
    assert result.said == ["before"]


@pytest.mark.parametrize("name", ["messageId", "interrupt"])
async def test_ids_that_cannot_be_stored(name: str) -> None:
    async def long(request: Request) -> None:
        await request.begin()
        await request.started()
        if name == "interrupt":
            asks = [{"id": "i" * 3, "reason": "x", "message": "\ud800"}]
            await request.finished(outcome={"type": "interrupt", "interrupts": asks})
        else:
            await request.events({"type": "TEXT_MESSAGE_START", "messageId": "m\ud800", "role": "assistant"})
        await gone(request)

    assert (await result_of(long, idle_timeout=0.5)).types[-1] in ("RUN_ERROR", "RUN_FINISHED")


async def test_a_huge_line_takes_no_memory() -> None:
    """A gigabyte in one line: it is left after a megabyte."""
    sent = 0

    async def huge(request: Request) -> None:
        nonlocal sent
        await request.begin()
        await request.started()
        for _ in range(1 << 14):
            await request.send(b"x" * 65536)
            sent += 65536

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert await code_of(huge) == "agent_protocol_error"
    assert sent < 64 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 128 * 1024


async def test_a_gzip_bomb() -> None:
    bomb = gzip.compress(b"data: " + b"0" * (64 << 20))

    async def compressed(request: Request) -> None:
        assert request.headers["accept-encoding"] == "identity"
        await request.begin(Content_Encoding="gzip")
        await request.send(bomb)

    async def refused(request: Request) -> None:
        await request.begin("500 Oh", "application/json", Content_Encoding="gzip")
        await request.send(bomb)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert await code_of(compressed) == "agent_protocol_error"
    assert await code_of(refused) == "provider_unavailable"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


@pytest.mark.parametrize("end", [b"\r\n", b"\r", b"\n"])
async def test_line_ends_and_unknown_events(end: bytes) -> None:
    async def odd(request: Request) -> None:
        given = request.input
        ids = f'"threadId": "{given["threadId"]}", "runId": "{given["runId"]}"'
        await request.begin()
        for event in (
            f'{{"type": "RUN_STARTED", {ids}, "futureField": 1}}',
            '{"type": "FROM_THE_FUTURE", "x": 1}',
            '{"type": "TEXT_MESSAGE_CHUNK",\n"messageId": "m1", "delta": "Grüße 👋"}',
            f'{{"type": "RUN_FINISHED", {ids}, "outcome": {{"type": "from_the_future"}}}}',
        ):
            lines = [b": comment", b"event: whatever", *(b"data: " + line.encode() for line in event.split("\n")), b""]
            data = end.join(lines) + end
            await request.send(*(data[at : at + 5] for at in range(0, len(data), 5)))

    result = await result_of(odd)
    assert result.outcome == "success"
    assert result.said == ["Grüße 👋"]


@pytest.mark.parametrize("reset", [True, False])
async def test_cut_in_mid_frame(reset: bool) -> None:
    async def cut(request: Request) -> None:
        await request.begin()
        await request.started()
        await request.events(*text("half"))
        await request.send(b'data: {"type": "TEXT_MESSAGE_CONTENT", "mess')
        if reset:
            request.reset()

    result = await result_of(cut)
    assert result.error is not None
    assert result.error["code"] == "provider_unavailable"
    assert result.types[-1] == "RUN_ERROR"


@pytest.mark.parametrize("to", ["http://169.254.169.254/latest/meta-data", "http://127.0.0.1:{port}/inside", "/other"])
async def test_redirects(to: str) -> None:
    async def redirect(request: Request) -> None:
        port = request.headers["host"].rpartition(":")[2]
        await request.begin("307 Temporary Redirect", "text/plain", Location=to.format(port=port))

    result = await result_of(redirect)
    assert result.error is not None
    assert result.error["code"] == "agent_exception"
    assert "redirect" not in result.error["message"]
    assert result.failure is not None
    assert "redirect" in result.failure.text


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("429 Too Many", "provider_rate_limited"),
        ("503 Later", "provider_unavailable"),
        ("500 Oh", "provider_unavailable"),
        ("409 Busy", "provider_unavailable"),
        ("401 Who", "agent_exception"),
        ("404 What", "agent_exception"),
        ("422 How", "agent_exception"),
        ("204 Nothing", "agent_exception"),
    ],
)
async def test_statuses(status: str, code: str) -> None:
    async def answer(request: Request) -> None:
        await request.begin(status, "application/json")
        if not status.startswith("204"):
            await request.send(b'{"error": {"code": "x", "message": "SECRET of theirs"}}')

    result = await result_of(answer)
    assert result.error is not None
    assert result.error["code"] == code
    assert "SECRET" not in str(result.events)


async def test_their_error_is_not_shown() -> None:
    async def fails(request: Request) -> None:
        await request.begin()
        await request.events({"type": "RUN_ERROR", "message": "SECRET path", "code": "model_overloaded"})

    result = await result_of(fails)
    assert result.error is not None
    assert result.error["code"] == "model_overloaded"
    assert "SECRET" not in result.error["message"]
    assert result.failure is not None
    assert "SECRET" in result.failure.text


async def test_html() -> None:
    async def page(request: Request) -> None:
        await request.begin(kind="text/html; charset=utf-8")
        await request.send(b"<h1>Welcome</h1>")

    assert await code_of(page) == "agent_protocol_error"


async def test_it_deletes_nothing() -> None:
    async def deletes(request: Request) -> None:
        await request.begin()
        await request.started()
        await request.events({"type": "MESSAGES_SNAPSHOT", "messages": []})
        await request.finished()

    result = await result_of(deletes)
    assert [message["content"] for message in result.wire_messages] == ["hi"]
