"""The rows that a list's filters choose, without a page of them; and what stands beside a row there."""

from __future__ import annotations

import copy
from typing import Any, Final

from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import Q
from django.http import HttpRequest, QueryDict
from django.utils.http import urlencode

from agui_django.models import Run

#: The admin's own parameter: a list's query string, kept in the addresses of its rows.
FILTERS: Final = "_changelist_filters"


def matching(staff: Any, request: HttpRequest, filters: str) -> Any:
    """The rows of a list in its order, without a statement where no search needs one.

    Args:
        staff: the list's admin.
        request: the viewer's.
        filters: the query string of the list's address.

    Raises:
        IncorrectLookupParameters: the filters are none of the list's.
    """
    asked: Any = copy.copy(request)
    asked.method, asked.GET, asked.agui_rows = "GET", QueryDict(filters), False
    # What the search box was taken for belongs to the other address.
    asked.__dict__.pop("agui_reading", None)
    return staff.get_changelist_instance(asked).queryset


def neighbours(staff: Any, request: HttpRequest, run: Run) -> dict[str, str]:
    """The addresses of the runs above and below in the list that a run was opened from; two statements.

    A run that the filters do not choose (any more) still has neighbours, so that one can go on from a run that was
    marked. One that was opened from no list has them in the unfiltered one, where that shows it.
    """
    filters = request.GET.get(FILTERS, "")
    try:
        rows = matching(staff, request, filters)
    except IncorrectLookupParameters:
        return {}
    if not filters and not rows.filter(pk=run.pk).exists():
        return {}
    at = run.created_at
    # The first condition is what an index of the column alone can use.
    above = rows.filter(Q(created_at__gte=at) & (Q(created_at__gt=at) | Q(pk__gt=run.pk)))
    below = rows.filter(Q(created_at__lte=at) & (Q(created_at__lt=at) | Q(pk__lt=run.pk)))
    keep = f"?{urlencode({FILTERS: filters})}" if filters else ""
    found = {
        "above": above.order_by("created_at", "pk").values_list("pk", flat=True).first(),
        "below": below.order_by("-created_at", "-pk").values_list("pk", flat=True).first(),
    }
    return {name: f"../../{key}/change/{keep}" for name, key in found.items() if key} | {
        "list_address": f"../../{'?' if filters else ''}{filters}"
    }
