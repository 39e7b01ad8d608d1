"""Filters that the dashboard's numbers lead to; each is shown in a list only while the address names it."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext_lazy as _

from agui_django.admin.clock import moment
from agui_django.models import Run


class _Named(admin.SimpleListFilter):
    """What the address names, the empty text, too."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """The one choice."""
        value = request.GET.get(self.parameter_name or "")
        return [] if value is None else [(value, self.said(value))]

    def said(self, value: str) -> str:
        """How it is written."""
        return value or str(_("none"))

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """The rows."""
        value = self.value()
        return queryset if value is None else queryset.filter(self.condition(value))

    def condition(self, value: str) -> Q:
        """What they fulfil."""
        raise NotImplementedError


class _Moment(_Named):
    """One end of a range of time, such as ``2026-11-30T12:00:00Z``."""

    lookup: ClassVar[str]

    def said(self, value: str) -> str:
        """In the viewer's zone, as the list's own times; what is no time as it stands."""
        try:
            return moment(parse_datetime(value)) or value
        except (ValueError, OverflowError):
            return value

    def condition(self, value: str) -> Q:
        """On this side of it."""
        try:
            at = parse_datetime(value)
        except ValueError as error:
            raise IncorrectLookupParameters from error
        if at is None or at.tzinfo is None:
            raise IncorrectLookupParameters
        return Q(**{f"created_at__{self.lookup}": at})


class Since(_Moment):
    """From a moment on."""

    title, parameter_name, lookup = _("since"), "since", "gte"


class Until(_Moment):
    """Before a moment."""

    title, parameter_name, lookup = _("until"), "until", "lt"


class SameError(_Named):
    """An error's fingerprint: the same code, class of exception and place."""

    title, parameter_name = _("the same error"), "same"

    def said(self, value: str) -> str:
        """As short as people compare it."""
        return value[:8]

    def condition(self, value: str) -> Q:
        """In a form that both databases find the partial index by."""
        return Q(error_fingerprint=value) & ~Q(error_fingerprint="")


class Model(_Named):
    """The models of a run."""

    title, parameter_name = _("model"), "model"

    def condition(self, value: str) -> Q:
        """These very models."""
        return Q(model=value)


class _OneOf(_Named):
    conditions: ClassVar[dict[str, tuple[Q, Any]]]

    def said(self, value: str) -> str:
        """In words."""
        return str(self.conditions[value][1]) if value in self.conditions else value

    def condition(self, value: str) -> Q:
        """One of those that there are."""
        if value not in self.conditions:
            raise IncorrectLookupParameters
        return self.conditions[value][0]


class Priced(_OneOf):
    """Whether what a run cost is known."""

    title, parameter_name = _("cost"), "priced"
    conditions: ClassVar = {
        "yes": (Q(cost_nanos__isnull=False), _("priced")),
        "no": (Run.NOT_PRICED, _("not priced")),
    }


class Timed(_OneOf):
    """Whether a run's time, or that of its first event, is known."""

    title, parameter_name = _("time"), "timed"
    conditions: ClassVar = {
        "run": (Q(duration_ms__isnull=False), _("known")),
        "first": (Q(first_event_ms__isnull=False), _("had an event")),
    }


OF_RUNS: Final = (Since, Until, SameError, Model, Priced, Timed)
