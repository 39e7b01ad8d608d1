"""What lists can be filtered by (django-filter). Names are those of the answers; what cannot be read is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import django_filters
from django import forms
from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import QueryDict
from django.utils import timezone
from django.utils.dateparse import parse_date, parse_datetime
from drf_spectacular.utils import extend_schema_field

from agui_django.models import Feedback, Interrupt, Run, StateVersion, Thread
from agui_django.protocol.codec import clean_text
from agui_django.protocol.errors import InvalidInput

YES_NO = {"true": True, "false": False}


class _FlagField(forms.Field):
    def to_python(self, value: Any) -> bool | None:
        if value in (None, ""):
            return None
        if value not in YES_NO:
            raise ValidationError("must be true or false")
        return YES_NO[value]


class _MomentField(forms.Field):
    def to_python(self, value: Any) -> datetime | None:
        if value in (None, ""):
            return None
        try:
            moment = parse_datetime(value)
            if moment is None:
                day = parse_date(value)
                moment = None if day is None else datetime(day.year, day.month, day.day)
            if moment is not None and moment.tzinfo is None:
                moment = timezone.make_aware(moment)
            # A moment at the edge of time has no place in another zone.
            moment = moment.astimezone(UTC) if moment is not None else None
        except (ValueError, OverflowError):
            moment = None
        if moment is None:
            raise ValidationError("must be a moment, such as 2026-01-31T12:00:00Z")
        return moment


class _IdField(forms.CharField):
    """A client's id, cleaned as it was when it was stored; spaces belong to it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(strip=False, max_length=255, **options)

    def to_python(self, value: Any) -> str | None:
        return None if value is None else clean_text(super().to_python(value) or "")


class _UserField(forms.Field):
    def to_python(self, value: Any) -> Any:
        if value in (None, ""):
            return None
        try:
            key = get_user_model()._meta.pk.to_python(value)
        except (ValidationError, ValueError, OverflowError):
            key = None
        if key is None:
            raise ValidationError("must be a user's key")
        return key


class _WholeField(forms.Field):
    def to_python(self, value: Any) -> int | None:
        if value in (None, ""):
            return None
        if not (value.isascii() and value.isdigit() and len(value) < 19):
            raise ValidationError("must be a number")
        return int(value)


@extend_schema_field(bool)
class Flag(django_filters.Filter):  # type: ignore[misc]
    """``true`` or ``false``."""

    field_class = _FlagField


@extend_schema_field(datetime)
class Moment(django_filters.Filter):  # type: ignore[misc]
    """A moment (or a day, which is its beginning)."""

    field_class = _MomentField


@extend_schema_field(str)
class Id(django_filters.Filter):  # type: ignore[misc]
    """A text that has to be equal; an empty one, too: it is no wish to see everything."""

    field_class = _IdField

    def filter(self, rows: QuerySet[Any], value: str | None) -> QuerySet[Any]:
        """The rows that have it."""
        return rows if value is None else rows.filter(**{self.field_name: value})


@extend_schema_field({"type": ["integer", "string"]})
class User(django_filters.Filter):  # type: ignore[misc]
    """A user's key."""

    field_class = _UserField


@extend_schema_field({"type": "integer", "minimum": 0, "maximum": 999_999_999_999_999_999})
class Whole(django_filters.Filter):  # type: ignore[misc]
    """A number."""

    field_class = _WholeField


@extend_schema_field({"type": "string", "format": "uuid"})
class Address(django_filters.UUIDFilter):  # type: ignore[misc]
    """A run's address."""


class Several(django_filters.BaseInFilter, django_filters.ChoiceFilter):  # type: ignore[misc]
    """One or several of the choices, separated by commas."""


def _several(column: str, choices: Any, text: str) -> Any:
    schema = {"type": "array", "items": {"type": "string", "enum": choices.values}}
    made = Several(field_name=column, choices=choices.choices, help_text=text)
    return extend_schema_field(schema)(made)


class Filters(django_filters.FilterSet):  # type: ignore[misc]
    """What all have in common: who sends them a query learns what was wrong with it, in our words."""

    @classmethod
    def narrow(cls, rows: QuerySet[Any], query: QueryDict) -> QuerySet[Any]:
        """The rows that a query leaves.

        Raises:
            InvalidInput: a value cannot be read.
        """
        made = cls(query, queryset=rows)
        if not made.form.is_valid():
            fields = [
                {"path": name, "message": _told(problem)}
                for name, problems in made.form.errors.as_data().items()
                for problem in problems
            ]
            raise InvalidInput("The query is malformed.", fields=fields)
        narrowed: QuerySet[Any] = made.qs
        return narrowed


def _told(problem: ValidationError) -> str:
    """Django's own texts may hold what was sent."""
    code = problem.code or ""
    return {"invalid_choice": "is none of the choices", "max_length": "is too long"}.get(code) or (
        str(problem.message) if not code else "is malformed"
    )


def _exists(rows: QuerySet[Any], inner: QuerySet[Any], wanted: bool) -> QuerySet[Any]:
    return rows.filter(Exists(inner) if wanted else ~Exists(inner))


