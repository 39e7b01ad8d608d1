"""The inbox and its form: what is answered there goes on, as everybody's answer does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.db import connection
from django.http import QueryDict
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from agui_django import start_run
from agui_django.admin.answer_form import AnswerForm
from agui_django.models import Interrupt, Message, Run, Thread
from agui_django.protocol.codec import encode
from tests.api.conftest import Rows
from tests.live import wait_until

INBOX = "/admin/agui_django/interrupt/"


def page_of(row: Interrupt) -> str:
    return f"{INBOX}{row.pk}/change/"


@pytest.fixture
def asked(ada: Any) -> Interrupt:
    """A question of a real run."""
    start_run("refund", "t1", "My teapot arrived broken", ada)
    return Interrupt.objects.get()


@pytest.fixture
def clerk(staff: Callable[..., Client]) -> Client:
    return staff("answer_interrupt")


def said(row: Interrupt) -> list[str]:
    messages = Message.objects.filter(thread=row.thread_id, role="assistant").order_by("order")
    return [text for text in messages.values_list("search_text", flat=True) if text]


def test_an_answer_resumes_the_run(asked: Interrupt, clerk: Client) -> None:
    page = clerk.get(INBOX).content.decode()
    assert "Refund 40 € for order 7 (Blue teapot)?" in page
    assert "1 in all" in page and "1 question waits" in page
    page = clerk.get(page_of(asked)).content.decode()
    for words in ("Approve the refund", "Amount in €", "damaged", "Note to the customer", "Refund 40"):
        assert words in page, words
    # The conversation itself is for those who may read it.
    assert "My teapot" not in page
    fields = {"f0": "true", "f1": "12.5", "f2": '"late"', "f3": "", "raw": ""}
    done = clerk.post(page_of(asked), fields)
    assert (done.status_code, done["Location"]) == (302, INBOX)
    asked.refresh_from_db()
    assert json.loads(asked.response)["payload"] == {"approved": True, "amount": 12.5, "reason": "late"}
    wait_until(lambda: not Run.objects.active().exists())
    assert said(asked)[-1] == "Refunded 12.5 € (late)."
    assert asked.answered_by.username == "kim"  # type: ignore[union-attr]
    (entry,) = LogEntry.objects.all()
    assert (entry.object_id, entry.change_message) == (str(asked.pk), "Answered.")
    assert "agui-badge" not in clerk.get(INBOX).content.decode()
    # A second answer finds nothing to answer.
    assert clerk.post(page_of(asked), fields).status_code == 403


@pytest.mark.parametrize(
    ("verb", "then"),
    [("approve", "Refunded 40 € (damaged)."), ("deny", "All right, nothing was refunded."),
     ("dismiss", "All right, nothing was refunded.")],
)  # fmt: skip
def test_shortcuts(asked: Interrupt, clerk: Client, verb: str, then: str) -> None:
    fields = {"f1": "40", "f2": '"damaged"', "f3": "", "raw": "", "verb": verb}
    assert clerk.post(page_of(asked), fields).status_code == 302
    wait_until(lambda: not Run.objects.active().exists())
    assert said(asked)[-1] == then
    asked.refresh_from_db()
    assert asked.status == ("cancelled" if verb == "dismiss" else "resolved")


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({}, "This field is required."),
        ({"f0": "true", "f1": "99"}, "/payload/amount must satisfy maximum 40"),
        ({"f0": "true", "f1": "4x"}, "This does not have the expected form."),
        ({"raw": "{"}, "This is not JSON."),
        ({"raw": "[1]"}, "must be an object"),
    ],
)
def test_what_does_not_fit_is_shown_again(
    asked: Interrupt, clerk: Client, fields: dict[str, str], complaint: str
) -> None:
    answer = clerk.post(page_of(asked), fields)
    assert answer.status_code == 200
    assert complaint in answer.content.decode()
    asked.refresh_from_db()
    assert asked.status == "open"


def test_raw_json(asked: Interrupt, clerk: Client) -> None:
    assert clerk.post(page_of(asked), {"raw": '{"approved": false}'}).status_code == 302
    asked.refresh_from_db()
    assert json.loads(asked.response)["payload"] == {"approved": False}
    wait_until(lambda: not Run.objects.active().exists())


def test_several_are_dismissed(asked: Interrupt, clerk: Client) -> None:
    chosen = {"action": "deny", "_selected_action": [str(asked.pk)]}
    to = clerk.post(INBOX, chosen)["Location"]
    assert "1 question waits and will be dismissed" in clerk.get(to).content.decode()
    assert clerk.post(f"{INBOX}dismiss/", {"q": [str(asked.pk), "x", "999"], "reason": "too late"}).status_code == 302
    asked.refresh_from_db()
    assert asked.status == "cancelled"
    assert json.loads(asked.response)["metadata"] == {"reason": "too late"}
    wait_until(lambda: not Run.objects.active().exists())


def test_a_permission_of_the_question(asked: Interrupt, staff: Callable[..., Client]) -> None:
    Interrupt.objects.update(permission="agui_django.prune")
    client = staff("answer_interrupt")
    assert '<form method="post" class="agui-form"' not in client.get(page_of(asked)).content.decode()
    assert client.post(page_of(asked), {"f0": "true"}).status_code == 403


def test_who_was_asked_may_dismiss_it(asked: Interrupt, staff: Callable[..., Client]) -> None:
    client = staff("answer_interrupt")
    kim = get_user_model().objects.get(username="kim")
    Interrupt.objects.update(permission="agui_django.prune")
    Thread.objects.update(owner=kim)
    page = client.get(page_of(asked)).content.decode()
    assert 'value="dismiss"' in page
    assert 'value="answer"' not in page
    assert client.post(page_of(asked), {"raw": "true"}).status_code == 403
    assert client.post(page_of(asked), {"verb": "dismiss"}).status_code == 302
    asked.refresh_from_db()
    assert asked.status == "cancelled"
    wait_until(lambda: not Run.objects.active().exists())


def test_who_looks_is_seen(asked: Interrupt, staff: Callable[..., Client]) -> None:
    first, second = staff("answer_interrupt"), staff("answer_interrupt", name="lou")
    first.get(page_of(asked))
    assert "kim looked at it" in second.get(page_of(asked)).content.decode()


def test_the_order_and_the_tabs(rows: Rows, ada: Any, staff: Callable[..., Client]) -> None:
    run, now = rows.run(status="interrupted"), timezone.now()
    ask = rows.interrupt
    ask(run, "never", created_at=now - timedelta(hours=3))
    ask(run, "later", expires_at=now + timedelta(hours=2))
    ask(run, "soon", expires_at=now + timedelta(minutes=8))
    ask(run, "over", expires_at=now - timedelta(minutes=8))
    ask(run, "done", status="resolved", answered_by=ada)
    Interrupt.objects.update(message="")
    for row in Interrupt.objects.all():
        Interrupt.objects.filter(pk=row.pk).update(message=f"Q-{row.interrupt_id}")
    client = staff("answer_interrupt")

    def listed(query: str) -> list[str]:
        page = client.get(f"{INBOX}?{query}").content.decode()
        return [part.split("<")[0] for part in page.split("Q-")[1:]]

    assert listed("") == ["soon", "later", "never"]
    assert listed("state=expired") == ["over"]
    assert listed("state=answered") == ["done"]
    assert listed("state=mine") == []
    assert listed("agent=other") == []


def test_statements_of_the_inbox_do_not_grow(rows: Rows, clerk: Client) -> None:
    run = rows.run(status="interrupted")
    for number in range(10):
        rows.interrupt(run, f"i{number}")
    clerk.get(INBOX)
    with CaptureQueriesContext(connection) as few:
        clerk.get(INBOX)
    for number in range(10, 200):
        rows.interrupt(run, f"i{number}")
    with CaptureQueriesContext(connection) as many:
        page = clerk.get(INBOX).content.decode()
    assert len(few) == len(many)
    assert "200 in all" in page


def test_the_tool_that_is_asked_about(rows: Rows, clerk: Client) -> None:
    run = rows.run(status="interrupted")
    call = {"id": "call-7", "type": "function", "function": {"name": "refund_payment", "arguments": '{"amount": 240}'}}
    rows.message("m1", "", "assistant", run=run, wire=encode({"id": "m1", "role": "assistant", "toolCalls": [call]}))
    row = rows.interrupt(run, tool_call_id="call-7")
    page = clerk.get(page_of(row)).content.decode()
    assert "<code>refund_payment</code>" in page
    assert "<b>amount</b> <code dir='auto'>240</code>" in page


def test_every_kind_of_field() -> None:
    schema = {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "sure": {"type": "boolean"},
            "count": {"type": "integer"},
            "size": {"enum": [1, "1", True, None]},
            "day": {"type": "string", "format": "date"},
            "address": {"type": "object", "properties": {"city": {"type": "string"}, "floor": {"type": "number"}}},
            "tags": {"type": "array", "items": {"type": "string"}},
            "scores": {"type": "array", "items": {"type": "number"}},
            "people": {"type": "array", "items": {"type": "object"}},
            "other": {"oneOf": [{"type": "string"}, {"type": "number"}]},
        },
    }
    form = AnswerForm(schema, {
        "f0": "Ada", "f1": "false", "f2": "3", "f3": '"1"', "f4": "2026-05-04", "f5": "Bath", "f6": "2.5",
        "f7": ["a", "", "b"], "f8": ["1", "2.5", ""], "f9": '[{"x": 1}]', "f10": "7",
    })  # fmt: skip
    assert form.is_valid(), form.errors
    assert form.cleaned_data["answer"] == {
        "name": "Ada", "sure": False, "count": 3, "size": "1", "day": "2026-05-04",
        "address": {"city": "Bath", "floor": 2.5}, "tags": ["a", "b"], "scores": [1, 2.5], "people": [{"x": 1}],
        "other": 7,
    }  # fmt: skip
    assert form.approval == "f1"
    # What is left out is no member, and no default is made up.
    form = AnswerForm(schema, {"f0": "Ada"})
    assert form.is_valid()
    assert form.cleaned_data["answer"] == {"name": "Ada"}


@pytest.mark.parametrize(
    ("schema", "fields", "answer"),
    [
        (None, {"raw": "[1]"}, [1]),
        ({"type": "boolean"}, {"f0": "true"}, True),
        ({"enum": ["a", "b"]}, {"f0": '"b"'}, "b"),
        ({"type": ["string", "null"]}, {"f0": ""}, None),
        ({"$ref": "#/$defs/x"}, {"f0": '{"a": 1}'}, {"a": 1}),
        ("nonsense", {"raw": "1"}, 1),
    ],
)
def test_answers_that_are_no_objects(schema: Any, fields: dict[str, str], answer: Any) -> None:
    form = AnswerForm(schema, fields)
    assert form.is_valid(), form.errors
    assert form.cleaned_data["answer"] == answer


LISTS = {
    "type": "object",
    "required": ["tags"],
    "properties": {
        "tags": {"type": "array", "title": "Tags", "items": {"type": "string"}, "default": ["a", "b"]},
        "sure": {"type": "boolean"},
        "scores": {"type": "array", "items": {"type": "integer"}},
    },
}


def inputs(page: str, name: str) -> list[str]:
    return re.findall(rf'<input[^>]* name="{name}"[^>]* value="([^"]*)"', page)


def test_a_list_grows_without_a_script(asked: Interrupt, clerk: Client) -> None:
    Interrupt.objects.update(response_schema=encode(LISTS))
    page = clerk.get(page_of(asked)).content.decode()
    assert inputs(page, "f0") == ["a", "b"] and inputs(page, "f2") == [""]
    assert 'name="verb" value="add:f0"' in page and 'aria-label="Tags 2"' in page
    sent = {"f0": ["a", "", "<c>"], "f1": "true", "f2": ["7"], "raw": ""}
    page = clerk.post(page_of(asked), {**sent, "verb": "add:f0"}).content.decode()
    # Nothing is lost or judged, and there is one more.
    assert inputs(page, "f0") == ["a", "", "&lt;c&gt;", ""] and inputs(page, "f2") == ["7"]
    assert "checked" in page.split('value="true"')[1].split(">")[0]
    assert "errorlist" not in clerk.post(page_of(asked), {"verb": "add:f0"}).content.decode()
    assert clerk.post(page_of(asked), {"verb": "add:nothing"}).status_code == 200
    asked.refresh_from_db()
    assert asked.status == "open"
    for wrong, complaint in (({"f0": [""]}, "This field is required."), ({"f0": ["a"], "f2": ["x"]}, "expected form")):
        assert complaint in clerk.post(page_of(asked), wrong).content.decode()
    form = AnswerForm(LISTS, QueryDict("f0=a&f0=&f0=b+c&f1=false&f2=1&f2=2"))
    assert form.is_valid(), form.errors
    assert form.cleaned_data["answer"] == {"tags": ["a", "b c"], "sure": False, "scores": [1, 2]}


def test_a_list_is_bounded(asked: Interrupt, clerk: Client) -> None:
    Interrupt.objects.update(response_schema=encode(LISTS))
    page = clerk.post(page_of(asked), {"f0": ["x"] * 500, "verb": "add:f0"}).content.decode()
    assert len(inputs(page, "f0")) == 60
