"""The made-up conversations are such as ours are: they are listed, searched and run as any other."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from agui_django.models import Message, Run, StateVersion, Thread
from agui_django.protocol.codec import decode
from agui_django.runs.store import ThreadStore
from tests.runs.conftest import given
from tests.runs.given import Given

__all__ = ["given"]


def test_threads_with_everything(given: Given) -> None:
    call_command("agui_seed", threads=7, messages=25, users=3, stdout=StringIO())
    assert (Thread.objects.count(), Message.objects.count(), Run.objects.count()) == (7, 175, 21)
    assert Thread.objects.values("owner").distinct().count() == 3
    thread = Thread.objects.earliest("pk")
    shown = given.do(ThreadStore().hydrate, thread.scope, thread.thread_id)
    assert shown is not None and len(shown.messages) == 25
    assert shown.state == decode(StateVersion.objects.filter(thread=thread).latest("version").state)


@pytest.mark.parametrize("wrong", [{"threads": 0}, {"threads": 1_000, "messages": 10_000}, {"users": -1}])
def test_how_much_is_bounded(db: None, wrong: dict[str, Any]) -> None:
    with pytest.raises(CommandError):
        call_command("agui_seed", **wrong)


def test_never_in_production(db: None, settings: Any) -> None:
    settings.DEMO = False
    with pytest.raises(CommandError, match="AGUI_DEBUG"):
        call_command("agui_seed", threads=1)
    assert Thread.objects.count() == 0
