"""A worker's side of a `Runner`: execute one pending run to its end.

Law: the same engine as in a web process. What stops the worker's task cancels the run, which then ends in order.
"""

from __future__ import annotations

import asyncio
from uuid import UUID

from agui_django.conf import settings
from agui_django.runs.engine import SUPERSEDING, get_engine
from agui_django.runs.start import background_loop


def execute(run_uuid: str) -> bool:
    """Execute a run, for synchronous workers: in the process's own event loop, which has a thread of its own.

    Returns:
        False where the run is not pending: it was executed, cancelled or reaped, or another worker has it.
    """
    engine, loop, run = get_engine(), background_loop(), UUID(run_uuid)
    work = asyncio.run_coroutine_threadsafe(engine.execute(run), loop)
    try:
        return work.result()
    except BaseException:
        # A time limit, or a signal that raises, in the worker's own thread.
        if work.cancel():
            seconds = settings.CANCEL_GRACE + SUPERSEDING
            asyncio.run_coroutine_threadsafe(engine.ended(run, seconds), loop).result(seconds + 1.0)
        raise


async def aexecute(run_uuid: str) -> bool:
    """Execute a run, for workers that are event loops: runs go on side by side."""
    return await get_engine().execute(UUID(run_uuid))
