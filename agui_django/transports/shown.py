"""What a socket shows: a start's answer, a run behind a number, a thread behind a cursor; and where a client is in it.

Law: ids are looked up inside the caller's scope, so that a foreign one answers as an unknown one does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from agui_django.access import get_policy
from agui_django.models import Run, Thread
from agui_django.protocol.codec import decode
from agui_django.protocol.errors import InvalidInput, NotFound, PermissionRefused
from agui_django.runs import stream
from agui_django.runs.database import database_alias, get_pool
from agui_django.runs.feed import follow_thread
from agui_django.runs.reading import MaySee
from agui_django.runs.requests import Opened
from agui_django.transports import starts
from agui_django.transports.frames import Follow, Target
from agui_django.transports.starts import Enter

TERMINAL = frozenset({"RUN_FINISHED", "RUN_ERROR"})

_NUMBER = re.compile(r"[0-9]{1,10}")


@dataclass
class Shown:
    """A stream of batches.

    Attributes:
        run: the run that the frames' numbers are of.
        thread_id: the thread, where it is a thread that is followed: their numbers are cursors.
        held: how many batches mean nothing without the next one: behind them no cursor is told.
        ends: whether it may end in order without a terminal event.
    """

    batches: stream.Batches
    run: UUID | None = None
    thread_id: str | None = None
    held: int = 0
    ends: bool = False

    async def leave(self) -> None:
        """Nobody watches it any more; harmless at its end."""
        if (close := getattr(self.batches, "close", None)) is not None:
            close()
        elif (aclose := getattr(self.batches, "aclose", None)) is not None:
            await aclose()

    @property
    def first(self) -> dict[str, Any] | None:
        """The same before anything was numbered: a thread can be restated again."""
        return None if self.thread_id is None else {"threadId": self.thread_id}

    def cursor(self, number: int | str) -> dict[str, Any] | None:
        """What a follow frame has to say to go on behind a frame; None behind what was never recorded."""
        if not number:
            return None
        named = {"run": str(self.run)} if self.thread_id is None else {"threadId": self.thread_id}
        return {**named, "after": number}


def start(opened: Opened, *, legacy: bool) -> Shown:
    """The answer to a start."""
    # A client that joins has seen nothing before it has seen the snapshots behind RUN_STARTED.
    held = 1 if opened.kind == "joined" else 0
    run = opened.run.pk if opened.run is not None else None
    return Shown(starts.batches(opened, legacy=legacy), run, held=held)


def run(found: Run, after: str, *, legacy: bool) -> Shown:
    """A run behind a number.

    Raises:
        InvalidInput: the number is not one of the run's.
    """
    if after and _NUMBER.fullmatch(after) is None:
        raise InvalidInput("The cursor is not one of ours.", fields=[{"path": "/after", "message": "must be a number"}])
    number, last = int(after or 0), found.last_seq if found.ended else None
    if last is not None and number > last:
        fields = [{"path": "/after", "message": "beyond the last event"}]
        raise InvalidInput("The cursor is not one of this run.", fields=fields)
    events = stream.follow(found.pk, number, legacy=legacy, last=last)
    return Shown(events, found.pk, ends=last == number)


async def thread(enter: Enter, frame: Follow, *, legacy: bool) -> Shown:
    """A thread behind a cursor, or from its present on.

    Raises:
        NotFound: there is none, or it is somebody else's.
    """

    def ask() -> tuple[int, MaySee]:
        policy = get_policy()
        caller = enter(policy)
        threads = Thread.objects.using(database_alias()).for_scope(caller.scope)
        key = threads.filter(thread_id=frame.target.thread_id).values_list("pk", flat=True).first()
        latest = Run.objects.using(database_alias()).filter(thread=key).order_by("-created_at").first()
        if key is None or (latest is not None and not policy.may_see(caller.user, latest)):
            raise NotFound
        return key, partial(policy.may_see, caller.user)

    key, may_see = await get_pool().run(ask)
    events = follow_thread(key, frame.after, legacy=legacy, until_idle=frame.until_idle, may_see=may_see)
    return Shown(events, thread_id=frame.target.thread_id, ends=frame.until_idle)


def find(enter: Enter, target: Target, *, to_cancel: bool = False) -> Run | None:
    """A run that the caller may see; of a whole thread the active one, None where it is idle. In a database thread.

    Raises:
        NotFound: there is none, or it is somebody else's.
        PermissionRefused: they may see it, but not stop it.
    """
    policy = get_policy()
    caller = enter(policy)
    runs = Run.objects.using(database_alias()).for_scope(caller.scope).select_related("thread")
    if target.run is not None:
        runs = runs.filter(pk=target.run)
    if target.thread_id is not None:
        runs = runs.filter(thread__thread_id=target.thread_id)
    if target.run_id is not None:
        runs = runs.filter(run_id=target.run_id)
    if target.whole_thread:
        runs = runs.active()
    found = runs.order_by("-created_at").first()
    if found is None and target.whole_thread:
        return None
    if found is None or not policy.may_see(caller.user, found):
        raise NotFound
    if to_cancel and not policy.may_cancel(caller.user, found):
        raise PermissionRefused
    return found


def is_terminal(text: str) -> bool:
    """Whether an event's text is one that ends its run. Only what may be one is parsed."""
    return ('"RUN_FINISHED"' in text or '"RUN_ERROR"' in text) and decode(text)["type"] in TERMINAL
