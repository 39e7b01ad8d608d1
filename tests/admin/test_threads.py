"""Threads in the admin: the list, the page, and what is done to one."""

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

from agui_django.models import Feedback, Message, Run, StateVersion, Thread
from tests.admin.test_runs import text
from tests.api.conftest import Rows

LIST = "/admin/agui_django/thread/"


def logged() -> list[tuple[str, str]]:
    return list(LogEntry.objects.order_by("pk").values_list("object_id", "change_message"))


def test_the_list(rows: Rows, reader: Client) -> None:
    Thread.objects.update(last_words="where is it?", input_tokens=5, output_tokens=7)
    page = text(reader, LIST)
    for said in ("Order 8812", "where is it?", ">ada</a>", ">12<", "1 in all"):
        assert said in page, said
    assert "0 in all" in text(reader, f"{LIST}?archived=yes")
    assert "icon-no" not in page
    assert "1 in all" in text(reader, f"{LIST}?owner={rows.owner.pk}")
    assert "0 in all" in text(reader, f"{LIST}?owner=0")
    assert "1 in all" in text(reader, f"{LIST}?q=8812")
    assert "0 in all" in text(reader, f"{LIST}?q=teapot")


def test_statements_of_the_list_do_not_grow(rows: Rows, ada: Any, reader: Client) -> None:
    def made(first: int, last: int) -> None:
        for number in range(first, last):
            Rows(ada, f"thread-{number}")

    made(0, 9)
    text(reader, LIST)
    with CaptureQueriesContext(connection) as few:
        text(reader, LIST)
    made(9, 199)
    with CaptureQueriesContext(connection) as many:
        page = text(reader, LIST)
    assert len(few) == len(many)
    assert "200 in all" in page


def test_a_thread(rows: Rows, ada: Any, reader: Client) -> None:
    run = rows.run(status="failed", error_code="tool_error", error_reference="a1f3")
    message = rows.message("m1", "You *promised*", run=run)
    Feedback.objects.create(thread=rows.thread, message=message, user=ada, rating=-1, text="wrong date")
    question = rows.interrupt(run)
    page = text(reader, f"{LIST}{rows.thread.pk}/change/")
    for said in (
        "Order 8812", "<em>promised</em>", "tool_error a1f3", "thumb down", "wrong date", "State (version 1)",
        f"/admin/agui_django/run/{run.pk}/change/", f"/admin/agui_django/interrupt/{question.pk}/change/",
    ):  # fmt: skip
        assert said in page, said
    for verb in ("state/", "export/", "remove/", "archive/"):
        assert f"{LIST}{rows.thread.pk}/{verb}" not in page, verb
    assert reader.get(f"{LIST}999/change/").status_code == 404
    assert reader.get(f"{LIST}x/change/").status_code == 404


def test_editing_the_state(rows: Rows, staff: Callable[..., Client]) -> None:
    client = staff("view_thread", "view_content", "edit_state")
    address = f"{LIST}{rows.thread.pk}/state/"
    assert "&quot;a&quot;: 1" in text(client, address)
    asked = client.post(address, {"state": '{"a": 2, "b": []}', "version": 1})
    assert [op for op, _path in asked.context["patch"]] == ["replace", "add"]
    assert StateVersion.objects.count() == 1
    assert client.post(address, {"state": '{"a": 2, "b": []}', "version": 1, "save": "1"}).status_code == 302
    row = Thread.objects.get()
    assert (json.loads(row.state), row.state_version) == ({"a": 2, "b": []}, 2)
    version = StateVersion.objects.get(version=2)
    assert (version.origin, version.user.username) == ("staff", "kim")  # type: ignore[union-attr]
    assert logged() == [(str(row.pk), "Edited the state: version 2.")]
    # Somebody was faster: a conflict, nothing is overwritten.
    late = client.post(address, {"state": '{"a": 9}', "version": 1, "save": "1"})
    assert late.status_code == 200
    assert "Another version was made meanwhile: 2." in late.content.decode()
    assert json.loads(Thread.objects.get().state) == {"a": 2, "b": []}
    for wrong in ("{", "[1]", ""):
        assert client.post(address, {"state": wrong, "version": 2, "save": "1"}).status_code == 200
    assert Thread.objects.get().state_version == 2


def test_archiving_and_exporting(rows: Rows, staff: Callable[..., Client]) -> None:
    rows.message("m1")
    client = staff("view_thread", "view_content", "change_thread", "export")
    assert client.get(f"{LIST}{rows.thread.pk}/archive/").status_code == 302
    assert not Thread.objects.get().archived
    client.post(f"{LIST}{rows.thread.pk}/archive/")
    assert Thread.objects.get().archived
    lines = text(client, f"{LIST}{rows.thread.pk}/export/").splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["export", "thread", "message", "state"]
    assert [message for _key, message in logged()] == ["Archived.", "Exported."]


