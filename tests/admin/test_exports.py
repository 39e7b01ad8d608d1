"""Runs as a file: what was ticked or all that matches, counted again, through the redactor."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.admin.models import LogEntry
from django.test import AsyncClient, Client
from django.utils import timezone
from django.utils.http import urlencode

from agui_django.admin import exports
from agui_django.models import Run, Thread
from tests.admin.test_runs import LIST, shown, text
from tests.api.conftest import Rows

EXPORT = f"{LIST}export/"


def saved(client: Client, fields: dict[str, Any]) -> str:
    response = client.post(EXPORT, fields)
    assert response.status_code == 200 and response.streaming, response.status_code
    assert "attachment" in response["Content-Disposition"]
    return b"".join(response.streaming_content).decode()


def asked(client: Client, address: str) -> dict[str, Any]:
    """The page's own fields."""
    context = client.get(address).context
    return {"run": [str(key) for key in context["keys"]], "_changelist_filters": context["filters"],
            "last": context["last"]}  # fmt: skip


@pytest.fixture
def clerk(staff: Callable[..., Client]) -> Client:
    return staff("view_run", "view_content", "export")


@pytest.fixture
def runs(rows: Rows) -> list[Run]:
    now = timezone.now()
    for number in range(7):
        failed = {"status": "failed", "error_code": "x", "error_text": f"it broke {number}"} if number % 2 else {}
        rows.run(run_id=f"r{number}", created_at=now - timedelta(minutes=number), **failed)
    return list(Run.objects.order_by("-created_at", "-pk"))


@pytest.mark.parametrize("filters", ["", "status=failed", "error=no", "q=ada&status=finished", "window=24h"])
def test_all_that_match(runs: list[Run], clerk: Client, filters: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "ROWS", 2)
    expected = shown(text(clerk, f"{LIST}?{filters}"))
    assert 3 <= len(expected) <= 7
    link = f"export/?{urlencode({'_changelist_filters': filters})}"
    assert link in text(clerk, f"{LIST}?{filters}")
    page = text(clerk, LIST + link)
    assert f"{len(expected)} runs are exported." in page
    fields = asked(clerk, LIST + link)
    lines = [json.loads(line) for line in saved(clerk, {**fields, "format": "ndjson"}).splitlines()]
    assert [line["id"] for line in lines] == expected
    table = list(csv.DictReader(io.StringIO(saved(clerk, {**fields, "format": "csv"}).removeprefix("\ufeff"))))
    assert [row["id"] for row in table] == expected
    assert [row["errorText"] for row in table] == [line["errorText"] for line in lines]
    (_, entry) = LogEntry.objects.order_by("pk")
    assert (entry.object_repr, entry.object_id) == (f"{len(expected)} runs", None)
    assert "ada" not in entry.change_message and entry.change_message.startswith("Exported as csv: ")


def test_what_is_ticked(runs: list[Run], clerk: Client) -> None:
    chosen = [str(run.pk) for run in runs[1:3]]
    to = clerk.post(LIST, {"action": "export", "_selected_action": chosen})["Location"]
    assert "2 runs are exported." in text(clerk, to)
    lines = saved(clerk, {**asked(clerk, to), "format": "ndjson"}).splitlines()
    assert [json.loads(line)["id"] for line in lines] == chosen
    assert LogEntry.objects.get().change_message == "Exported as ndjson: selected"


def test_what_came_since_is_not_in_it(rows: Rows, runs: list[Run], clerk: Client) -> None:
    fields = asked(clerk, f"{EXPORT}?_changelist_filters=window%3Dall")
    rows.run(run_id="new")
    assert len(saved(clerk, {**fields, "format": "ndjson"}).splitlines()) == 7
    # Without an answer that names a format it is counted again.
    page = clerk.post(EXPORT, {"_changelist_filters": "window=all"})
    assert "8 runs are exported." in page.content.decode()


def test_at_most_so_many(runs: list[Run], clerk: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exports, "MOST", 5)
    monkeypatch.setattr(exports, "ROWS", 2)
    assert "More than 5 runs match; the latest 5 are exported." in text(clerk, EXPORT)
    lines = saved(clerk, {"format": "ndjson"}).splitlines()
    assert [json.loads(line)["id"] for line in lines] == [str(run.pk) for run in runs[:5]]


