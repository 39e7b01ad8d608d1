"""The inbox: questions that wait for a person, and the page that answers one.

Law: an answer goes the same way as everybody's, and is judged there; who may answer has to see what is asked.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import PermissionDenied
from django.db.models import F
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.timesince import timesince
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from agui_django.access import get_policy
from agui_django.admin import filters, guard, rights
from agui_django.admin.answer_form import AnswerForm
from agui_django.admin.conversation import conversation, value
from agui_django.admin.lists import KeysetList, ReadOnlyAdmin, log, people
from agui_django.admin.rights import Redactor
from agui_django.admin.rows_field import ADD
from agui_django.admin.statuses import NONE
from agui_django.models import Interrupt, Message, Run
from agui_django.protocol.codec import decode
from agui_django.protocol.errors import AgUiError, InvalidJson
from agui_django.runs.answering import answer, aseen
from agui_django.runs.database import database_alias
from agui_django.runs.start import in_background

#: Messages of the conversation so far; questions that wait on one page.
SO_FAR, WAITING = 6, 100
#: What the list never reads.
HEAVY = ("response_schema", "wire", "metadata", "draft", "response")


class InboxList(KeysetList):
    """What waits: first what expires next, then the oldest, so many at once; the rest as any list."""

    def get_results(self, request: HttpRequest) -> None:
        """The rows of the page."""
        if request.GET.get("state", "open") == "open":
            self.queryset = self.queryset.order_by(F("expires_at").asc(nulls_last=True), "created_at", "pk")
            self.list_per_page = WAITING
        super().get_results(request)
        if request.GET.get("state", "open") == "open":
            self.older = self.newer = ""


@admin.register(Interrupt)
class InterruptAdmin(ReadOnlyAdmin):
    """The inbox."""

    column: ClassVar = "created_at"
    ordering = ("-created_at", "-pk")
    list_display = ("question", "left", "waits", "person", "agent", "looked", "outcome")
    list_filter = (filters.Inbox, filters.AskingAgent)
    actions: Any = ("deny",)

    # ---- the list ---------------------------------------------------------------------------------------------------

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Who may answer may look."""
        return bool(request.user.has_perm(rights.ANSWER)) or super().has_view_permission(request, obj)

    def has_answer_permission(self, request: HttpRequest) -> bool:
        """Whether the action is offered."""
        return bool(request.user.has_perm(rights.ANSWER))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        """The inbox's order."""
        return InboxList

    def get_queryset(self, request: HttpRequest) -> Any:
        """Without the columns that may be large."""
        return super().get_queryset(request).defer(*HEAVY)

    def prepare(self, request: HttpRequest, rows: list[Any]) -> list[Any]:
        """Runs and names: two statements for a page."""
        runs = Run.objects.using(database_alias()).only("agent", "user_id").in_bulk({row.run_id for row in rows})
        looking = [row.seen_by_id for row in rows] + [row.answered_by_id for row in rows]
        names = people([*(run.user_id for run in runs.values()), *looking])
        hide, now = Redactor(request.user, also=rights.ANSWER), timezone.now()
        for row in rows:
            run = runs[row.run_id]
            row.shown_agent, row.shown_person = run.agent, names.get(run.user_id, "")
            row.shown_question = hide.text(row.message) or row.reason
            row.shown_seen = names.get(row.seen_by_id, "")
            row.shown_by = names.get(row.answered_by_id, "")
            row.now = now
        return rows

    @admin.display(description=gettext_lazy("question"))
    def question(self, row: Any) -> Any:
        """What is asked."""
        return format_html('<span dir="auto">{}</span>', row.shown_question[:200])

    @admin.display(description=gettext_lazy("expires"))
    def left(self, row: Any) -> Any:
        """How much time is left."""
        if row.expires_at is None:
            return _("never")
        if row.expires_at <= row.now:
            return _("expired")
        return _("in %(time)s") % {"time": timesince(row.now, row.expires_at, depth=1)}

    @admin.display(description=gettext_lazy("waits"))
    def waits(self, row: Any) -> Any:
        """For how long it has waited, or had."""
        return timesince(row.created_at, row.closed_at or row.now, depth=2)

    @admin.display(description=gettext_lazy("person"))
    def person(self, row: Any) -> Any:
        """Whose run asks."""
        return row.shown_person or NONE

    @admin.display(description=gettext_lazy("agent"))
    def agent(self, row: Any) -> Any:
        """Which agent asks."""
        return row.shown_agent

    @admin.display(description=gettext_lazy("looked at by"))
    def looked(self, row: Any) -> Any:
        """Who has it open."""
        return row.shown_seen or NONE

    @admin.display(description=gettext_lazy("outcome"))
    def outcome(self, row: Any) -> Any:
        """What became of it."""
        return f"{row.get_status_display()} {row.shown_by}".strip()

    @admin.action(description=gettext_lazy("Dismiss the selected questions…"), permissions=["answer"])
    def deny(self, request: HttpRequest, queryset: Any) -> HttpResponse:
        """Ask for a confirmation, which counts again."""
        chosen = request.POST.getlist(ACTION_CHECKBOX_NAME)
        return redirect(f"{reverse('admin:agui_django_interrupt_dismiss')}?{urlencode({'q': chosen}, doseq=True)}")

    # ---- pages ------------------------------------------------------------------------------------------------------

    def dismiss_view(self, request: HttpRequest) -> HttpResponseBase:
        """Give several questions up, each as its own answer."""
        asked = (request.POST if request.method == "POST" else request.GET).getlist("q")
        keys = [int(key) for key in asked[:WAITING] if key.isascii() and key.isdigit() and len(key) < 18]
        rows = list(
            Interrupt.objects.using(database_alias()).open().filter(pk__in=keys).select_related("thread", "run")
        )
        if request.method != "POST":
            context = {
                **self.admin_site.each_context(request), "title": _("Dismiss questions"), "opts": self.opts,
                "rows": rows, "gone": len(keys) - len(rows),
            }  # fmt: skip
            return render(request, "admin/agui_django/confirm_dismiss.html", context)
        reason, done = request.POST.get("reason", "").strip()[:500], 0
        for row in rows:
            try:
                answer(row, user=request.user, status="cancelled", metadata={"reason": reason} if reason else None)
            except AgUiError as error:
                messages.error(request, f"#{row.pk}: {error.message}")
                continue
            done += 1
            log(request, row, "Dismissed.")
        said = ngettext("%(count)d question was dismissed.", "%(count)d questions were dismissed.", done)
        messages.success(request, said % {"count": done})
        return redirect("admin:agui_django_interrupt_changelist")

    def change_view(self, request: HttpRequest, object_id: str, *args: Any, **kwargs: Any) -> Any:
        """A question, and the form that answers it."""
        rows = Interrupt.objects.using(database_alias()).select_related("thread", "run")
        row = rows.filter(pk=object_id).first() if object_id.isascii() and object_id.isdigit() else None
        if not self.has_view_permission(request):
            raise PermissionDenied
        if row is None:
            raise Http404
        hide = Redactor(request.user, also=rights.ANSWER)
        waits = row.status == Interrupt.Status.OPEN and self.has_answer_permission(request)
        may = waits and get_policy().may_answer(request.user, row)
        dismissible = waits and (may or get_policy().may_give_up(request.user, row))
        form = AnswerForm(_schema(row), request.POST if request.method == "POST" else None) if dismissible else None
        if request.method == "POST":
            if form is None or not (may or request.POST.get("verb") == "dismiss"):
                raise PermissionDenied
            if (done := self._answered(request, row, form)) is not None:
                return done
        if may:
            in_background(lambda: aseen(row, request.user), "seen")
        context = self._context(request, row, hide, form) | {"may": may}
        return render(request, "admin/agui_django/interrupt.html", context)

    def _context(self, request: HttpRequest, row: Interrupt, hide: Redactor, form: AnswerForm | None) -> dict[str, Any]:
        alias = database_alias()
        reader = Redactor(request.user)
        messages_of = Message.objects.using(alias).filter(thread=row.thread_id, superseded_by=None)
        others = Interrupt.objects.using(alias).open().filter(thread=row.thread_id).exclude(pk=row.pk)
        names = people([row.run.user_id, row.seen_by_id, row.answered_by_id])
        asked = _asked(messages_of, row)
        return {
            **self.admin_site.each_context(request),
            "title": _("Question"),
            "opts": self.opts,
            "row": row,
            "question": hide.text(row.message) or row.reason,
            "tool": asked[0],
            "arguments": value(asked[1], hide) if asked[1] else "",
            "metadata": value(row.metadata, hide) if row.metadata else "",
            "person": names.get(row.run.user_id),
            "looking": names.get(row.seen_by_id) if row.seen_by_id != request.user.pk else None,
            "answered_by": names.get(row.answered_by_id),
            "response": value(row.response, hide) if row.response else "",
            "draft": bool(row.draft),
            "others": list(others.only("pk", "reason")[:20]),
            "conversation": conversation(messages_of, reader, most=SO_FAR),
            "content": reader.content,
            "may_see_run": request.user.has_perm("agui_django.view_run"),
            "form": form,
            "expired": row.expired,
        }

    def _answered(self, request: HttpRequest, row: Interrupt, form: AnswerForm) -> HttpResponse | None:
        """Take the answer; None where the form has to be shown again."""
        verb = request.POST.get("verb", "answer")
        if verb.startswith(ADD):
            form.add_row(verb.removeprefix(ADD))
            return None
        if verb == "dismiss":
            given: dict[str, Any] = {"status": "cancelled"}
        else:
            if verb in ("approve", "deny") and form.approval:
                data = request.POST.copy()
                data[form.approval] = "true" if verb == "approve" else "false"
                form.data = data
            if not form.is_valid():
                return None
            given = {"payload": form.cleaned_data["answer"]}
        try:
            done = answer(row, user=request.user, **given)
        except AgUiError as error:
            form.is_valid()
            places = "; ".join(f"{each['path']} {each['message']}" for each in error.fields)
            form.add_error(None, f"{error.message} {places}".strip())
            return None
        log(request, row, "Dismissed." if verb == "dismiss" else "Answered.")
        said = (
            _("The answer was taken; the run goes on.") if done.complete else _("Kept until the others are answered.")
        )
        messages.success(request, said)
        return redirect("admin:agui_django_interrupt_changelist")

    def get_urls(self) -> list[Any]:
        """Ours in front of the admin's."""
        dismiss = guard.page(self.admin_site, self.dismiss_view, rights.ANSWER)
        change = guard.page(self.admin_site, self.change_view)
        return [
            path("dismiss/", dismiss, name="agui_django_interrupt_dismiss"),
            # In the place of the admin's own, which would be part of a transaction where requests are.
            path("<path:object_id>/change/", change, name="agui_django_interrupt_change"),
            *super().get_urls(),
        ]


def _schema(row: Interrupt) -> Any:
    try:
        return decode(row.response_schema) if row.response_schema else None
    except InvalidJson:
        return None


def _asked(rows: Any, row: Interrupt) -> tuple[str, str]:
    """The tool's name and arguments that a question is about."""
    if not row.tool_call_id:
        return "", ""
    wires = rows.filter(role="assistant", wire__contains=row.tool_call_id).order_by("-order")
    for wire in wires.values_list("wire", flat=True)[:5]:
        for call in decode(wire).get("toolCalls") or ():
            if call.get("id") == row.tool_call_id:
                function = call.get("function") or {}
                return str(function.get("name", "")), str(function.get("arguments", ""))
    return "", ""
