"""Sends the signals of a run, in a thread of its own and with a connection of its own.

Law: a receiver can do what it likes there (it may even start a run): it blocks neither the loop nor the threads that
everything is written by. Without receivers nothing is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from uuid import UUID

from django.db import connections
from django.dispatch import Signal

from agui_django import signals
from agui_django.models import Interrupt, Message, Run
from agui_django.runs import supervisor
from agui_django.runs.database import database_alias


def awaited() -> bool:
    """Whether anybody listens."""
    return bool(
        signals.run_started.receivers
        or signals.run_finished.receivers
        or signals.message_stored.receivers
        or signals.interrupt_opened.receivers
        or signals.interrupt_resolved.receivers
    )


async def started(run: UUID, messages: Sequence[str]) -> None:
    """A run is claimed, with the messages of those ids that it brought."""
    await _in_thread(_started, run, messages)


async def answered(run: UUID) -> None:
    """A run has acted on the answers that it brought, or has ended: they are not taken back any more."""
    await _in_thread(send_answered, run)


async def closed(interrupts: Sequence[int]) -> None:
    """Questions were closed otherwise: they expired, or the user wrote on."""
    await _in_thread(send_closed, interrupts)


async def finished(run: UUID, messages: Sequence[str]) -> None:
    """A run has ended, with the questions it asked and the messages of those ids that it made."""
    await _in_thread(_finished, run, messages)


def tell_closed(interrupts: Sequence[int]) -> None:
    """`closed` in the background, where anybody listens; call in the event loop."""
    if interrupts and signals.interrupt_resolved.receivers:
        supervisor.start(closed(interrupts), name="agui signals")


async def _in_thread(function: Callable[..., None], *args: object) -> None:
    def work() -> None:
        try:
            function(*args)
        finally:
            connections.close_all()

    await asyncio.get_running_loop().run_in_executor(None, work)


def _started(run: UUID, messages: Sequence[str]) -> None:
    alias = database_alias()
    _send(signals.run_started, "run", Run.objects.using(alias).select_related("thread").filter(pk=run))
    brought = Message.objects.using(alias).filter(run=run, message_id__in=messages).order_by("order")
    _send(signals.message_stored, "message", brought)


def send_answered(run: UUID) -> None:
    """`answered`, in the calling thread."""
    # What was dropped or expired is told of in another way; those rows have no answer.
    rows = Interrupt.objects.using(database_alias()).filter(answered_run=run).exclude(response="")
    _send(signals.interrupt_resolved, "interrupt", rows.select_related("thread", "answered_by").order_by("position"))


def send_closed(interrupts: Sequence[int]) -> None:
    """`closed`, in the calling thread."""
    rows = Interrupt.objects.using(database_alias()).filter(pk__in=interrupts)
    _send(signals.interrupt_resolved, "interrupt", rows.select_related("thread", "answered_by").order_by("pk"))


def _finished(run: UUID, messages: Sequence[str]) -> None:
    alias = database_alias()
    made = Message.objects.using(alias).filter(run=run, message_id__in=messages).order_by("order")
    _send(signals.message_stored, "message", made)
    # Whatever became of them meanwhile: each is told of once.
    asked = Interrupt.objects.using(alias).filter(run=run).select_related("thread").order_by("position")
    _send(signals.interrupt_opened, "interrupt", asked)
    if Run.objects.using(alias).filter(pk=run, started_at=None).exists():  # it ended before anybody executed it
        send_answered(run)
    _send(signals.run_finished, "run", Run.objects.using(alias).select_related("thread").filter(pk=run))


def _send(signal: Signal, name: str, rows: Iterable[Run | Message | Interrupt]) -> None:
    if signal.receivers:
        for row in rows:
            signal.send_robust(type(row), **{name: row})
