"""``manage.py agui_prune``: what is old goes, what lives, waits or asks stays; a kill in the middle harms nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.files.base import ContentFile
from django.core.files.storage import storages
from django.core.management import CommandError, call_command
from django.db import connections
from django.utils import timezone

from agui_django.models import Attachment, Interrupt, Message, Run, RunEvents, Thread
from agui_django.runs import pruning
from agui_django.runs.database import get_pool
from agui_django.runs.requests import AgentPolicy
from tests.parts import ROOT
from tests.runs.given import Given, says, user

OLD = timedelta(days=100)


@pytest.fixture
def given(transactional_db: None) -> Iterator[Given]:
    yield Given(get_user_model().objects.create_user("ada"))
    get_pool().close_sync()


@pytest.fixture
def folder(settings: Any, tmp_path: Path) -> Path:
    """Where files are kept."""
    backend = "django.core.files.storage.FileSystemStorage"
    settings.STORAGES = {**settings.STORAGES, "files": {"BACKEND": backend, "OPTIONS": {"location": str(tmp_path)}}}
    settings.AGUI_DJANGO = {"ATTACHMENT_STORAGE": "files"}
    return tmp_path


def agui_prune(*arguments: str) -> list[str]:
    out = StringIO()
    call_command("agui_prune", *arguments, stdout=out, stderr=out)
    return out.getvalue().splitlines()


def aged(*names: str, by: timedelta = OLD) -> None:
    """Make threads old."""
    at = timezone.now() - by
    Thread.objects.filter(thread_id__in=names).update(updated_at=at)
    Run.objects.filter(thread__thread_id__in=names).update(finished_at=at)


def stored(name: str, data: bytes = b"bytes", age: timedelta = timedelta()) -> str:
    found: str = storages["files"].save(f"{pruning.FOLDER}/2026/01/{name}", ContentFile(data))
    at = time.time() - age.total_seconds()
    os.utime(storages["files"].path(found), (at, at))
    return found


def names() -> list[str]:
    return sorted(Thread.objects.values_list("thread_id", flat=True))


def test_old_threads_go_with_all_they_hold(given: Given, folder: Path) -> None:
    given.turn(user("u1"), says=[says("a1", "hello")], threadId="old")
    given.turn(user("u2"), threadId="old")
    given.turn(user("u1"), threadId="young")
    old = Thread.objects.get(thread_id="old")
    Attachment.objects.create(thread=old, name=stored("x"), media_type="image/png", size=5, digest="d")
    aged("old")
    line = "1 threads {}, with 2 runs, 3 messages, 1 files of 5 bytes"
    assert agui_prune("--days", "90", "--dry-run", "--no-files") == [line.format("would be deleted")]
    assert names() == ["old", "young"]
    assert agui_prune("--days", "101", "--no-files")[0].startswith("0 threads deleted")
    assert agui_prune("--days", "90", "--no-files") == [line.format("deleted")]
    assert names() == ["young"]
    assert [model.objects.count() for model in (Run, RunEvents, Message, Attachment)] == [1, 1, 1, 0]
    assert [path for path in folder.rglob("*") if path.is_file()] == []
    assert agui_prune("--days", "90", "--no-files")[0].startswith("0 threads deleted")


def test_what_is_kept(given: Given) -> None:
    policy = AgentPolicy("echo", busy="queue")
    given.open(policy, threadId="running")
    given.open(policy, threadId="pending", claim="")
    given.turn(user("u"), threadId="queued")
    Run.objects.filter(thread__thread_id="queued").update(status=Run.Status.QUEUED)
    given.asked({"id": "q1"})
    Thread.objects.filter(thread_id="t1").update(thread_id="asked")
    given.asked({"id": "q1"})
    Thread.objects.filter(thread_id="t1").update(thread_id="expired")
    Interrupt.objects.filter(thread__thread_id="expired").update(expires_at=timezone.now())
    other = AgentPolicy("other")
    given.turn(user("u"), threadId="other")
    Thread.objects.filter(thread_id="other").update(agent=other.name)
    aged(*names())
    agui_prune("--days", "1", "--no-files", "--agent", "other")
    assert names() == ["asked", "expired", "pending", "queued", "running"]
    agui_prune("--days", "1", "--no-files")
    assert names() == ["asked", "pending", "queued", "running"]


def test_a_thread_that_comes_to_life_meanwhile(given: Given) -> None:
    given.turn(user("u1"), threadId="t1")
    aged("t1")
    before = timezone.now() - timedelta(days=1)
    [place] = given.do(pruning.candidates, before)
    given.turn(user("u2"), threadId="t1")
    assert given.do(pruning.prune, place.pk, before) is None
    assert names() == ["t1"]
    assert RunEvents.objects.count() == 2


def test_many_and_a_limit(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "SOME", 3)
    monkeypatch.setattr(pruning, "ROWS", 1)
    for number in range(8):
        given.turn(user("u"), threadId=f"t{number}")
    aged(*names())
    Thread.objects.update(updated_at=timezone.now() - OLD)  # the very same moment
    assert agui_prune("--days", "1", "--no-files", "--limit", "2")[0].startswith("2 threads deleted")
    assert agui_prune("--days", "1", "--no-files", "--dry-run")[0].startswith("6 threads would be deleted")
    assert agui_prune("--days", "1", "--no-files")[0].startswith("6 threads deleted, with 6 runs")
    assert names() == []


def test_files_that_no_message_knows(given: Given, folder: Path) -> None:
    given.turn(user("u1"))
    known = stored("known", age=OLD)
    Attachment.objects.create(thread=given.thread, name=known, media_type="image/png", size=5, digest="d")
    young = stored("young", age=timedelta(hours=23))
    old = stored("old", b"12345678", age=timedelta(hours=25))
    (folder / "elsewhere").write_text("not ours")
    assert agui_prune("--dry-run") == ["1 files without a message would be removed, 8 bytes"]
    assert agui_prune() == ["1 files without a message removed, 8 bytes"]
    files = storages["files"]
    assert [files.exists(name) for name in (known, young, old, "elsewhere")] == [True, True, False, True]
    assert agui_prune() == ["0 files without a message removed, 0 bytes"]


def test_a_storage_that_cannot_list(given: Given, settings: Any) -> None:
    settings.STORAGES = {**settings.STORAGES, "bare": {"BACKEND": "django.core.files.storage.base.Storage"}}
    settings.AGUI_DJANGO = {"ATTACHMENT_STORAGE": "bare"}
    assert agui_prune() == ["The storage cannot list its files: orphans were not looked for"]


def test_compaction(given: Given) -> None:
    run = given.turn(user("u1"))
    deltas = [f'{{"type":"TEXT_MESSAGE_CONTENT","messageId":"m","delta":"{n}"}}' for n in range(5)]
    RunEvents.objects.filter(run=run).delete()
    RunEvents.objects.create(run=run, first_seq=1, last_seq=5, text="\n".join(deltas))
    aged("t1")
    assert agui_prune("--compact", "7", "--dry-run", "--no-files") == [
        "1 logs would be compacted: 5 events to 1, 236 characters saved"
    ]
    assert agui_prune("--compact", "7", "--no-files") == ["1 logs compacted: 5 events to 1, 236 characters saved"]
    assert RunEvents.objects.get().text == deltas[0].replace('"0"', '"01234"')
    assert agui_prune("--compact", "7", "--no-files") == ["0 logs compacted: 0 events to 0, 0 characters saved"]


@pytest.mark.parametrize("wrong", [["--days", "x"], ["--days", "-1"], ["--compact", "nan"], ["--limit", "0"]])
def test_options_that_make_no_sense(wrong: list[str], given: Given) -> None:
    with pytest.raises(CommandError):
        agui_prune(*wrong)


KILLED = """
import os, sys, threading, time
import django
django.setup()
from django.core.management import call_command
from django.db.models.signals import post_delete
from agui_django.models import Thread, Run
from agui_django.runs import compaction

