"""What nobody asks for: queues move on, and what other processes left behind is ended.

Law: safe in any number of processes at once; the store decides who does what. Nothing may depend on one of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any
from uuid import UUID

from agui_django.agents.registry import all_agents
from agui_django.conf import settings
from agui_django.models import Run
from agui_django.runs import announce, supervisor, telemetry
from agui_django.runs import store as stores
from agui_django.runs.broadcaster import broadcaster
from agui_django.runs.claims import process_name
from agui_django.runs.database import get_pool
from agui_django.runs.expiring import Expiring
from agui_django.runs.requests import Opened
from agui_django.runs.setup import RunSetup
from agui_django.runs.slots import Slots
from agui_django.runs.watching import watchers

logger = logging.getLogger("agui_django.runs")

#: Executes a run that was just stored: its agent, its row, what it starts from, and whom it is for.
Launch = Callable[[Any, Run, RunSetup, Any], None]


class Upkeep:
    """The queues and the lost runs, as far as this process sees to them."""

    def __init__(self, launch: Launch, slots: Slots) -> None:
        """Nothing was looked at yet."""
        self._launch = launch
        self._slots = slots
        self._swept = self._recovered = False
        self.expiring = Expiring(self._begin, claim)

    async def advance(self, thread: int) -> None:
        """Start the run that has waited longest for a thread, where that is free."""
        if supervisor.draining():
            return
        begun = await get_pool().run(stores.ThreadStore().start_next, thread, claim())
        self.end_elsewhere(begun.ended)
        if begun.opened is not None:
            self._begin(begun.opened, begun.entry)

    def _begin(self, opened: Opened, entry: Any) -> None:
        """Execute a run that nobody's request waits for."""
        announce.tell_closed(opened.closed)
        if opened.run is not None and opened.setup is not None:
            if opened.warnings:
                logger.warning("Run %s: %s", opened.run.pk, "; ".join(opened.warnings[:20]))
            self._slots.take(opened.setup.user, force=True)
            with telemetry.apart():
                self._launch(entry, opened.run, opened.setup, opened.setup.user)

    async def advance_all(self) -> None:
        """Move the queues of all threads that are free."""
        try:
            for thread in await get_pool().run(stores.ThreadStore().idle_queues):
                await self.advance(thread)
        except Exception:
            logger.exception("Queues could not be moved; they are looked at again")

    async def sweep(self) -> None:
        """End lost runs, whoever left them, close questions whose time is over, and move queues that stand still.

        The first time in a process also runs are looked at that were alive a moment ago: perhaps it replaces theirs.
        """
        quiet, self._swept = settings.LEASE / 3 if self._swept else 0.0, True
        try:
            self.end_elsewhere(await get_pool().run(partial(stores.ThreadStore().reap_lost, quiet=quiet)))
        except Exception:
            logger.exception("Lost runs could not be ended; they are looked at again")
        await self.expiring.sweep()
        if queues():
            await self.advance_all()

    def recover(self) -> None:
        """`sweep` in the background, once per process; call in the event loop."""
        if not self._recovered and not supervisor.draining():
            self._recovered = True
            supervisor.start(self.sweep(), name="agui recovery", service=True)

    def end_elsewhere(self, runs: Iterable[UUID]) -> None:
        """Runs have ended that no task of this process drove."""
        for run in runs:
            watchers.ended(run)
            broadcaster.publish(run)
            if announce.awaited():
                supervisor.start(announce.finished(run, []), name=f"agui signals {run}")


def queues() -> bool:
    """Whether runs may wait for their thread on this site: without that nobody looks for them."""
    return settings.BUSY == "queue" or any(settings.for_agent(entry, "BUSY") == "queue" for entry in all_agents())


def claim() -> str:
    """Who executes the runs that are opened here: this process, or (empty) whom the `RUNNER` finds."""
    return process_name() if settings.RUNNER is None else ""
