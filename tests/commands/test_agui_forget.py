"""``manage.py agui_forget``: of a user nothing is left, of others nothing is missing; also after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth import get_user_model
from django.core.files.base import ContentFile
from django.core.files.storage import storages
from django.core.management import CommandError, call_command
from django.db import connections
from django.utils import timezone

from agui_django.models import Attachment, Feedback, Interrupt, Message, Run, StateVersion, Thread
from agui_django.runs.database import get_pool
from agui_django.runs.requests import AgentPolicy
from tests import sse
from tests.parts import ROOT
from tests.runs.given import Given, user
from tests.servers import DatabaseKind, ServerProcess, postgres_reachable


@pytest.fixture
def given(transactional_db: None) -> Iterator[Given]:
    yield Given(get_user_model().objects.create_user("ada"))
    get_pool().close_sync()


@pytest.fixture
def bob(given: Given) -> Given:
    return Given(get_user_model().objects.create_user("bob"))


def agui_forget(*arguments: str) -> list[str]:
    out = StringIO()
    call_command("agui_forget", *arguments, stdout=out, stderr=out)
    return out.getvalue().splitlines()


def named(given: Given, bob: Given) -> None:
    """Ada stands wherever a user can stand in what is Bob's."""
    bob.asked({"id": "q1"})
    thread, ada = bob.thread, given.owner
    row = Message.objects.filter(thread=thread).get()
    Feedback.objects.create(thread=thread, message=row, user=ada, rating=1)
    Feedback.objects.create(thread=thread, message=row, user=bob.owner, rating=1)
    Run.objects.filter(thread=thread).update(user=ada, actor=ada, reviewed_by=ada)
    Interrupt.objects.filter(thread=thread).update(answered_by=ada, seen_by=ada, seen_at=timezone.now())
    Attachment.objects.create(thread=thread, user=ada, name="x", media_type="image/png", size=1, digest="d")
    StateVersion.objects.create(thread=thread, version=7, state="{}", origin="staff", user=ada)


def places() -> dict[str, int]:
    """Where Ada stands, and how often."""
    users, found = get_user_model(), {}
    for model in apps.get_app_config("agui_django").get_models():
        for field in model._meta.fields:
            if field.related_model is users:
                found[f"{model._meta.model_name}.{field.name}"] = model._base_manager.filter(
                    **{f"{field.name}__username": "ada"}
                ).count()
    return found


EVERYWHERE = [
    "1 times {} as attachment.user", "1 times {} as interrupt.answered_by", "1 times {} as interrupt.seen_by",
    "1 times {} as run.actor", "1 times {} as run.reviewed_by", "1 times {} as run.user",
    "1 times {} as stateversion.user",
]  # fmt: skip


def test_nothing_is_left(given: Given, bob: Given, settings: Any, tmp_path: Path) -> None:
    backend = "django.core.files.storage.FileSystemStorage"
    settings.STORAGES = {**settings.STORAGES, "files": {"BACKEND": backend, "OPTIONS": {"location": str(tmp_path)}}}
    settings.AGUI_DJANGO = {"ATTACHMENT_STORAGE": "files"}
    named(given, bob)
    given.turn(user("u1"))
    given.turn(user("u1"), threadId="t2")
    name = storages["files"].save("agui_attachments/2026/01/x", ContentFile(b"12345"))
    Attachment.objects.create(thread=given.thread, name=name, media_type="image/png", size=5, digest="d")
    assert all(places().values()), places()
    expected = [
        "2 threads {}, with 2 runs, 2 messages, 1 files of 5 bytes", "1 opinions on messages of others {}", *EVERYWHERE,
    ]  # fmt: skip
    assert agui_forget("ada", "--dry-run") == [line.format("would be erased") for line in expected]
    assert all(places().values())
    assert agui_forget("ada") == [line.format("erased") for line in expected]
    assert not any(places().values()), places()
    assert list(Thread.objects.values_list("owner__username", flat=True)) == ["bob"]
    assert Feedback.objects.get().user.username == "bob"
    assert not storages["files"].exists(name)
    assert get_user_model().objects.filter(username="ada").exists(), "their row is the site's"
    assert agui_forget("ada") == [
        "0 threads erased, with 0 runs, 0 messages, 0 files of 0 bytes", "0 opinions on messages of others erased",
    ]  # fmt: skip