def test_the_values(rows: Rows, ada: Any, clerk: Client) -> None:
    at = datetime(2026, 3, 28, 23, 30, tzinfo=UTC)
    rows.run(
        run_id="=1+1", status="failed", created_at=at, error_code="x", error_text='=cmd|"/c calc"',
        cost_nanos=1_500_000, currency="EUR", input_tokens=5, cached_tokens=2, reviewed_by=ada,
        reviewed_at=at, review_note="-2\nnext",
    )  # fmt: skip
    Thread.objects.update(title="@SUM(A1)")
    clerk.cookies["agui_zone"] = "Europe/Berlin"
    filters = "created_at__year=2026&created_at__month=3&created_at__day=29"
    fields = {"_changelist_filters": filters}
    (line,) = saved(clerk, {**fields, "format": "ndjson"}).splitlines()
    record = json.loads(line)
    assert record["createdAt"] == "2026-03-29T00:30:00+01:00" and record["finishedAt"] is None
    assert (record["runId"], record["errorText"], record["title"]) == ("=1+1", '=cmd|"/c calc"', "@SUM(A1)")
    assert (Decimal(record["cost"]), record["currency"]) == (Decimal("0.0015"), "EUR")
    (row,) = csv.DictReader(io.StringIO(saved(clerk, {**fields, "format": "csv"}).removeprefix("\ufeff"), newline=""))
    assert (row["runId"], row["errorText"], row["title"]) == ("'=1+1", '\'=cmd|"/c calc"', "'@SUM(A1)")
    assert (row["note"], row["inputTokens"], row["person"], row["reviewedBy"]) == ("'-2\nnext", "5", "ada", "ada")
    assert row["createdAt"] == record["createdAt"]


@pytest.mark.parametrize("value", ["=1", "+1", "-1", "@a", "\t=1", "\r=1", "\n=1"], ids=lambda value: repr(value))
def test_no_cell_is_a_formula(value: str) -> None:
    assert exports.cell(value) == f"'{value}"
    assert [exports.cell(plain) for plain in ("a=1", "", None, -1)] == ["a=1", "", None, -1]


def test_texts_are_hidden_from_whom_they_are_hidden(rows: Rows, staff: Callable[..., Client]) -> None:
    Thread.objects.update(title="SECRET-title")
    rows.run(status="failed", error_text="SECRET-error", review_note="SECRET-note", traceback="SECRET-trace")
    client = staff("view_run", "export")
    assert "Texts in it are hidden" in text(client, EXPORT)
    for kind in exports.FORMATS:
        body = saved(client, {"format": kind})
        assert "SECRET" not in body and "[hidden, 12 characters]" in body
    # Nor is one found by them.
    assert saved(client, {"format": "ndjson", "_changelist_filters": "q=SECRET"}) == ""


@pytest.mark.parametrize(("filters", "status"), [("status=x", 404), ("error_text__startswith=S", 400), ("user=x", 404)])
def test_other_filters(runs: list[Run], clerk: Client, filters: str, status: int) -> None:
    address = f"{EXPORT}?{urlencode({'_changelist_filters': filters})}"
    assert clerk.get(address).status_code == status
    assert clerk.post(EXPORT, {"_changelist_filters": filters, "format": "csv"}).status_code == status
    assert clerk.post(EXPORT, {"last": "x", "format": "csv"}).status_code == 404


def test_who_may_not_export(runs: list[Run], reader: Client) -> None:
    assert "export/" not in text(reader, LIST)
    assert reader.get(EXPORT).status_code == reader.post(EXPORT, {"format": "csv"}).status_code == 403
    assert not LogEntry.objects.exists()


def test_under_an_asgi_server(runs: list[Run], clerk: Client, django_user_model: Any) -> None:
    async def body() -> bytes:
        client = AsyncClient()
        await client.aforce_login(await django_user_model.objects.aget(username="kim"))
        response = await client.post(EXPORT, {"format": "ndjson"})
        async with asyncio.timeout(60):
            return b"".join([part async for part in response])

    assert async_to_sync(body)().count(b"\n") == 7
