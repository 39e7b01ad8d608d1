"""What people do to a thread as a whole: name it, put it away, note something about it, delete it.

Law: none of this touches the conversation itself, or the order in which threads are listed. Who may do it the caller
has asked already. A deletion ends what runs first, and leaves nothing that could come back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any
from uuid import UUID

from agui_django.conf import settings
from agui_django.models import ID_LENGTH, Run, RunEvents, Thread
from agui_django.protocol.codec import clean, clean_text, encode
from agui_django.protocol.errors import InvalidInput, NotFound, NotJson
from agui_django.runs.broadcaster import broadcaster
from agui_django.runs.database import database_alias, get_pool, transact
from agui_django.runs.engine import SUPERSEDING, get_engine
from agui_django.runs.start import in_background
from agui_django.runs.titling import first_words

logger = logging.getLogger("agui_django.runs")

#: Characters of a thread's metadata.
METADATA = 64 * 1024
#: Rows of logs that are deleted in one transaction.
ROWS = 500


# ---- naming, putting away -------------------------------------------------------------------------------------------


def rename(thread: Thread, title: str) -> None:
    """Give a thread a title, which nothing replaces from then on; an empty one makes it the first message again.

    In a database thread, as its siblings; each has an ``a``-twin for event loops.

    Args:
        thread: the thread; the given instance has the title afterwards.
        title: of at most 255 characters; white space at its ends and line breaks do not count.

    Raises:
        InvalidInput: it is too long, or no text.
        NotFound: the thread is gone.
    """
    text = " ".join(clean_text(title).split()) if isinstance(title, str) else None
    if text is None or len(text) > ID_LENGTH:
        raise _invalid("title", f"must be a text of at most {ID_LENGTH} characters")
    _update(thread, partial(_named, thread.pk, text))


def archive(thread: Thread, archived: bool = True) -> None:
    """Put a thread away, or take it out again; it is run and shown as any other.

    Raises:
        NotFound: the thread is gone.
    """
    _update(thread, lambda: {"archived": archived})


def set_metadata(thread: Thread, metadata: Mapping[str, Any]) -> None:
    """Replace what the site notes about a thread.

    Raises:
        InvalidInput: it is no JSON object, or larger than 64 KB.
        NotFound: the thread is gone.
    """
    try:
        text = encode(clean(dict(metadata))) if isinstance(metadata, Mapping) else ""
    except NotJson:
        text = ""
    if not text or len(text) > METADATA:
        raise _invalid("metadata", f"must be a JSON object of at most {METADATA} characters")
    _update(thread, lambda: {"metadata": text})


async def arename(thread: Thread, title: str) -> None:
    """`rename`, from any event loop."""
    await get_pool().run(rename, thread, title)


async def aarchive(thread: Thread, archived: bool = True) -> None:
    """`archive`, from any event loop."""
    await get_pool().run(archive, thread, archived)


async def aset_metadata(thread: Thread, metadata: Mapping[str, Any]) -> None:
    """`set_metadata`, from any event loop."""
    await get_pool().run(set_metadata, thread, metadata)


def _invalid(name: str, message: str) -> InvalidInput:
    return InvalidInput(fields=[{"path": f"/{name}", "message": message}])


def _update(thread: Thread, values: Any) -> None:
    """Change columns of a thread, and of the instance."""

    def change() -> dict[str, Any]:
        found: dict[str, Any] = values()
        if not Thread.objects.using(database_alias()).filter(pk=thread.pk).update(**found):
            raise NotFound
        return found

    for name, value in transact(change).items():
        setattr(thread, name, value)


def _named(thread: int, text: str) -> dict[str, Any]:
    if text:
        return {"title": text, "titled_by": Thread.TitledBy.PERSON}
    return {"title": first_words(database_alias(), thread), "titled_by": Thread.TitledBy.FIRST_WORDS}


# ---- deleting -------------------------------------------------------------------------------------------------------


async def adelete(thread: Thread, *, reason: str = "user") -> None:
    """Delete a thread with everything in it, and the files that no other thread has; from any event loop.

    What runs in it is cancelled first, wherever it is executed, and what waits; that may take ``CANCEL_GRACE`` and a
    few seconds more. A run that does not end by then is deleted with the rest, and can write nothing any more. Those
    who follow the thread see it end. Its id is free from then on; a client that still holds the conversation and
    writes on begins a new one with it.

    Args:
        thread: the thread.
        reason: why its runs are cancelled: user, staff ...

    Raises:
        NotFound: it is gone already.
    """
    pool, loop = get_pool(), asyncio.get_running_loop()
    deadline = loop.time() + settings.CANCEL_GRACE + SUPERSEDING
    cut = None
    while cut is None:
        await _end_runs(thread.pk, reason, deadline)
        while await pool.run(_delete_logs, thread.pk) == ROWS:
            pass
        cut = await pool.run(transact, _delete, thread.pk, loop.time() >= deadline)
    for run in cut:
        broadcaster.publish(run)
    broadcaster.publish(thread.pk)


def delete(thread: Thread, *, reason: str = "user") -> None:
    """`adelete` for synchronous callers outside of the app's own threads (a view, a command).

    Raises:
        NotFound: it is gone already.
        TransactionManagementError: called inside a transaction.
        SynchronousOnlyOperation: called in an event loop.
    """
    in_background(lambda: adelete(thread, reason=reason), "delete")


async def _end_runs(thread: int, reason: str, deadline: float) -> None:
    """Cancel what waits and what runs, and wait for its end; until the deadline."""
    engine, loop = get_engine(), asyncio.get_running_loop()
    while runs := await get_pool().run(_not_ended, thread):
        # Those that wait come first: none of them starts when the active one has ended.
        for run in runs:
            await engine.cancel(run, reason)
        left = deadline - loop.time()
        if left <= 0 or not await engine.ended(runs[-1], left):
            return


def _not_ended(thread: int) -> list[UUID]:
    """Runs of a thread, those that wait before the active one, the latest first."""
    runs = Run.objects.using(database_alias()).filter(thread=thread, status__in=[Run.Status.QUEUED, *Run.ACTIVE])
    rows = runs.order_by("-created_at").values_list("pk", "status")
    return [pk for pk, _ in sorted(rows, key=lambda row: row[1] != Run.Status.QUEUED)]


def _delete_logs(thread: int) -> int:
    """Delete some rows of the logs of runs that have ended, which are most of what a thread holds; tells how many."""
    rows = RunEvents.objects.using(database_alias()).filter(run__thread=thread, run__status__in=Run.TERMINAL)
    keys = list(rows.values_list("pk", flat=True)[:ROWS])
    if keys:
        transact(RunEvents.objects.using(database_alias()).filter(pk__in=keys).delete)
    return len(keys)


def _delete(thread: int, late: bool) -> list[UUID] | None:
    """Delete the rows.

    Returns:
        The runs that had not ended; None where there were some, and it is not yet late: nothing was deleted.

    Raises:
        NotFound: they are gone.
    """
    alias = database_alias()
    row = Thread.objects.using(alias).select_for_update(no_key=True).filter(pk=thread).first()
    if row is None:
        raise NotFound
    runs = _not_ended(thread)
    if runs and not late:
        return None
    if runs:
        logger.warning("Thread %s is deleted with runs that did not end in time: %s", thread, runs)
    # By the ORM: a site may have rows of its own that belong to ours, and files go with their rows.
    row.delete(using=alias)
    return runs
