"""Runs of the list as a file: those that are ticked, or all that its filters choose, a line each.

Law: a file holds what the list would show its viewer, in the viewer's time zone: every text goes through the
`Redactor`. It is read some rows at a time, however many there are; what came after the question is not in it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from datetime import datetime, tzinfo
from typing import Any, Final

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.contenttypes.models import ContentType
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponseBase, QueryDict
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _

from agui_django.admin.downloads import NDJSON, streamed
from agui_django.admin.guard import View
from agui_django.admin.lists import people, place_of, redactor, row_at, uuids
from agui_django.admin.neighbours import FILTERS, matching
from agui_django.admin.rights import Redactor
from agui_django.admin.zones import viewer_zone
from agui_django.models import Run, Thread
from agui_django.protocol.codec import encode
from agui_django.runs.database import database_alias, get_pool

#: Runs of a file, and those that are read at once.
MOST, ROWS = 100_000, 500
#: What a file never reads.
HEAVY: Final = ("input", "outcome", "result", "once", "extra", "traceback", "usage")
#: A cell that begins like this would be computed by a spreadsheet.
FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n")


def exporting(staff: Any) -> View:
    """The view that counts, and on a second request sends the file.

    Args:
        staff: the list's admin.
    """

    def view(request: HttpRequest) -> HttpResponseBase:
        given = request.POST if request.method == "POST" else request.GET
        rows, keys, filters = _chosen(staff, request, given)
        if text := request.POST.get("last", ""):
            at, key = _read_place(text)
            rows = rows.filter(Q(created_at__lte=at) & (Q(created_at__lt=at) | Q(pk__lte=key)))
        count = rows.order_by()[: MOST + 1].count()
        if request.method == "POST" and request.POST.get("format") in FORMATS:
            _note(request, min(count, MOST), keys, filters)
            return _sent(request, rows, request.POST["format"])
        first = rows.only("created_at").first()
        context = {
            **staff.admin_site.each_context(request), "title": _("Export runs"), "opts": Run._meta,
            "count": min(count, MOST), "more": count > MOST, "keys": keys, "filters": filters,
            "last": place_of(first, "created_at") if first is not None else "", "content": redactor(request).content,
        }  # fmt: skip
        return render(request, "admin/agui_django/confirm_export.html", context)

    return view


def _chosen(staff: Any, request: HttpRequest, given: QueryDict) -> tuple[Any, list[Any], str]:
    """The runs in question; the keys of those that were ticked, else the filters."""
    if asked := given.getlist("run"):
        keys, filters = uuids(asked), given.get(FILTERS, "")
        rows = staff.get_queryset(request).filter(pk__in=keys)
    else:
        keys, filters = [], given.get(FILTERS, "")
        try:
            rows = matching(staff, request, filters)
        except IncorrectLookupParameters:
            raise Http404 from None
    return rows.defer(None).defer(*HEAVY), keys, filters


def _read_place(text: str) -> tuple[Any, Any]:
    try:
        return row_at(text, Run)
    except IncorrectLookupParameters:
        raise Http404 from None


def _note(request: HttpRequest, count: int, keys: list[Any], filters: str) -> None:
    """The file in the admin's log; never what somebody searched for."""
    named = [f"{name}={value}" for name, value in QueryDict(filters).items() if name != "q"]
    searched = ["a search"] if "q" in QueryDict(filters) else []
    by = "selected" if keys else ", ".join(named + searched) or "the default list"
    user: Any = request.user
    LogEntry.objects.create(
        user_id=user.pk, content_type=ContentType.objects.get_for_model(Run), object_repr=f"{count} runs",
        action_flag=CHANGE, change_message=f"Exported as {request.POST['format']}: {by}"[:2000],
    )  # fmt: skip


def _sent(request: HttpRequest, rows: Any, kind: str) -> HttpResponseBase:
    write, media = FORMATS[kind]
    records = _records(rows, viewer_zone(request), redactor(request))
    name = f"runs-{timezone.localtime():%Y-%m-%d-%H%M}.{kind}"
    response: HttpResponseBase = streamed(request, write(records), media, name)
    return response


