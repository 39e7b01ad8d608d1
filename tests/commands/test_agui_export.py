"""``manage.py agui_export``: a thread or a user as JSON lines, with files or without, whole or not there."""

from __future__ import annotations

import base64
import json
import os
import signal
import stat
import subprocess
import sys
import tracemalloc
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

from agui_django.models import Attachment, Feedback, Message, Run, RunEvents, Thread
from agui_django.runs.database import get_pool
from agui_django.runs.exporting import export_thread, export_user
from tests.parts import ROOT
from tests.runs.given import Given, says, user

Record = dict[str, Any]


@pytest.fixture
def given(transactional_db: None) -> Iterator[Given]:
    yield Given(get_user_model().objects.create_user("ada"))
    get_pool().close_sync()


@pytest.fixture
def folder(settings: Any, tmp_path: Path) -> Path:
    """Where files are kept."""
    place = tmp_path / "files"
    backend = "django.core.files.storage.FileSystemStorage"
    settings.STORAGES = {**settings.STORAGES, "files": {"BACKEND": backend, "OPTIONS": {"location": str(place)}}}
    settings.AGUI_DJANGO = {"ATTACHMENT_STORAGE": "files"}
    return place


def agui_export(*arguments: str) -> list[str]:
    out = StringIO()
    call_command("agui_export", *arguments, stdout=out, stderr=out)
    return out.getvalue().splitlines()


def records(*arguments: str) -> list[Record]:
    return [json.loads(line) for line in agui_export(*arguments)]


def of(kind: str, found: list[Record]) -> list[Record]:
    return [record for record in found if record["type"] == kind]


def attached(thread: Thread, data: bytes) -> Attachment:
    name = storages["files"].save("agui_attachments/2026/01/x", ContentFile(data))
    return Attachment.objects.create(
        thread=thread, name=name, title="../../etc/passwd", media_type="image/png", size=len(data), digest="d"
    )


def test_a_thread(given: Given) -> None:
    run = given.turn(user("u1"), says=[says("a1", "hello")], state={"n": 1})
    Run.objects.filter(pk=run.pk).update(traceback="secret", claim="secret")
    given.asked({"id": "q1", "message": "Sure?"})
    row = Message.objects.get(message_id="a1")
    Feedback.objects.create(thread=given.thread, message=row, user=given.owner, rating=1, text="good")
    given.turn(user("x"), threadId="other")
    found = records("--thread", str(given.thread.pk))
    assert [record["type"] for record in found[:2]] == ["export", "thread"]
    assert found[1]["threadId"] == "t1"
    assert found[1]["state"] == {"n": 1}
    assert [record["message"]["id"] for record in of("message", found)] == ["u1", "a1", "u1"][:2]
    assert {record["message"]["id"]: record["message"].get("content") for record in of("message", found)} == {
        "u1": "hi", "a1": "hello",
    }  # fmt: skip
    assert {record["status"] for record in of("run", found)} == {"finished", "interrupted"}
    events = [record for record in of("event", found) if record["run"] == str(run.pk)]
    assert [(record["seq"], record["event"]["type"]) for record in events] == [(1, "RUN_STARTED"), (2, "RUN_FINISHED")]
    assert of("interrupt", found)[0]["interrupt"]["message"] == "Sure?"
    assert of("state", found)[0]["state"] == {"n": 1}
    assert of("feedback", found)[0] | {"createdAt": 0, "updatedAt": 0} == {
        "type": "feedback", "thread": given.thread.pk, "message": row.pk, "rating": 1, "text": "good", "createdAt": 0,
        "updatedAt": 0,
    }  # fmt: skip
    assert "secret" not in json.dumps(found)
    assert of("event", records("--thread", str(given.thread.pk), "--no-events")) == []
    # the API calls the same
    assert list(export_thread(given.thread))[1:] == found[1:]


def test_everything_of_a_user(given: Given) -> None:
    bob = Given(get_user_model().objects.create_user("bob"))
    given.turn(user("mine"))
    given.turn(user("too"), threadId="t2")
    bob.turn(user("theirs"))
    row = Message.objects.get(message_id="theirs")
    Feedback.objects.create(thread=row.thread, message=row, user=given.owner, rating=-1)
    found = records("--user", "ada")
    assert [record["threadId"] for record in of("thread", found)] == ["t1", "t2"]
    assert [record["message"]["id"] for record in of("message", found)] == ["mine", "too"]
    assert [record["rating"] for record in of("feedback", found)] == [-1]
    # also of one whose row is gone
    key = given.owner.pk
    given.owner.delete()
    assert len(of("thread", records("--user-pk", str(key)))) == 2


