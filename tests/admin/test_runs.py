"""The list of runs and a run's page, as staff see them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agui_django.models import Feedback, Message, Run, RunEvents, StateVersion, Thread
from agui_django.protocol.codec import encode
from tests.api.conftest import Rows

LIST = "/admin/agui_django/run/"


def page_of(run: Run) -> str:
    return f"{LIST}{run.pk}/change/"


def text(client: Client, path: str, status: int = 200) -> str:
    response = client.get(path)
    assert response.status_code == status, (path, response.status_code)
    content = b"".join(response.streaming_content) if response.streaming else response.content
    return content.decode()


def shown(page: str) -> list[str]:
    """The addresses of a list's rows, in its order."""
    return [part[:36] for part in page.split('data-agui-run="')[1:]]


def test_the_list(rows: Rows, reader: Client) -> None:
    rows.run(status="failed", error_code="tool_error", error_reference="a1f300a1f300", duration_ms=4100)
    page = text(reader, LIST)
    for said in ("Failed", "tool_error", "a1f300a1f300", "4.1 s", "Order 8812", ">ada</a>", "1 in all", "Times in UTC"):
        assert said in page


def test_from_a_run_to_its_persons_runs(rows: Rows, ada: Any, reader: Client) -> None:
    run = rows.run()
    assert f'<a href="{LIST}?user={ada.pk}">ada</a>' in text(reader, page_of(run))
    assert shown(text(reader, f"{LIST}?user={ada.pk}")) == [str(run.pk)]


def made(rows: Rows, ada: Any, count: int) -> None:
    now = timezone.now()
    for number in range(count):
        Run.objects.create(
            thread=rows.thread, run_id=f"r{number}", digest="", turn="", input="x" * 1000, agent="echo", user=ada,
            status="finished", created_at=now - timedelta(minutes=number),
        )  # fmt: skip


def test_statements_of_the_list_do_not_grow(rows: Rows, ada: Any, reader: Client) -> None:
    made(rows, ada, 10)
    text(reader, LIST)
    with CaptureQueriesContext(
        connection,
    ) as few:
        text(reader, LIST)
    made(rows, ada, 190)
    with CaptureQueriesContext(connection) as many:
        text(reader, LIST)
    assert len(few) == len(many) <= 14
    of_runs = [query["sql"] for query in many if "agui_django_run" in query["sql"]]
    assert not any('"input"' in sql or "error_text" in sql for sql in of_runs)


def test_pages_by_place(rows: Rows, ada: Any, reader: Client) -> None:
    made(rows, ada, 120)
    expected = [str(pk) for pk in Run.objects.order_by("-created_at", "-pk").values_list("pk", flat=True)]
    seen: list[str] = []
    address, pages = LIST, []
    while address:
        response = reader.get(address)
        pages.append(address)
        seen += shown(response.content.decode())
        older = response.context["cl"].older
        address = LIST + older if older else ""
    assert seen == expected
    assert len(pages) == 3
    back = reader.get(pages[2]).context["cl"].newer
    assert shown(text(reader, LIST + back)) == expected[50:100]
    # Another filter begins at its first page.
    assert "older" not in reader.get(pages[1]).context["cl"].get_query_string({"status": "failed"})


@pytest.mark.parametrize("place", ["x", "e30=", "WyJ4IiwieSJd"])
def test_a_place_that_is_none(rows: Rows, reader: Client, place: str) -> None:
    assert reader.get(f"{LIST}?older={place}").status_code == 302


def test_filters(rows: Rows, reader: Client) -> None:
    old = rows.run(status="failed", error_code="x", run_id="r1", created_at=timezone.now() - timedelta(days=20))
    waits = rows.run(status="interrupted", open_interrupts=1, run_id="r2", transport="sse")
    fails = rows.run(status="failed", error_code="x", run_id="r3", transport="websocket")
    for query, wanted in {
        "": [fails, waits],
        "window=all": [fails, waits, old],
        "window=30d&status=failed": [fails, old],
        "status=failed,interrupted": [fails, waits],
        "error=yes": [fails],
        "error=no": [waits],
        "waiting=yes": [waits],
        "transport=websocket": [fails],
        "agent=echo": [fails, waits],
        "agent=other": [],
        f"user={rows.owner.pk}": [fails, waits],
        "user=0": [],
        f"thread={rows.thread.pk}": [fails, waits],
        f"created_at__year={old.created_at.year}&created_at__month={old.created_at.month}"
        f"&created_at__day={old.created_at.day}": [old],
    }.items():  # fmt: skip
        assert shown(text(reader, f"{LIST}?{query}")) == [str(run.pk) for run in wanted], query
    for query in ("status=x", "window=x", "error=x", "user=x"):
        assert reader.get(f"{LIST}?{query}").status_code == 302, query


