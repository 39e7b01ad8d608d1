"""A user is forgotten: their threads and files go, their opinions, and their name in the rows of others.

Law: what runs is ended first. Every step is short, may be repeated, and finds what an earlier call left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from django.apps import apps
from django.contrib.auth import get_user_model
from django.db.models import Model, Q, QuerySet

from agui_django.models import Feedback, Thread
from agui_django.protocol.errors import NotFound
from agui_django.runs import pruning
from agui_django.runs.database import database_alias, get_pool, transact
from agui_django.runs.keeping import adelete

#: Rows that are changed in one transaction.
ROWS = 500


@dataclass
class Forgotten:
    """What goes, or has gone.

    Attributes:
        held: threads, and what was in them.
        feedback: opinions on messages of other people's threads.
        names: how often the user was named, by model and field.
    """

    held: pruning.Counted = field(default_factory=pruning.Counted)
    feedback: int = 0
    names: dict[str, int] = field(default_factory=dict)

    def add(self, other: Forgotten) -> None:
        """Count these, too."""
        self.held.add(other.held)
        self.feedback += other.feedback
        for name, number in other.names.items():
            self.names[name] = self.names.get(name, 0) + number


def threads_of(user: Any) -> QuerySet[Thread]:
    """The threads of a user: those they own, and those of the scope that is theirs alone by default.

    Args:
        user: a user, or the primary key of one, who may be gone already.
    """
    key = getattr(user, "pk", user)
    return Thread.objects.using(database_alias()).filter(Q(owner=key) | Q(scope=f"user:{key}"))


def count(user: Any) -> Forgotten:
    """What `aforget` would erase; in a database thread."""
    key = getattr(user, "pk", user)
    found = Forgotten()
    threads = threads_of(user)
    for thread in threads.values_list("pk", flat=True).iterator():
        found.held.add(pruning.count(thread))
    elsewhere = Feedback.objects.using(database_alias()).filter(user=key).exclude(thread__in=threads)
    found.feedback = elsewhere.count()
    for label, rows in _named(key):
        number = (rows.exclude(pk__in=threads) if rows.model is Thread else rows.exclude(thread__in=threads)).count()
        if number:
            found.names[label] = number
    return found


async def aforget(user: Any) -> Forgotten:
    """Erase a user from everything that this app stores; from any event loop. The user's own row is the site's.

    Args:
        user: a user, or the primary key of one, who may be gone already.

    Returns:
        What has gone: less than there was where an earlier call was killed in the middle.
    """
    key = getattr(user, "pk", user)
    pool, found = get_pool(), Forgotten()
    while (thread := await pool.run(lambda: threads_of(key).order_by("pk").first())) is not None:
        counted = await pool.run(pruning.count, thread.pk)
        try:
            await adelete(thread, reason="staff")
        except NotFound:  # somebody else was faster
            continue
        found.held.add(counted)
    while some := await pool.run(transact, _forget_some, key):
        found.add(some)
    return found


def _forget_some(key: Any) -> Forgotten | None:
    """Opinions and names, as many as one transaction takes; None where there are none."""
    alias, found = database_alias(), Forgotten()
    opinions = list(Feedback.objects.using(alias).filter(user=key).values_list("pk", flat=True)[:ROWS])
    if opinions:
        Feedback.objects.using(alias).filter(pk__in=opinions).delete()
        found.feedback = len(opinions)
        return found
    for label, rows in _named(key):
        keys = list(rows.values_list("pk", flat=True)[:ROWS])
        if keys:
            column = label.rpartition(".")[2]
            found.names[label] = rows.model._base_manager.using(alias).filter(pk__in=keys).update(**{column: None})
            return found
    return None


def _named(key: Any) -> Iterator[tuple[str, QuerySet[Any]]]:
    """Every place in our tables where a user stands, as ``model.field``, and the rows where this one does."""
    users = get_user_model()
    for model in apps.get_app_config("agui_django").get_models():
        for each in model._meta.get_fields():
            if getattr(each, "related_model", None) is users and getattr(each, "concrete", False):
                if model is Feedback:
                    continue  # goes as a whole
                rows: QuerySet[Model] = model._base_manager.using(database_alias()).filter(**{each.name: key})
                yield f"{model._meta.model_name}.{each.name}", rows
