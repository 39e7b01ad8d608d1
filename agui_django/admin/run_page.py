"""A run's page: one sentence, the timeline, the conversation, what changed, and last what is raw.

Law: no page reads a whole log; a value that is large is cut and says so; all that was written by somebody goes through
the viewer's `Redactor`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.contrib.admin import AdminSite
from django.core.exceptions import ValidationError
from django.db.models.functions import Left, Length
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, render
from django.utils.formats import date_format
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from agui_django.admin import rights
from agui_django.admin.changes import changes
from agui_django.admin.conversation import played, value
from agui_django.admin.downloads import NDJSON, RASTER, SAFE, event_lines, file_parts, streamed
from agui_django.admin.lists import log, people, redactor
from agui_django.admin.markdown import CUT
from agui_django.admin.neighbours import FILTERS
from agui_django.admin.statuses import badge, seconds
from agui_django.admin.timeline import timeline
from agui_django.models import Attachment, Interrupt, Message, Run, StateVersion
from agui_django.protocol.codec import decode
from agui_django.protocol.errors import CursorGone, InvalidInput
from agui_django.protocol.events import EVENTS
from agui_django.runs.database import database_alias, get_pool
from agui_django.runs.pricing import shown
from agui_django.runs.stream import Entry, read_entries
from agui_django.transports import requests

#: Events of a page, and how many rows of a log are looked through for one type.
EVENTS_SHOWN, LOOKED = 200, 20_000
#: Columns that may be large: of these a page reads the beginning.
PARTS = ("input", "outcome", "result", "usage", "extra")
#: Characters of a log that are looked through for one page.
CHARACTERS = 16 * 1024 * 1024


def page(site: AdminSite, request: HttpRequest, key: str, beside: Callable[[Run], dict[str, str]]) -> HttpResponse:
    """The page.

    Args:
        site: the admin.
        request: the viewer's.
        key: the run's.
        beside: tells a run's neighbours in the list that it was opened from.
    """
    run, hide = find(key), redactor(request)
    alias = database_alias()
    messages = Message.objects.using(alias).filter(run=run)
    said = played(messages, hide, request.GET.dict())
    versions = StateVersion.objects.using(alias).filter(run=run)
    questions = Interrupt.objects.using(alias).filter(run=run).order_by("position")
    names = people([run.user_id, run.actor_id, run.reviewed_by_id])
    context = {
        **site.each_context(request),
        "title": _("Run"),
        "opts": Run._meta,
        "run": run,
        "person": names.get(run.user_id),
        "actor": names.get(run.actor_id),
        "thread_title": run.thread.title if hide.content else "",
        "reviewer": names.get(run.reviewed_by_id),
        "note": hide.text(run.review_note),
        "filters": request.GET.get(FILTERS, ""),
        "badge": badge(run.status),
        "took": seconds(run.duration_ms),
        "first": seconds(run.first_event_ms),
        "cost": cost(run),
        "sentence": sentence(run),
        "conversation": said,
        "changes": changes(versions, run.thread_id, hide),
        "questions": [(row, hide.text(row.message)) for row in questions.defer("wire", "response_schema")],
        "timeline": timeline(run, hide),
        "error_text": hide.text(run.error_text),
        "traceback": run.traceback if hide.traceback else "",
        "traceback_hidden": bool(run.traceback) and not hide.traceback,
        "parts": [(name, size, value(head, hide, size)) for name, head, size in _parts(run) if size],
        "cut": CUT,
        "content": hide.content,
        "active": not run.ended,
        "may_see_questions": any(map(request.user.has_perm, (rights.ANSWER, "agui_django.view_interrupt"))),
        "may_see_thread": request.user.has_perm("agui_django.view_thread"),
        "may_cancel": request.user.has_perm(rights.CANCEL),
        "may_review": request.user.has_perm(rights.REVIEW),
        "may_export": hide.content and request.user.has_perm(rights.EXPORT),
        **_around(run, alias),
        **beside(run),
    }
    return render(request, "admin/agui_django/run.html", context)


def cost(run: Run) -> str:
    """What it cost; that it is not priced, where it used tokens."""
    priced_on = f" ({_('prices of')} {date_format(run.priced_on, 'j M Y')})" if run.priced_on else ""
    if run.cost_nanos is None:
        return _("not priced") if run.input_tokens or run.output_tokens else ""
    return shown(run.cost_nanos, run.currency) + priced_on


def find(key: Any) -> Run:
    """A run with its thread.

    Raises:
        Http404: there is none.
    """
    runs = Run.objects.using(database_alias()).select_related("thread")
    try:
        return runs.defer("thread__state", "thread__metadata", *PARTS).get(pk=key)
    except (Run.DoesNotExist, ValidationError, ValueError):
        raise Http404 from None


def sentence(run: Run) -> str:
    """What happened, in words."""
    took = seconds(run.duration_ms)
    calls = ngettext("%(count)d tool call", "%(count)d tool calls", run.tool_calls) % {"count": run.tool_calls}
    ref = {"code": run.error_code, "ref": run.error_reference, "took": took, "calls": calls, "why": run.end_reason}
    return {
        "queued": _("It waits behind another run of its thread."),
        "pending": _("It waits to be executed."),
        "running": _("It is running."),
        "finished": _("It finished after %(took)s, with %(calls)s.") % ref,
        "interrupted": _("It ended after %(took)s with questions to a person.") % ref,
        "cancelled": _("It was stopped after %(took)s (%(why)s).") % ref,
        "failed": _("It failed after %(took)s with %(code)s; the person was shown the reference %(ref)s.") % ref,
    }[run.status]


def _parts(run: Run) -> list[tuple[str, str, int]]:
    """The beginnings of what may be large, and how large it is: one statement."""
    sized: dict[str, Any] = {f"{name}_head": Left(name, CUT) for name in PARTS}
    sized |= {f"{name}_size": Length(name) for name in PARTS}
    row: Any = Run.objects.using(database_alias()).filter(pk=run.pk).values(**sized).get()
    return [(name, row[f"{name}_head"], row[f"{name}_size"]) for name in PARTS]


def part(request: HttpRequest, run: UUID, name: str) -> HttpResponse:
    """What may be large, whole."""
    if name not in PARTS:
        raise Http404
    text = getattr(find(run), name)
    return HttpResponse(text, content_type="text/plain; charset=utf-8", headers=SAFE)


def _around(run: Run, alias: str) -> dict[str, Any]:
    """The runs around it in its thread, and those that it resumes or that resume it."""
    runs = Run.objects.using(alias).filter(thread=run.thread_id).only("pk", "status", "created_at")
    return {
        "previous": runs.filter(created_at__lt=run.created_at).order_by("-created_at").first(),
        "next": runs.filter(created_at__gt=run.created_at).order_by("created_at").first(),
        "resuming": list(runs.filter(resumed_run=run).order_by("created_at")[:20]),
    }


# ---- raw ------------------------------------------------------------------------------------------------------------


def events(site: AdminSite) -> Callable[..., HttpResponseBase]:
    """The view of a run's raw events: a page of them behind a number, all or those of one type."""

    def view(request: HttpRequest, run: UUID) -> HttpResponse:
        found, hide = find(run), redactor(request)
        wanted = request.GET.get("type", "")
        if wanted and wanted not in EVENTS:
            raise Http404
        try:
            after = requests.cursor_of(request)
        except InvalidInput:
            raise Http404 from None
        gone = done = False
        entries: list[Entry] = []
        at, read = after, 0
        try:
            while len(entries) <= EVENTS_SHOWN and at - after < LOOKED and read < CHARACTERS:
                some = get_pool().run_sync(read_entries, found.pk, at, EVENTS_SHOWN)
                if not some:
                    done = True
                    break
                at = some[-1][0]
                read += sum(len(text) for _seq, text, _plain in some)
                entries += [each for each in some if not wanted or _is(each[1], wanted)]
        except CursorGone:
            gone = True
        more = len(entries) > EVENTS_SHOWN
        entries = entries[:EVENTS_SHOWN]
        last = entries[-1][0] if more else at
        context = {
            **site.each_context(request), "title": _("Raw events"), "opts": Run._meta, "run": found, "gone": gone,
            "rows": [(seq, len(text), value(hide.event(text), _all)) for seq, text, _plain in entries],
            "types": sorted(EVENTS), "wanted": wanted, "next": last if more or not (done or gone) else None,
        }  # fmt: skip
        return render(request, "admin/agui_django/events.html", context)

    return view