@pytest.mark.parametrize("model", [Run, Thread])
def test_no_other_column_can_be_asked_for(rows: Rows, reader: Client, model: Any) -> None:
    rows.run()
    where = f"/admin/agui_django/{model._meta.model_name}/"
    names = [field.name for field in model._meta.get_fields()]
    of_runs = {"status", "agent", "model", "user", "thread", "transport"}
    allowed = of_runs if model is Run else {"agent", "archived", "feedback", "owner"}
    for name in names:
        for lookup in ("", "__startswith", "__regex", "__isnull", "__gt"):
            if lookup == "" and name in allowed:
                continue
            assert reader.get(f"{where}?{name}{lookup}=1").status_code == 400, f"{name}{lookup}"


def test_search(rows: Rows, reader: Client) -> None:
    old = timezone.now() - timedelta(days=40)
    run = rows.run(status="failed", run_id="the-run", error_reference="a1f300a1f300", created_at=old)
    recent = rows.run(run_id="other")
    rows.message("m1", "where is my teapot", run=recent)
    for query, wanted in {
        str(run.pk): [run],
        "a1f300a1f300": [run],
        "the-run": [run],
        "t1": [recent, run],
        "ada": [recent],
        "ADA@example.org": [recent],
        "teapot": [recent],
        "te": [],
        "kettle": [],
        "ada&as=text": [],
    }.items():
        assert shown(text(reader, f"{LIST}?q={query}")) == [str(each.pk) for each in wanted], query


def test_who_reads_no_texts_searches_none(rows: Rows, staff: Callable[..., Client]) -> None:
    run = rows.run()
    rows.message("m1", "where is my teapot", run=run)
    client = staff("view_run")
    for query in ("teapot", "Order", "teapot&as=text"):
        page = text(client, f"{LIST}?q={query}")
        assert shown(page) == []
        assert "texts are hidden from you" in page
    assert shown(text(client, f"{LIST}?q=ada")) == [str(run.pk)]


@pytest.mark.parametrize("model", [Run, Thread])
def test_what_its_user_thinks_is_a_filter(rows: Rows, reader: Client, model: Any) -> None:
    run, other = rows.run(), rows.run(run_id="other")
    liked = rows.message("m1", "the bot lied", run=run)
    rows.message("m2", "fine", run=other)
    Feedback.objects.create(thread=rows.thread, message=liked, user=rows.owner, rating=Feedback.Rating.DOWN)
    where = f"/admin/agui_django/{model._meta.model_name}/"
    down, up = (text(reader, f"{where}?feedback={rating}") for rating in ("down", "up"))
    if model is Run:
        assert (shown(down), shown(up)) == ([str(run.pk)], [])
    else:
        address = f"{where}{rows.thread.pk}/change/"
        assert (address in down, address in up) == (True, False)
    assert reader.get(f"{where}?feedback=sideways")["Location"].endswith("?e=1")


