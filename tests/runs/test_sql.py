"""Statements made once write the very rows that the ORM writes."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import models
from django.utils import timezone

from agui_django.models import Interrupt, Message, Run, RunEvents, StateVersion, Thread
from agui_django.runs import sql
from agui_django.runs.database import database_alias
from tests.runs.given import Given

MOMENT = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def values(model: type[models.Model], pk: Any) -> dict[str, Any]:
    row = model._default_manager.filter(pk=pk).values().get()
    return {name: value for name, value in row.items() if name not in ("id", "uuid")}


def samples(given: Given) -> list[models.Model]:
    """A row of each table, with every kind of value in it."""
    thread = Thread.objects.create(scope="s", thread_id="t", owner=given.owner, agent="x")
    run = Run.objects.create(thread=thread, run_id="r", digest="d", agent="x", input="{}", turn="t")
    return [
        Thread(scope="a", thread_id="\u00fc %s 'q'", agent="x", state='{"k":"%"}', archived=True, updated_at=MOMENT),
        Run(
            thread=thread, run_id="r2", digest="d", agent="x", input="{}", turn="t", user=given.owner, resumed_run=run,
            status=Run.Status.CANCELLED, started_at=MOMENT, duration_ms=2**40, created_at=MOMENT, heartbeat=MOMENT,
        ),
        RunEvents(run=run, first_seq=1, last_seq=2, text="{}\n{}", plain=False),
        Message(thread=thread, message_id="m", role="user", wire="{}", order=7, run=run, created_at=MOMENT),
        StateVersion(
            thread=thread, run=None, version=1, state="{}", origin=StateVersion.Origin.STAFF, created_at=MOMENT,
        ),
        Interrupt(
            thread=thread, run=run, interrupt_id="i", key="i", reason="x", wire="{}", expires_at=MOMENT,
            created_at=MOMENT,
        ),
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(6))
def test_a_row_is_inserted_as_save_would(given: Given, number: int) -> None:
    sample = samples(given)[number]
    model = type(sample)
    if isinstance(sample, Run):
        sample.uuid = uuid.uuid4()
    sql.insert_row(database_alias(), sample)
    assert sample._state.adding is False
    ours = values(model, sample.pk)
    model._default_manager.filter(pk=sample.pk).delete()
    sample.pk = uuid.uuid4() if isinstance(sample, Run) else None
    sample._state.adding = True
    sample.save()
    assert ours == values(model, sample.pk)


@pytest.mark.parametrize("number", range(6))
def test_a_row_is_made_with_its_instance(given: Given, number: int) -> None:
    sample = samples(given)[number]
    model = type(sample)
    sent = {name: value for name, value in sample.__dict__.items() if name not in ("_state", "id", "uuid")}
    if isinstance(sample, Run):
        sent["uuid"] = uuid.uuid4()
    made = sql.create(database_alias(), model, sent)
    assert (made._state.adding, made._state.db) == (False, database_alias())
    stored = model._default_manager.get(pk=made.pk)
    columns = [field.attname for field in model._meta.concrete_fields]
    assert {name: getattr(made, name) for name in columns} == {name: getattr(stored, name) for name in columns}
    assert {name: getattr(stored, name) for name in sent} == sent


def test_what_is_left_out_is_what_save_would_write(given: Given) -> None:
    thread = sql.create(database_alias(), Thread, {"scope": "s", "thread_id": "t", "agent": "x"})
    same = Thread(scope="s", thread_id="u", agent="x")
    same.save()
    differ = {"thread_id", "created_at", "updated_at"}
    assert {n: v for n, v in values(Thread, thread.pk).items() if n not in differ} == {
        n: v for n, v in values(Thread, same.pk).items() if n not in differ
    }
    assert (thread.state, thread.archived, thread.owner) == ("{}", False, None)
    sent = {"thread_id": thread.pk, "run_id": "r", "digest": "d", "agent": "x", "input": "{}", "turn": "t"}
    run = sql.create(database_alias(), Run, {**sent, "heartbeat": MOMENT}, "heartbeat")
    assert run.heartbeat == MOMENT
    assert abs(Run.objects.get(pk=run.pk).heartbeat - timezone.now()) < timedelta(minutes=1)
    assert run.thread == thread


def test_rows_take_the_defaults_of_what_they_leave_out(given: Given) -> None:
    thread = Thread.objects.create(scope="s", thread_id="t", agent="x")
    rows = [
        {"thread_id": thread.pk, "message_id": f"m{n}", "role": "user", "wire": "{}", "order": n} for n in range(250)
    ]
    sql.insert(database_alias(), Message, rows)
    sql.insert(database_alias(), Message, [])
    assert Message.objects.count() == 250
    last = Message.objects.get(message_id="m249")
    assert (last.order, last.search_text, last.run, last.superseded_by) == (249, "", None, None)
    assert abs(last.created_at - timezone.now()) < timedelta(minutes=1)


def test_an_update_says_how_many_rows_it_met(given: Given) -> None:
    thread = Thread.objects.create(scope="s", thread_id="t", agent="x", input_tokens=5)
    run = {"digest": "d", "agent": "x", "input": "{}", "turn": "t", "status": "finished"}
    runs = [Run.objects.create(thread=thread, run_id=f"r{n}", claim="me", heartbeat=MOMENT, **run) for n in range(3)]
    wanted = [row.uuid for row in runs[:2]]
    alias = database_alias()
    assert sql.update(alias, Run, {"heartbeat": sql.NOW}, uuid=wanted, claim="me", status=Run.Status.FINISHED) == 2
    assert sql.update(alias, Run, {"heartbeat": sql.NOW}, uuid=wanted, claim="you") == 0
    beats = [Run.objects.get(pk=row.pk).heartbeat for row in runs]
    assert beats[2] == MOMENT
    assert all(abs(beat - timezone.now()) < timedelta(minutes=1) for beat in beats[:2])
    assert sql.update(alias, Thread, {"input_tokens": sql.Plus(7), "title": "%s"}, id=thread.pk) == 1
    thread.refresh_from_db()
    assert (thread.input_tokens, thread.title) == (12, "%s")


def test_rows_are_inserted_under_a_parent_that_is_as_it_must_be(given: Given) -> None:
    alias = database_alias()
    thread = Thread.objects.create(scope="s", thread_id="t", agent="x")
    common = {"thread": thread, "digest": "d", "agent": "x", "input": "{}", "turn": "t"}
    runs = [Run.objects.create(run_id=f"r{n}", status="finished", claim=f"c{n}", **common) for n in (1, 2)]

    def row(run: Run, seq: int, plain: bool = True) -> dict[str, Any]:
        return {"run_id": run.pk, "first_seq": seq, "last_seq": seq + 1, "text": "'%s\u00fc\n?", "plain": plain}

    assert sql.can_insert_under(alias)
    rows = [row(runs[0], 1), row(runs[1], 1), row(runs[0], 3, plain=False)]
    assert sql.insert_under(alias, RunEvents, rows, "run", claim="c1", status=Run.Status.FINISHED) == 2
    assert sql.insert_under(alias, RunEvents, [row(runs[0], 5)], "run", claim="c1", status=Run.Status.RUNNING) == 0
    assert sql.insert_under(alias, RunEvents, [row(runs[1], 5)], "run", claim="c1", status=Run.Status.FINISHED) == 0
    stored = RunEvents.objects.order_by("first_seq").values("run_id", "first_seq", "last_seq", "text", "plain")
    assert list(stored) == [rows[0], rows[2]]