def test_deleting(rows: Rows, staff: Callable[..., Client]) -> None:
    run = rows.run(status="queued")
    rows.message("m1", run=run)
    client = staff("view_thread", "delete_thread")
    address = f"{LIST}{rows.thread.pk}/remove/"
    page = text(client, address)
    assert "1 runs, 1 messages, 0 files and 0 open questions" in page
    assert client.post(address, {"thread_id": "t2"}).status_code == 200
    assert Thread.objects.exists()
    assert client.post(address, {"thread_id": "t1"}).status_code == 302
    assert not Thread.objects.exists() and not Run.objects.exists()
    assert logged() == [(str(rows.thread.pk), "Deleted.")]


def test_pruning(rows: Rows, ada: Any, staff: Callable[..., Client]) -> None:
    busy, young = Rows(ada, "busy"), Rows(ada, "young")
    busy.run(status="running")
    Thread.objects.exclude(pk=young.thread.pk).update(updated_at=timezone.now() - timedelta(days=40))
    client = staff("view_thread", "prune")
    counted = client.post(f"{LIST}prune/", {"days": "30"})
    assert "1 thread is that old." in counted.content.decode()
    assert Thread.objects.count() == 3
    assert client.post(f"{LIST}prune/", {"days": "30", "delete": "1"}).status_code == 302
    assert set(Thread.objects.values_list("thread_id", flat=True)) == {"busy", "young"}
    assert logged() == [(str(rows.thread.pk), "Pruned.")]
    assert client.post(f"{LIST}prune/", {"days": "0", "delete": "1"}).status_code == 200


@pytest.fixture
def branched(rows: Rows) -> Run:
    """A conversation whose answer was asked for again; the run that took the first answer out of play."""
    first = rows.run(run_id="r1")
    asked = rows.message("m1", "where is it?", run=first)
    gone = rows.message("m2", "On its way.", "assistant", run=first)
    again = rows.run(run_id="r2")
    rows.message("m3", "It was sent yesterday.", "assistant", run=again)
    Message.objects.filter(pk=gone.pk).update(superseded_by=again, behind=asked.pk)
    return again


def test_superseded_messages_are_shown_on_request(branched: Run, rows: Rows, reader: Client) -> None:
    page = text(reader, f"{LIST}{rows.thread.pk}/change/")
    assert "On its way." not in page.split("Branches")[0] and "agui-superseded" not in page
    assert "1 message was superseded:" in page and 'href="?superseded=1"' in page
    page = text(reader, f"{LIST}{rows.thread.pk}/change/?superseded=1")
    places = [page.index(words) for words in ("<article", "where is it?", "On its way.", "It was sent yesterday.")]
    assert places == sorted(places) and page.count("agui-superseded") == 1
    first = Run.objects.get(run_id="r1")
    assert "On its way." not in text(reader, f"/admin/agui_django/run/{first.pk}/change/")
    assert "On its way." in text(reader, f"/admin/agui_django/run/{first.pk}/change/?superseded=1&_changelist_filters=")


def test_a_branch_is_brought_back(branched: Run, rows: Rows, staff: Callable[..., Client]) -> None:
    client = staff("view_thread", "view_content", "change_thread")
    page, address = f"{LIST}{rows.thread.pk}/change/", f"{LIST}{rows.thread.pk}/restore/"
    assert f'name="branch" value="{branched.pk}"' in text(client, page)
    assert client.get(address).status_code == 302
    assert client.post(address, {"branch": "x"}).status_code == 404
    unknown = client.post(address, {"branch": str(uuid.uuid4())}, follow=True)
    assert unknown.status_code == 200 and not LogEntry.objects.exists()
    assert client.post(address, {"branch": str(branched.pk)}).status_code == 302
    in_play = Message.objects.in_play().values_list("message_id", flat=True)
    assert list(in_play) == ["m1", "m2"]
    made = Run.objects.get(transport="restore")
    assert made.user is not None and made.user.username == "kim"
    assert logged() == [(str(rows.thread.pk), f"Restored the branch of run {branched.pk}.")]
    # And there again.
    assert f'name="branch" value="{made.pk}"' in text(client, page)
    client.post(address, {"branch": str(made.pk)})
    assert list(in_play.all()) == ["m1", "m3"]


def test_no_branch_comes_back_while_something_runs(branched: Run, rows: Rows, staff: Callable[..., Client]) -> None:
    rows.run(status="queued", run_id="r3")
    client = staff("view_thread", "change_thread")
    done = client.post(f"{LIST}{rows.thread.pk}/restore/", {"branch": str(branched.pk)}, follow=True)
    assert 'class="error"' in done.content.decode()
    assert Message.objects.in_play().count() == 2 and not LogEntry.objects.exists()


def test_who_may_not_change_brings_nothing_back(branched: Run, rows: Rows, reader: Client) -> None:
    assert "Bring back" not in text(reader, f"{LIST}{rows.thread.pk}/change/")
    assert reader.post(f"{LIST}{rows.thread.pk}/restore/", {"branch": str(branched.pk)}).status_code == 403
