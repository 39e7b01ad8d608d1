"""A thread with everything in it, as a download."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.conftest import Client, Rows
from tests.transports.asgi import error_of

pytestmark = pytest.mark.django_db(transaction=True)


def test_as_one_document_and_as_lines(api: Client, ada: Any) -> None:
    made = Rows(ada, state='{"n":12345678901234567890123}')
    run = made.run({"type": "RUN_STARTED"}, {"type": "RUN_FINISHED"})
    made.message("m1", run=run)
    made.interrupt(run)
    path = f"threads/{made.thread.pk}/export"
    whole = api.ask("GET", path)
    assert whole.headers["content-type"] == "application/json"
    assert whole.headers["content-disposition"] == f"attachment; filename=thread-{made.thread.pk}.json"
    records = json.loads(b"".join(whole.chunks))
    kinds = ["export", "thread", "run", "event", "event", "message", "state", "interrupt"]
    assert [record["type"] for record in records] == kinds
    assert records[1]["state"] == {"n": 12345678901234567890123}
    lines = api.ask("GET", f"{path}?format=ndjson&events=false")
    assert lines.headers["content-type"] == "application/x-ndjson"
    body = b"".join(lines.chunks).decode()
    assert body.endswith("\n")
    assert [json.loads(line)["type"] for line in body.splitlines()] == [kind for kind in kinds if kind != "event"]


def test_many_records_come_in_pieces(api: Client, ada: Any) -> None:
    made = Rows(ada)
    for number in range(250):
        made.message(f"m{number}", "x" * 1000)
    exchange = api.ask("GET", f"threads/{made.thread.pk}/export")
    assert len(exchange.chunks) > 4
    messages = [each["message"]["id"] for each in json.loads(b"".join(exchange.chunks)) if each["type"] == "message"]
    assert messages == [f"m{number}" for number in range(250)]


def test_malformed(api: Client, ada: Any) -> None:
    key = Rows(ada).thread.pk
    for query, place in (("events=maybe", "events"), ("files=zip", "files"), ("format=xml", "format")):
        exchange = api.ask("GET", f"threads/{key}/export?{query}")
        assert (exchange.status, error_of(exchange)["fields"][0]["path"]) == (422, place)
