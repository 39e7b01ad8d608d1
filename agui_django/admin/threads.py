"""Threads in the admin: the list, a thread's page, and what staff do to one.

Law: every change is a service's: the state's edits, putting away, deleting; each is noted in the admin's log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar
from uuid import UUID

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import path
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from agui_django.admin import filters, guard, rights
from agui_django.admin.answer_form import ABSENT, JsonField
from agui_django.admin.changes import changes
from agui_django.admin.clock import in_zone, moment
from agui_django.admin.conversation import played, value
from agui_django.admin.downloads import NDJSON, streamed
from agui_django.admin.lists import ReadOnlyAdmin, log, people, redactor
from agui_django.admin.search import reading
from agui_django.admin.statuses import NONE, badge, seconds
from agui_django.models import Feedback, Interrupt, Message, Run, StateVersion, Thread
from agui_django.protocol.codec import decode, encode
from agui_django.protocol.errors import AgUiError
from agui_django.protocol.json_patch import make_patch
from agui_django.runs import keeping, pruning
from agui_django.runs.branches import arestore, branches
from agui_django.runs.database import database_alias, get_pool
from agui_django.runs.editing import aedit_state
from agui_django.runs.exporting import export_thread
from agui_django.runs.start import in_background

#: Runs and opinions of a page, characters of a state that is edited in a page, threads of one pruning.
RUNS, OPINIONS, EDITABLE, PRUNED = 50, 50, 256 * 1024, 500
VIEW, CHANGE, DELETE = (f"agui_django.{verb}_thread" for verb in ("view", "change", "delete"))


class StateForm(forms.Form):
    """A thread's state, and the version that was edited."""

    state = JsonField(label=gettext_lazy("State"), strip=False, widget=forms.Textarea(attrs={"rows": 16}))
    version = forms.IntegerField(widget=forms.HiddenInput, min_value=0)


class PruneForm(forms.Form):
    """Which threads are old."""

    days = forms.IntegerField(label=gettext_lazy("Unchanged for so many days"), min_value=1, max_value=36_500)


