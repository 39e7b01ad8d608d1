"""Going through a list run by run: neighbours within its filters, marks and notes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django.utils.http import urlencode

from agui_django.models import Run
from tests.admin.test_runs import LIST, page_of, shown, text
from tests.api.conftest import Rows

REVIEW = f"{LIST}review/"


@pytest.fixture
def runs(rows: Rows) -> list[Run]:
    """Six runs, the latest first, of which every second failed; two came at the same time."""
    now = timezone.now()
    minutes = (0, 1, 2, 2, 4, 5)
    for number, minute in enumerate(minutes):
        failed = {"status": "failed", "error_code": "x"} if number % 2 else {}
        rows.run(run_id=f"r{number}", created_at=now - timedelta(minutes=minute), **failed)
    return list(Run.objects.order_by("-created_at", "-pk"))


def walk(client: Client, address: str, direction: str) -> list[str]:
    """The runs that one comes through from an address, by the page's own links."""
    seen = []
    while address:
        seen.append(address.split("/run/")[1][:36])
        context = client.get(address).context
        beside = context.get(direction, "")
        address = LIST + beside.removeprefix("../../") if beside else ""
    return seen


@pytest.mark.parametrize("filters", ["", "status=failed", "error=no&window=all", "q=ada", "status=failed&older=x"])
def test_through_the_list(runs: list[Run], reader: Client, filters: str) -> None:
    expected = shown(text(reader, f"{LIST}?{filters.partition('&older')[0]}"))
    assert len(expected) in (3, 6)
    keep = f"?{urlencode({'_changelist_filters': filters})}" if filters else ""
    assert walk(reader, f"{LIST}{expected[0]}/change/{keep}", "below") == expected
    assert walk(reader, f"{LIST}{expected[-1]}/change/{keep}", "above") == expected[::-1]
    page = text(reader, f"{LIST}{expected[1]}/change/{keep}")
    for said in ('rel="prev"', 'rel="next"', "<kbd>j</kbd>", "<kbd>k</kbd>"):
        assert said in page, said


def test_the_list_links_with_its_filters(runs: list[Run], reader: Client) -> None:
    page = text(reader, f"{LIST}?status=failed")
    first = next(run for run in runs if run.status == "failed")
    assert f"{page_of(first)}?_changelist_filters=status%3Dfailed" in page


def test_a_run_of_no_list(rows: Rows, runs: list[Run], reader: Client) -> None:
    old = rows.run(run_id="old", created_at=timezone.now() - timedelta(days=30))
    response = reader.get(page_of(old))
    assert "above" not in response.context and "below" not in response.context
    # In a list that was asked for, it has neighbours, whether its filters choose it (any more) or not.
    assert walk(reader, f"{page_of(old)}?_changelist_filters=window%3Dall", "above")[1] == str(runs[-1].pk)
    beside = reader.get(f"{page_of(runs[0])}?_changelist_filters=status%3Dfailed").context["below"]
    assert str(next(run.pk for run in runs if run.status == "failed")) in beside
    assert reader.get(f"{page_of(old)}?_changelist_filters=status%3Dx").status_code == 200
    assert reader.get(f"{page_of(old)}?_changelist_filters=error_text__startswith%3Dx").status_code == 400


def test_neighbours_are_three_statements(rows: Rows, runs: list[Run], reader: Client) -> None:
    counts = []
    for number in range(2):
        with CaptureQueriesContext(connection) as statements:
            text(reader, f"{page_of(runs[2])}?_changelist_filters=status%3Dfinished")
        counts.append(len(statements))
        for more in range(100 * (1 - number)):
            rows.run(run_id=f"more{more}")
    assert counts[0] == counts[1]
    with CaptureQueriesContext(connection) as statements:
        text(reader, page_of(runs[2]))
    assert len(statements) == counts[0] + 1