# ---- rows -----------------------------------------------------------------------------------------------------------


def _records(rows: Any, zone: tzinfo, hide: Redactor) -> Iterator[list[dict[str, Any]]]:
    """The runs as flat records, some at a time; each time with one short use of the database."""
    left, place = MOST, None
    while left > 0:
        records, place = get_pool().run_sync(_some, rows, place, min(ROWS, left), zone, hide)
        if not records:
            return
        yield records
        left -= len(records)


def _some(rows: Any, place: Any, most: int, zone: tzinfo, hide: Redactor) -> tuple[list[dict[str, Any]], Any]:
    # The thread knows nothing of the request's zone, by which days are filtered.
    with timezone.override(zone):
        if place is not None:
            at, key = place
            rows = rows.filter(Q(created_at__lte=at) & (Q(created_at__lt=at) | Q(pk__lt=key)))
        found = list(rows[:most])
        names = people([key for run in found for key in (run.user_id, run.reviewed_by_id)])
        threads = Thread.objects.using(database_alias()).only("thread_id", "title")
        titles = threads.in_bulk({run.thread_id for run in found})
        records = [_record(run, names, titles.get(run.thread_id), hide) for run in found]
    return records, (found[-1].created_at, found[-1].pk) if found else None


def _record(run: Run, names: dict[Any, str], thread: Thread | None, hide: Redactor) -> dict[str, Any]:
    return {
        "id": str(run.pk), "runId": run.run_id, "thread": thread.thread_id if thread else "",
        "title": hide.text(thread.title) if thread else "", "person": names.get(run.user_id, ""), "agent": run.agent,
        "status": run.status, "createdAt": _time(run.created_at), "startedAt": _time(run.started_at),
        "finishedAt": _time(run.finished_at), "firstEventMs": run.first_event_ms, "durationMs": run.duration_ms,
        "inputTokens": run.input_tokens, "cachedTokens": run.cached_tokens, "outputTokens": run.output_tokens,
        "reasoningTokens": run.reasoning_tokens, "toolCalls": run.tool_calls, "model": run.model,
        "cost": None if run.cost is None else str(run.cost), "currency": run.currency, "transport": run.transport,
        "endReason": run.end_reason, "errorCode": run.error_code, "errorReference": run.error_reference,
        "errorText": hide.text(run.error_text), "reviewedBy": names.get(run.reviewed_by_id, ""),
        "reviewedAt": _time(run.reviewed_at), "note": hide.text(run.review_note),
    }  # fmt: skip


def _time(at: datetime | None) -> str | None:
    return None if at is None else timezone.localtime(at).isoformat()


# ---- formats --------------------------------------------------------------------------------------------------------


def _ndjson(batches: Iterator[list[dict[str, Any]]]) -> Iterator[bytes]:
    for records in batches:
        yield "".join(f"{encode(record)}\n" for record in records).encode()


def _csv(batches: Iterator[list[dict[str, Any]]]) -> Iterator[bytes]:
    # Without its mark a spreadsheet does not take it for UTF-8.
    text, begun = io.StringIO("\ufeff"), False
    text.seek(0, io.SEEK_END)
    writer = csv.writer(text)
    for records in batches:
        if not begun:
            writer.writerow(records[0])
            begun = True
        writer.writerows([cell(value) for value in record.values()] for record in records)
        yield text.getvalue().encode()
        text.seek(0)
        text.truncate()


def cell(value: Any) -> Any:
    """A value as a spreadsheet may see it: a text that would be a formula is quoted."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


FORMATS: Final[dict[str, tuple[Callable[[Iterator[list[dict[str, Any]]]], Iterator[bytes]], str]]] = {
    "ndjson": (_ndjson, NDJSON),
    "csv": (_csv, "text/csv; charset=utf-8"),
}