def test_by_primary_key_when_the_row_is_gone(given: Given) -> None:
    given.turn(user("u1"))
    key = given.owner.pk
    given.owner.delete()
    assert Thread.objects.get().owner_id is None
    assert agui_forget("--pk", str(key))[0].startswith("1 threads erased")
    assert Thread.objects.count() == 0


def test_a_shared_scope_is_not_theirs(given: Given, bob: Given) -> None:
    given.turn(user("u1"))
    bob.turn(user("u1"))
    Thread.objects.filter(owner=given.owner).update(scope="tenant", thread_id="a")
    Thread.objects.filter(owner=bob.owner).update(scope="tenant", thread_id="b")
    agui_forget("ada")
    assert Thread.objects.get().thread_id == "b"


def test_what_waits_is_ended_first(given: Given) -> None:
    policy = AgentPolicy("echo", busy="queue")
    given.open(policy, claim="")
    given.open(policy)
    assert agui_forget("ada")[0].startswith("1 threads erased, with 2 runs")
    assert Run.objects.count() == 0


@pytest.mark.parametrize("wrong", [["nobody"], ["--pk", "x"], []])
def test_nobody(wrong: list[str], given: Given) -> None:
    with pytest.raises(CommandError):
        agui_forget(*wrong)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_beside_a_server_that_runs_something(database: DatabaseKind, tmp_path: Path) -> None:
    if database == "postgres" and not postgres_reachable():
        pytest.skip("no PostgreSQL")
    long = sse.body("t", "tokens:5000 delay_ms:20", protocolVersion="1.1")
    with (
        ServerProcess("uvicorn", database=database, tmp_path=tmp_path) as server,
        sse.client(server.base_url) as http,
        http.stream("POST", "/agui/agents/echo", json=long) as response,
    ):
        frames = sse.frames(response)
        [next(frames) for _ in range(5)]
        told = server.manage("agui_forget", "ada")
        assert told.startswith("1 threads erased, with 1 runs")
        assert list(frames)[-1][1]["outcome"] == {"type": "cancelled"}
        assert server.stored("t") == {}
        # the server goes on
        assert sse.run(http, "echo", sse.body("t", "again"))[-1][1]["type"] == "RUN_FINISHED"
        assert len(server.stored("t")["messages"]) == 2


KILLED = """
import time
import django
django.setup()
from django.core.management import call_command
from django.db.models.signals import post_delete
from agui_django.models import Thread

count = []
def deleted(**kwargs):
    count.append(1)
    if len(count) == 3:
        print("here", flush=True)
        time.sleep(60)
post_delete.connect(deleted, sender=Thread)
call_command("agui_forget", "ada")
"""


def test_killed_in_the_middle(given: Given, bob: Given) -> None:
    named(given, bob)
    for number in range(5):
        given.turn(user("u"), threadId=f"t{number}")
    get_pool().close_sync()
    env = {
        **os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings",
        "AGUI_DATABASE_NAME": str(connections["default"].settings_dict["NAME"]),
    }  # fmt: skip
    command = [sys.executable, "-c", KILLED]
    killed = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True)
    with killed:
        assert killed.stdout is not None
        try:
            assert killed.stdout.readline() == "here\n"
        finally:
            os.kill(killed.pid, signal.SIGKILL)
    mine = Thread.objects.filter(owner=given.owner)
    deadline = time.monotonic() + 20
    while mine.count() != 3 and time.monotonic() < deadline:
        time.sleep(0.05)  # the server of the database notices in its own time
    assert mine.count() == 3
    assert Message.objects.filter(thread__in=mine).count() == 3
    told = agui_forget("ada")
    assert told[0].startswith("3 threads erased, with 3 runs, 3 messages")
    assert told[2:] == [line.format("erased") for line in EVERYWHERE]
    assert not any(places().values())