def _is(wire: str, kind: str) -> bool:
    """Whether an event is of a type; what cannot be is not parsed."""
    return f'"{kind}"' in wire and decode(wire).get("type") == kind


class _All:
    """For what a `Redactor` has seen already."""

    content = True


_all: Any = _All()


def download(request: HttpRequest, run: UUID) -> HttpResponseBase:
    """All events as NDJSON."""
    found = find(run)
    log(request, found, "Exported its events.")
    response: HttpResponseBase = streamed(request, event_lines(found.pk), NDJSON, f"run-{found.pk}.ndjson")
    return response


def message(request: HttpRequest, message: int) -> HttpResponse:
    """A message's wire text, whole."""
    row = get_object_or_404(Message.objects.using(database_alias()), pk=message)
    return HttpResponse(row.wire, content_type="text/plain; charset=utf-8", headers=SAFE)


def file(request: HttpRequest, file: UUID) -> HttpResponseBase:
    """A file of a message."""
    row = get_object_or_404(Attachment.objects.using(database_alias()), pk=file)
    try:
        parts = file_parts(row)
    except FileNotFoundError:
        raise Http404 from None
    shown = row.media_type in RASTER
    kind = row.media_type if shown else "application/octet-stream"
    response: HttpResponseBase = streamed(request, parts, kind, row.title or "file", save=not shown)
    return response
