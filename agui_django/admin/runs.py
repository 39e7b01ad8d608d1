"""Runs in the admin: the list, and what can be done from it."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.http.response import HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import path, reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from agui_django.admin import dashboard, dashboard_filters, filters, guard, rights, run_page
from agui_django.admin.clock import in_zone, moment, switch
from agui_django.admin.exports import exporting
from agui_django.admin.lists import ReadOnlyAdmin, log, people, redactor, uuids
from agui_django.admin.live import live
from agui_django.admin.neighbours import FILTERS, neighbours
from agui_django.admin.reviews import reviewing
from agui_django.admin.search import reading
from agui_django.admin.statuses import NONE, badge, seconds
from agui_django.models import Run, Thread
from agui_django.runs.database import database_alias
from agui_django.runs.engine import get_engine
from agui_django.runs.pricing import shown
from agui_django.runs.start import in_background

#: What a list never reads.
HEAVY = (
    "input", "outcome", "result", "once", "extra", "error_text", "traceback", "usage", "digest", "turn",
    "review_note",
)  # fmt: skip
VIEW = "agui_django.view_run"


@admin.register(Run)
class RunAdmin(ReadOnlyAdmin):
    """The runs, the latest first."""

    column: ClassVar = "created_at"
    ordering = ("-created_at", "-pk")
    lookups: ClassVar = ("created_at__year", "created_at__month", "created_at__day")
    list_display = (
        "status_badge", "started", "person", "conversation", "agent", "duration", "tokens", "cost", "tools",
        "error",
    )  # fmt: skip
    list_filter = (
        filters.Window, filters.Status, filters.Agent, filters.Error, filters.Waiting, filters.Reviewed,
        filters.Rated, filters.Transport,
        filters.key("user", gettext_lazy("person"), "user"), filters.key("thread", gettext_lazy("thread"), "thread"),
        *dashboard_filters.OF_RUNS,
    )  # fmt: skip
    date_hierarchy = "created_at"
    search_fields = ("run_id",)
    search_help_text = gettext_lazy("A run's or thread's id, an error's reference, a person, or words that were said.")
    actions: Any = ("stop", "mark", "export")

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        """The list, with what its search is taken for."""
        found = reading(request)
        other = ""
        if found.kind in ("person", "reference", "thread", "run") and redactor(request).content:
            other = f"?{urlencode({'q': request.GET.get('q', ''), 'as': 'text'})}"
        tools = []
        if self.has_export_permission(request):
            matching = urlencode({FILTERS: request.GET.urlencode()})
            tools.append((f"export/?{matching}", _("Export all that match…")))
        more = {"said": found.said, "other": other, "tools": tools}
        return super().changelist_view(request, {**more, **(extra_context or {})})

    # ---- the list ---------------------------------------------------------------------------------------------------

    def get_queryset(self, request: HttpRequest) -> Any:
        """Without the columns that may be large."""
        return super().get_queryset(request).defer(*HEAVY)

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        """By what the search is taken for."""
        return queryset.filter(reading(request).runs), False

    def prepare(self, request: HttpRequest, rows: list[Any]) -> list[Any]:
        """Names of people and threads: two statements for a page."""
        names = people([run.user_id for run in rows])
        threads = Thread.objects.using(database_alias()).only("thread_id", "title", "last_words")
        found = threads.in_bulk({run.thread_id for run in rows})
        content = redactor(request).content
        for run in rows:
            thread = found.get(run.thread_id)
            run.shown_person = names.get(run.user_id, "")
            run.shown_title = (thread.title if content and thread else "") or (thread.thread_id if thread else "")
            run.shown_words = thread.last_words if content and thread else ""
        return rows

    @admin.display(description=gettext_lazy("status"))
    def status_badge(self, run: Run) -> Any:
        """A word, a shape and a colour; and whether it was reviewed."""
        mark = format_html('<span class="agui-quiet agui-mark">{}</span>', _("reviewed")) if run.reviewed_at else ""
        return format_html(
            '<span data-agui-run="{}" data-status="{}">{}</span>{}', run.pk, run.status, badge(run.status), mark
        )

    @admin.display(description=gettext_lazy("started"))
    def started(self, run: Run) -> Any:
        """When it was asked for, where it has not started."""
        return moment(run.started_at or run.created_at, "j M H:i:s")

    @admin.display(description=gettext_lazy("person"))
    def person(self, run: Any) -> Any:
        """Whose it is; the link leaves only theirs."""
        return format_html('<a href="?user={}">{}</a>', run.user_id, run.shown_person) if run.user_id else NONE

    @admin.display(description=gettext_lazy("thread"))
    def conversation(self, run: Any) -> Any:
        """The title and the last words, or the id."""
        link = format_html('<a href="?thread={}" dir="auto">{}</a>', run.thread_id, run.shown_title[:40])
        return format_html('{} <span class="agui-quiet" dir="auto">{}</span>', link, run.shown_words[:40])

    @admin.display(description=gettext_lazy("time"))
    def duration(self, run: Run) -> Any:
        """How long it took, and how long of that nothing was seen."""
        if run.first_event_ms is None:
            return seconds(run.duration_ms)
        first = _("first %(time)s") % {"time": seconds(run.first_event_ms)}
        return format_html('{} <span class="agui-quiet">{}</span>', seconds(run.duration_ms), first)

    @admin.display(description=gettext_lazy("tokens"))
    def tokens(self, run: Run) -> Any:
        """In and out."""
        return run.input_tokens + run.output_tokens or NONE

    @admin.display(description=gettext_lazy("cost"))
    def cost(self, run: Run) -> Any:
        """What it cost, where that is known."""
        return shown(run.cost_nanos, run.currency) or NONE

    @admin.display(description=gettext_lazy("tools"))
    def tools(self, run: Run) -> Any:
        """How many calls."""
        return run.tool_calls or NONE

    @admin.display(description=gettext_lazy("error"))
    def error(self, run: Run) -> Any:
        """Its code and reference."""
        if not run.error_code:
            return NONE
        return format_html('{} <span class="agui-quiet">{}</span>', run.error_code, run.error_reference)

    # ---- what can be done -------------------------------------------------------------------------------------------

    def has_review_permission(self, request: HttpRequest) -> bool:
        """Whether the action is offered."""
        return bool(request.user.has_perm(rights.REVIEW))

    @admin.action(description=gettext_lazy("Mark the selected runs as reviewed…"), permissions=["review"])
    def mark(self, request: HttpRequest, queryset: Any) -> HttpResponse:
        """Ask for a note."""
        return self._chosen(request, "review")

    def has_export_permission(self, request: HttpRequest) -> bool:
        """Whether the action is offered."""
        return bool(request.user.has_perm(rights.EXPORT))

    @admin.action(description=gettext_lazy("Export the selected runs…"), permissions=["export"])
    def export(self, request: HttpRequest, queryset: Any) -> HttpResponse:
        """Ask for the format."""
        return self._chosen(request, "export")

    def _chosen(self, request: HttpRequest, page: str) -> HttpResponse:
        """To the page that asks about the ticked runs."""
        chosen = request.POST.getlist(ACTION_CHECKBOX_NAME)
        asked = {"run": chosen, FILTERS: request.GET.urlencode()}
        return redirect(f"{reverse(f'admin:agui_django_run_{page}')}?{urlencode(asked, doseq=True)}")

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Whether the action is offered."""
        return bool(request.user.has_perm(rights.CANCEL))

    @admin.action(description=gettext_lazy("Stop the selected runs…"), permissions=["cancel"])
    def stop(self, request: HttpRequest, queryset: Any) -> HttpResponse:
        """Ask for a confirmation, which counts again."""
        return self._chosen(request, "cancel")

    def cancel_view(self, request: HttpRequest) -> HttpResponseBase:
        """Stop runs, after a look at how many still run."""
        given = request.POST if request.method == "POST" else request.GET
        keys, filters = uuids(given.getlist("run")), given.get(FILTERS, "")
        runs = Run.objects.using(database_alias()).filter(pk__in=keys, status__in=[Run.Status.QUEUED, *Run.ACTIVE])
        found = list(runs.only("pk", "status", "agent", "created_at"))
        if request.method != "POST":
            context = {
                **self.admin_site.each_context(request), "title": _("Stop runs"), "runs": found, "keys": keys,
                "opts": self.opts, "idle": len(keys) - len(found), "filters": filters,
            }  # fmt: skip
            return render(request, "admin/agui_django/confirm_cancel.html", context)
        stopped = 0
        for run in found:
            if in_background(lambda key=run.pk: get_engine().cancel(key, "staff"), "cancel"):  # type: ignore[misc]
                stopped += 1
                log(request, run, "Asked to stop.")
        said = ngettext("%(count)d run was asked to stop.", "%(count)d runs were asked to stop.", stopped)
        messages.success(request, said % {"count": stopped})
        to = reverse("admin:agui_django_run_change", args=keys) if len(keys) == 1 else None
        return HttpResponseRedirect(to or f"{reverse('admin:agui_django_run_changelist')}?{filters}".rstrip("?"))

    def status_view(self, request: HttpRequest) -> HttpResponseBase:
        """How the running rows of a list stand by now."""
        runs = Run.objects.using(database_alias()).filter(pk__in=uuids(request.GET.getlist("run")))
        rows = runs.values_list("pk", "status", "duration_ms")
        answer = {str(pk): {"status": s, "badge": badge(s), "time": seconds(ms)} for pk, s, ms in rows}
        return JsonResponse(answer, headers={"Cache-Control": "no-store"})

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> Any:
        """The run's page."""
        guard.demand(request.user, VIEW)
        beside = partial(neighbours, self, request)
        return in_zone(request, lambda: run_page.page(self.admin_site, request, object_id, beside))

    def get_urls(self) -> list[Any]:
        """Ours in front of the admin's."""
        site, content = self.admin_site, rights.VIEW_CONTENT
        own = [
            path("cancel/", guard.page(site, self.cancel_view, VIEW, rights.CANCEL), name="agui_django_run_cancel"),
            path(
                "review/", guard.page(site, reviewing(site), VIEW, rights.REVIEW), name="agui_django_run_review",
            ),
            path("export/", guard.page(site, exporting(self), VIEW, rights.EXPORT), name="agui_django_run_export"),
            path("zone/", guard.page(site, switch), name="agui_django_run_zone"),
            path("status/", guard.page(site, self.status_view, VIEW), name="agui_django_run_status"),
            path("<uuid:run>/live/", guard.live(site, live, VIEW), name="agui_django_run_live"),
            path("<uuid:run>/events/", guard.page(site, run_page.events(site), VIEW), name="agui_django_run_events"),
            path(
                "<uuid:run>/<slug:name>.txt",
                guard.page(site, run_page.part, VIEW, content),
                name="agui_django_run_part",
            ),
            path(
                "<uuid:run>/events.ndjson", guard.page(site, run_page.download, VIEW, content, rights.EXPORT),
                name="agui_django_run_download",
            ),
            path(
                "message/<int:message>/", guard.page(site, run_page.message, content),
                name="agui_django_run_message",
            ),
            path("file/<uuid:file>/", guard.page(site, run_page.file, content), name="agui_django_run_file"),
        ]  # fmt: skip
        return [*own, *dashboard.addresses(site), *super().get_urls()]
