"""Agents that misbehave: the run ends in order, memory stays bounded, other runs go on."""

from __future__ import annotations

import asyncio
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from agui_django.models import Run, RunEvents
from agui_django.testing import override_agent
from tests.live import Caller, LiveServer, Response, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def call(server: LiveServer, user: Any, agent: Any, **options: Any) -> Response:
    """One run of ``agent``, read to its end."""
    with override_agent("bad", agent, **options):
        caller = Caller(server, user, "bad")
        got = caller.run(caller.body({}))
    assert got.status == 200, got.text
    return got


def ends(got: Response, *, code: str, status: str = "failed") -> None:
    """Exactly one terminal event, and the row says the same."""
    types = [event["type"] for event in got.events]
    assert types[0] == "RUN_STARTED"
    assert types[-1] == "RUN_ERROR"
    assert sum(name in ("RUN_FINISHED", "RUN_ERROR") for name in types) == 1
    assert got.events[-1]["code"] == code
    run = Run.objects.get()
    assert (run.status, run.error_code) == (status, code)
    assert run.error_reference
    assert run.error_reference in got.events[-1]["message"]
    assert run.last_seq == len(types)


def test_raises(server: LiveServer, ada: Any) -> None:
    async def agent(run: Any) -> None:
        await run.say("half")
        raise KeyError("the secret of the database")

    got = call(server, ada, agent)
    ends(got, code="agent_exception")
    assert "secret" not in got.text
    assert "the secret of the database" in Run.objects.get().traceback


async def exits(run: Any) -> None:
    raise SystemExit(3)


async def is_interrupted(run: Any) -> None:
    raise KeyboardInterrupt


def exits_in_its_thread(run: Any) -> None:
    raise SystemExit(3)  # as argparse and many a command do


def is_interrupted_in_its_thread(run: Any) -> None:
    raise KeyboardInterrupt


def exits_between_yields(run: Any) -> Iterator[str]:
    yield from ()
    raise SystemExit(3)


@pytest.mark.parametrize(
    "agent",
    [exits, is_interrupted, exits_in_its_thread, is_interrupted_in_its_thread, exits_between_yields],
    ids=lambda agent: agent.__name__,
)
def test_exits(server: LiveServer, ada: Any, agent: Any) -> None:
    ends(call(server, ada, agent), code="agent_exception")
    # the server lives
    ok = call_fine(server, ada)
    assert ok.events[-1]["type"] == "RUN_FINISHED"


def call_fine(server: LiveServer, user: Any) -> Response:
    """A run of an agent that behaves, on another thread."""

    async def fine(run: Any) -> None:
        await run.say("fine")

    with override_agent("fine", fine):
        caller = Caller(server, user, "fine")
        return caller.run(caller.body({"threadId": "other"}))


def test_hangs(server: LiveServer, ada: Any) -> None:
    cleaned = threading.Event()

    async def agent(run: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    ends(call(server, ada, agent, timeout=0.3), code="timeout")
    assert cleaned.is_set()


def test_hangs_and_swallows_the_cancel(server: LiveServer, ada: Any, settings: Any) -> None:
    settings.AGUI_DJANGO = {**settings.AGUI_DJANGO, "CANCEL_GRACE": 0.2}
    release = threading.Event()

    async def agent(run: Any) -> None:
        while not release.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue

    try:
        ends(call(server, ada, agent, timeout=0.3), code="timeout")
    finally:
        release.set()


def test_stops_half_way(server: LiveServer, ada: Any) -> None:
    async def agent(run: Any) -> AsyncIterator[dict[str, Any]]:
        yield {"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "f"}
        yield {"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": '{"a'}

    got = call(server, ada, agent)
    ends(got, code="agent_protocol_error")
    assert got.events[-2]["type"] == "TOOL_CALL_END"


GARBAGE: list[Any] = [
    {"type": "TEXT_MESSAGE_CONTENT", "messageId": "never-opened", "delta": "x"},
    {"type": "TEXT_MESSAGE_START", "messageId": 7},
    {"type": "RUN_STARTED", "threadId": "t1", "runId": "another"},
    {"type": 3},
    {},
    object(),
    17,
    {"type": "CUSTOM", "name": "n", "value": {1: object()}},
]


@pytest.mark.parametrize("number", range(len(GARBAGE)))
def test_yields_garbage(number: int, server: LiveServer, ada: Any) -> None:
    async def agent(run: Any) -> AsyncIterator[Any]:
        yield "some text"
        yield GARBAGE[number]

    got = call(server, ada, agent)
    assert got.events[-1]["type"] == "RUN_ERROR"
    assert got.events[-1]["code"] in ("agent_protocol_error", "agent_exception")
    types = [event["type"] for event in got.events]
    assert types[:4] == ["RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"]


def test_yields_two_hundred_thousand_events(server: LiveServer, ada: Any) -> None:
    async def agent(run: Any) -> AsyncIterator[dict[str, Any]]:
        yield {"type": "TEXT_MESSAGE_START", "messageId": "m", "role": "assistant"}
        for _ in range(200_000):
            yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "0123456789"}
        yield {"type": "TEXT_MESSAGE_END", "messageId": "m"}

    with override_agent("bad", agent):
        caller = Caller(server, ada, "bad")
        # leave at once: what is kept in memory then is the server's own
        caller.run(caller.body({}), frames=1)
        tracemalloc.start()
        try:
            wait_until(lambda: Run.objects.get().status == "finished", seconds=90)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    run = Run.objects.get()
    assert run.last_seq == 200_004
    batches = list(RunEvents.objects.order_by("first_seq").values_list("first_seq", "last_seq"))
    assert batches[0][0] == 1
    assert all(later[0] == sooner[1] + 1 for sooner, later in pairwise(batches))
    assert batches[-1][1] == 200_004
    # the log is some 25 MB; the tail in memory, the text of the message and one batch are a part of it
    assert peak < 40_000_000
    assert run.messages.get(role="assistant").search_text == "0123456789" * 200_000


def test_never_awaits(server: LiveServer, ada: Any) -> None:
    async def agent(run: Any) -> None:
        message = run.message()
        with message:
            for _ in range(100_000):
                message.write("x")  # never awaited: nothing slows it down

    ends(call(server, ada, agent), code="agent_flood")


def test_blocks_the_loop_for_a_moment(server: LiveServer, ada: Any) -> None:
    async def agent(run: Any) -> None:
        await run.say("before")
        time.sleep(1)
        await run.say("after")

    with ThreadPoolExecutor(2) as pool:
        blocked = pool.submit(call, server, ada, agent)
        others = pool.submit(call_fine, server, ada)
        assert others.result(30).events[-1]["type"] == "RUN_FINISHED"
        assert blocked.result(30).events[-1]["type"] == "RUN_FINISHED"
    assert Run.objects.filter(status="finished").count() == 2


def test_a_log_without_end(server: LiveServer, ada: Any, settings: Any) -> None:
    settings.AGUI_DJANGO = {**settings.AGUI_DJANGO, "MAX_LOG": 100_000}

    async def agent(run: Any) -> None:
        async with run.message() as message:
            while True:
                await message.write("0123456789" * 10)

    ends(call(server, ada, agent), code="log_limit")