def test_marking_from_the_page(runs: list[Run], staff: Callable[..., Client]) -> None:
    client = staff("view_run", "view_content", "review_run")
    run = runs[1]
    fields = {"run": str(run.pk), "page": "1", "_changelist_filters": "reviewed=no", "note": " It was <b>late</b>. "}
    done = client.post(REVIEW, fields)
    assert done["Location"] == f"{page_of(run)}?_changelist_filters=reviewed%3Dno"
    run.refresh_from_db()
    assert (run.review_note, str(run.reviewed_by)) == ("It was <b>late</b>.", "kim")
    page = text(client, done["Location"])
    assert "Reviewed by kim" in page and "It was &lt;b&gt;late&lt;/b&gt;." in page
    # One goes on to the next that was not.
    assert str(runs[2].pk) in client.get(done["Location"]).context["below"]
    assert shown(text(client, f"{LIST}?reviewed=yes")) == [str(run.pk)]
    assert len(shown(text(client, f"{LIST}?reviewed=no"))) == 5
    assert text(client, LIST).count("agui-mark") == 1
    (entry,) = LogEntry.objects.all()
    assert (entry.object_id, entry.change_message) == (str(run.pk), "Marked as reviewed.")
    assert client.post(REVIEW, {**fields, "undo": "1"}).status_code == 302
    run.refresh_from_db()
    assert (run.review_note, run.reviewed_by, run.reviewed_at) == ("", None, None)
    assert LogEntry.objects.first().change_message == "Took its review back."  # type: ignore[union-attr]


def test_marking_several(runs: list[Run], staff: Callable[..., Client]) -> None:
    client = staff("view_run", "review_run")
    chosen = [str(run.pk) for run in runs[:3]]
    to = client.post(LIST, {"action": "mark", "_selected_action": chosen})["Location"]
    page = text(client, to)
    assert "3 runs will be marked as reviewed" in page
    assert client.post(REVIEW, {"run": [*chosen, "x"], "note": "known"})["Location"] == LIST
    assert Run.objects.exclude(reviewed_at=None).count() == LogEntry.objects.count() == 3
    assert "known" not in text(client, page_of(runs[0])) and "[hidden, 5 characters]" in text(client, page_of(runs[0]))


@pytest.mark.parametrize(("action", "page"), [("mark", "review"), ("stop", "cancel"), ("export", "export")])
def test_back_to_the_list_that_one_came_from(
    runs: list[Run], staff: Callable[..., Client], action: str, page: str
) -> None:
    client = staff("view_run", "review_run", "cancel_run", "export")
    chosen = [str(run.pk) for run in runs[:2]]
    came = f"{LIST}?status=failed&window=30d"
    to = client.post(came, {"action": action, "_selected_action": chosen})["Location"]
    assert f'<a href="{came.replace("&", "&amp;")}">Back to the runs' in text(client, to)
    if page != "export":
        kept = {"run": chosen, "_changelist_filters": "status=failed&window=30d"}
        assert client.post(f"{LIST}{page}/", kept)["Location"] == came


def test_a_note_that_is_too_long(runs: list[Run], staff: Callable[..., Client]) -> None:
    client = staff("view_run", "review_run")
    response = client.post(REVIEW, {"run": str(runs[0].pk), "page": "1", "note": "x" * 2001}, follow=True)
    assert "/note must have at most 2000 characters" in response.content.decode()
    assert not Run.objects.exclude(reviewed_at=None).exists() and not LogEntry.objects.exists()


def test_who_may_not_mark(runs: list[Run], ada: Any, staff: Callable[..., Client]) -> None:
    client = staff("view_run", "view_content")
    assert client.post(REVIEW, {"run": str(runs[0].pk)}).status_code == 403
    client.post(LIST, {"action": "mark", "_selected_action": [str(runs[0].pk)]})
    assert "agui-review" not in text(client, page_of(runs[0]))
    assert not Run.objects.exclude(reviewed_at=None).exists()
