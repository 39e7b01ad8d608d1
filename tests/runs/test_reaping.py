"""Runs whose process is gone: what was committed becomes rows, the thread is free again."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from agui_django.models import Run, RunEvents
from agui_django.protocol.codec import encode
from agui_django.protocol.errors import ThreadBusy
from agui_django.protocol.verifier import SequenceVerifier
from agui_django.runs.requests import Opened
from tests.runs.given import Given, resolved, says, user

PARTIAL: list[dict[str, Any]] = [
    {"type": "STEP_STARTED", "stepName": "s", "timestamp": 1_060},
    {"type": "TEXT_MESSAGE_START", "messageId": "m", "role": "assistant", "timestamp": 1_070},
    {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "The total ", "timestamp": 1_080},
    {"type": "STATE_SNAPSHOT", "snapshot": {"k": 2}, "timestamp": 1_090},
    {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "is 12", "timestamp": 1_100},
]


def dies(given: Given, opened: Opened, events: list[dict[str, Any]], *, age: float = 3600, claim: str = "dead") -> Run:
    """What is left of a run whose process died: its log so far, an old heartbeat."""
    run = given.run(opened)
    started = {"type": "RUN_STARTED", "threadId": "t1", "runId": run.run_id, "timestamp": 1_000}
    for seq, event in enumerate([started, *events], start=1):
        RunEvents.objects.create(run=run, first_seq=seq, last_seq=seq, text=encode(event), plain=True)
    Run.objects.filter(pk=run.pk).update(claim=claim, heartbeat=timezone.now() - timedelta(seconds=age))
    return given.run(opened)


def test_the_next_request_frees_the_thread_and_keeps_what_was_said(given: Given) -> None:  # case R10
    dead = dies(given, given.open(runId="r0", messages=[user("u1")]), PARTIAL)
    opened = given.open(runId="r1", messages=[user("u2")])
    assert opened.kind == "created"
    dead.refresh_from_db()
    assert (dead.status, dead.error_code, dead.last_seq) == ("failed", "abandoned", 9)
    assert (dead.duration_ms, dead.first_event_ms) == (100, 60)
    assert given.ids == ["u1", "m", "u2"]
    assert given.wires[1]["content"] == "The total is 12"
    assert opened.setup is not None
    assert opened.setup.state == {"k": 2}
    log = given.log(dead)
    assert [event["type"] for event in log[6:]] == ["TEXT_MESSAGE_END", "STEP_FINISHED", "RUN_ERROR"]
    assert log[-1]["code"] == "abandoned"
    assert dead.error_reference in log[-1]["message"]
    verifier = SequenceVerifier(producer=True, thread_id="t1", run_id="r0")
    for event in log:
        verifier.feed(event)
    assert verifier.terminal == "RUN_ERROR"


def test_a_run_that_gives_signs_of_life_is_busy(given: Given) -> None:
    dies(given, given.open(messages=[user("u1")]), PARTIAL, age=1)
    with pytest.raises(ThreadBusy):
        given.open(messages=[user("u2")])


def test_a_process_that_is_known_to_be_gone_need_not_wait_for_its_lease(given: Given) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("needs /proc")
    code = "from agui_django.runs import claims; print(claims.process_name())"
    claim = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    dead = dies(given, given.open(messages=[user("u1")]), PARTIAL, age=0, claim=claim)
    assert given.open(messages=[user("u2")]).kind == "created"
    dead.refresh_from_db()
    assert dead.error_code == "abandoned"


def test_a_pending_run_that_nobody_claimed_starts_and_fails(given: Given) -> None:
    opened = given.open(claim="", messages=[user("u1")])
    Run.objects.update(heartbeat=timezone.now() - timedelta(seconds=3600))
    assert given.do(given.store.reap_lost) == [opened.run.uuid]  # type: ignore[union-attr]
    assert [event["type"] for event in given.log(opened.run)] == ["RUN_STARTED", "RUN_ERROR"]
    assert given.run(opened).last_seq == 2
    assert given.do(given.store.reap_lost) == []


def test_a_repeat_of_a_lost_request_is_shown_its_end(given: Given) -> None:
    body: dict[str, Any] = {"runId": "r0", "messages": [user("u1")]}
    dead = dies(given, given.open(**body), PARTIAL)
    again = given.open(**body)
    assert (again.kind, again.run) == ("attached", dead)
    dead.refresh_from_db()
    assert dead.status == "failed"


@pytest.mark.parametrize(("events", "left"), [([], ["i1"]), (PARTIAL[3:4], ["i1"]), (PARTIAL, [])])
def test_a_lost_resume_opens_its_questions_unless_it_had_acted(
    given: Given, events: list[dict[str, Any]], left: list[str]
) -> None:
    given.asked({"id": "i1"})
    dead = dies(given, given.open(messages=[], resume=[resolved("i1")]), events)
    assert given.do(given.store.reap, dead.uuid) is True
    assert given.open_ids == left
    assert given.do(given.store.reap, dead.uuid) is False


def test_a_step_that_was_claimed_before_any_event_spends_the_answers(given: Given) -> None:
    given.asked({"id": "i1"})
    dead = dies(given, given.open(messages=[], resume=[resolved("i1")]), [])
    Run.objects.filter(pk=dead.pk).update(once='{"pay":{"status":"claimed"}}')
    assert given.do(given.store.reap, dead.uuid) is True
    assert given.open_ids == []


def test_a_process_that_wakes_after_it_was_reaped_writes_nothing(given: Given) -> None:
    opened = given.open(messages=[user("u1")])
    claim = opened.run.claim  # type: ignore[union-attr]
    dead = dies(given, opened, PARTIAL, claim="elsewhere")
    assert given.do(given.store.reap, dead.uuid)
    opened.run.claim = claim  # type: ignore[union-attr]
    assert given.finish(opened, status="cancelled", messages=[says("z", "late")]) is False
    assert given.ids == ["u1", "m"]
    assert len(given.log(dead)) == 9
