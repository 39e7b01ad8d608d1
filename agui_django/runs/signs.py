"""Signs that a run is watched from another process: the one that took its request must know before it cancels it.

Law: a sign is a time in the run's row, written once a second while somebody watches, and only where ``ON_DISCONNECT``
is "cancel"; it grows old by itself, so that a process which dies leaves nothing behind.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from django.db import Error
from django.db.models import Q
from django.db.models.functions import Now

from agui_django.agents.registry import all_agents
from agui_django.conf import settings
from agui_django.models import Run
from agui_django.runs.database import database_alias, get_pool
from agui_django.runs.polling import INTERVAL
from agui_django.runs.watching import watchers

logger = logging.getLogger("agui_django.runs")

#: Seconds for which a sign counts, at the least: a poll or two may come late.
FRESH = 3 * INTERVAL


async def leave() -> bool:
    """Leave signs at the runs that are watched here and were asked for elsewhere; called once a second.

    Returns:
        Whether there are any: it has to be called again.
    """
    runs = watchers.elsewhere()
    if not runs:
        return False
    agents = [entry.name for entry in all_agents() if settings.for_agent(entry, "ON_DISCONNECT") == "cancel"]
    if not agents:
        return False
    try:
        await get_pool().run(_write, runs, agents)
    except Error:
        logger.exception("It could not be said that runs are watched; it is said again in a second")
    return True


def _write(runs: Sequence[UUID], agents: Sequence[str]) -> None:
    """In a database thread. The row is written at most once a second, whoever else watches."""
    old = Q(watched_at=None) | Q(watched_at__lt=Now() - timedelta(seconds=INTERVAL / 2))
    active = Q(status__in=[Run.Status.QUEUED, *Run.ACTIVE])
    Run.objects.using(database_alias()).filter(active, old, pk__in=runs, agent__in=agents).update(watched_at=Now())


async def fresh(run: UUID, seconds: float) -> bool:
    """Whether somebody watched a run from another process within so many seconds, or just now; yes when in doubt."""
    try:
        return await get_pool().run(_read, run, max(seconds, FRESH))
    except Error:
        logger.exception("It is not known whether run %s is watched; it is looked at again", run)
        return True


def _read(run: UUID, seconds: float) -> bool:
    """In a database thread."""
    since = Now() - timedelta(seconds=seconds)
    return Run.objects.using(database_alias()).filter(pk=run, watched_at__gt=since).exists()
