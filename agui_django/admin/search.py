"""One search box: what was typed is read by its shape, and the list says how.

Law: no condition joins tables or stands beside one of another table; texts are searched for those who may read them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.core.exceptions import FieldDoesNotExist
from django.db.models import Q
from django.http import HttpRequest
from django.utils.translation import gettext as _

from agui_django.admin.lists import redactor
from agui_django.models import Run, Thread
from agui_django.runs.database import database_alias
from agui_django.runs.searching import search

#: Rows that an id or a name may stand for; letters that a text search needs.
FEW, SHORTEST = 100, 3
#: Threads that a text search finds, the last active first: a list asks for them once, not in each of its statements.
THREADS = 500

_REFERENCE = re.compile("[0-9a-f]{6,32}")


@dataclass(frozen=True)
class Reading:
    """What a search is taken for.

    Attributes:
        said: the sentence under the box.
        runs: the condition on runs.
        threads: the condition on threads.
        exact: whether an id was found, which lies in no window.
        kind: names it.
    """

    said: str = ""
    runs: Q = Q()  # noqa: RUF009 - never changed
    threads: Q = Q()  # noqa: RUF009 - never changed
    exact: bool = False
    kind: str = ""


def reading(request: HttpRequest) -> Reading:
    """What the request's search is taken for; found out once."""
    found: Any = getattr(request, "agui_reading", None)
    if found is None:
        found = _read(request.GET.get("q", "").replace("\0", "").strip()[:300], request)
        request.agui_reading = found  # type: ignore[attr-defined]
    return found  # type: ignore[no-any-return]


def _read(query: str, request: HttpRequest) -> Reading:
    if not query:
        return Reading()
    if request.GET.get("as") != "text" and (found := _id(query) or _person(query)):
        return found
    nothing = Q(pk__in=[])
    if not redactor(request).content:
        return Reading(_("Searched ids, error references and people: texts are hidden from you."), nothing, nothing)
    if len(query) < SHORTEST:
        return Reading(_("A search in texts needs three letters."), nothing, nothing)
    newest = search(Thread.objects.using(database_alias()).order_by("-updated_at", "-pk"), query)
    keys = list(newest.values_list("pk", flat=True)[: THREADS + 1])
    said = _("Searched titles and messages for “%(query)s”.")
    if len(keys) > THREADS:
        said = _("Searched titles and messages for “%(query)s”: the %(count)s threads of them that were last active.")
    wanted = keys[:THREADS]
    return Reading(said % {"query": query, "count": THREADS}, Q(thread__in=wanted), Q(pk__in=wanted), kind="text")


def _id(query: str) -> Reading | None:
    runs, threads = Run.objects.using(database_alias()), Thread.objects.using(database_alias())
    try:
        thread = runs.filter(pk=UUID(query)).values_list("thread_id", flat=True).first()
    except ValueError:
        thread = None
    if thread is not None:
        return Reading(_("This is a run's address."), Q(pk=UUID(query)), Q(pk=thread), exact=True, kind="run")
    if _REFERENCE.fullmatch(query):
        hit = list(runs.filter(error_reference=query).values_list("thread_id", flat=True)[:FEW])
        if hit:
            said = _("This is an error's reference.")
            return Reading(said, Q(error_reference=query), Q(pk__in=hit), exact=True, kind="reference")
    if " " in query:
        return None
    if keys := list(threads.filter(thread_id=query).values_list("pk", flat=True)[:FEW]):
        return Reading(_("This is a thread's id."), Q(thread__in=keys), Q(pk__in=keys), exact=True, kind="thread")
    if named := list(runs.filter(run_id=query).values_list("pk", "thread_id")[:FEW]):
        said = _("This is a run's id.")
        pks, keys = [row[0] for row in named], [row[1] for row in named]
        return Reading(said, Q(pk__in=pks), Q(pk__in=keys), exact=True, kind="run")
    return None


def _person(query: str) -> Reading | None:
    model = get_user_model()
    wanted = Q(**{model.USERNAME_FIELD: query})
    try:
        email = model._meta.get_field(getattr(model, "EMAIL_FIELD", "email")).name
    except FieldDoesNotExist:
        email = ""
    if email and "@" in query:
        wanted |= Q(**{f"{email}__iexact": query})
    keys = list(model._default_manager.filter(wanted).values_list("pk", flat=True)[:FEW])
    if not keys:
        return None
    return Reading(_("This is a person."), Q(user__in=keys), Q(owner__in=keys), kind="person")
