"""Clients that leave at random moments, also while the run is being opened: nothing of theirs is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
from typing import Any

import pytest
from django.db import connection

from agui_django.models import Run
from agui_django.testing import override_agent
from tests.live import Caller, LiveServer, wait_until

pytestmark = pytest.mark.django_db(transaction=True)
CLIENTS = 30


async def agent(run: Any) -> None:
    """Two seconds of text."""
    async with run.message() as message:
        for _ in range(100):
            await message.write("word ")
            await asyncio.sleep(0.02)


async def leave(server: LiveServer, caller: Caller, number: int, seconds: float) -> None:
    """POST over a bare socket and close it after ``seconds``, whatever came by then."""
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    content = caller.body({"threadId": f"t{number}"})
    cookies = "; ".join(f"{name}={value}" for name, value in caller.cookies.items())
    head = (
        f"POST /agui/agents/{caller.agent} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nCookie: {cookies}\r\nX-CSRFToken: {'a' * 32}\r\n\r\n"
    )
    writer.write(head.encode() + content)
    await writer.drain()
    with contextlib.suppress(TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        await asyncio.wait_for(reader.readuntil(b"never sent"), seconds)
    writer.transport.abort()


@pytest.mark.parametrize("policy", ["continue", "cancel"])
def test_thirty_clients_leave(policy: str, server: LiveServer, ada: Any, caplog: Any) -> None:
    caller = Caller(server, ada, "words")
    chance = random.Random(7)
    # a third within the first 30 ms, where the run is still being opened
    moments = [chance.uniform(0, 0.03) for _ in range(10)] + [chance.uniform(0, 1.5) for _ in range(CLIENTS - 10)]

    async def everybody() -> None:
        await asyncio.gather(*(leave(server, caller, n, moment) for n, moment in enumerate(moments)))

    with override_agent("words", agent, on_disconnect=policy, disconnect_grace=0):
        threads = threading.active_count()
        asyncio.run(everybody())
        wait_until(lambda: not Run.objects.exclude(status__in=Run.TERMINAL).exists())
        wait_until(lambda: threading.active_count() <= threads + 6)
        tasks = server.tasks()
        wait_until(lambda: server.tasks() <= tasks)
    expected = {"continue": {"finished"}, "cancel": {"cancelled"}}[policy]
    statuses = set(Run.objects.values_list("status", flat=True))
    assert statuses <= expected
    for run in Run.objects.all():
        last = run.events.order_by("-last_seq").first()
        assert last is not None
        assert json.loads(last.text.rsplit("\n", 1)[-1])["type"] == "RUN_FINISHED"
    if policy == "cancel":
        assert {run.end_reason for run in Run.objects.all()} <= {"disconnect"}
    assert connections_open() <= 8
    assert "Task was destroyed" not in caplog.text
    assert "never retrieved" not in caplog.text


def connections_open() -> int:
    """Connections to the test database, where the database can tell."""
    if connection.vendor != "postgresql":
        return 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return int(cursor.fetchone()[0])
