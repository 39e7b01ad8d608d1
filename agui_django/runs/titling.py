"""The site's own titles: the function that ``TITLE`` names, asked once a thread's first turn has ended well.

Law: it is asked outside of any transaction and any lock, behind the end of the run, which it can neither delay nor
break. A title that a person gave is never replaced.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from inspect import isawaitable, iscoroutinefunction
from typing import Any

from agui_django.conf import imported, settings
from agui_django.models import ID_LENGTH, Message, Thread
from agui_django.protocol.codec import clean_text, decode
from agui_django.runs import ledger
from agui_django.runs.attachments import in_thread
from agui_django.runs.database import database_alias, get_pool, transact
from agui_django.runs.setup import Closing, RunSetup, Wire

logger = logging.getLogger("agui_django.runs")

#: Seconds that the site's function has: it may ask a model.
PATIENCE = 60.0


def first_words(alias: str, thread: int) -> str:
    """The title of a thread that nobody gave one: its first user message in play."""
    messages = Message.objects.using(alias).filter(thread=thread, role="user").in_play()
    first = messages.exclude(search_text="").values_list("wire", flat=True).first()
    return ledger.title([decode(first)]) if first else ""


def due(setup: RunSetup, closing: Closing) -> bool:
    """Whether the site is to be asked for a title at the end of a run; costs no statement."""
    if settings.TITLE is None or closing.status not in ("finished", "interrupted"):
        return False
    return bool(setup.thread.titled_by == Thread.TitledBy.FIRST_WORDS)


async def entitle(thread: int) -> None:
    """Ask the site for a thread's title, and store it where nobody gave it one meanwhile; logs what goes wrong."""
    try:
        asked = await get_pool().run(_read, thread)
        if asked is None:
            return
        async with asyncio.timeout(PATIENCE):
            title = await _ask(imported(settings.TITLE), *asked)
        if not isinstance(title, str):
            raise TypeError(f"It returned {type(title).__name__} instead of a text.")
        if text := " ".join(clean_text(title).split())[:ID_LENGTH]:
            await get_pool().run(transact, _store, thread, text)
    except Exception:
        logger.exception("TITLE gave no title for thread %s; it keeps the one it has", thread)


async def _ask(function: Callable[[Thread, list[Wire]], Any], thread: Thread, messages: list[Wire]) -> Any:
    if iscoroutinefunction(function):
        return await function(thread, messages)
    found = await asyncio.get_running_loop().run_in_executor(None, in_thread, function, thread, messages)
    return await found if isawaitable(found) else found


def _read(key: int) -> tuple[Thread, list[Wire]] | None:
    """A thread that has no title of its own, with its messages in play."""
    alias = database_alias()
    thread = Thread.objects.using(alias).filter(pk=key, titled_by=Thread.TitledBy.FIRST_WORDS).first()
    if thread is None:
        return None
    rows = Message.objects.using(alias).filter(thread=thread).in_play()
    return thread, [decode(wire) for wire in rows.values_list("wire", flat=True)]


def _store(key: int, title: str) -> None:
    untitled = Thread.objects.using(database_alias()).filter(pk=key, titled_by=Thread.TitledBy.FIRST_WORDS)
    untitled.update(title=title, titled_by=Thread.TitledBy.SITE)
