"""Clients that go away, at every moment: no task, thread, connection or running row is left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from django.db import connections

from agui_django.models import Run, Thread
from agui_django.runs import recorder, supervisor
from agui_django.runs.database import get_pool
from agui_django.runs.engine import get_engine
from agui_django.testing import override_agent
from agui_django.transports import sse
from tests.transports.asgi import Exchange, ask

pytestmark = pytest.mark.asyncio


async def words(run: Any) -> None:
    async with run.message() as message:
        for number in range(30):
            await message.write(f"{number} ")
            await asyncio.sleep(0.002)


async def runs() -> list[tuple[str, str]]:
    return await get_pool().run(lambda: list(Run.objects.order_by("created_at").values_list("status", "end_reason")))


@pytest.mark.parametrize("policy", ["continue", "cancel"])
async def test_at_every_moment(policy: str, headers: Any, body: Callable[..., bytes]) -> None:
    before = asyncio.all_tasks()

    async def leave(number: int) -> None:
        async with Exchange("POST", "/agui/agents/words", body(f"t{number}"), headers):
            # moments from the middleware, the login and the opening of the run to the middle of its text
            await asyncio.sleep(number * 0.002)

    with override_agent("words", words, on_disconnect=policy, disconnect_grace=0):
        for start in range(0, 60, 20):
            await asyncio.gather(*(leave(number) for number in range(start, start + 20)))
        # On a slow machine all of them left before their runs were there; this one does not.
        async with Exchange("POST", "/agui/agents/words", body("last"), headers) as last:
            await last.events(3)
        await supervisor.settle()
    stored = await runs()
    assert stored
    if policy == "continue":
        assert set(stored) <= {("finished", "")}
    else:
        # one that had just ended when the client left is finished; all others were taken along
        assert set(stored) <= {("cancelled", "disconnect"), ("finished", "")}
    assert asyncio.all_tasks() == before
    assert supervisor.active() == 0
    assert recorder.recorders == {}
    assert get_engine().slots.held == 0


async def test_while_the_run_is_being_opened(headers: Any, body: Callable[..., bytes], opening: Any) -> None:
    for policy, ends in (("continue", ("finished", "")), ("cancel", ("cancelled", "disconnect"))):
        opening.hold()
        with override_agent("words", words, on_disconnect=policy, disconnect_grace=0):
            async with Exchange("POST", "/agui/agents/words", body(policy), headers) as exchange:
                await opening.begun()
            assert exchange.status == 0
            opening.go_on.set()
            await supervisor.settle()
        assert (await runs())[-1] == ends
        assert recorder.recorders == {}


async def test_only_the_client_that_started_a_run_takes_it_along(headers: Any, body: Any, gate: Any) -> None:
    same = body()
    with override_agent("gate", gate, on_disconnect="cancel", disconnect_grace=0):
        async with Exchange("POST", "/agui/agents/gate", same, headers) as first:
            await first.events(3)
            path = first.headers["content-location"]
            for method, where, content in (("GET", path, b""), ("POST", "/agui/agents/gate", same)):
                async with Exchange(method, where, content, headers) as watcher:
                    await watcher.events(3)
            gate.opened.set()
            await first.read()
    assert await runs() == [("finished", "")]


async def test_a_watcher_outlives_the_starter(headers: Any, body: Any, gate: Any) -> None:
    async with Exchange("POST", "/agui/agents/gate", body(), headers) as first:
        await first.events(3)
        async with Exchange("GET", first.headers["content-location"], b"", headers) as second:
            await second.events(3)
            await first.leave()
            gate.opened.set()
            await second.read()
            assert second.so_far()[-1][1]["type"] == "RUN_FINISHED"


async def test_a_response_that_is_dropped_unread(agui_runtime: None) -> None:
    left = []
    response = sse.stream_response(aiter(_nothing()), on_leave=lambda: left.append(1))
    del response
    assert left == [1]


async def test_a_stream_that_ended_has_not_been_left(agui_runtime: None) -> None:
    left = []
    response = sse.stream_response(aiter(_nothing()), on_leave=lambda: left.append(1))
    assert [chunk async for chunk in response] == [sse.OPENING]
    response.close()
    assert left == []


async def _nothing() -> Any:
    return
    yield


async def test_threads_do_not_grow_with_open_streams(headers: Any, body: Any, gate: Any) -> None:
    async def open_streams(numbers: range) -> list[Exchange]:
        opened = []
        for number in numbers:
            exchange = Exchange("POST", "/agui/agents/gate", body(f"t{number}"), headers)
            await exchange.__aenter__()
            await exchange.events(3)
            opened.append(exchange)
        return opened

    few = await open_streams(range(3))
    # a thread that was let go needs a moment to end
    count = await settled_threads()
    many = await open_streams(range(3, 33))
    assert await settled_threads() <= count
    gate.opened.set()
    for exchange in few + many:
        await exchange.read()
        await exchange.leave()


async def settled_threads() -> int:
    """The number of threads once it stays the same."""
    last = -1
    while last != threading.active_count():
        last = threading.active_count()
        await asyncio.to_thread(threading.Event().wait, 0.1)
    return last


class _OrmMiddleware:
    """A site's synchronous middleware that uses the ORM, as many do."""

    seen: ClassVar[list[Any]] = []

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        Thread.objects.count()
        self.seen.append(connections["default"])
        return self.get_response(request)


async def test_the_requests_connection_is_given_back(headers: Any, body: Any, gate: Any, settings: Any) -> None:
    _OrmMiddleware.seen.clear()
    settings.MIDDLEWARE = [f"{__name__}._OrmMiddleware", *settings.MIDDLEWARE]
    async with Exchange("POST", "/agui/agents/gate", body(), headers) as exchange:
        await exchange.events(3)
        [connection] = _OrmMiddleware.seen
        await settled_threads()
        assert connection.connection is None
        gate.opened.set()
        await exchange.read()


async def test_a_stream_under_djangos_test_client(headers: Any, body: Any, async_client: Any) -> None:
    named = {"headers": {key: value for key, value in headers.items() if key != "Content-Type"}}
    response = await async_client.post("/agui/agents/echo", body(), content_type="application/json", **named)
    assert response.status_code == 200
    whole = b"".join([chunk async for chunk in response.streaming_content])
    assert whole.count(b"\ndata: ") == 5
    assert (await ask("GET", "/agui/", b"", headers)).status == 200
