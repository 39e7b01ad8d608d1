"""A thread over HTTP: who may, cursors, the end, what an EventSource needs, and what a stream holds on to."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any
from urllib.parse import quote

import pytest

from agui_django.access import AccessPolicy
from agui_django.models import Run
from agui_django.runs import supervisor
from agui_django.runs.database import get_pool
from agui_django.runs.start import astart_run
from agui_django.testing import override_agent
from tests.transports.asgi import Exchange, ask, error_of

pytestmark = pytest.mark.asyncio

RESTATED = ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT", "RUN_FINISHED"]


def address(thread: str = "t1", slash: str = "", **query: str) -> str:
    more = "".join(f"&{name}={quote(value)}" for name, value in query.items())
    return f"/agui/threads/events{slash}?threadId={quote(thread)}{more}"


def told(exchange: Exchange) -> list[tuple[str, dict[str, Any]]]:
    """The frames that have come, as (id, event)."""
    found = []
    for frame in b"".join(exchange.chunks).decode().split("\n\n")[:-1]:
        lines = [line.split(": ", 1) for line in frame.split("\n") if not line.startswith(":")]
        fields = dict(lines)
        if "data" in fields:
            found.append((fields.get("id", ""), json.loads(fields["data"])))
    return found


def types(exchange: Exchange) -> list[str]:
    return [event["type"] for _, event in told(exchange)]


async def a_run(user: Any, thread: str = "t1", agent: str = "echo", text: str = "hello") -> Run:
    return await astart_run(agent, thread, text, user=user)


@pytest.mark.parametrize("slash", ["", "/"])
async def test_an_event_source_finds_what_it_needs(ada: Any, headers: Any, slash: str) -> None:
    run = await a_run(ada)
    async with Exchange("GET", address(slash=slash), headers=headers) as exchange:
        await exchange.until(lambda: len(told(exchange)) == 4)
        assert exchange.status == 200
        assert exchange.headers["content-type"] == "text/event-stream"
        assert exchange.headers["cache-control"] == "no-store"
        assert exchange.headers["x-accel-buffering"] == "no"
        assert exchange.chunks[0].endswith(b"\nretry: 1000\n\n")
        assert types(exchange) == RESTATED
        assert [number for number, _ in told(exchange)] == ["", "", "", f"{run.pk}:{run.last_seq}"]
        assert not exchange._ended
        second = await a_run(ada, text="again")
        await exchange.until(lambda: types(exchange)[-1] == "RUN_FINISHED" and len(told(exchange)) > 4)
        assert told(exchange)[-1][0] == f"{second.pk}:{second.last_seq}"
        assert told(exchange)[4][1]["input"]["messages"][0]["content"] == "again"


async def test_it_comes_back_with_its_cursor(ada: Any, headers: Any) -> None:
    run, second = await a_run(ada), await a_run(ada, text="again")
    back = {**headers, "Last-Event-ID": f"{run.pk}:2"}
    exchange = await ask("GET", address(until="idle", after="nonsense"), headers=back)
    whole = [f"{run.pk}:{seq}" for seq in range(3, run.last_seq + 1)]
    whole += [f"{second.pk}:{seq}" for seq in range(1, second.last_seq + 1)]
    assert [number for number, _ in told(exchange)] == whole
    exchange = await ask("GET", address(until="idle", after=f"{run.pk}:2"), headers=headers)
    assert [number for number, _ in told(exchange)] == whole
    exchange = await ask("GET", address(until="idle", after="nonsense"), headers=headers)
    assert types(exchange) == RESTATED
    # 204 stops an EventSource: there is nothing behind this
    exchange = await ask("GET", address(until="idle", after=f"{second.pk}:{second.last_seq}"), headers=headers)
    assert (exchange.status, exchange.chunks) == (204, [])
    assert exchange.headers["cache-control"] == "no-store"


async def test_any_thread_id_is_found(ada: Any, headers: Any) -> None:
    strange = "a/b?c&d=e #\u00e9\U0001f600"
    await a_run(ada, thread=strange)
    exchange = await ask("GET", address(strange, until="idle"), headers=headers)
    assert types(exchange) == RESTATED
    assert told(exchange)[0][1]["threadId"] == strange


@pytest.fixture
def bobs(bob: Any, token: Any) -> Any:
    return token(bob)


async def test_who_may(ada: Any, headers: Any, bobs: Any) -> None:
    await a_run(ada)
    for path, with_, status, code in (
        (address(), {}, 401, "not_authenticated"),
        (address(), bobs, 404, "not_found"),
        (address("unknown"), headers, 404, "not_found"),
        ("/agui/threads/events", headers, 422, "invalid_input"),
        (address(until="noon"), headers, 422, "invalid_input"),
        (address(protocolVersion="7.0"), headers, 422, "unsupported_version"),
    ):
        exchange = await ask("GET", path, headers=with_)
        assert (exchange.status, error_of(exchange)["code"]) == (status, code), path
    exchange = await ask("POST", address(), b"{}", headers)
    assert (exchange.status, exchange.headers["allow"]) == (405, "GET")


class Blind(AccessPolicy):
    """Nobody sees runs of echo."""

    def may_see(self, user: Any, run: Run) -> bool:
        return run.agent != "echo"


async def test_a_thread_whose_run_may_not_be_seen(ada: Any, headers: Any, settings: Any) -> None:
    settings.AGUI_DJANGO = {**settings.AGUI_DJANGO, "ACCESS_POLICY": f"{__name__}.Blind"}
    await a_run(ada)
    exchange = await ask("GET", address(), headers=headers)
    assert (exchange.status, error_of(exchange)["code"]) == (404, "not_found")


async def test_old_clients_are_shown_what_they_know(ada: Any, headers: Any) -> None:
    async def agent(run: Any) -> None:
        await run.emit({"type": "SUBAGENT_STARTED", "subagentRunId": "s", "name": "helper"})
        await run.emit({"type": "TEXT_MESSAGE_START", "messageId": "m", "role": "assistant", "subagentRunId": "s"})
        await run.emit({"type": "TEXT_MESSAGE_END", "messageId": "m"})
        await run.emit({"type": "SUBAGENT_FINISHED", "subagentRunId": "s"})
        await run.emit({"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "front"})
        await run.emit({"type": "TOOL_CALL_END", "toolCallId": "c"})

    with override_agent("subs", agent):
        run = await a_run(ada, agent="subs")
    exchange = await ask("GET", address(until="idle", protocolVersion="0.x"), headers=headers)
    assert types(exchange) == RESTATED
    assert "subagentRunId" not in json.dumps(told(exchange))
    assert "outcome" not in told(exchange)[-1][1]
    exchange = await ask("GET", address(until="idle", protocolVersion="0.x", after=f"{run.pk}:1"), headers=headers)
    assert types(exchange) == [
        "TEXT_MESSAGE_START", "TEXT_MESSAGE_END", "TOOL_CALL_START", "TOOL_CALL_END", "RUN_FINISHED",
    ]  # fmt: skip
    exchange = await ask("GET", address(until="idle"), headers=headers)
    assert told(exchange)[-1][1]["outcome"] == {"type": "success", "pendingToolCallIds": ["c"]}


async def test_silence_is_broken(ada: Any, headers: Any, settings: Any) -> None:
    settings.AGUI_DJANGO = {**settings.AGUI_DJANGO, "HEARTBEAT": 0.05}
    await a_run(ada)
    async with Exchange("GET", address(), headers=headers) as exchange:
        await exchange.until(lambda: exchange.comments() >= 4)
    assert types(exchange) == RESTATED


async def test_many_feeds_hold_no_threads(ada: Any, headers: Any) -> None:
    await a_run(ada)
    before = set(threading.enumerate())  # other tests of this process may have left some that belong to it
    exchanges = [Exchange("GET", address(), headers=headers) for _ in range(30)]
    for exchange in exchanges:
        await exchange.__aenter__()
    try:
        for exchange in exchanges:
            await exchange.until(lambda each=exchange: len(told(each)) == 4)
        async with asyncio.timeout(20):  # a request's thread that was let go takes a moment to end
            while len(set(threading.enumerate()) - before) >= 15:
                await asyncio.sleep(0.05)
    finally:
        await asyncio.gather(*(exchange.leave() for exchange in exchanges))
    from agui_django.runs.broadcaster import broadcaster

    assert broadcaster.watched() == []


async def test_feeds_end_when_the_process_drains(ada: Any, headers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    await a_run(ada)
    async with Exchange("GET", address(), headers=headers) as exchange:
        await exchange.until(lambda: len(told(exchange)) == 4)
        monkeypatch.setattr(supervisor._here(), "draining", True)
        for callback in supervisor.on_drain:
            callback()
        await exchange.read()
    # not an error: an EventSource comes back a second later, to another process
    exchange = await ask("GET", address(), headers=headers)
    assert (exchange.status, told(exchange)) == (200, [])


async def test_a_deleted_thread_ends_its_feeds(ada: Any, headers: Any) -> None:
    run = await a_run(ada)
    async with Exchange("GET", address(), headers=headers) as exchange:
        await exchange.until(lambda: len(told(exchange)) == 4)
        await get_pool().run(run.thread.delete)
        await exchange.read()
    assert types(exchange) == RESTATED