@admin.register(Thread)
class ThreadAdmin(ReadOnlyAdmin):
    """The threads, those that changed last in front."""

    column: ClassVar = "updated_at"
    ordering = ("-updated_at", "-pk")
    list_display = ("name", "person", "agent", "words", "tokens", "changed", "put_away")
    list_filter = (
        filters.Changed,
        filters.Agent,
        filters.RatedThread,
        filters.Archived,
        filters.key("owner", gettext_lazy("person"), "owner"),
    )
    search_fields = ("thread_id",)
    search_help_text = gettext_lazy("A thread's or run's id, an error's reference, a person, or words that were said.")

    # ---- the list ---------------------------------------------------------------------------------------------------

    def get_queryset(self, request: HttpRequest) -> Any:
        """Without the columns that may be large."""
        return super().get_queryset(request).defer("state", "metadata")

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        """By what the search is taken for."""
        return queryset.filter(reading(request).threads), False

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        """The list, with what its search is taken for."""
        tools = [("prune/", _("Delete old threads…"))] if request.user.has_perm(rights.PRUNE) else []
        return super().changelist_view(request, {"said": reading(request).said, "tools": tools})

    def prepare(self, request: HttpRequest, rows: list[Any]) -> list[Any]:
        """Names of people: one statement for a page."""
        names, content = people([row.owner_id for row in rows]), redactor(request).content
        for row in rows:
            row.shown_person = names.get(row.owner_id, "")
            row.shown_title = (row.title if content else "") or row.thread_id
            row.shown_words = row.last_words if content else ""
        return rows

    @admin.display(description=gettext_lazy("thread"))
    def name(self, row: Any) -> Any:
        """The title, or the id."""
        return format_html('<span dir="auto">{}</span>', row.shown_title)

    @admin.display(description=gettext_lazy("person"))
    def person(self, row: Any) -> Any:
        """Whose it is; the link leaves only theirs."""
        return format_html('<a href="?owner={}">{}</a>', row.owner_id, row.shown_person) if row.owner_id else NONE

    @admin.display(description=gettext_lazy("last words"))
    def words(self, row: Any) -> Any:
        """How it ends."""
        return format_html('<span dir="auto">{}</span>', row.shown_words[:100])

    @admin.display(description=gettext_lazy("tokens"))
    def tokens(self, row: Thread) -> Any:
        """In and out."""
        return row.input_tokens + row.output_tokens or NONE

    @admin.display(description=gettext_lazy("changed"))
    def changed(self, row: Thread) -> Any:
        """When something last happened."""
        return moment(row.updated_at)

    @admin.display(description=gettext_lazy("archived"))
    def put_away(self, row: Thread) -> str:
        """Whether it was put away: the admin's own red cross for "no" looks like a failure."""
        return _("yes") if row.archived else NONE

    # ---- a thread ---------------------------------------------------------------------------------------------------

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> Any:
        """The thread's page."""
        guard.demand(request.user, VIEW)
        return in_zone(request, lambda: self._page(request, object_id))

    def _page(self, request: HttpRequest, object_id: str) -> HttpResponse:
        row, hide, alias = _find(object_id), redactor(request), database_alias()
        runs = list(
            Run.objects.using(alias).filter(thread=row).order_by("-created_at")
            .only("pk", "status", "created_at", "duration_ms", "error_code", "error_reference", "agent")[:RUNS]
        )  # fmt: skip
        messages_of = Message.objects.using(alias).filter(thread=row)
        opinions = Feedback.objects.using(alias).filter(thread=row).order_by("-created_at")[:OPINIONS]
        points = get_pool().run_sync(branches, row)
        may: Any = request.user.has_perm
        context = {
            **self.admin_site.each_context(request),
            "title": _("Thread"),
            "opts": self.opts,
            "row": row,
            "name": (row.title if hide.content else "") or row.thread_id,
            "person": people([row.owner_id]).get(row.owner_id),
            "runs": [(run, badge(run.status), seconds(run.duration_ms)) for run in runs],
            "waiting": list(Interrupt.objects.using(alias).open().filter(thread=row).only("pk", "reason")[:20]),
            "conversation": played(messages_of, hide, request.GET.dict()),
            "points": [[(way, hide.text(way.first_words)) for way in point.alternatives] for point in points],
            "opinions": [(each, hide.text(each.text)) for each in opinions],
            "state": value(row.state, hide),
            "changes": changes(StateVersion.objects.using(alias).filter(thread=row), row.pk, hide),
            "metadata": value(row.metadata, hide),
            "content": hide.content,
            "may_edit": hide.content and may(rights.EDIT_STATE),
            "may_export": hide.content and may(rights.EXPORT),
            "may_archive": may(CHANGE),
            "may_delete": may(DELETE),
            "may_see_runs": may("agui_django.view_run"),
        }
        return render(request, "admin/agui_django/thread.html", context)

    def state_view(self, request: HttpRequest, thread: int) -> HttpResponse:
        """Edit the state: first the difference is shown, then it is saved; a version made since is a conflict."""
        row = _find(thread)
        if len(row.state) > EDITABLE:
            raise PermissionDenied
        start = {"state": json.dumps(decode(row.state), indent=2, ensure_ascii=False), "version": row.state_version}
        form = StateForm(request.POST if request.method == "POST" else None, initial=start)
        patch: list[dict[str, Any]] = []
        if request.method == "POST" and form.is_valid():
            wanted, version = form.cleaned_data["state"], form.cleaned_data["version"]
            patch = make_patch(decode(row.state), wanted) if wanted is not ABSENT else []
            if "save" in request.POST and patch:
                edit = partial(aedit_state, row, user=request.user, patch=patch, if_version=version)
                try:
                    made = in_background(edit, "edit")
                except AgUiError as error:
                    places = "; ".join(f"{each['path']} {each['message']}" for each in error.fields)
                    form.add_error(None, f"{error.message} {places}".strip())
                else:
                    log(request, row, f"Edited the state: version {made.version}.")
                    messages.success(request, _("Version %(number)d is stored.") % {"number": made.version})
                    return redirect("admin:agui_django_thread_change", row.pk)
        context = {
            **self.admin_site.each_context(request), "title": _("Edit the state"), "opts": self.opts, "row": row,
            "form": form, "patch": [(op["op"], op["path"] or "/") for op in patch[:200]], "shown": bool(patch),
            "stale": form.is_bound and form.cleaned_data.get("version", row.state_version) != row.state_version,
        }  # fmt: skip
        return render(request, "admin/agui_django/edit_state.html", context)

    def archive_view(self, request: HttpRequest, thread: int) -> HttpResponse:
        """Put the thread away, or take it out again."""
        row = _find(thread)
        if request.method == "POST":
            get_pool().run_sync(keeping.archive, row, not row.archived)
            log(request, row, "Archived." if row.archived else "Taken out of the archive.")
        return redirect("admin:agui_django_thread_change", row.pk)

    def restore_view(self, request: HttpRequest, thread: int) -> HttpResponse:
        """Bring a branch of the conversation back; what is in play becomes one."""
        row = _find(thread)
        if request.method == "POST":
            try:
                branch = UUID(request.POST.get("branch", ""))
                in_background(partial(arestore, row, branch, user=request.user), "restore")
            except ValueError:
                raise Http404 from None
            except AgUiError as error:
                messages.error(request, error.message)
            else:
                log(request, row, f"Restored the branch of run {branch}.")
                messages.success(request, _("The branch is in play; what it replaced is a branch now."))
        return redirect("admin:agui_django_thread_change", row.pk)

    def export_view(self, request: HttpRequest, thread: int) -> HttpResponseBase:
        """Everything in the thread, a record a line."""
        row = _find(thread)
        log(request, row, "Exported.")

        def lines() -> Iterator[bytes]:
            for record in export_thread(row):
                yield f"{encode(record)}\n".encode()

        response: HttpResponseBase = streamed(request, lines(), NDJSON, f"thread-{row.pk}.ndjson")
        return response

    def remove_view(self, request: HttpRequest, thread: int) -> HttpResponse:
        """Delete the thread, once its id was typed under the count of what goes."""
        row, wrong = _find(thread), False
        if request.method == "POST":
            if request.POST.get("thread_id") == row.thread_id:
                keeping.delete(row, reason="staff")
                log(request, row, "Deleted.")
                messages.success(request, _("The thread was deleted."))
                return redirect("admin:agui_django_thread_changelist")
            wrong = True
        context = {
            **self.admin_site.each_context(request), "title": _("Delete a thread"), "opts": self.opts, "row": row,
            "counted": get_pool().run_sync(pruning.count, row.pk), "wrong": wrong,
            "open": Interrupt.objects.using(database_alias()).open().filter(thread=row).count(),
        }  # fmt: skip
        return render(request, "admin/agui_django/confirm_delete.html", context)

    def prune_view(self, request: HttpRequest) -> HttpResponse:
        """Delete old threads: counted first, and again by whether each may still go."""
        form = PruneForm(request.POST if request.method == "POST" else None, initial={"days": 365})
        found: list[Any] | None = None
        if form.is_bound and form.is_valid():
            before = timezone.now() - timedelta(days=form.cleaned_data["days"])
            rows = pruning.prunable(before).order_by("updated_at", "pk")[: PRUNED + 1]
            found = list(rows.only("pk", "updated_at", "thread_id"))
            if "delete" in request.POST:
                gone = pruning.Counted()
                for row in found[:PRUNED]:
                    if counted := get_pool().run_sync(pruning.prune, row.pk, before):
                        log(request, row, "Pruned.")
                        gone.add(counted)
                said = _("Deleted: %(threads)d threads, %(runs)d runs, %(messages)d messages, %(files)d files.")
                messages.success(request, said % vars(gone))
                return redirect("admin:agui_django_thread_changelist")
        context = {
            **self.admin_site.each_context(request), "title": _("Delete old threads"), "opts": self.opts, "form": form,
            "found": found, "count": min(len(found or ()), PRUNED), "more": len(found or ()) > PRUNED,
        }  # fmt: skip
        return render(request, "admin/agui_django/prune.html", context)

    def get_urls(self) -> list[Any]:
        """Ours in front of the admin's."""
        site, content = self.admin_site, rights.VIEW_CONTENT
        own: list[tuple[str, guard.View, str, list[str]]] = [
            ("prune/", self.prune_view, "prune", [VIEW, rights.PRUNE]),
            ("<int:thread>/state/", self.state_view, "state", [VIEW, content, rights.EDIT_STATE]),
            ("<int:thread>/archive/", self.archive_view, "archive", [VIEW, CHANGE]),
            ("<int:thread>/restore/", self.restore_view, "restore", [VIEW, CHANGE]),
            ("<int:thread>/export/", self.export_view, "export", [VIEW, content, rights.EXPORT]),
            ("<int:thread>/remove/", self.remove_view, "remove", [VIEW, DELETE]),
        ]
        paths = [
            path(at, guard.page(site, view, *may), name=f"agui_django_thread_{name}") for at, view, name, may in own
        ]
        return [*paths, *super().get_urls()]


def _find(key: Any) -> Thread:
    """A thread.

    Raises:
        Http404: there is none.
    """
    try:
        return Thread.objects.using(database_alias()).get(pk=key)
    except (Thread.DoesNotExist, ValueError, OverflowError):
        raise Http404 from None
