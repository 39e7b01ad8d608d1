"""``manage.py agui_reap``: it ends what is lost, leaves what lives, and hands queued runs on where it can."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from typing import Any, ClassVar

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.utils import timezone

from agui_django import signals
from agui_django.models import Interrupt, Run
from agui_django.runs.claims import process_name
from agui_django.runs.database import get_pool
from agui_django.runs.drafts import Draft
from agui_django.runs.requests import AgentPolicy
from agui_django.runs.runners import Runner
from tests.runs.given import Given, user

QUEUE = AgentPolicy("echo", busy="queue")


class Listed(Runner):
    """A queue in memory."""

    submitted: ClassVar[list[str]] = []

    def submit(self, run_uuid: str) -> None:
        self.submitted.append(run_uuid)


class Broken(Runner):
    """A broker that is down."""

    def submit(self, run_uuid: str) -> None:
        raise ConnectionError("no broker")


@pytest.fixture
def given(transactional_db: None) -> Iterator[Given]:
    yield Given(get_user_model().objects.create_user("ada"))
    get_pool().close_sync()


def agui_reap(*arguments: str) -> list[str]:
    out = StringIO()
    call_command("agui_reap", *arguments, stdout=out, stderr=out)
    return out.getvalue().splitlines()


def test_the_lost_end_and_the_living_live(given: Given) -> None:
    lost = given.open(threadId="lost", claim="elsewhere.1.1.x")
    dead = given.open(threadId="dead", claim=f"{process_name().split('.')[0]}.999999.1.x")
    lives = given.open(threadId="lives")
    Run.objects.filter(pk=given.run(lost).pk).update(heartbeat="2020-01-01T00:00:00Z")
    assert agui_reap("--dry-run") == ["2 lost, 0 waiting, 0 expired"]
    assert given.run(lost).status == "running"
    assert agui_reap()[0] == "2 lost runs ended"
    for opened in (lost, dead):
        run = given.run(opened)
        assert (run.status, run.error_code) == ("failed", "abandoned")
    assert given.run(lives).status == "running"
    assert agui_reap()[0] == "0 lost runs ended"


def test_queues_are_left_to_servers(given: Given) -> None:
    active = given.open(messages=[user("u1")])
    queued = given.open(QUEUE, messages=[user("u2")])
    assert agui_reap("--dry-run") == ["0 lost, 1 waiting, 0 expired"]
    given.finish(active)
    assert agui_reap() == ["0 lost runs ended", "0 expired questions closed", "1 queues wait for a server"]
    assert given.run(queued).status == "queued"


def test_queued_runs_are_handed_to_the_runner(given: Given, settings: Any) -> None:
    settings.AGUI_DJANGO = {"RUNNER": f"{__name__}.Listed"}
    Listed.submitted.clear()
    active = given.open(messages=[user("u1")])
    queued = given.open(QUEUE, messages=[user("u2")])
    given.finish(active)
    assert agui_reap() == ["0 lost runs ended", "0 expired questions closed", "1 queued runs handed to the RUNNER"]
    run = given.run(queued)
    assert (run.status, run.claim) == ("pending", "")
    assert Listed.submitted == [str(run.pk)]
    assert agui_reap()[-1] == "0 queued runs handed to the RUNNER"


def test_a_runner_that_fails(given: Given, settings: Any) -> None:
    settings.AGUI_DJANGO = {"RUNNER": f"{__name__}.Broken"}
    active = given.open(messages=[user("u1")])
    queued = given.open(QUEUE, messages=[user("u2")])
    given.finish(active)
    with pytest.raises(CommandError, match="1 runs could not be handed"):
        agui_reap()
    run = given.run(queued)
    assert (run.status, run.error_code) == ("failed", "abandoned")
    assert "no broker" in run.error_text
    assert [event["type"] for event in given.log(run)] == ["RUN_STARTED", "RUN_ERROR"]


# ---- questions that expired -----------------------------------------------------------------------------------------


def ask(given: Given, *drafts: str) -> list[Interrupt]:
    """Two questions, the first of which has expired; the second one may have a draft."""
    at = (timezone.now() - timedelta(seconds=1)).isoformat()
    given.asked({"id": "i1", "expiresAt": at}, {"id": "i2"})
    for name in drafts:
        text = Draft({"interruptId": name, "status": "resolved", "payload": 1}, given.owner.pk, timezone.now()).text
        Interrupt.objects.filter(interrupt_id=name).update(draft=text)
    return list(Interrupt.objects.order_by("position"))


def statuses() -> list[str]:
    return list(Interrupt.objects.order_by("position").values_list("status", flat=True))


def test_expired_questions_are_closed_and_told_of_once(given: Given) -> None:
    ask(given)
    heard: list[tuple[str, str]] = []

    def receiver(sender: Any, interrupt: Interrupt, **_: Any) -> None:
        heard.append((interrupt.interrupt_id, interrupt.status))

    signals.interrupt_resolved.connect(receiver)
    try:
        assert agui_reap("--dry-run") == ["0 lost, 0 waiting, 1 expired"]
        assert statuses() == ["open", "open"]
        assert agui_reap()[1] == "1 expired questions closed"
        assert agui_reap()[1] == "0 expired questions closed"
    finally:
        signals.interrupt_resolved.disconnect(receiver)
    assert statuses() == ["expired", "open"]
    assert heard == [("i1", "expired")]


def test_answers_that_are_complete_then_are_left_to_servers(given: Given) -> None:
    ask(given, "i2")
    assert agui_reap()[1] == "0 expired questions closed"
    assert statuses() == ["open", "open"]


def test_or_handed_to_the_runner(given: Given, settings: Any) -> None:
    settings.AGUI_DJANGO = {"RUNNER": f"{__name__}.Listed"}
    Listed.submitted.clear()
    ask(given, "i2")
    assert agui_reap()[1] == "1 expired questions closed"
    assert statuses() == ["expired", "resolved"]
    run = Run.objects.get(resumed_run__isnull=False)
    assert (run.status, run.actor, Listed.submitted) == ("pending", given.owner, [str(run.pk)])
