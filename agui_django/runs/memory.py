"""A run's log as a list, with the limits of the real one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from typing import Any

from agui_django.agents.sink import OnceClaim
from agui_django.protocol.codec import encode
from agui_django.protocol.errors import AgentFlood, LogLimit, RunClosed
from agui_django.runs.settling import look_up, settle
from agui_django.runs.setup import Closing, Settled


class MemoryLog:
    """A run's log as a list; what was appended is stored at the loop's next turn, as if by a fast writer.

    Args:
        max_log: bytes it takes.
        once: what the earlier passes of the turn have claimed; this one adds to it.
    """

    def __init__(self, max_log: int = 64 * 1024 * 1024, once: dict[str, Any] | None = None) -> None:
        self.once = {} if once is None else once
        self.texts: list[str] = []
        self.plain: list[bool] = []
        self._max_log = max_log
        self._bytes = 0
        self._stored = 0
        self._spare = 1_000
        self._limited = self._ended = self._scheduled = False
        self._loop = asyncio.get_running_loop()

    def append(self, text: str, *, plain: bool, urgent: bool = False) -> None:
        """Add one event's wire text."""
        if self._ended:
            raise RunClosed
        if self._limited:
            # As much as ends a run in order.
            self._spare -= 1
            if self._spare < 0:
                raise RunClosed
        else:
            self._bytes += len(text)
            if self._bytes > self._max_log:
                self._limited = True
                raise LogLimit
            if len(self.texts) - self._stored >= 20_000:
                self._limited = True
                raise AgentFlood
        self.texts.append(text)
        self.plain.append(plain)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._store)

    def _store(self) -> None:
        self._scheduled = False
        self._stored = len(self.texts)

    def crowded(self) -> bool:
        """Whether over 2,048 events are not stored yet."""
        return len(self.texts) - self._stored > 2_048

    def room(self) -> Awaitable[None]:
        """Wait until they are."""
        return _LoopTurn()

    def flush(self) -> Awaitable[None]:
        """Wait until all so far is stored."""
        return _LoopTurn()

    async def claim_once(self, wanted: OnceClaim) -> OnceClaim:
        """Claim a key of the turn."""
        await _LoopTurn()
        found = look_up(self.once, wanted)
        if found.state == "mine":
            self.once[wanted.key] = {"run": "", "by": wanted.by}
        return found

    def settle_once(self, claim: OnceClaim, text: str | None) -> Awaitable[None]:
        """Store a claim's value, or release it."""
        if self._ended:
            raise RunClosed
        settle(self.once, [Settled("", claim.key, claim.by, text)])
        return _LoopTurn()

    def close(self, closing: Closing) -> None:
        """Add the terminal event; nothing comes after it."""
        self.texts.append(encode(closing.terminal))
        self._ended = True


class _LoopTurn:
    def __await__(self) -> Generator[Any, Any, None]:
        yield
