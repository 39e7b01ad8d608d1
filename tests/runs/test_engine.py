"""The engine in one process: starts from the site's own code, signals, cancel from elsewhere, limits, detachment."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from ag_ui.core import UserMessage
from django.core.exceptions import SynchronousOnlyOperation
from django.db import transaction
from django.db.transaction import TransactionManagementError
from django.utils import timezone, translation

from agui_django import signals
from agui_django.models import Message, Run, Thread
from agui_django.protocol.errors import Draining, InterruptsOpen, InvalidInput, LimitExceeded, NotFound, ThreadBusy
from agui_django.runs import polling, recorder, supervisor
from agui_django.runs.database import get_pool
from agui_django.runs.engine import get_engine
from agui_django.runs.slots import Slots
from agui_django.runs.start import astart_run, start_run
from agui_django.runs.store import ThreadStore
from agui_django.runs.stream import follow, read_entries
from agui_django.testing import override_agent


class Waits:
    """An agent that waits to be let through."""

    def __init__(self) -> None:
        self.entered, self.go_on = asyncio.Event(), asyncio.Event()
        self.seen: dict[str, Any] = {}

    async def run(self, run: Any) -> None:
        self.seen = {
            "language": translation.get_language(), "zone": timezone.get_current_timezone_name(),
            "leak": LEAK.get(None), "user": run.user, "extra": dict(run.extra),
        }  # fmt: skip
        self.entered.set()
        await self.go_on.wait()
        await run.say("done")


LEAK: contextvars.ContextVar[str] = contextvars.ContextVar("leak")


@pytest.fixture
def waits(agui_runtime: None) -> Iterator[Waits]:
    agent = Waits()
    with override_agent("waits", agent):
        yield agent


@pytest.fixture
def ada(agui_runtime: None, django_user_model: Any) -> Any:
    return django_user_model.objects.create_user("ada")


# ---- starts from the site's own code ------------------------------------------------------------


@pytest.mark.asyncio
async def test_start_and_wait(ada: Any) -> None:
    run = await astart_run("echo", None, "hi", ada)
    assert (run.status, run.agent, run.transport, run.user_id) == ("finished", "echo", "server", ada.pk)
    assert run.thread.scope == f"user:{ada.pk}"
    assert run.thread.owner_id == ada.pk
    messages = await get_pool().run(lambda: list(run.thread.messages.in_play().values_list("role", flat=True)))
    assert messages == ["user", "assistant"]
    again = await astart_run("echo", run.thread, [UserMessage(id="u2", content="more")])
    assert again.thread_id == run.thread_id
    assert again.user_id == ada.pk
    third = await astart_run("echo", run.thread.thread_id, [{"role": "user", "content": "by id"}], ada, state={"a": 1})
    assert third.thread_id == run.thread_id
    assert await get_pool().run(Message.objects.filter(thread=run.thread_id).count) == 6
    assert (await get_pool().run(Thread.objects.get)).state == '{"a":1}'


@pytest.mark.asyncio
async def test_start_without_a_user(agui_runtime: None) -> None:
    run = await astart_run("echo", "nightly", "hi")
    assert (run.thread.scope, run.thread.thread_id, run.user_id) == ("site", "nightly", None)


@pytest.mark.asyncio
async def test_start_is_refused(waits: Waits, ada: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotFound):
        await astart_run("nobody", None, "hi", ada)
    with pytest.raises(InvalidInput):
        await astart_run("echo", None, [{"role": "user", "content": 1}], ada)
    run = await astart_run("waits", "t", "hi", ada, wait=False)
    assert run.status == "running"
    with pytest.raises(ThreadBusy) as busy:
        await astart_run("echo", "t", "hi", ada)
    assert busy.value.extra == {"runId": run.run_id}
    waits.go_on.set()
    await supervisor.settle()

    async def asks(run: Any) -> None:
        run.interrupt("sure")

    with override_agent("asks", asks):
        assert (await astart_run("asks", "q", "hi", ada)).status == "interrupted"
        with pytest.raises(InterruptsOpen):
            await astart_run("asks", "q", "hi", ada)
    monkeypatch.setattr(supervisor._here(), "draining", True)
    with pytest.raises(Draining):
        await astart_run("echo", None, "hi", ada)
    assert get_engine().slots.held == 0


def test_start_from_synchronous_code(agui_runtime: None, ada: Any) -> None:
    run = start_run("echo", None, "hi", ada)
    assert run.status == "finished"
    with transaction.atomic(), pytest.raises(TransactionManagementError):
        start_run("echo", None, "hi", ada)
    with pytest.raises(NotFound):
        start_run("nobody", None, "hi", ada)
    assert Run.objects.count() == 1


@pytest.mark.asyncio
async def test_start_synchronously_in_a_loop(agui_runtime: None) -> None:
    with pytest.raises(SynchronousOnlyOperation):
        start_run("echo", None, "hi")


# ---- detached ------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_run_takes_language_and_zone_along_and_nothing_else(waits: Waits, ada: Any) -> None:
    LEAK.set("request")
    with translation.override("de"), timezone.override("Europe/Berlin"):
        await astart_run("waits", None, "hi", ada, wait=False, extra={"tenant": 7})
    await waits.entered.wait()
    assert waits.seen["language"] == "de"
    assert waits.seen["zone"] == "Europe/Berlin"
    assert waits.seen["leak"] is None
    assert waits.seen["user"] == ada
    assert waits.seen["extra"] == {"tenant": 7}
    waits.go_on.set()


@pytest.mark.asyncio
async def test_a_caller_that_is_cancelled_does_not_stop_the_run(waits: Waits, ada: Any) -> None:
    caller = asyncio.create_task(astart_run("waits", None, "hi", ada))
    await waits.entered.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    waits.go_on.set()
    await supervisor.settle()
    assert (await get_pool().run(Run.objects.get)).status == "finished"


@pytest.mark.asyncio
async def test_a_bug_in_the_driver_frees_the_run(
    ada: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from agui_django.runs import engine

    async def fails(*args: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(engine, "drive", fails)
    run = await astart_run("echo", None, "hi", ada)
    assert (run.status, run.error_code) == ("failed", "internal_error")
    assert "ZeroDivisionError" in run.traceback
    entries = await get_pool().run(read_entries, run.pk, 0)
    assert [json.loads(text)["type"] for _, text, _ in entries] == ["RUN_STARTED", "RUN_ERROR"]
    await supervisor.settle()
    assert recorder.recorders == {}
    assert get_engine().slots.held == 0
    assert "ZeroDivisionError" in caplog.text


# ---- cancel ------------------------------------------------------------


@pytest.mark.asyncio
async def test_cancel_in_this_process(waits: Waits, ada: Any) -> None:
    run = await astart_run("waits", None, "hi", ada, wait=False)
    await waits.entered.wait()
    assert await get_engine().cancel(run.pk, "staff") is True
    assert await get_engine().cancel(run.pk, "user") is True
    await supervisor.settle()
    await get_pool().run(run.refresh_from_db)
    assert (run.status, run.end_reason, run.cancel_requested) == ("cancelled", "staff", "staff")
    assert await get_engine().cancel(run.pk, "user") is False


@pytest.mark.asyncio
async def test_cancel_by_another_process(waits: Waits, ada: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "INTERVAL", 0.02)
    run = await astart_run("waits", None, "hi", ada, wait=False)
    await waits.entered.wait()
    # all that another process does
    await get_pool().run(ThreadStore().request_cancel, run.pk, "user")
    await supervisor.settle()
    await get_pool().run(run.refresh_from_db)
    assert (run.status, run.end_reason) == ("cancelled", "user")


# ---- limits ------------------------------------------------------------


def test_slots(settings: Any) -> None:
    settings.AGUI_DJANGO = {"MAX_RUNS": 3, "MAX_RUNS_PER_USER": 2}
    slots = Slots()
    ada, bob = SimpleNamespace(pk=1), SimpleNamespace(pk=2)
    # the same user is another object in each request
    slots.take(ada)
    slots.take(SimpleNamespace(pk=1))
    with pytest.raises(LimitExceeded):
        slots.take(ada)
    slots.take(bob)
    with pytest.raises(LimitExceeded):
        slots.take(None)
    slots.give_back(ada)
    slots.take(None)
    for user in (ada, bob, None):
        slots.give_back(user)
    assert slots.held == 0


# ---- signals ------------------------------------------------------------


@pytest.mark.asyncio
async def test_signals(ada: Any, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[tuple[str, str]] = []

    def listen(name: str, text: str) -> Any:
        def receiver(sender: type, **named: Any) -> None:
            # stored already, and the ORM may be used
            named[name].refresh_from_db()
            heard.append((f"{sender.__name__}", getattr(named[name], text)))
            if name == "interrupt":
                raise OSError("a receiver that fails")

        return receiver

    wired = [
        (signals.run_started, listen("run", "agent")), (signals.run_finished, listen("run", "status")),
        (signals.message_stored, listen("message", "role")), (signals.interrupt_opened, listen("interrupt", "status")),
        (signals.interrupt_resolved, listen("interrupt", "status")),
    ]  # fmt: skip

    async def asks(run: Any) -> None:
        await run.say("Let me see.", key="intro")
        run.interrupt("sure")
        await run.say("Done.")

    for signal, receiver in wired:
        signal.connect(receiver, weak=False)
    try:
        with override_agent("asks", asks):
            await astart_run("asks", "t", "hi", ada)
            await supervisor.settle()
            assert heard == [
                ("Run", "asks"), ("Message", "user"), ("Message", "assistant"), ("Interrupt", "open"),
                ("Run", "interrupted"),
            ]  # fmt: skip
    finally:
        for signal, receiver in wired:
            signal.disconnect(receiver)
    assert "a receiver that fails" in caplog.text


@pytest.mark.asyncio
async def test_a_receiver_may_start_a_run(ada: Any) -> None:
    def receiver(sender: type, run: Run, **_: Any) -> None:
        if run.agent == "echo" and not Run.objects.filter(agent="plan").exists():
            start_run("plan", None, "next", ada)

    signals.run_finished.connect(receiver)
    try:
        await astart_run("echo", None, "hi", ada)
        await supervisor.settle()
    finally:
        signals.run_finished.disconnect(receiver)
    assert await get_pool().run(lambda: sorted(Run.objects.values_list("agent", "status"))) == [
        ("echo", "finished"),
        ("plan", "finished"),
    ]


# ---- the supervisor ------------------------------------------------------------


@pytest.mark.asyncio
async def test_failed_tasks_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise ZeroDivisionError

    async def refuses() -> None:
        raise NotFound

    with caplog.at_level(logging.INFO):
        failing, refusing = supervisor.start(fails(), name="fails"), supervisor.start(refuses(), name="refuses")
        await asyncio.wait([failing, refusing])
        await supervisor.settle()
    assert "Task fails failed" in caplog.text
    assert "refuses" not in caplog.text


@pytest.mark.asyncio
async def test_drain_waits_then_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "stoppers", [])
    monkeypatch.setattr(supervisor._here(), "draining", False)
    stopped, told = asyncio.Event(), []
    supervisor.stoppers.append(lambda reason: (told.append(reason), stopped.set()))
    quick = supervisor.start(asyncio.sleep(0), name="quick")
    slow = supervisor.start(stopped.wait(), name="slow")
    service = supervisor.start(asyncio.Event().wait(), name="service", service=True)
    await supervisor.drain(0.05)
    assert supervisor.draining()
    assert told == ["shutdown"]
    assert (quick.done(), slow.done(), service.done()) == (True, True, False)
    await supervisor.settle()
    assert service.cancelled()


@pytest.mark.asyncio
async def test_settle_tells_what_hangs() -> None:
    task = supervisor.start(asyncio.Event().wait(), name="for ever")
    with pytest.raises(TimeoutError, match="for ever"):
        await supervisor.settle(0.05)
    assert task.cancelled()


@pytest.mark.asyncio
async def test_runs_of_two_loops(waits: Waits, ada: Any) -> None:
    """A run of synchronous code lives in a loop of its own; this loop may follow and cancel it."""
    entered, go_on = threading.Event(), threading.Event()

    def blocks(run: Any) -> None:
        entered.set()
        while not go_on.wait(0.01):
            run.check()

    with override_agent("blocks", blocks):
        run = await asyncio.to_thread(start_run, "blocks", None, "hi", ada, wait=False)
        await asyncio.to_thread(entered.wait, 20)
        events = follow(run.pk)
        first = await anext(events)
        assert "RUN_STARTED" in first[0][1]
        assert await get_engine().cancel(run.pk, "user")
        texts = [text for batch in [batch async for batch in events] for _, text, _ in batch]
    assert '"cancelled"' in texts[-1]
    assert (await get_pool().run(Run.objects.get)).status == "cancelled"