class ThreadFilters(Filters):
    """Of threads."""

    threadId = Id(field_name="thread_id", help_text="The client's id.")
    agent = Id(field_name="agent", help_text="The agent of the latest run.")
    archived = Flag(field_name="archived")
    owner = User(field_name="owner_id", help_text="The owner's key.")
    active = Flag(method="by_active", help_text="Whether a run is running or about to.")
    hasOpenInterrupts = Flag(method="by_waiting", help_text="Whether a question waits for an answer.")
    hasError = Flag(method="by_error", help_text="Whether one of its runs failed.")
    forkedFrom = Whole(field_name="forked_from_id", help_text="The thread that it was forked from.")
    createdAfter = Moment(field_name="created_at", lookup_expr="gte")
    createdBefore = Moment(field_name="created_at", lookup_expr="lt")
    updatedAfter = Moment(field_name="updated_at", lookup_expr="gte")
    updatedBefore = Moment(field_name="updated_at", lookup_expr="lt")

    def by_active(self, rows: QuerySet[Thread], name: str, wanted: bool) -> QuerySet[Thread]:
        """Whether something runs."""
        return _exists(rows, Run.objects.filter(thread=OuterRef("pk")).active(), wanted)

    def by_waiting(self, rows: QuerySet[Thread], name: str, wanted: bool) -> QuerySet[Thread]:
        """Whether somebody is asked."""
        return _exists(rows, Interrupt.objects.open(timezone.now()).filter(thread=OuterRef("pk")), wanted)

    def by_error(self, rows: QuerySet[Thread], name: str, wanted: bool) -> QuerySet[Thread]:
        """Whether a run failed."""
        return _exists(rows, Run.objects.filter(thread=OuterRef("pk"), status=Run.Status.FAILED), wanted)


class MessageFilters(Filters):
    """Of messages."""

    role = Id(field_name="role")
    messageId = Id(field_name="message_id")
    run = Address(field_name="run_id", help_text="The run that brought or made them.")
    supersededBy = Address(
        field_name="superseded_by_id", help_text="The run that took them out of play; with superseded=true."
    )
    createdAfter = Moment(field_name="created_at", lookup_expr="gte")
    createdBefore = Moment(field_name="created_at", lookup_expr="lt")


class RunFilters(Filters):
    """Of runs."""

    status = _several("status", Run.Status, "One or several, separated by commas.")
    agent = Id(field_name="agent")
    thread = Whole(field_name="thread_id", help_text="The thread's key in this API.")
    threadId = Id(field_name="thread__thread_id", help_text="The client's id of the thread.")
    runId = Id(field_name="run_id", help_text="The client's id of the run.")
    user = User(field_name="user_id", help_text="The key of the user whom it runs for.")
    errorCode = Id(field_name="error_code")
    errorReference = Id(field_name="error_reference")
    hasError = Flag(method="by_error", help_text="Whether it failed.")
    hasOpenInterrupts = Flag(method="by_waiting", help_text="Whether a question of it waits for an answer.")
    resumedRun = Address(field_name="resumed_run_id", help_text="The run whose questions it answers.")
    createdAfter = Moment(field_name="created_at", lookup_expr="gte")
    createdBefore = Moment(field_name="created_at", lookup_expr="lt")

    def by_error(self, rows: QuerySet[Run], name: str, wanted: bool) -> QuerySet[Run]:
        """Whether it failed."""
        failed = Q(status=Run.Status.FAILED)
        return rows.filter(failed if wanted else ~failed)

    def by_waiting(self, rows: QuerySet[Run], name: str, wanted: bool) -> QuerySet[Run]:
        """Whether somebody is asked."""
        return _exists(rows, Interrupt.objects.open(timezone.now()).filter(run=OuterRef("pk")), wanted)


class VersionFilters(Filters):
    """Of versions of a state."""

    origin = _several("origin", StateVersion.Origin, "Who made it.")
    run = Address(field_name="run_id")
    createdAfter = Moment(field_name="created_at", lookup_expr="gte")
    createdBefore = Moment(field_name="created_at", lookup_expr="lt")


class InterruptFilters(Filters):
    """Of questions."""

    status = _several("status", Interrupt.Status, "One or several, separated by commas.")
    open = Flag(method="by_open", help_text="Whether it can still be answered.")
    agent = Id(field_name="run__agent")
    thread = Whole(field_name="thread_id", help_text="The thread's key in this API.")
    threadId = Id(field_name="thread__thread_id", help_text="The client's id of the thread.")
    run = Address(field_name="run_id")
    reason = Id(field_name="reason")
    answeredBy = User(field_name="answered_by_id", help_text="The key of the user who closed it.")
    createdAfter = Moment(field_name="created_at", lookup_expr="gte")
    createdBefore = Moment(field_name="created_at", lookup_expr="lt")
    expiresBefore = Moment(field_name="expires_at", lookup_expr="lt")

    def by_open(self, rows: QuerySet[Interrupt], name: str, wanted: bool) -> QuerySet[Interrupt]:
        """Whether it waits."""
        now = timezone.now()
        over = ~Q(status=Interrupt.Status.OPEN) | Q(expires_at__lte=now)
        return rows.exclude(over) if wanted else rows.filter(over)


class UsageFilters(Filters):
    """Of the runs that are counted."""

    agent = Id(field_name="agent")
    user = User(field_name="user_id", help_text="The key of the user whom they ran for.")
    thread = Whole(field_name="thread_id", help_text="The thread's key in this API.")


class FeedbackFilters(Filters):
    """Of feedback."""

    rating = extend_schema_field({"type": "integer", "enum": Feedback.Rating.values})(
        django_filters.ChoiceFilter(choices=[(str(each), each) for each in Feedback.Rating.values])
    )
    user = User(field_name="user_id", help_text="The key of the user whose it is.")
    thread = Whole(field_name="thread_id", help_text="The thread's key in this API.")
    createdAfter = Moment(field_name="created_at", lookup_expr="gte")
    createdBefore = Moment(field_name="created_at", lookup_expr="lt")