def test_texts_are_searched_once_and_the_last_active_threads_found(
    rows: Rows, reader: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agui_django.admin.search.THREADS", 1)
    found = []
    for number in range(2):
        thread = Thread.objects.create(scope=f"s{number}", thread_id="t", agent="echo", title="A kettle")
        found.append(Run.objects.create(thread=thread, run_id=f"r{number}", digest="d", agent="echo", input="{}"))
        Thread.objects.filter(pk=thread.pk).update(updated_at=timezone.now() - timedelta(hours=number))
    with CaptureQueriesContext(connection) as queries:
        page = text(reader, f"{LIST}?q=kettle")
    assert shown(page) == [str(found[0].pk)]
    assert "the 1 threads of them that were last active" in page
    assert sum("search_text" in query["sql"] for query in queries.captured_queries) == 1


def whole_run(rows: Rows) -> Run:
    """A run with a little of everything."""
    began = 1_700_000_000_000
    run = rows.run(
        {"type": "RUN_STARTED", "threadId": "t1", "runId": "r1", "timestamp": began},
        {"type": "STEP_STARTED", "stepName": "plan", "timestamp": began},
        {"type": "TOOL_CALL_START", "toolCallId": "c1", "toolCallName": "lookup", "timestamp": began + 1000},
        {"type": "TOOL_CALL_RESULT", "toolCallId": "c1", "messageId": "m3", "content": "x", "timestamp": began + 3000},
        {"type": "STEP_FINISHED", "stepName": "plan", "timestamp": began + 4000},
        {"type": "RUN_FINISHED", "threadId": "t1", "runId": "r1", "timestamp": began + 4000},
        duration_ms=4000, tool_calls=1,
    )  # fmt: skip
    rows.message("m1", "where is **my order**?", run=run)
    call = {"id": "c1", "type": "function", "function": {"name": "lookup", "arguments": '{"order": 8812}'}}
    rows.message("m2", "", "assistant", run=run, wire=encode({"id": "m2", "role": "assistant", "toolCalls": [call]}))
    result = {"id": "m3", "role": "tool", "toolCallId": "c1", "content": '{"status": "sent"}'}
    rows.message("m3", "sent", "tool", run=run, wire=encode(result))
    rows.message("m4", "It was thought about", "reasoning", run=run)
    StateVersion.objects.create(thread=rows.thread, run=run, version=2, state='{"a": 2, "b": [1]}', origin="agent")
    return run


def test_a_run(rows: Rows, reader: Client) -> None:
    run = whole_run(rows)
    before = rows.run(run_id="r0", created_at=run.created_at - timedelta(minutes=1))
    after = rows.run(run_id="r2", created_at=run.created_at + timedelta(minutes=1), resumed_run=run)
    page = text(reader, page_of(run))
    for said in (
        "It finished after 4.0 s, with 1 tool call.", "<strong>my order</strong>", "<code>lookup</code>", "8812",
        "<code>/a</code>", "<code>/b</code>", page_of(before), page_of(after), "resumed by", "<svg",
    ):  # fmt: skip
        assert said in page, said
    # The result stands at its call, not by itself.
    assert "agui-role-tool" not in page
    # The call took from 1 to 3 of 4 seconds: a half of the axis.
    timeline = reader.get(page_of(run)).context["timeline"]
    assert [(bar.lane, bar.x, bar.width) for bar in timeline.bars if bar.lane == "tool"] == [("tool", 317, 455)]
    assert reader.get(f"{LIST}{uuid.uuid4()}/change/").status_code == 404
    assert reader.get(f"{LIST}nothing/change/").status_code == 404


def test_statements_of_a_page_do_not_grow(rows: Rows, reader: Client) -> None:
    run = whole_run(rows)
    text(reader, page_of(run))
    with CaptureQueriesContext(connection) as few:
        text(reader, page_of(run))
    for number in range(196):
        rows.message(f"more{number}", f"message {number}", run=run)
    with CaptureQueriesContext(connection) as many:
        page = text(reader, page_of(run))
    assert len(few) == len(many)
    assert page.count("<article") == 100
    assert "message 195" in page and "message 90<" not in page
    first = Message.objects.get(message_id="more96").order
    assert f"?before={first}" in page
    assert "message 90<" in text(reader, f"{page_of(run)}?before={first}")


def test_what_is_large_is_cut(rows: Rows, reader: Client) -> None:
    run = rows.run()
    Run.objects.filter(pk=run.pk).update(input=encode({"forwardedProps": {"x": "y" * 3_000_000}}))
    large = rows.message("m1", "word " * 2_000_000, run=run)
    line = encode({"type": "CUSTOM", "name": "n", "value": "v" * 1_000_000, "timestamp": 1})
    for seq in range(1, 41):
        RunEvents.objects.create(run=run, first_seq=seq, last_seq=seq, text=line)
    Run.objects.filter(pk=run.pk).update(last_seq=40)
    with CaptureQueriesContext(connection) as statements:
        page = text(reader, page_of(run))
    assert len(page) < 120_000
    assert not any(', "agui_django_run"."input",' in query["sql"] for query in statements)
    assert "The first 16384 of 3000027 characters." in page
    assert len(text(reader, f"{LIST}{run.pk}/input.txt")) == 3_000_027
    assert reader.get(f"{LIST}{run.pk}/traceback.txt").status_code == 404
    events = reader.get(f"{LIST}{run.pk}/events/")
    # As many as sixteen million characters hold, each cut; the rest is behind the link.
    assert 16 <= len(events.context["rows"]) <= 20
    assert len(events.content) < 600_000 and events.context["next"] == len(events.context["rows"])
    address = f"/admin/agui_django/run/message/{large.pk}/"
    assert address in page
    response = reader.get(address)
    assert len(response.content) == len(large.wire)
    assert response["Content-Type"].startswith("text/plain")
    assert "sandbox" in response["Content-Security-Policy"]


def test_events(rows: Rows, reader: Client) -> None:
    run = rows.run()
    for number in range(3):
        lines = [encode({"type": "CUSTOM", "name": "n", "value": number * 100 + n}) for n in range(100)]
        RunEvents.objects.create(
            run=run, first_seq=number * 100 + 1, last_seq=number * 100 + 100, text="\n".join(lines)
        )
    Run.objects.filter(pk=run.pk).update(last_seq=300)
    first = text(reader, f"{LIST}{run.pk}/events/")
    assert first.count("<li id=") == 200
    assert "?after=200&amp;type=" in first
    second = text(reader, f"{LIST}{run.pk}/events/?after=200")
    assert second.count("<li id=") == 100
    assert "?after=" not in second.split("agui-events")[1].split("agui-zone")[0]
    assert text(reader, f"{LIST}{run.pk}/events/?type=RUN_ERROR").count("<li id=") == 0
    assert reader.get(f"{LIST}{run.pk}/events/?type=other").status_code == 404
    assert reader.get(f"{LIST}{run.pk}/events/?after=x").status_code == 404


def test_the_download(rows: Rows, staff: Callable[..., Client]) -> None:
    run = whole_run(rows)
    client = staff("view_run", "view_content", "export")
    lines = text(client, f"{LIST}{run.pk}/events.ndjson").splitlines()
    assert [json.loads(line)["type"] for line in lines][::5] == ["RUN_STARTED", "RUN_FINISHED"]
    (entry,) = LogEntry.objects.all()
    assert (entry.object_id, entry.change_message) == (str(run.pk), "Exported its events.")


def test_stopping(rows: Rows, staff: Callable[..., Client]) -> None:
    waits, ended = rows.run(status="queued"), rows.run(run_id="r2")
    client = staff("view_run", "cancel_run")
    chosen = {"action": "stop", "_selected_action": [str(waits.pk), str(ended.pk)]}
    to = client.post(LIST, chosen)
    assert to.status_code == 302
    page = text(client, to["Location"])
    assert "1 run is active and will be asked to stop" in page
    assert "1 has ended already." in page
    assert Run.objects.get(pk=waits.pk).status == "queued"
    done = client.post("/admin/agui_django/run/cancel/", {"run": [str(waits.pk), str(ended.pk), "x"]})
    assert done.status_code == 302
    assert [Run.objects.get(pk=run.pk).status for run in (waits, ended)] == ["cancelled", "finished"]
    (entry,) = LogEntry.objects.all()
    assert (entry.object_id, str(entry)) == (str(waits.pk), f"Changed “run {waits.pk}” — Asked to stop.")


def test_running_rows_are_asked_for(rows: Rows, reader: Client) -> None:
    run = rows.run(status="running")
    known = json.loads(text(reader, f"{LIST}status/?run={run.pk}&run=x&run={uuid.uuid4()}"))
    assert list(known) == [str(run.pk)]
    assert known[str(run.pk)]["status"] == "running"
