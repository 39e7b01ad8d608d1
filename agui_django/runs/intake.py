"""How edits of the state reach the run that has to take them in: from the rows, in their order, each once.

Law: a hint or the poll says that there are edits; the rows say which. What the run's notes call taken in is in its log
or will be; where the process dies before, the rows have it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING
from uuid import UUID

from agui_django.runs import merging, supervisor
from agui_django.runs.database import database_alias, get_pool
from agui_django.runs.ledger import Ledger

if TYPE_CHECKING:
    from agui_django.runs.driver import RunControl

logger = logging.getLogger("agui_django.runs")

#: Seconds until an edit that met a block of the agent's is tried again.
PAUSE = 0.01


class Intake:
    """The edits of one run; used in its loop's thread."""

    def __init__(self, run: UUID, ledger: Ledger, control: RunControl) -> None:
        """Nothing is known of edits yet."""
        self._run = run
        self._ledger = ledger
        self._control = control
        self._version = 0
        self._task: asyncio.Task[None] | None = None

    def has(self, version: int) -> bool:
        """Whether the run has taken that version in; from any thread."""
        return version <= self._ledger.version

    def edited(self, version: int) -> None:
        """The state has this version by now."""
        self._version = max(self._version, version)
        if self._version > self._ledger.version and (self._task is None or self._task.done()):
            self._task = supervisor.start(self._take(), name=f"agui edits {self._run}", service=True)

    async def _take(self) -> None:
        try:
            await self._take_all()
        except Exception:
            logger.exception("Run %s could not take edits in; they are made at its end", self._run)

    async def _take_all(self) -> None:
        while self._version > self._ledger.version:
            pool, ledger = get_pool(), self._ledger
            edits = await pool.read(merging.pending, database_alias(), ledger.thread, ledger.version)
            if not edits:  # the run has ended: its close has seen to them
                return
            for edit in edits:
                while not (taken := self._control.take is not None and self._control.take(edit)):
                    if taken is None:
                        return
                    await asyncio.sleep(PAUSE)
                ledger.version = edit.version
