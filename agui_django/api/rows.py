"""The rows that answers are made of, with all that their shapes read; heavy columns stay in the database."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.models import Count, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.utils import timezone

from agui_django.api.serializers import HEAVY
from agui_django.api.sight import Sight
from agui_django.models import Feedback, Interrupt, Message, Run, StateVersion, Thread
from agui_django.runs.database import database_alias
from agui_django.runs.searching import snippets

#: Columns of a thread that only its own address shows.
THREAD_HEAVY = ("state",)


def threads(rows: QuerySet[Thread]) -> QuerySet[Thread]:
    """Threads as `ThreadShape` reads them."""
    active = Run.objects.filter(thread=OuterRef("pk")).active().values("pk")[:1]
    waiting = (
        Interrupt.objects.open(timezone.now())
        .filter(thread=OuterRef("pk"))
        .order_by()
        .values("thread")
        .annotate(number=Count("pk"))
        .values("number")
    )
    return rows.defer(*THREAD_HEAVY).annotate(active_run=Subquery(active), waiting=Coalesce(Subquery(waiting), 0))


def with_matches(threads: Iterable[Thread], text: str = "") -> list[Any]:
    """Threads with where they match a search; without one they match nowhere. Two statements."""
    found: list[Any] = list(threads)
    matches = snippets(found, text)
    for thread in found:
        thread.match = matches.get(thread.pk)
    return found


def runs(rows: QuerySet[Run], *, whole: bool = False) -> QuerySet[Run]:
    """Runs as `RunShape` (or `WholeRunShape`) reads them."""
    left = ("extra", "once", "traceback") if whole else HEAVY
    return rows.select_related("thread").defer(*left, "thread__state", "thread__metadata")


def interrupts(rows: QuerySet[Interrupt]) -> QuerySet[Interrupt]:
    """Questions as `InterruptShape` reads them."""
    return rows.select_related("thread", "run").defer(
        "wire", "thread__state", "thread__metadata", *(f"run__{name}" for name in HEAVY)
    )


def versions(rows: QuerySet[StateVersion]) -> QuerySet[StateVersion]:
    """Versions as `StateVersionShape` reads them."""
    return rows.defer("state")


def with_feedback(messages: Iterable[Message], sight: Sight) -> list[Any]:
    """Messages with the caller's own feedback. One statement."""
    found: list[Any] = list(messages)
    user = sight.caller.user
    given: dict[int, Feedback] = {}
    if found and getattr(user, "is_authenticated", False):
        rows = Feedback.objects.using(database_alias()).filter(message__in=[message.pk for message in found], user=user)
        given = {feedback.message_id: feedback for feedback in rows}
    for message in found:
        message.own_feedback = given.get(message.pk)
    return found
