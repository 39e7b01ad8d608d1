"""The scripted agent of the cases: yields what the case says, and remembers what it was given."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

from project import script


def described(text: str) -> list[dict[str, Any]]:
    """The prose scripts of the cases: RUN_STARTED, then deltas in one message, END."""
    count, size = {
        "RUN_STARTED, then 50 text deltas of 10 chars in message m{n}, END": (50, 10),
        "RUN_STARTED, START m, 500 deltas, END m": (500, 3),
    }[text]
    return [
        {"type": "RUN_STARTED"},
        {"type": "TEXT_MESSAGE_START", "messageId": "m{n}", "role": "assistant"},
        *({"type": "TEXT_MESSAGE_CONTENT", "messageId": "m{n}", "delta": "x" * size} for _ in range(count)),
        {"type": "TEXT_MESSAGE_END", "messageId": "m{n}"},
    ]


class ScriptAgent:
    """Yields a script; remembers every run it was called for."""

    def __init__(self, events: list[dict[str, Any]] | str, *, reads: str = "") -> None:
        self.text = json.dumps(described(events) if isinstance(events, str) else events)
        self.reads = reads
        self.runs: list[Any] = []
        self.read: list[Any] = []

    async def run(self, run: Any) -> AsyncIterator[dict[str, Any]]:
        """Yield the events; ``{n}`` in them is the number in the thread's id."""
        self.runs.append(run)
        number = "".join(c for c in run.input.thread_id if c.isdigit())
        if self.reads == "context.user.username":
            self.read.append(run.user.username)
        text = self.text.replace("{n}", number)
        async for event in script.play(text, thread_id=run.input.thread_id, run_id=run.input.run_id):
            yield event
