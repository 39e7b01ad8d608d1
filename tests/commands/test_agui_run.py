"""``manage.py agui_run``: what it prints, and that its runs are stored like any other."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command

from agui_django.models import Interrupt, Message, Run, RunEvents
from tests.parts import ROOT
from tests.servers import new_database, site_environment

pytestmark = pytest.mark.django_db(transaction=True)


def agui_run(*arguments: str, **options: Any) -> str:
    out = StringIO()
    call_command("agui_run", *arguments, stdout=out, no_color=True, **options)
    return out.getvalue()


def test_text_is_printed_and_stored() -> None:
    lines = agui_run("echo", "Hello").splitlines()
    run = Run.objects.select_related("thread").get()
    assert lines == ["You said: Hello", f"[thread] {run.thread.thread_id}"]
    assert (run.status, run.agent, run.transport) == ("finished", "echo", "server")
    assert run.thread.owner is None
    stored = [json.loads(message.wire) for message in Message.objects.in_play()]
    assert [(message["role"], message["content"]) for message in stored] == [
        ("user", "Hello"),
        ("assistant", "You said: Hello"),
    ]


def test_tools_steps_and_state() -> None:
    printed = agui_run("plan", "A picnic")
    assert "[step] estimate" in printed
    assert '[tool] estimate {"task":"Prepare"}' in printed
    assert '[result] {"task":"Prepare","hours":3}' in printed
    assert '{"op":"replace","path":"/progress","value":100}' in printed
    assert "Here is a plan for **A picnic**.\n" in printed
    assert '[value] {"hours":' in printed
    state = json.loads(Run.objects.get().thread.state)
    assert state["progress"] == 100


def test_json_prints_the_log() -> None:
    lines = agui_run("echo", "Hello", json=True).splitlines()
    stored = [line for batch in RunEvents.objects.order_by("first_seq") for line in batch.text.split("\n")]
    assert lines == stored
    assert [json.loads(line)["type"] for line in lines] == [
        "RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "RUN_FINISHED",
    ]  # fmt: skip


def test_a_users_thread_is_continued() -> None:
    ada = get_user_model().objects.create_user("ada")
    agui_run("echo", "One", user="ada", thread="t1")
    agui_run("echo", "Two", user="ada", thread="t1")
    runs = Run.objects.select_related("thread").order_by("created_at")
    assert {(run.thread.thread_id, run.thread.scope, run.thread.owner) for run in runs} == {
        ("t1", f"user:{ada.pk}", ada)
    }
    assert len(runs) == 2
    assert Message.objects.in_play().count() == 4


def test_a_question_is_printed() -> None:
    printed = agui_run("refund", "My teapot is broken")
    assert "[question] Refund 40 € for order 7 (Blue teapot)? {" in printed
    assert Interrupt.objects.get().status == "open"
    thread = Run.objects.get().thread.thread_id
    with pytest.raises(CommandError, match="interrupts_open"):
        agui_run("echo", "Hello?", thread=thread)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("nobody", "Hello"), "not_found"),
        (("echo", "Hello", "--user", "nobody"), "There is no user 'nobody'"),
    ],
)
def test_refused(arguments: tuple[str, ...], told: str) -> None:
    with pytest.raises(CommandError, match=told):
        agui_run(*arguments)
    assert not Run.objects.exists()


def test_a_failed_run_fails_the_command() -> None:
    with pytest.raises(CommandError, match="agent_exception") as failed:
        agui_run("script", '[{"$raise": "ValueError: a secret"}]')
    assert "secret" not in str(failed.value)
    run = Run.objects.get()
    assert run.status == "failed"
    assert "a secret" in run.traceback


@pytest.mark.slow
def test_ctrl_c_stops_the_run_in_order(tmp_path: Path) -> None:
    environment = site_environment("sqlite", new_database("sqlite", tmp_path))
    command = [sys.executable, "manage.py", "agui_run", "slow", "Go"]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "Line 1 of 60.\n"
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=30)
    assert process.returncode == 130, told
    code = "import django; django.setup(); from agui_django.models import Run; r = Run.objects.get(); " \
        "print(r.status, r.end_reason)"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.stdout == "cancelled user\n", done.stderr
