"""``manage.py agui_reap``: it ends what is lost, leaves what lives, and hands queued runs on where it can."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from typing import Any, ClassVar

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command

from agui_django.models import Run
from agui_django.runs.claims import process_name
from agui_django.runs.database import get_pool
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
    assert agui_reap("--dry-run") == ["2 lost, 0 waiting"]
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
    assert agui_reap("--dry-run") == ["0 lost, 1 waiting"]
    given.finish(active)
    assert agui_reap() == ["0 lost runs ended", "1 queues wait for a server"]
    assert given.run(queued).status == "queued"


def test_queued_runs_are_handed_to_the_runner(given: Given, settings: Any) -> None:
    settings.AGUI_DJANGO = {"RUNNER": f"{__name__}.Listed"}
    Listed.submitted.clear()
    active = given.open(messages=[user("u1")])
    queued = given.open(QUEUE, messages=[user("u2")])
    given.finish(active)
    assert agui_reap() == ["0 lost runs ended", "1 queued runs handed to the RUNNER"]
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