def test_files(given: Given, folder: Path, tmp_path: Path) -> None:
    given.turn(user("u1"))
    row = attached(given.thread, b"bytes" * 1000)
    key = str(given.thread.pk)
    described = of("attachment", records("--thread", key))[0]
    assert described | {"createdAt": 0} == {
        "type": "attachment", "id": str(row.pk), "thread": given.thread.pk, "title": "../../etc/passwd",
        "mediaType": "image/png", "size": 5000, "digest": "d", "createdAt": 0,
    }  # fmt: skip
    inside = of("attachment", records("--thread", key, "--files", "base64"))[0]
    assert base64.b64decode(inside["data"]) == b"bytes" * 1000
    out = tmp_path / "out"
    assert agui_export("--thread", key, "--files", "copy", "--output", str(out))[0].endswith(f"written to {out}")
    copied = of("attachment", [json.loads(line) for line in (out / "export.jsonl").read_text().splitlines()])[0]
    assert copied["file"] == f"attachments/{row.pk}"
    assert (out / copied["file"]).read_bytes() == b"bytes" * 1000
    assert sorted(path.name for path in out.rglob("*") if path.is_file()) == sorted(["export.jsonl", str(row.pk)])
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in out.rglob("*") if path.is_file())
    # again: what is there stays
    before = (out / copied["file"]).stat().st_mtime_ns
    agui_export("--thread", key, "--files", "copy", "--output", str(out))
    assert (out / copied["file"]).stat().st_mtime_ns == before
    storages["files"].delete(row.name)
    assert of("attachment", records("--thread", key, "--files", "base64"))[0]["data"] is None
    (out / copied["file"]).unlink()
    agui_export("--thread", key, "--files", "copy", "--output", str(out))
    lines = (out / "export.jsonl").read_text().splitlines()
    assert of("attachment", [json.loads(line) for line in lines])[0]["file"] is None


def test_a_compacted_log(given: Given) -> None:
    run = given.turn(user("u1"))
    RunEvents.objects.filter(run=run).delete()
    RunEvents.objects.create(run=run, first_seq=1, last_seq=1, text='{"type":"RUN_STARTED"}')
    RunEvents.objects.create(run=run, first_seq=2, last_seq=9, text='{"type":"TEXT_MESSAGE_CONTENT"}')
    assert [record["seq"] for record in of("event", records("--thread", str(given.thread.pk)))] == [1, 9]


@pytest.mark.parametrize(
    "wrong",
    [["--user", "nobody"], ["--thread", "999999"], ["--user-pk", "x"], [], ["--user", "ada", "--thread", "1"],
     ["--user", "ada", "--files", "copy"]],
)  # fmt: skip
def test_what_is_not_there(wrong: list[str], given: Given, tmp_path: Path) -> None:
    with pytest.raises(CommandError):
        agui_export(*wrong)
    with pytest.raises(CommandError):
        agui_export("--user", "nobody", "--output", str(tmp_path / "x"))
    assert not (tmp_path / "x").exists()


def test_memory_does_not_grow(given: Given) -> None:
    """Six times as many rows take no more memory."""
    run = given.turn(user("u1"))
    thread = given.thread

    def peak() -> int:
        tracemalloc.start()
        try:
            assert sum(1 for _ in export_user(given.owner)) > 0
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    def fill(start: int, count: int) -> None:
        line = json.dumps({"type": "CUSTOM", "name": "x", "value": "y" * 10_000})
        RunEvents.objects.bulk_create(
            RunEvents(run=run, first_seq=n, last_seq=n, text=line) for n in range(start, start + count)
        )
        wire = json.dumps({"id": "m", "role": "user", "content": "z" * 2_000})
        Message.objects.bulk_create(
            Message(thread=thread, message_id=f"m{n}", role="user", wire=wire, order=n)
            for n in range(start, start + count)
        )

    fill(10, 200)
    peak()
    small = peak()
    fill(1_000, 1_000)
    assert peak() < 2 * small + 1_000_000


KILLED = """
import sys, time
import django
django.setup()
from django.core.management import call_command
from agui_django.management.commands import agui_export

real, count = agui_export.encode, []
def encode(record):
    count.append(1)
    if len(count) == 4:
        print("here", flush=True)
        time.sleep(60)
    return real(record)
agui_export.encode = encode
call_command("agui_export", "--user", "ada", "--output", sys.argv[1])
"""


def test_killed_in_the_middle(given: Given, tmp_path: Path) -> None:
    given.turn(user("u1"), says=[says("a1", "hello")])
    get_pool().close_sync()
    target = tmp_path / "ada.jsonl"
    env = {
        **os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings",
        "AGUI_DATABASE_NAME": str(connections["default"].settings_dict["NAME"]),
    }  # fmt: skip
    command = [sys.executable, "-c", KILLED, str(target)]
    killed = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True)
    with killed:
        assert killed.stdout is not None
        try:
            assert killed.stdout.readline() == "here\n"
        finally:
            os.kill(killed.pid, signal.SIGKILL)
    assert not target.exists()
    agui_export("--user", "ada", "--output", str(target))
    assert [json.loads(line)["type"] for line in target.read_text().splitlines()][:2] == ["export", "thread"]
    assert not target.with_name("ada.jsonl.part").exists()


def test_times_are_told(given: Given) -> None:
    given.turn(user("u1"))
    at = timezone.now() - timedelta(days=1)
    Thread.objects.update(created_at=at)
    assert of("thread", records("--user", "ada"))[0]["createdAt"] == at.isoformat()
