"""The made-up conversations are such as ours are: they are listed, searched, counted and run as any other."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db.models import F, Sum
from django.utils import timezone

from agui_django.models import Feedback, Interrupt, Message, Run, RunEvents, StateVersion, Thread
from agui_django.protocol.codec import decode
from agui_django.protocol.verifier import SequenceVerifier
from agui_django.runs.branches import branches
from agui_django.runs.store import ThreadStore
from tests.runs.conftest import given
from tests.runs.given import Given, says, user

__all__ = ["given"]


def seed(**options: Any) -> str:
    out = StringIO()
    call_command("agui_seed", stdout=out, force=True, **options)
    return out.getvalue()


def test_believable_conversations(given: Given) -> None:
    assert "600 runs and 3010 messages" in seed(runs=600, messages=3010, users=3, days=30)
    assert (Run.objects.count(), Message.objects.count()) == (600, 3010)
    assert Thread.objects.values("owner").distinct().count() == 3
    statuses = Counter(Run.objects.values_list("status", flat=True))
    assert statuses["finished"] > 450 and all(statuses[each] > 3 for each in ("failed", "cancelled", "interrupted"))
    now, first = timezone.now(), Run.objects.earliest("created_at")
    assert timedelta(days=25) < now - first.created_at < timedelta(days=31)
    assert not Run.objects.filter(created_at__gt=now).exists()
    # What failed says why, alike for alike; nothing else does.
    failed = Run.objects.filter(status="failed")
    assert not failed.filter(error_fingerprint="").exists()
    assert Run.objects.exclude(error_code="").count() == failed.count()
    kinds = set(failed.values_list("error_code", "error_place", "error_fingerprint"))
    assert 3 < len(kinds) == len({fingerprint for _, _, fingerprint in kinds}) < 10
    # Costs are known of most, not of all; parts are parts.
    assert Run.objects.filter(cost_nanos__gt=0, currency="USD").count() > 400
    assert Run.objects.filter(Run.NOT_PRICED).exists()
    assert not Run.objects.filter(cached_tokens__gt=F("input_tokens")).exists()
    for column in ("input_tokens", "output_tokens"):
        sums = [model.objects.aggregate(sum=Sum(column))["sum"] for model in (Thread, Run)]
        assert sums[0] == sums[1]
    # Questions that were answered are resumed by the run that they name.
    asked = Interrupt.objects.select_related("answered_run")
    assert {each.status for each in asked} >= {"resolved", "expired"}
    for each in asked:
        assert (each.status == "resolved") == (each.answered_run is not None)
        assert each.answered_run is None or each.answered_run.resumed_run_id == each.run_id
    assert Message.objects.exclude(superseded_by=None).exists() and Feedback.objects.exists()


def test_they_are_threads_as_ours(given: Given) -> None:
    seed(runs=200, messages=1100)
    for thread in Thread.objects.all():
        shown = given.do(ThreadStore().hydrate, thread.scope, thread.thread_id)
        assert shown is not None and len(shown.messages) == thread.messages.filter(superseded_by=None).count()
        assert shown.state == decode(StateVersion.objects.filter(thread=thread).latest("version").state)
        made = {call["id"] for message in shown.messages for call in message.get("toolCalls", ())}
        assert made >= {message["toolCallId"] for message in shown.messages if message["role"] == "tool"}
        for run in thread.runs.filter(status__in=Run.TERMINAL):
            log = RunEvents.objects.get(run=run)
            verifier = SequenceVerifier(thread_id=thread.thread_id)
            for line in log.text.split("\n"):
                verifier.feed(decode(line))
            assert verifier.open_items() == [] and log.last_seq == run.last_seq == len(log.text.split("\n"))
    gone = Message.objects.exclude(superseded_by=None).exclude(behind=None)
    assert gone.exists()
    for message in gone:
        ways = [way for point in branches(message.thread) for way in point.alternatives]
        assert message.superseded_by_id in [way.run for way in ways] and any(way.in_play for way in ways)


def test_what_comes_afterwards_has_keys_of_its_own(given: Given) -> None:
    seed(runs=5)
    seed(runs=5)  # to what is there
    assert Run.objects.count() == 10
    given.turn(user("u1"), says=[says("a1", "ok")])
    assert Thread.objects.latest("pk").thread_id == "t1"
    assert Message.objects.count() == 52


def test_without_messages(given: Given) -> None:
    seed(runs=3, messages=0)
    assert (Run.objects.count(), Message.objects.count()) == (3, 0)


@pytest.mark.parametrize("wrong", [{"runs": 0}, {"runs": 1, "messages": -1}, {"users": -1}, {"days": 0}])
def test_numbers_that_make_no_sense(db: None, wrong: dict[str, Any]) -> None:
    with pytest.raises(CommandError, match="At least one"):
        seed(**wrong)


def test_never_in_production(db: None, settings: Any) -> None:
    assert settings.DEBUG is False
    with pytest.raises(CommandError, match="--force"):
        call_command("agui_seed", runs=1)
    assert Thread.objects.count() == 0
    settings.DEBUG = True
    call_command("agui_seed", runs=1, stdout=StringIO())
    assert Run.objects.count() == 1
