"""Joining a running thread: what it costs by the size of the thread's present, and of its past."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.measure import LONG, SHORT, Scale, say, statements_of
from benchmarks.processes import Load, Server
from benchmarks.work import TEXTS, Order, run_input, user

#: Runs that are joined: one that streams, and one that is slow, between whose statements those of a join are counted.
STREAMING = Order(tokens=20_000, delay_ms=50)
SLOW = Order(tokens=500, delay_ms=2_000)

#: Joins whose statements are counted: a flush, a heartbeat or the poll of each second may fall into some of them.
COUNTED = 5


@dataclass(frozen=True)
class Held:
    """A thread that is joined.

    Attributes:
        messages: the messages in play.
        past: messages that went out of play, behind which there is the log of a run of 10,000 events, too.
    """

    messages: int
    past: int = 0

    @property
    def name(self) -> str:
        """How the table calls it."""
        behind = f", and {self.past:,} out of play with a log of {LONG.events:,} events" if self.past else ""
        return f"{self.messages:,} messages{behind}"


def threads(scale: Scale) -> list[Held]:
    """The threads: of each size, and one with little present and much past."""
    return [*map(Held, scale.messages), Held(scale.messages[0], past=scale.messages[-1])]


@contextlib.contextmanager
def running(server: Server, held: Held, order: Order) -> Iterator[dict[str, Any]]:
    """Make a thread, start a run in it, and give how the load joins it; the run is stopped at the end."""
    thread = str(uuid.uuid4())
    first, *others = (user(TEXTS[number % len(TEXTS)]) for number in range(held.messages - 1))
    edited: dict[str, object] = {}
    if held.past:
        old = [user(TEXTS[number % len(TEXTS)]) for number in range(held.past - 1)]
        server.read(server.path, run_input(LONG, threadId=thread, messages=[first, *old, user(LONG.text)]))
        edited = {"supersedeAfter": first["id"]}
    brought = [first, *others, user(SHORT.text)]
    server.read(server.path, run_input(SHORT, threadId=thread, messages=brought, forwardedProps=edited))
    with server.post(server.path, run_input(order, threadId=thread)) as response:
        if not any(b"TEXT_MESSAGE_CONTENT" in line for line in response):
            raise RuntimeError(f"{server.name} did not begin a run to be joined")
    try:
        yield {**server.target, "name": held.name, "read": f"/agui/threads/events?threadId={thread}"}
    finally:
        server.read(response.headers["Content-Location"].replace("/events", "/cancel"), b"{}")


def join(load: Load, server: Server, scale: Scale) -> dict[str, dict[str, Any]]:
    """Milliseconds until a thread was restated to one who joins it, and the bytes of that, by the thread's name."""
    say(f"join running threads, {server.name}")
    with contextlib.ExitStack() as stack:
        targets = [stack.enter_context(running(server, held, STREAMING)) for held in threads(scale)]
        load.run("join", targets=targets, times=1)
        return load.run("join", targets=targets, times=scale.replays)


def statements(load: Load, server: Server, scale: Scale) -> dict[str, int]:
    """Statements that one join costs on a counting server, by the thread's name."""
    say(f"statements of a join, {server.name}")
    found = {}
    for held in threads(scale):
        with running(server, held, SLOW) as target:
            load.run("join", targets=[target], times=1)
            counts = []
            for _ in range(COUNTED):
                before = statements_of(server)
                load.run("join", targets=[target], times=1)
                counts.append(statements_of(server) - before)
            found[held.name] = min(counts)
    return found
