"""Threads as plain JSON, record by record: for data requests, for moving house, for looking at.

Law: memory does not grow with what is exported (one record, one page of rows, one file); what changes meanwhile may be
there in part. Nothing is exported that only staff may see: no tracebacks, no notes of the engine.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Literal, TypeVar

from django.db.models import Model, QuerySet
from django.utils import timezone

from agui_django import __version__
from agui_django.models import Attachment, Feedback, Interrupt, Message, Run, RunEvents, StateVersion, Thread
from agui_django.protocol.codec import decode
from agui_django.runs.attachments import attachment_bytes
from agui_django.runs.database import database_alias, get_pool
from agui_django.runs.forgetting import threads_of

M = TypeVar("M", bound=Model)
Record = dict[str, Any]
Files = Literal["none", "base64"]

#: Grows when a record changes its meaning.
FORMAT = 1
#: Rows that are read at once; of what may be large, fewer.
ROWS, LARGE = 100, 10


def export_thread(thread: Thread, *, events: bool = True, files: Files = "none") -> Iterator[Record]:
    """A thread with everything in it.

    Args:
        thread: the thread; in which scope it was looked up is the caller's business.
        events: whether the logs of its runs are in it.
        files: ``base64``: attachments hold their bytes as ``data``. ``none``: they are only described.

    Yields:
        Records as plain JSON, told apart by ``type``: export, thread, message, state, run, event, interrupt, feedback,
        attachment. What refers to another record comes behind it.
    """
    yield _head()
    yield from _thread(thread, events, files)


def export_user(user: Any, *, events: bool = True, files: Files = "none") -> Iterator[Record]:
    """Everything of a user: their threads, and what they thought of messages of others.

    Args:
        user: a user, or the primary key of one, who may be gone already.
        events: as for `export_thread`.
        files: as for `export_thread`.
    """
    key = getattr(user, "pk", user)
    yield {**_head(), "user": str(key)}
    for thread in _rows(lambda: threads_of(key), ROWS):
        yield from _thread(thread, events, files)
    mine = threads_of(key)
    for row in _rows(lambda: Feedback.objects.using(database_alias()).filter(user=key).exclude(thread__in=mine), ROWS):
        yield _feedback(row)


def _head() -> Record:
    return {"type": "export", "format": FORMAT, "version": __version__, "at": _time(timezone.now())}


def _thread(thread: Thread, events: bool, files: Files) -> Iterator[Record]:
    alias = database_alias()
    yield {
        "type": "thread", "id": thread.pk, "threadId": thread.thread_id, "scope": thread.scope, "agent": thread.agent,
        "title": thread.title, "archived": thread.archived, "state": decode(thread.state),
        "stateVersion": thread.state_version, "metadata": decode(thread.metadata), "forkedFrom": thread.forked_from_id,
        "inputTokens": thread.input_tokens, "outputTokens": thread.output_tokens,
        "createdAt": _time(thread.created_at), "updatedAt": _time(thread.updated_at),
    }  # fmt: skip
    for run in _rows(lambda: Run.objects.using(alias).filter(thread=thread).defer("traceback"), LARGE):
        yield _run(run)
        if events:
            yield from _events(run)
    for message in _rows(lambda: Message.objects.using(alias).filter(thread=thread), ROWS):
        yield {
            "type": "message", "id": message.pk, "thread": thread.pk, "order": message.order,
            "run": _text(message.run_id), "inPlay": message.superseded_by_id is None, "message": decode(message.wire),
            "createdAt": _time(message.created_at),
        }  # fmt: skip
    for version in _rows(lambda: StateVersion.objects.using(alias).filter(thread=thread), LARGE):
        yield {
            "type": "state", "thread": thread.pk, "version": version.version, "origin": version.origin,
            "run": _text(version.run_id), "state": decode(version.state), "createdAt": _time(version.created_at),
        }  # fmt: skip
    for interrupt in _rows(lambda: Interrupt.objects.using(alias).filter(thread=thread), ROWS):
        yield {
            "type": "interrupt", "thread": thread.pk, "run": _text(interrupt.run_id), "status": interrupt.status,
            "interrupt": decode(interrupt.wire), "response": decode(interrupt.response) if interrupt.response else None,
            "createdAt": _time(interrupt.created_at), "closedAt": _time(interrupt.closed_at),
        }  # fmt: skip
    for row in _rows(lambda: Feedback.objects.using(alias).filter(thread=thread), ROWS):
        yield _feedback(row)
    for file in _rows(lambda: Attachment.objects.using(alias).filter(thread=thread), ROWS):
        yield _attachment(file, files)


def _run(run: Run) -> Record:
    return {
        "type": "run", "id": str(run.pk), "thread": run.thread_id, "runId": run.run_id, "agent": run.agent,
        "status": run.status, "input": decode(run.input), "outcome": decode(run.outcome) if run.outcome else None,
        "result": decode(run.result) if run.result else None, "usage": decode(run.usage),
        "errorCode": run.error_code, "errorReference": run.error_reference, "endReason": run.end_reason,
        "createdAt": _time(run.created_at), "startedAt": _time(run.started_at), "finishedAt": _time(run.finished_at),
    }  # fmt: skip


def _events(run: Run) -> Iterator[Record]:
    """A run's log; of a compacted one `seq` has gaps."""
    for row in _rows(lambda: RunEvents.objects.using(database_alias()).filter(run=run), LARGE, "first_seq"):
        lines = row.text.split("\n")
        merged = len(lines) <= row.last_seq - row.first_seq
        for number, line in enumerate(lines, start=row.first_seq):
            yield {
                "type": "event",
                "run": str(run.pk),
                "seq": row.last_seq if merged else number,
                "event": decode(line),
            }


def _feedback(row: Feedback) -> Record:
    return {
        "type": "feedback", "thread": row.thread_id, "message": row.message_id, "rating": row.rating, "text": row.text,
        "createdAt": _time(row.created_at), "updatedAt": _time(row.updated_at),
    }  # fmt: skip


def _attachment(row: Attachment, files: Files) -> Record:
    record: Record = {
        "type": "attachment", "id": str(row.pk), "thread": row.thread_id, "title": row.title,
        "mediaType": row.media_type, "size": row.size, "digest": row.digest, "createdAt": _time(row.created_at),
    }  # fmt: skip
    if files == "base64":
        try:
            record["data"] = base64.b64encode(attachment_bytes(row)).decode()
        except FileNotFoundError:
            record["data"] = None
    return record


def _rows(query: Callable[[], QuerySet[M]], size: int, order: str = "pk") -> Iterator[M]:
    """The rows of a query, a page at a time: no cursor of the database stays open between two of them."""
    behind: Any = None
    while True:
        rows = get_pool().run_sync(_page, query, size, order, behind)
        yield from rows
        if len(rows) < size:
            return
        behind = getattr(rows[-1], order)


def _page(query: Callable[[], QuerySet[M]], size: int, order: str, behind: Any) -> list[M]:
    found = query().order_by(order)
    return list((found if behind is None else found.filter(**{f"{order}__gt": behind}))[:size])


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _text(key: Any) -> str | None:
    return None if key is None else str(key)
