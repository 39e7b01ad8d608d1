"""Runs that leave no trace: driven as any other, with their log in memory and gone with the one who watches.

Law: nothing of them is written to the database. What they know of a thread is what is stored, as a run's history is:
a client cannot put words into an agent's mouth here, either.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agui_django.agents.registry import AgentEntry
from agui_django.conf import settings
from agui_django.models import Message, Run, Thread
from agui_django.protocol.codec import decode
from agui_django.protocol.run_input import RunInput
from agui_django.runs import history, supervisor
from agui_django.runs.database import database_alias
from agui_django.runs.driver import RunControl, drive
from agui_django.runs.engine import get_engine
from agui_django.runs.memory import MemoryLog
from agui_django.runs.reading import MaySee
from agui_django.runs.requests import AgentPolicy
from agui_django.runs.setup import Closing, RunSetup, Wire
from agui_django.runs.stream import Entry, shaped

#: How many of a scope's threads, the latest first, a request's messages are looked for in.
THREADS = 50


@dataclass(frozen=True)
class Asker:
    """Who wants such a run.

    Attributes:
        user: a user, also an anonymous one.
        scope: whose threads its messages are of.
        extra: the run's ``run.extra``.
        may_see: which runs they may see.
    """

    user: Any
    scope: str
    extra: dict[str, Any]
    may_see: MaySee


def prepare(entry: AgentEntry, run_input: RunInput, asker: Asker) -> RunSetup:
    """What an unstored run starts from; in a database thread.

    Its messages are those of the stored thread that the client's are of, as the agent's ``HISTORY`` has it, and the new
    ones; its state is the client's, where ``STATE_POLICY`` lets it.

    Raises:
        InvalidInput: the state does not fit the agent's schema.
    """
    policy = AgentPolicy.of(entry)
    data = run_input.data
    thread = _thread(data["messages"], asker)
    stored = [] if thread is None else _messages(thread)
    asked = history.Request(messages=data["messages"], roles=policy.client_roles)
    found = history.reconcile(policy.history, stored, asked, lambda _: None)
    messages = list(_answered([*found.kept, *found.new]))
    state = data.get("state")
    if thread is not None and (not state or policy.state_policy == "server"):
        state = decode(thread.state)
    elif state:
        policy.check_state(state, None if thread is None else decode(thread.state))
    else:
        state = policy.first_state()
    address = uuid.uuid4().hex
    return RunSetup(
        run_id=run_input.run_id,
        thread_id=run_input.thread_id,
        address=address,
        agent=entry.name,
        input={**data, "messages": messages, "state": state},
        new_messages=found.new,
        messages=messages,
        state=state,
        turn=address,
        user=asker.user,
        # Never saved: what an agent may ask of a thread.
        thread=Thread(scope=asker.scope, thread_id=run_input.thread_id, agent=entry.name),
        extra=asker.extra,
        protocol_version=run_input.protocol_version or "",
    )


class Unstored:
    """The events of an unstored run as batches of frames without numbers; it is cancelled when nobody watches it.

    Args:
        entry: the agent.
        setup: what it starts from.
        legacy: shape events for clients from before 1.0.

    Raises:
        LimitExceeded: this process, or this user, has too many runs.
    """

    def __init__(self, entry: AgentEntry, setup: RunSetup, *, legacy: bool) -> None:
        """It begins at once; call in the event loop."""
        self._legacy = legacy
        self._loop = asyncio.get_running_loop()
        self._log = _Heard(settings.MAX_LOG)
        self._control = RunControl()
        self._told = 0
        get_engine().slots.take(setup.user)
        try:
            self._task = supervisor.start(self._drive(entry, setup), name=f"agui unstored {setup.address}")
        except BaseException:
            get_engine().slots.give_back(setup.user)
            raise

    def close(self) -> None:
        """Nobody watches it any more; from any thread, harmless at its end."""
        self.cancel("disconnect")

    def cancel(self, reason: str) -> None:
        """Stop it; from any thread, harmless at its end."""
        if not self._loop.is_closed() and not self._task.done():
            self._loop.call_soon_threadsafe(self._control.cancel, reason)

    def __aiter__(self) -> Unstored:
        """Batches are taken once."""
        return self

    async def __anext__(self) -> Sequence[Entry]:
        """The next batch; an empty one is a sign of life."""
        while True:
            log = self._log
            log.heard.clear()
            ended = self._task.done()
            new = [(0, text, False) for text in log.texts[self._told :]]
            self._told += len(new)
            if batch := list(shaped(new)) if self._legacy else new:
                return batch
            if ended:
                raise StopAsyncIteration
            try:
                await asyncio.wait_for(log.heard.wait(), settings.HEARTBEAT)
            except TimeoutError:
                return []

    async def _drive(self, entry: AgentEntry, setup: RunSetup) -> None:
        _alive.add(self)
        try:
            self._log.close(await drive(entry, setup, self._log, self._control))
        finally:
            _alive.discard(self)
            get_engine().slots.give_back(setup.user)
            self._loop.call_soon(self._log.heard.set)  # once this task is done


_alive: set[Unstored] = set()


def _stop_all(reason: str) -> None:
    for run in [*_alive]:
        run.cancel(reason)


supervisor.stoppers.append(_stop_all)


class _Heard(MemoryLog):
    """A log in memory that tells when something is new."""

    def __init__(self, max_log: int) -> None:
        super().__init__(max_log)
        self.heard = asyncio.Event()

    def append(self, text: str, *, plain: bool, urgent: bool = False) -> None:
        super().append(text, plain=plain, urgent=urgent)
        self.heard.set()

    def close(self, closing: Closing) -> None:
        super().close(closing)
        self.heard.set()


def _thread(sent: Sequence[Wire], asker: Asker) -> Thread | None:
    """The thread that the latest of these messages is of; None where none is known."""
    alias = database_alias()
    threads = Thread.objects.using(alias).for_scope(asker.scope).order_by("-updated_at")
    recent = list(threads.values_list("pk", flat=True)[:THREADS])
    ids = [message["id"] for message in sent[-THREADS:]]
    known = Message.objects.using(alias).filter(thread__in=recent, message_id__in=ids)
    places: dict[str, int] = dict(known.values_list("message_id", "thread_id"))
    key = next((places[message_id] for message_id in reversed(ids) if message_id in places), None)
    if key is None:
        return None
    runs = Run.objects.using(alias).filter(thread=key).select_related("thread").defer("input", "traceback")
    if not all(map(asker.may_see, runs.order_by("-created_at")[:1])):
        return None
    return Thread.objects.using(alias).filter(pk=key).first()


def _messages(thread: Thread) -> list[Wire]:
    rows = Message.objects.using(database_alias()).filter(thread=thread).in_play()
    return [decode(wire) for wire in rows.values_list("wire", flat=True)]


def _answered(messages: Sequence[Wire]) -> list[Wire]:
    """The messages with a stand-in behind each call that has no result: model providers accept no other list."""
    calls: dict[str, list[str]] = {}
    for call_id, message_id in history.dangling(messages).items():
        calls.setdefault(message_id, []).append(call_id)
    return [each for message in messages for each in (message, *map(history.stand_in, calls.get(message["id"], ())))]
