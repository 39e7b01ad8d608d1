"""What a turn's claims are, and what became of those of a run on its way to the writer and back.

Law: `Settling` is touched in its recorder's loop only; whoever waits is told once it is stored, or that it never will
be. The rest are plain functions of a turn's claims: key -> who claimed it, and its value.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable
from typing import Any

from agui_django.agents.sink import OnceClaim
from agui_django.protocol.codec import decode
from agui_django.protocol.errors import RunClosed
from agui_django.runs.setup import Settled, Wire


class Settling:
    """The settled claims of one run that are not stored yet."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._new: list[Settled] = []
        self._told: dict[Settled, asyncio.Future[bool]] = {}

    def add(self, settled: Settled) -> Kept:
        """Take one; awaiting what this gives waits until it is stored."""
        self._new.append(settled)
        self._told[settled] = stored = self._loop.create_future()
        return Kept(stored)

    @property
    def waiting(self) -> bool:
        """Whether some have not been handed to the writer."""
        return bool(self._new)

    @property
    def under_way(self) -> bool:
        """Whether the writer has some."""
        return len(self._told) > len(self._new)

    def take(self) -> list[Settled]:
        """What is handed to the writer now."""
        taken, self._new = self._new, []
        return taken

    def stored(self, settled: Iterable[Settled]) -> None:
        """The writer has committed these."""
        for each in settled:
            self._tell(self._told.pop(each, None), True)

    def lost(self) -> None:
        """The run was taken away: nothing more is stored."""
        for stored in self._told.values():
            self._tell(stored, False)
        self._told = {}
        self._new = []

    def _tell(self, stored: asyncio.Future[bool] | None, value: bool) -> None:
        if stored is not None and not stored.done():
            stored.set_result(value)


class Kept:
    """Until a claim's outcome is stored; need not be awaited."""

    __slots__ = ("_stored",)

    def __init__(self, stored: asyncio.Future[bool]) -> None:
        self._stored = stored

    def __await__(self) -> Generator[Any, Any, None]:
        # Shielded: several may wait, and one who is cancelled stops nothing.
        if not (yield from asyncio.shield(self._stored).__await__()):
            raise RunClosed


def look_up(entries: Wire, wanted: OnceClaim) -> OnceClaim:
    """What a claim meets."""
    entry = entries.get(wanted.key)
    if entry is None or entry.get("released") or entry["by"] == wanted.by:
        return wanted.found("mine")
    return wanted.found("done", entry["value"]) if "value" in entry else wanted.found("unknown")


def settle(entries: Wire, settled: Iterable[Settled]) -> None:
    """Write values to their claims, and release those that have none."""
    for each in settled:
        entry = entries.get(each.key)
        if entry is None or entry["by"] != each.by:
            continue
        if each.text is None:
            entry["released"] = True
        else:
            entry["value"] = decode(each.text)
