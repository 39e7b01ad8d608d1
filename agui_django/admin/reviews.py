"""Staff mark runs as reviewed, with a note of what they found; the note is a text as others are."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import messages
from django.contrib.admin import AdminSite
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from agui_django.admin.guard import View
from agui_django.admin.lists import log, uuids
from agui_django.admin.neighbours import FILTERS
from agui_django.models import Run
from agui_django.protocol.errors import AgUiError
from agui_django.runs.database import database_alias, get_pool
from agui_django.runs.reviewing import LONGEST, review, take_back

LIST: Final = "admin:agui_django_run_changelist"


def reviewing(site: AdminSite) -> View:
    """The view that marks runs, after a look at which those are; and takes a mark back."""

    def view(request: HttpRequest) -> HttpResponse:
        given = request.POST if request.method == "POST" else request.GET
        keys = uuids(given.getlist("run"))
        found = list(
            Run.objects.using(database_alias()).filter(pk__in=keys).only("pk", "status", "agent", "created_at")
        )
        kept = given.get(FILTERS, "")
        if request.method != "POST":
            context = {
                **site.each_context(request), "title": _("Review runs"), "opts": Run._meta, "runs": found,
                "longest": LONGEST, "filters": kept,
            }  # fmt: skip
            return render(request, "admin/agui_django/confirm_review.html", context)
        _write(request, found)
        if len(found) == 1 and "page" in request.POST:
            to = reverse("admin:agui_django_run_change", args=[found[0].pk])
            return HttpResponseRedirect(f"{to}?{urlencode({FILTERS: kept})}" if kept else to)
        return HttpResponseRedirect(f"{reverse(LIST)}?{kept}".rstrip("?"))

    return view


def _write(request: HttpRequest, runs: list[Run]) -> None:
    user: Any = request.user
    undo, done = "undo" in request.POST, 0
    for run in runs:
        try:
            if undo:
                get_pool().run_sync(take_back, run)
            else:
                get_pool().run_sync(review, run, user, request.POST.get("note", ""))
        except AgUiError as error:
            places = "; ".join(f"{each['path']} {each['message']}" for each in error.fields)
            messages.error(request, f"{error.message} {places}".strip())
            return
        done += 1
        log(request, run, "Took its review back." if undo else "Marked as reviewed.")
    if undo:
        said = _("Not reviewed any more.")
    else:
        said = ngettext("%(count)d run is marked.", "%(count)d runs are marked.", done) % {"count": done}
    messages.success(request, said)