def point(**kwargs):
    print("here", flush=True)
    time.sleep(60)

if sys.argv[1] == "prune":
    count = []
    def deleted(**kwargs):
        count.append(1)
        if len(count) == 3:
            point()
    post_delete.connect(deleted, sender=Thread)
    call_command("agui_prune", "--days", "1", "--no-files")
else:
    real, calls = compaction.sql.insert, []
    def insert(*args):
        calls.append(1)
        if len(calls) == 3:
            point()
        real(*args)
    compaction.sql.insert = insert
    call_command("agui_prune", "--compact", "1", "--no-files")
"""


@pytest.mark.parametrize("work", ["prune", "compact"])
def test_killed_in_the_middle(work: str, given: Given, tmp_path: Path) -> None:
    """Killed inside of its third transaction: two are done, none is half done, and the next call does the rest."""
    deltas = "\n".join('{"type":"TEXT_MESSAGE_CONTENT","messageId":"m","delta":"x"}' for _ in range(5))
    for number in range(5):
        run = given.turn(user("u"), threadId=f"t{number}")
        RunEvents.objects.filter(run=run).delete()
        RunEvents.objects.create(run=run, first_seq=1, last_seq=5, text=deltas)
    aged(*names())
    get_pool().close_sync()
    database = connections["default"].settings_dict
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "AGUI_DATABASE_NAME": str(database["NAME"])}
    killed = subprocess.Popen(
        [sys.executable, "-c", KILLED, work],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert killed.stdout is not None
        assert killed.stdout.readline() == "here\n"
    finally:
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        killed.stdout.close() if killed.stdout else None
    if work == "prune":
        deadline = time.monotonic() + 20
        while Thread.objects.count() != 3 and time.monotonic() < deadline:
            time.sleep(0.05)  # the server of the database notices in its own time
        assert Thread.objects.count() == 3
        assert Run.objects.count() == Message.objects.count() == 3
        assert agui_prune("--days", "1", "--no-files")[0].startswith("3 threads deleted, with 3 runs, 3 messages")
        assert [model.objects.count() for model in (Thread, Run, RunEvents, Message)] == [0, 0, 0, 0]
    else:
        assert Run.objects.filter(compacted=True).count() == 2
        assert sorted(RunEvents.objects.values_list("text", flat=True)).count(deltas) == 3
        assert agui_prune("--compact", "1", "--no-files")[0].startswith("3 logs compacted: 15 events to 3")
        assert not RunEvents.objects.filter(text=deltas).exists()
        assert RunEvents.objects.count() == 5
