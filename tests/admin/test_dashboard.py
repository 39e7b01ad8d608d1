"""The dashboard: every number by hand, every link to the very rows that it counts, in its viewer's days."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from html import unescape
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agui_django.admin import dashboard_numbers as numbers
from agui_django.admin.dashboard import PANELS, grouped
from agui_django.admin.dashboard_charts import Part, stacked
from agui_django.admin.dashboard_spans import Span, span
from agui_django.admin.zones import COOKIE
from agui_django.models import Interrupt, Run
from tests.api.conftest import Rows

INDEX = "/admin/agui_django/"
#: A Sunday; the night before, clocks in Berlin went from 2 to 3.
NOW = datetime(2026, 3, 29, 19, 45, 2, tzinfo=UTC)
BERLIN, APIA = ZoneInfo("Europe/Berlin"), ZoneInfo("Pacific/Apia")  # Apia is at UTC+13


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> datetime:
    """It is that Sunday evening."""
    monkeypatch.setattr("django.utils.timezone.now", lambda: NOW)
    return NOW


def panel(client: Client, name: str, query: str = "", status: int = 200) -> str:
    response = client.get(f"{INDEX}run/panel/{name}/?{query}")
    assert response.status_code == status
    return response.content.decode()


COUNT = re.compile(r'<a href="([^"]+)" data-agui-count="(\d+)"')


def links(page: str) -> list[tuple[str, int]]:
    """The numbers that lead to a list, and where."""
    return [(unescape(url), int(count)) for url, count in COUNT.findall(page)]


def listed(client: Client, url: str) -> int:
    """How many rows the list behind a link has."""
    response = client.get(url)
    assert response.status_code == 200, url
    return int(response.context["cl"].queryset.count())


@pytest.fixture
def story(rows: Rows, ada: Any, clock: datetime, django_user_model: Any) -> Rows:
    """Two weeks of runs; what is in which bucket stands beside them."""
    bob = django_user_model.objects.create_user("bob")
    for number, (at, fields) in enumerate(
        [
            # today in Berlin; the first one is yesterday's in UTC
            (datetime(2026, 3, 28, 23, 30, tzinfo=UTC), priced(100, 40, 10, 5)),
            (datetime(2026, 3, 29, 0, 30, tzinfo=UTC), {"duration_ms": 1000, "first_event_ms": 100}),
            (datetime(2026, 3, 29, 1, 30, tzinfo=UTC), {"duration_ms": 2000, "first_event_ms": 300}),
            (datetime(2026, 3, 29, 10, 0, tzinfo=UTC), {**failed("a"), "duration_ms": 9000}),
            (datetime(2026, 3, 29, 10, 59, tzinfo=UTC), {**failed("a"), "user": bob, "duration_ms": 4000}),
            (datetime(2026, 3, 29, 11, 0, tzinfo=UTC), {**failed("b"), "duration_ms": 100, "agent": "other"}),
            (datetime(2026, 3, 29, 19, 40, tzinfo=UTC), {"status": "cancelled", "duration_ms": 60_000}),
            (datetime(2026, 3, 29, 19, 45, tzinfo=UTC), {"status": "queued"}),
            # yesterday in Berlin, today in Apia; the last moment of it
            (datetime(2026, 3, 28, 22, 59, 59, tzinfo=UTC), priced(1000, 400, 50, 7, currency="EUR")),
            (datetime(2026, 3, 28, 12, 0, tzinfo=UTC), {**priced(10, 0, 1, None), "model": "unknown"}),
            (datetime(2026, 3, 27, 12, 0, tzinfo=UTC), {"status": "interrupted", "duration_ms": 500}),
            # before
            (datetime(2026, 3, 20, 12, 0, tzinfo=UTC), {**failed("a"), "user": None}),
            (datetime(2026, 3, 18, 12, 0, tzinfo=UTC), priced(5, 0, 5, 9)),
        ]
    ):
        rows.run(run_id=f"r{number}", created_at=at, **fields)
    return rows


def priced(given: int, cached: int, made: int, nanos: int | None, currency: str = "USD") -> dict[str, Any]:
    tokens = {"input_tokens": given, "cached_tokens": cached, "output_tokens": made, "reasoning_tokens": made // 5}
    return {**tokens, "model": "small", "cost_nanos": nanos, "currency": currency if nanos else ""}


def failed(fingerprint: str) -> dict[str, Any]:
    return {
        "status": "failed", "error_code": "tool_error", "error_fingerprint": fingerprint * 64,
        "error_place": f"ValueError shop/{fingerprint}.py refund", "error_text": f"the secret of {fingerprint}",
    }  # fmt: skip


# ---- the numbers -----------------------------------------------------------------------------------------------------


def counts(chosen: Span) -> list[int]:
    return [sum(bucket.values()) for bucket in numbers.by_status(chosen)]


def test_hours_of_a_day_with_23_of_them(story: Rows) -> None:
    chosen = span("24h", BERLIN, NOW)
    assert len(chosen.buckets) == 24
    labels = [chosen.label(since) for since, _ in chosen.buckets]
    # From 21:00 on the day before: there is no 2 o'clock.
    assert labels[:7] == ["21:00", "22:00", "23:00", "00:00", "01:00", "03:00", "04:00"]
    assert labels[-1] == "21:00" and chosen.until == NOW
    found = dict(zip(chosen.buckets, counts(chosen), strict=True))
    told = {since.hour: count for (since, _), count in found.items() if count}
    assert told == {22: 1, 23: 1, 0: 1, 1: 1, 10: 2, 11: 1, 19: 2}


def test_days_are_the_viewers(story: Rows) -> None:
    berlin, apia, site = (span("7d", zone, NOW) for zone in (BERLIN, APIA, ZoneInfo("UTC")))
    assert counts(berlin) == [0, 0, 0, 0, 1, 2, 8]
    assert berlin.buckets[-1][0] == datetime(2026, 3, 28, 23, tzinfo=UTC)
    assert berlin.buckets[-2] == (datetime(2026, 3, 27, 23, tzinfo=UTC), datetime(2026, 3, 28, 23, tzinfo=UTC))
    # In Apia it is Monday the 30th, since 11:00 in UTC.
    assert apia.label(apia.buckets[-1][0]) == "30 Mar"
    assert counts(apia) == [0, 0, 0, 0, 1, 7, 3]
    assert counts(site) == [0, 0, 0, 0, 1, 3, 7]
    month = counts(span("30d", BERLIN, NOW))
    assert (len(month), sum(month)) == (30, 13)
    # The day that lost an hour has 23.
    after = span("7d", BERLIN, NOW + timedelta(days=1))
    assert [(until - since) for since, until in after.buckets[-2:-1]] == [timedelta(hours=23)]


def test_the_error_rate(story: Rows) -> None:
    day = span("24h", BERLIN, NOW)
    (statuses,) = [sum(numbers.by_status(day), start=type(numbers.before(day))())]
    assert statuses == {"finished": 4, "failed": 3, "cancelled": 1, "queued": 1}
    assert numbers.error_rate(statuses) == pytest.approx(100 * 3 / 8)
    week = span("7d", BERLIN, NOW)
    assert numbers.before(week) == {"failed": 1, "finished": 1}
    assert numbers.error_rate(numbers.before(week)) == 50
    assert numbers.error_rate(numbers.before(span("7d", BERLIN, NOW, "other"))) is None


def test_times_are_nearest_ranks(story: Rows) -> None:
    found = numbers.times(span("7d", BERLIN, NOW))["run"]
    # 100 500 1000 2000 4000 9000: the third and the sixth; cancelled runs are not among them.
    assert (found.count, found.ranks) == (6, (1000, 9000))
    assert found.buckets == {4: (500, 500), 6: (2000, 9000)}
    first = numbers.times(span("7d", BERLIN, NOW))["first"]
    assert (first.count, first.ranks, first.buckets) == (2, (100, 300), {6: (100, 300)})
    none = numbers.times(span("7d", BERLIN, NOW, "nobody"))["run"]
    assert (none.count, none.ranks, none.buckets) == (0, (), {})


@pytest.mark.parametrize("size", [1, 2, 19, 20, 21, 100, 101])
def test_the_ranks_of_many(rows: Rows, clock: datetime, size: int) -> None:
    for value in range(size, 0, -1):
        rows.run(run_id=f"r{value}", duration_ms=value, created_at=NOW - timedelta(minutes=1))
    median, high = -(-size * 50 // 100), -(-size * 95 // 100)
    assert numbers.times(span("24h", BERLIN, NOW))["run"].ranks == (median, high)


def test_errors_by_their_place(story: Rows, ada: Any) -> None:
    month = numbers.errors(span("30d", BERLIN, NOW))
    assert [(each.fingerprint[0], each.count, each.people, each.buckets[-1]) for each in month] == [
        ("a", 3, 2, 2), ("b", 1, 1, 1),
    ]  # fmt: skip
    first = month[0]
    assert (first.first, first.last) == (
        datetime(2026, 3, 20, 12, tzinfo=UTC),
        datetime(2026, 3, 29, 10, 59, tzinfo=UTC),
    )
    assert first.example is not None and first.example.created_at == first.last
    assert [each.count for each in numbers.errors(span("24h", BERLIN, NOW, "other"))] == [1]


def test_tokens_and_costs(story: Rows) -> None:
    week = numbers.usage(span("7d", BERLIN, NOW))
    assert set(week) == {("echo", "small"), ("echo", "unknown"), ("echo", ""), ("other", "")}
    small = numbers.total(week["echo", "small"])
    # Two runs: the cached are part of the input, reasoning of the output; two currencies are two amounts.
    assert (small.runs, small.input, small.cached, small.output, small.reasoning, small.tokens) == (
        2, 1100, 440, 60, 12, 1160,
    )  # fmt: skip
    assert (small.cost, small.not_priced) == ({"EUR": 7, "USD": 5}, 0)
    assert [used.runs for used in week["echo", "small"]] == [0, 0, 0, 0, 0, 1, 1]
    unknown = numbers.total(week["echo", "unknown"])
    assert (unknown.cost, unknown.not_priced, unknown.tokens) == ({}, 1, 11)
    every = numbers.total(used for buckets in week.values() for used in buckets)
    assert (every.runs, every.tokens, every.not_priced) == (11, 1171, 1)


# ---- the links -------------------------------------------------------------------------------------------------------


@pytest.fixture
def viewer(staff: Callable[..., Client]) -> Client:
    return staff("view_run", "view_interrupt")


@pytest.mark.parametrize("zone", ["", "Europe/Berlin", "Pacific/Apia"], ids=["site", "berlin", "apia"])
@pytest.mark.parametrize("query", ["range=24h", "range=7d", "range=30d&agent=echo"])
def test_every_number_is_that_of_its_list(story: Rows, viewer: Client, zone: str, query: str) -> None:
    if zone:
        viewer.cookies[COOKIE] = zone
    story.interrupt(Run.objects.get(run_id="r10"), expires_at=NOW + timedelta(hours=1))
    story.interrupt(Run.objects.get(run_id="r10"), "late", expires_at=NOW - timedelta(hours=1))
    seen = {name: links(panel(viewer, name, query)) for name in PANELS}
    assert all(seen.values())
    followed: dict[str, int] = {}
    for url, count in {link for found in seen.values() for link in found}:
        followed[url] = listed(viewer, url)
        assert followed[url] == count, url
    # Bars lead where the table beside them does.
    bars = set(re.findall(r'<a href="([^"]+)" aria-label=', panel(viewer, "runs", query)))
    assert bars and {unescape(url) for url in bars} <= set(followed)
    if zone == "Europe/Berlin":
        runs = [count for url, count in seen["runs"] if "status" not in url]
        assert runs == [{"range=24h": 9, "range=7d": 11, "range=30d&agent=echo": 12}[query]]


def test_the_panels_say_it(story: Rows, viewer: Client) -> None:
    viewer.cookies[COOKIE] = "Europe/Berlin"
    story.interrupt(Run.objects.get(run_id="r10"), created_at=NOW - timedelta(hours=2))
    for name, said in {
        "now": ("1</a> running or queued", "1</a> question waiting", "2\xa0hours", "21:45:02"),
        "runs": ("11</a> runs", "error rate 30.0 %", "before 50.0 %"),
        "times": ("median <strong>1.0 s", "95th percentile <strong>9.0 s", "nearest ranks"),
        "errors": ("tool_error", "29 Mar 12:00", "29 Mar 12:59"),
        "usage": ("0.000000007 EUR + 0.000000005 USD", "1</a> run not priced", grouped(1171)),
    }.items():
        page = panel(viewer, name, "range=7d")
        for text in said:
            assert text in page, (name, text)


def test_an_empty_site(viewer: Client, clock: datetime) -> None:
    for name in PANELS:
        page = panel(viewer, name, "range=30d")
        assert all(count == 0 for _, count in links(page)), name
    assert "No run failed." in panel(viewer, "errors")


@pytest.mark.parametrize(
    "query",
    ["range=x", "range=7d&agent=%00", "agent=%3Cscript%3Ealert(1)%3C/script%3E", f"agent={'x' * 3000}"],
    ids=["range", "null", "script", "long"],
)
def test_any_query(story: Rows, viewer: Client, query: str) -> None:
    viewer.cookies[COOKIE] = "Mars/Olympus"
    for name in PANELS:
        assert "<script>" not in panel(viewer, name, query)
    assert "<script>alert" not in viewer.get(f"{INDEX}?{query}").content.decode()


@pytest.mark.parametrize(
    "query",
    [
        "since=x",
        "since=2026-03-01",
        "until=2026-99-01T00:00:00Z",
        "priced=x",
        "timed=x",
        "agent=%00",
        "model=%00",
        "same=%00",
        "q=%00",
        "thread=%00",
    ],
)
def test_filters_that_are_none(story: Rows, viewer: Client, query: str) -> None:
    assert viewer.get(f"{INDEX}run/?{query}").status_code == 302


def test_costs_in_the_list_and_on_a_page(story: Rows, viewer: Client) -> None:
    known, unknown, free = (Run.objects.get(run_id=name) for name in ("r0", "r9", "r1"))
    Run.objects.filter(pk=known.pk).update(cost_nanos=20_000_000, priced_on=date(2026, 3, 1))
    page = viewer.get(f"{INDEX}run/").content.decode()
    assert page.count('<td class="field-cost">0.0200 USD</td>') == 1
    for run, said in (
        (known, "0.0200 USD (prices of 1 Mar 2026)"), (unknown, "<dd>not priced</dd>"), (free, "<dt>Cost</dt>"),
    ):  # fmt: skip
        page = viewer.get(f"{INDEX}run/{run.pk}/change/").content.decode()
        assert (said in page) == (run != free), said
    failed = Run.objects.get(run_id="r3")
    page = viewer.get(f"{INDEX}run/{failed.pk}/change/").content.decode()
    (others,) = re.findall(r'<a href="([^"]+)">others like it</a>', page)
    assert listed(viewer, unescape(others)) == 3


# ---- who sees what ---------------------------------------------------------------------------------------------------


def test_who_may_see_runs_sees_no_texts(story: Rows, staff: Callable[..., Client]) -> None:
    few = staff("view_run", name="few")
    page = panel(few, "errors", "range=7d")
    assert "secret" not in page and "refund" not in page and "[hidden, 15 characters]" in page
    assert "waiting" not in panel(few, "now")
    more = panel(staff("view_run", "view_content", "view_traceback", name="more"), "errors", "range=7d")
    assert "the secret of a" in more and "ValueError shop/a.py refund" in more
    assert "questions waiting" in panel(staff("view_run", "answer_interrupt", name="desk"), "now")


def test_nobody_else_sees_it(story: Rows, staff: Callable[..., Client]) -> None:
    other = staff("view_thread")
    for name in PANELS:
        panel(other, name, status=403)
    page = other.get(INDEX).content.decode()
    assert "agui-dashboard" not in page and "Threads" in page
    assert Client().get(f"{INDEX}run/panel/runs/").status_code == 302
    assert staff("view_run", name="viewer").get(f"{INDEX}run/panel/other/").status_code == 404


def test_the_page(story: Rows, viewer: Client) -> None:
    page = viewer.get(f"{INDEX}?range=7d&agent=gone").content.decode()
    for name in PANELS:
        assert f'data-agui-panel="/admin/agui_django/run/panel/{name}/?range=7d&amp;agent=gone"' in page
    assert '<option value="gone" selected>' in page
    assert 'value="7d" aria-pressed="true"' in page
    # Nothing of it needs more than a site's own files.
    for markup in (
        page.split('class="agui-dashboard"')[1].split("</div>\n")[0],
        panel(viewer, "runs"),
        panel(viewer, "errors"),
    ):
        assert not re.search(r"style=|<script|<style|onclick|https?:", markup)


def test_the_page_is_in_the_viewers_zone(story: Rows, viewer: Client) -> None:
    viewer.cookies[COOKIE] = "Europe/Berlin"
    page = re.sub(r"<[^>]+>", "", viewer.get(INDEX).content.decode())
    assert re.search(r"28 Mar 2026 21:00 . 29 Mar 2026 21:45:02 · Europe/Berlin", page)


def test_the_range_of_a_list_is_in_the_viewers_zone(story: Rows, viewer: Client) -> None:
    viewer.cookies[COOKIE] = "America/New_York"
    page = viewer.get(f"{INDEX}run/?window=all&since=2026-03-29T10:00:00Z&until=0001-01-01T00:00:00Z").content.decode()
    assert re.search(r"Since: <b><time [^>]*UTC\">29 Mar 2026 06:00:00</time> </b>", page)
    assert "Until: <b>0001-01-01T00:00:00Z </b>" in page


def test_the_page_without_a_script(story: Rows, viewer: Client, staff: Callable[..., Client]) -> None:
    link = re.findall(r'<a href="([^"]+)#agui-panel-errors">Show</a>', viewer.get(f"{INDEX}?range=7d").content.decode())
    page = viewer.get(f"{INDEX}{unescape(link[0])}").content.decode()
    assert "data-agui-panel" not in page and "aria-busy" not in page
    for name in PANELS:
        assert panel(viewer, name, "range=7d") in page
    # Another range is whole, too; who may not see runs sees none of it.
    assert '<input type="hidden" name="whole" value="1">' in page
    assert "agui-dashboard" not in staff("view_thread", name="other").get(f"{INDEX}?whole=1").content.decode()


def test_statements_do_not_grow(rows: Rows, viewer: Client, clock: datetime) -> None:
    def grow(count: int) -> None:
        for number in range(count):
            at = NOW - timedelta(minutes=number)
            rows.run(run_id=f"r{count}.{number}", created_at=at, **failed("abcd"[number % 4]), duration_ms=number)

    taken = []
    for size in (5, 50):
        grow(size)
        found = {}
        for name in PANELS:
            panel(viewer, name, "range=7d")
            with CaptureQueriesContext(connection) as statements:
                panel(viewer, name, "range=7d")
            found[name] = len(statements)
        taken.append(found)
    assert taken[0] == taken[1]
    assert max(taken[0].values()) <= 12


# ---- charts ----------------------------------------------------------------------------------------------------------


def parts(*values: float) -> Iterator[Part]:
    for value in values:
        yield Part(value, "x", "")


def test_bars_are_as_long_as_their_values() -> None:
    bars = [list(parts(30, 10)), [], list(parts(20, 0))]
    chart = stacked("n", bars, ["a", "b", "c"], "40")
    heights = [piece.height for piece in chart.pieces]
    whole = chart.bottom - chart.ceiling
    assert heights == [whole * 0.75, whole * 0.25, whole * 0.5]
    assert [piece.y for piece in chart.pieces] == [
        chart.bottom - whole * 0.75,
        chart.ceiling,
        chart.bottom - whole * 0.5,
    ]
    assert all(piece.x >= chart.left and piece.x + piece.width <= chart.width for piece in chart.pieces)
    assert [label for _, label in chart.labels] == ["a", "b", "c"]
    assert len(stacked("n", [[]] * 30, ["x"] * 30, "0").labels) <= 12


def test_the_zone_of_the_runs_list_and_of_the_chart_are_one(story: Rows, viewer: Client) -> None:
    """What a bar of a day counts are the runs that the list dates on this day."""
    viewer.cookies[COOKIE] = "Pacific/Apia"
    chosen = span("7d", APIA, NOW)
    local = [run.created_at.astimezone(APIA).date() for run in chosen.rows()]
    days = {
        since.astimezone(APIA).date(): count for (since, _), count in zip(chosen.buckets, counts(chosen), strict=True)
    }
    assert {day: local.count(day) for day in days} == days
    assert days[date(2026, 3, 30)] == 3
    assert Interrupt.objects.count() == 0
