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
    """A run is claimed, with the answers and the messages of those ids that it brought."""
    await _in_thread(_started, run, messages)


async def finished(run: UUID, messages: Sequence[str]) -> None:
    """A run has ended, with the questions it asked and the messages of those ids that it made."""
    await _in_thread(_finished, run, messages)


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
    _send(signals.interrupt_resolved, "interrupt", Interrupt.objects.using(alias).filter(answered_run=run))


def _finished(run: UUID, messages: Sequence[str]) -> None:
    alias = database_alias()
    made = Message.objects.using(alias).filter(run=run, message_id__in=messages).order_by("order")
    _send(signals.message_stored, "message", made)
    asked = Interrupt.objects.using(alias).filter(run=run, status=Interrupt.Status.OPEN).order_by("position")
    _send(signals.interrupt_opened, "interrupt", asked)
    _send(signals.run_finished, "run", Run.objects.using(alias).select_related("thread").filter(pk=run))


def _send(signal: Signal, name: str, rows: Iterable[Run | Message | Interrupt]) -> None:
    if signal.receivers:
        for row in rows:
            signal.send_robust(type(row), **{name: row})
