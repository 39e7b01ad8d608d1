"""A run's events: as pages, and as a download."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from typing import Any

import pytest

from agui_django.api.views.runs import lines
from agui_django.models import RunEvents
from agui_django.runs.database import get_pool
from agui_django.runs.stream import read_entries
from tests.api.conftest import Client, Rows
from tests.transports.asgi import Exchange, error_of

pytestmark = pytest.mark.django_db(transaction=True)

BIG = '{"type":"CUSTOM","name":"n","value":{"z":1,"a":12345678901234567890123,"f":1.50}}'


def batches(made: Rows, *texts: list[str], **fields: Any) -> Any:
    run = made.run(**fields)
    first = 1
    for batch in texts:
        last = first + len(batch) - 1
        RunEvents.objects.create(run=run, first_seq=first, last_seq=last, text="\n".join(batch))
        first = last + 1
    run.last_seq = first - 1
    run.save()
    return run


def event(number: int) -> str:
    return f'{{"type":"CUSTOM","name":"e","value":{number}}}'


def test_pages(api: Client, ada: Any) -> None:
    run = batches(Rows(ada), [event(1), event(2), event(3)], [event(4)], [BIG, event(6)])
    page = api.get(f"runs/{run.pk}/events?limit=2")
    assert [row["seq"] for row in page["results"]] == [1, 2]
    assert page["results"][0]["event"] == {"type": "CUSTOM", "name": "e", "value": 1}
    assert (page["lastSeq"], page["ended"]) == (6, True)
    assert page["next"] == f"/api/agui/runs/{run.pk}/events?after=2&limit=2"
    seen = []
    following = f"runs/{run.pk}/events?limit=2"
    while following:
        page = api.get(following)
        seen += [row["seq"] for row in page["results"]]
        following = page["next"]
    assert seen == [1, 2, 3, 4, 5, 6]
    for limit in (1, 3, 4, 5, 6, 7):
        assert len(api.get(f"runs/{run.pk}/events?limit={limit}")["results"]) == min(limit, 6)
    assert api.get(f"runs/{run.pk}/events?after=6") == {"results": [], "next": None, "lastSeq": 6, "ended": True}
    exchange = api.ask("GET", f"runs/{run.pk}/events?after=4&limit=1")
    assert BIG.encode() in b"".join(exchange.chunks)


def test_a_place_that_the_run_does_not_have(api: Client, ada: Any) -> None:
    run = batches(Rows(ada), [event(1)])
    for query in ("after=2", "after=-1", "after=x", "after=99999999999", "limit=0", "limit=1001", "format=xml"):
        exchange = api.ask("GET", f"runs/{run.pk}/events?{query}")
        assert exchange.status == 422, query
        assert error_of(exchange)["fields"]


def test_lines(api: Client, ada: Any) -> None:
    texts = [event(1), BIG, event(3)]
    run = batches(Rows(ada), texts[:2], texts[2:])
    whole = "".join(f"{text}\n" for text in texts).encode()
    for path, headers in (
        ("events?format=ndjson", {}),
        ("events", {"Accept": "application/x-ndjson"}),
        ("events?format=ndjson", {"Accept": "application/json"}),
    ):
        exchange = api.ask("GET", f"runs/{run.pk}/{path}", **headers)
        assert exchange.headers["content-type"] == "application/x-ndjson"
        assert f"run-{run.pk}.ndjson" in exchange.headers["content-disposition"]
        assert b"".join(exchange.chunks) == whole
    assert b"".join(api.ask("GET", f"runs/{run.pk}/events?format=ndjson&after=2").chunks) == f"{event(3)}\n".encode()
    for headers in ({"Accept": "*/*"}, {"Accept": "application/json"}, {"Accept": "text/html"}):
        assert api.ask("GET", f"runs/{run.pk}/events", **headers).headers["content-type"] == "application/json"


@pytest.mark.asyncio
async def test_a_long_log_is_never_held_as_a_whole(agui_runtime: None, django_user_model: Any) -> None:
    size, count = 64 * 1024, 1200  # 75 MB

    def make() -> Any:
        made = Rows(django_user_model.objects.create_user("eve"))
        run = made.run()
        text = json.dumps({"type": "RAW", "event": "x" * size})
        rows = [RunEvents(run=run, first_seq=n, last_seq=n, text=text) for n in range(1, count + 1)]
        RunEvents.objects.bulk_create(rows, batch_size=100)
        return run

    run = await asyncio.to_thread(_closing, make)
    total = 0
    tracemalloc.start()
    try:
        async for chunk in lines(run.pk, await get_pool().run(read_entries, run.pk, 0)):
            total += len(chunk)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total > size * count
    assert peak < 30 * 1024 * 1024


def _closing(make: Any) -> Any:
    from django.db import connections

    try:
        return make()
    finally:
        connections.close_all()


@pytest.mark.asyncio
async def test_an_active_run_shows_what_is_committed(ada: Any, gate: Any) -> None:
    client = await asyncio.to_thread(_closing, lambda: Client(ada))
    body = json.dumps({
        "threadId": "t1", "runId": "r1", "tools": [], "context": [], "forwardedProps": {},
        "messages": [{"id": "u1", "role": "user", "content": "hello"}],
    }).encode()  # fmt: skip
    headers = {**client.headers, "Content-Type": "application/json"}
    async with Exchange("POST", "/agui/agents/gate", body, headers) as run:
        await run.events(3)  # RUN_STARTED, START, CONTENT
        address = run.headers["content-location"].split("/")[-2]
        async with Exchange("GET", f"/api/agui/runs/{address}/events", headers=client.headers) as exchange:
            page = json.loads(await exchange.read())
        assert [row["event"]["type"] for row in page["results"]] == [
            "RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT",
        ]  # fmt: skip
        assert (page["ended"], page["next"], page["lastSeq"]) == (False, None, 3)
        # A download ends with what there is; it does not wait for the run.
        async with Exchange(
            "GET", f"/api/agui/runs/{address}/events?format=ndjson", headers=client.headers
        ) as exchange:
            assert len((await exchange.read()).splitlines()) == 3
        gate.opened.set()
        await run.read()
        async with Exchange("GET", f"/api/agui/runs/{address}/events?after=3", headers=client.headers) as exchange:
            page = json.loads(await exchange.read())
    assert page["ended"]
    assert page["results"][-1]["event"]["type"] == "RUN_FINISHED"


def test_a_compacted_log(api: Client, ada: Any) -> None:
    """A row that holds one event in the place of several, with the number of the last."""
    run = batches(Rows(ada))
    run.last_seq = 5
    run.save()
    for first, last, number in ((1, 1, 1), (2, 4, 4), (5, 5, 5)):
        RunEvents.objects.create(run=run, first_seq=first, last_seq=last, text=event(number))
    assert [row["seq"] for row in api.get(f"runs/{run.pk}/events")["results"]] == [1, 4, 5]
    page = api.get(f"runs/{run.pk}/events?limit=2")
    assert [row["seq"] for row in api.get(page["next"])["results"]] == [5]
    for query in ("after=2", "after=3&format=ndjson"):
        exchange = api.ask("GET", f"runs/{run.pk}/events?{query}")
        assert (exchange.status, error_of(exchange)["code"]) == (410, "cursor_gone")


def test_cancel(api: Client, ada: Any) -> None:
    made = Rows(ada)
    ended = made.run()
    assert api.send("POST", f"runs/{ended.pk}/cancel") == {"run": str(ended.pk), "runId": "r1", "cancelling": False}
    waiting = made.run(status="queued")
    assert api.send("POST", f"runs/{waiting.pk}/cancel")["cancelling"] is True
    waiting.refresh_from_db()
    assert (waiting.status, waiting.end_reason) == ("cancelled", "user")


def test_staff_cancel_as_staff(ada: Any, staff: Any) -> None:
    waiting = Rows(ada).run(status="queued")
    Client(staff("view_run", "change_run")).send("POST", f"runs/{waiting.pk}/cancel")
    waiting.refresh_from_db()
    assert waiting.end_reason == "staff"
