"""The filters of the lists: each a plain condition of one table, its choices known without a query.

Law: what stands in an address and is none of the choices finds nothing and says so; no filter looks into texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, ClassVar, Final

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from agui_django.admin.search import reading
from agui_django.agents.registry import all_agents
from agui_django.models import Feedback, Interrupt, Run

DAYS: Final = {"24h": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}


class Choice(admin.SimpleListFilter):
    """One of some choices, each a condition."""

    conditions: ClassVar[dict[str, Q]]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """The rows of the choice."""
        value = self.value()
        if value is None:
            return queryset
        if value not in self.conditions:
            raise IncorrectLookupParameters
        return queryset.filter(self.conditions[value])


class Window(admin.SimpleListFilter):
    """When: the last days, or all time. The default keeps the list quick; an id is found whenever it was."""

    title = _("window")
    parameter_name = "window"
    column: ClassVar = "created_at"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """The choices."""
        return [
            ("24h", _("last 24 hours")),
            ("7d", _("last 7 days")),
            ("30d", _("last 30 days")),
            ("all", _("all time")),
        ]

    def choices(self, changelist: Any) -> Iterator[Any]:
        """The first one stands for no choice."""
        for key, text in self.lookup_choices:
            query = changelist.get_query_string({self.parameter_name: key})
            yield {"selected": (self.value() or "7d") == key, "query_string": query, "display": text}

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """The rows of the window."""
        value = self.value()
        if value is None and (f"{self.column}__year" in request.GET or reading(request).exact):
            return queryset
        value = value or "7d"
        if value == "all":
            return queryset
        if value not in DAYS:
            raise IncorrectLookupParameters
        return queryset.filter(**{f"{self.column}__gte": timezone.now() - DAYS[value]})


class Changed(Window):
    """The window of a list of threads."""

    column: ClassVar = "updated_at"


class Status(admin.SimpleListFilter):
    """Several statuses at once, joined by commas."""

    title = _("status")
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """The choices."""
        return [(str(value), label) for value, label in Run.Status.choices]

    def _values(self) -> list[str]:
        return [each for each in (self.value() or "").split(",") if each]

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Each link takes its status in, or out."""
        chosen = self._values()
        yield {
            "selected": not chosen,
            "query_string": changelist.get_query_string(remove=[self.parameter_name]),
            "display": _("All"),
        }
        for key, text in self.lookup_choices:
            then = [each for each in chosen if each != key] if key in chosen else [*chosen, str(key)]
            query = changelist.get_query_string({self.parameter_name: ",".join(then) or None})
            yield {"selected": key in chosen, "query_string": query, "display": text}

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """The rows of these statuses."""
        values = self._values()
        if not set(values) <= set(Run.Status.values):
            raise IncorrectLookupParameters
        return queryset.filter(status__in=values) if values else queryset


class Agent(admin.SimpleListFilter):
    """The agents that are registered; the address may name one that was."""

    title = _("agent")
    parameter_name = "agent"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """The choices."""
        return [(entry.name, str(entry.options.title or entry.name)) for entry in all_agents()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """The rows of the agent."""
        value = self.value()
        return queryset if value is None else queryset.filter(agent=value)


class AskingAgent(Agent):
    """The agent whose run asked."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """The questions of the agent."""
        value = self.value()
        return queryset if value is None else queryset.filter(run__agent=value)


class Error(Choice):
    """Whether it ended with an error."""

    title = _("error")
    parameter_name = "error"
    conditions: ClassVar = {"yes": ~Q(error_code=""), "no": Q(error_code="")}

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """The choices."""
        return [("yes", _("with an error")), ("no", _("without"))]


class Transport(Choice):
    """How it was asked for."""

    title = _("transport")
    parameter_name = "transport"
    conditions: ClassVar = {name: Q(transport=name) for name in ("sse", "websocket", "server", "restore")}

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """The choices."""
        return [(name, name) for name in self.conditions]


class Waiting(Choice):
    """Whether it left questions open."""

    title = _("open questions")
    parameter_name = "waiting"
    conditions: ClassVar = {"yes": Q(open_interrupts__gt=0)}

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """The choice."""
        return [("yes", _("ended with questions"))]


class Reviewed(Choice):
    """Whether somebody of the staff looked into it."""

    title = _("reviewed")
    parameter_name = "reviewed"
    conditions: ClassVar = {"no": Q(reviewed_at=None), "yes": Q(reviewed_at__isnull=False)}

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """The choices."""
        return [("no", _("not yet")), ("yes", _("reviewed"))]


def _rated(of: str) -> dict[str, Q]:
    """The conditions of a thumb, by what it belongs to."""
    thumbs = {"down": Feedback.Rating.DOWN, "up": Feedback.Rating.UP}
    return {name: Q(pk__in=Feedback.objects.filter(rating=rating).values(of)) for name, rating in thumbs.items()}


class Rated(Choice):
    """What its user thinks of what a run said."""

    title = _("feedback")
    parameter_name = "feedback"
    conditions: ClassVar = _rated("message__run")

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """The choices."""
        return [("down", _("thumb down")), ("up", _("thumb up"))]


class RatedThread(Rated):
    """What its user thinks of anything in a thread."""

    conditions: ClassVar = _rated("thread")


class Archived(Choice):
    """Whether it was put away."""

    title = _("archived")
    parameter_name = "archived"
    conditions: ClassVar = {"no": Q(archived=False), "yes": Q(archived=True)}

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """The choices."""
        return [("no", _("no")), ("yes", _("yes"))]


class _Key(admin.SimpleListFilter):
    """A row of another table by its key; only shown while it is chosen, so that no table is read for choices."""

    column: ClassVar[str]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """What the address names."""
        value = request.GET.get(self.parameter_name or "", "")
        return [(value, f"#{value}")] if value else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """The rows that belong to it."""
        value = self.value()
        if value is None:
            return queryset
        try:
            return queryset.filter(**{self.column: value})
        except (ValueError, TypeError) as error:
            raise IncorrectLookupParameters from error


def key(name: str, title: Any, column: str) -> type[admin.SimpleListFilter]:
    """A filter by the key of a row of another table."""
    return type(f"Key{name}", (_Key,), {"title": title, "parameter_name": name, "column": column})


class Inbox(admin.SimpleListFilter):
    """Questions that wait, that came too late, that have their answer, and one's own answers."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """The choices."""
        names = (_("waiting"), _("expired"), _("answered"), _("answered by me"))
        return list(zip(("open", "expired", "answered", "mine"), names, strict=True))

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Waiting stands for no choice."""
        for name, text in self.lookup_choices:
            query = changelist.get_query_string({self.parameter_name: name})
            yield {"selected": (self.value() or "open") == name, "query_string": query, "display": text}

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """The questions of the state."""
        status, now = Interrupt.Status, timezone.now()
        wanted = {
            "open": Q(status=status.OPEN) & (Q(expires_at=None) | Q(expires_at__gt=now)),
            "expired": Q(status=status.EXPIRED) | Q(status=status.OPEN, expires_at__lte=now),
            "answered": Q(status__in=[status.RESOLVED, status.CANCELLED]),
            "mine": Q(answered_by=request.user.pk),
        }.get(self.value() or "open")
        if wanted is None:
            raise IncorrectLookupParameters
        return queryset.filter(wanted)
