"""The viewer's time zone, and the badge of the inbox: what stands on every page."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agui_django.models import Run
from tests.admin.test_runs import LIST, page_of, shown, text
from tests.api.conftest import Rows

SWITCH = f"{LIST}zone/"
INBOX = "/admin/agui_django/interrupt/"
#: 23:30 of this day in UTC is the next day nearly everywhere to the east.
LATE = datetime(2026, 3, 28, 23, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("zone", "said"),
    [("", "28 Mar 23:30:00"), ("Europe/Berlin", "29 Mar 00:30:00"), ("Pacific/Tongatapu", "29 Mar 12:30:00"),
     ("America/New_York", "28 Mar 19:30:00")],
    ids=["site", "berlin", "tonga", "new-york"],
)  # fmt: skip
def test_one_zone_for_columns_and_filters(rows: Rows, reader: Client, zone: str, said: str) -> None:
    run = rows.run(created_at=LATE)
    assert reader.post(SWITCH, {"zone": zone, "next": LIST})["Location"] == LIST
    page = text(reader, f"{LIST}?window=all")
    assert f'title="2026-03-28 23:30:00 UTC">{said}</time>' in page
    assert f"Times in {zone or 'UTC'}" in page
    day = int(said[:2])
    for each in (28, 29):
        found = shown(text(reader, f"{LIST}?created_at__year=2026&created_at__month=3&created_at__day={each}"))
        assert found == ([str(run.pk)] if each == day else []), each
    assert f"Times in {zone or 'UTC'}" in text(reader, page_of(run))
    thread = text(reader, f"/admin/agui_django/thread/{rows.thread.pk}/change/")
    assert 'title="2026-03-28 23:30:00 UTC"' in thread and f">{day} Mar 2026 " in thread
    # The next request of this thread is the site's again.
    assert timezone.get_current_timezone_name() == "UTC"


def test_the_switch(rows: Rows, reader: Client) -> None:
    reader.post(SWITCH, {"zone": "Asia/Tokyo"})
    cookie = reader.cookies["agui_zone"]
    assert (cookie.value, cookie["path"], cookie["samesite"]) == ("Asia/Tokyo", "/admin/", "Lax")
    for wrong in ("../../etc/passwd", "Mars/Olympus", "x" * 5000, "\x00"):
        reader.post(SWITCH, {"zone": wrong})
        assert reader.cookies["agui_zone"].value == "Asia/Tokyo", wrong
    assert reader.get(SWITCH)["Location"] == "/admin/"
    assert reader.cookies["agui_zone"].value == "Asia/Tokyo"
    for place in ("//evil.test/", "https://evil.test/", "javascript:alert(1)"):
        assert reader.post(SWITCH, {"zone": "UTC", "next": place})["Location"] == "/admin/"
    reader.post(SWITCH, {"zone": ""})
    assert reader.cookies["agui_zone"].value == ""
    for wrong in ("no such zone", "localtime", "right/Europe/Berlin", "../UTC"):
        reader.cookies["agui_zone"] = wrong
        assert "Times in UTC" in text(reader, LIST), wrong
    assert Client(enforce_csrf_checks=True).post(SWITCH, {"zone": "UTC"}).status_code == 403


def test_the_badge_counts_what_waits(rows: Rows, ada: Any, staff: Callable[..., Client]) -> None:
    run, now = rows.run(status="interrupted"), timezone.now()
    client = staff("answer_interrupt", "view_run")
    assert "agui-badge" not in text(client, "/admin/")
    rows.interrupt(run, "waits")
    rows.interrupt(run, "later", expires_at=now + timedelta(hours=1))
    rows.interrupt(run, "over", expires_at=now - timedelta(hours=1))
    rows.interrupt(run, "done", status="resolved")
    places = ["/admin/", "/admin/agui_django/", LIST, page_of(run), INBOX, "/admin/password_change/"]
    for place in places:
        page = text(client, place)
        assert page.count(f'<a class="agui-badge" href="{INBOX}">2 questions wait</a>') == 1, place
        assert page.count("agui-badge") == 1, place
    # As many as the list behind the link.
    assert "2 in all" in text(client, INBOX)
    Run.objects.all().delete()
    assert "agui-badge" not in text(client, LIST)


def test_the_badge_is_for_who_may_see_questions(rows: Rows, staff: Callable[..., Client]) -> None:
    rows.interrupt(rows.run(status="interrupted"))
    for number, (permission, seen) in enumerate(
        {"view_run": 0, "view_thread": 0, "view_interrupt": 1, "answer_interrupt": 1}.items()
    ):
        page = text(staff(permission, name=f"staff{number}"), "/admin/")
        assert page.count("1 question waits") == seen, permission
    assert "agui-badge" not in text(Client(), "/admin/login/")


def test_the_badge_is_one_statement_with_a_bound(rows: Rows, staff: Callable[..., Client]) -> None:
    run = rows.run(status="interrupted")
    rows.interrupt(run)
    client = staff("view_interrupt")
    for waiting in (1, 200):
        with CaptureQueriesContext(connection) as statements:
            page = text(client, "/admin/")
        asked = [query["sql"] for query in statements if "agui_django_interrupt" in query["sql"]]
        assert len(asked) == 1 and "LIMIT 100" in asked[0]
        assert ("1 question waits" if waiting == 1 else "more than 99 questions wait") in page
        for number in range(199 if waiting == 1 else 0):
            rows.interrupt(run, f"more{number}")
