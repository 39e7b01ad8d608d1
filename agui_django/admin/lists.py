"""Lists that stay fast with millions of rows, and admins that only show.

Law: no count goes beyond `MOST`, no page is reached by an offset, no row costs a statement of its own, and nothing is
filtered, ordered or searched by but what is named here: a filter in the address answers yes or no about a column that
its viewer may not read.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC
from typing import TYPE_CHECKING, Any, ClassVar
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth import get_user_model
from django.db.models import Model, Q, QuerySet
from django.http import HttpRequest
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from agui_django.admin.clock import in_zone
from agui_django.admin.rights import Redactor
from agui_django.runs.database import database_alias

if TYPE_CHECKING:
    BaseAdmin = admin.ModelAdmin[Any]
else:
    BaseAdmin = admin.ModelAdmin

#: Rows that are counted, rows of a page.
MOST, ROWS = 10_000, 50
#: The parameters that name a place in a list.
OLDER, NEWER = "older", "newer"


class KeysetList(ChangeList):
    """A list whose pages are behind, or in front of, a row: by the admin's `ordering`, the latest first."""

    def get_filters_params(self, params: Any = None) -> Any:
        """Places and readings are no filters."""
        found = super().get_filters_params(params)
        return {name: value for name, value in found.items() if name not in (OLDER, NEWER, "as")}

    def get_filters(self, request: HttpRequest) -> Any:
        """What no text of the database can be finds nothing, and says so.

        Raises:
            IncorrectLookupParameters: there is a NUL in the address.
        """
        if any("\0" in value for values in request.GET.lists() for value in values[1]):
            raise IncorrectLookupParameters
        found = super().get_filters(request)
        for spec in found[0]:
            # In a row above the list: beside it, they would leave too little width.
            spec.template = "admin/agui_django/filter.html"
        return found

    def get_query_string(self, new_params: Mapping[str, Any] | None = None, remove: Iterable[str] | None = None) -> str:
        """Another filter begins at the first page."""
        given = {OLDER: None, NEWER: None, **(new_params or {})}
        return super().get_query_string(given, remove)

    def get_ordering(self, request: HttpRequest, queryset: Any) -> list[Any]:
        """There is one order."""
        return list(self.model_admin.get_ordering(request))

    def get_results(self, request: HttpRequest) -> None:
        """The rows of the page, and what stands beside them.

        Raises:
            IncorrectLookupParameters: the place is none of ours.
        """
        if not getattr(request, "agui_rows", True):
            return  # only what it would choose is asked for
        staff: Any = self.model_admin
        column = staff.column
        rows: Any = self.queryset
        backwards = NEWER in request.GET
        if text := request.GET.get(NEWER) or request.GET.get(OLDER):
            value, key = row_at(text, self.model)
            op = "gt" if backwards else "lt"
            # The first condition is what an index of the column alone can use.
            rows = rows.filter(
                Q(**{f"{column}__{op}e": value}) & (Q(**{f"{column}__{op}": value}) | Q(**{f"pk__{op}": key}))
            )
        if backwards:
            rows = rows.order_by(column, "pk")
        found = list(rows[: self.list_per_page + 1])
        more = len(found) > self.list_per_page
        del found[self.list_per_page :]
        if backwards:
            found.reverse()
        self.result_list = staff.prepare(request, found)
        self.older = self.newer = ""
        if found and (more or backwards):
            self.older = self.get_query_string({OLDER: place_of(found[-1], column)})
        if found and (more if backwards else text):
            self.newer = self.get_query_string({NEWER: place_of(found[0], column)})
        self.count_said = self._count()
        self.result_count = len(found)
        self.full_result_count = None
        self.show_full_result_count = self.can_show_all = self.multi_page = False
        self.show_admin_actions = True

    def _count(self) -> str:
        count = self.queryset.order_by()[: MOST + 1].count()
        if count > MOST:
            return _("more than %(count)d") % {"count": MOST}
        return ngettext("%(count)d in all", "%(count)d in all", count) % {"count": count}


def place_of(row: Any, column: str) -> str:
    """Where a row stands in a list, as it is written in addresses."""
    place = json.dumps([getattr(row, column).isoformat(), str(row.pk)])
    return base64.urlsafe_b64encode(place.encode()).decode()


def row_at(text: str, model: type[Model]) -> tuple[Any, Any]:
    """The column's value and the key of a place.

    Raises:
        IncorrectLookupParameters: it is none.
    """
    try:
        at, key = json.loads(base64.urlsafe_b64decode(text))
        value = parse_datetime(at)
        if value is None:
            raise ValueError("no time")
        if value.tzinfo is None:
            value = value.replace(tzinfo=UTC)
        return value, model._meta.pk.to_python(key)
    except Exception as error:
        raise IncorrectLookupParameters from error


class ReadOnlyAdmin(BaseAdmin):
    """An admin that changes nothing but through its own views."""

    #: The column of the order; never null.
    column: ClassVar[str]
    #: Filters in an address that are no filters of the list.
    lookups: ClassVar[Collection[str]] = ()

    list_per_page = ROWS
    list_max_show_all = 0
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()
    actions: Any = None
    change_list_template = "admin/agui_django/change_list.html"

    class Media:
        """What every list loads."""

        css: ClassVar = {"all": ["agui_django/admin/admin.css"]}
        js: ClassVar = ["agui_django/admin/lists.js"]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        """The list, in its viewer's time zone."""
        return in_zone(request, lambda: super(ReadOnlyAdmin, self).changelist_view(request, extra_context))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> Any:
        """Our list."""
        return KeysetList

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        """Only what is named."""
        named = {getattr(each, "parameter_name", None) for each in self.list_filter or ()}
        return lookup in named or lookup in self.lookups

    def prepare(self, request: HttpRequest, rows: list[Any]) -> list[Any]:
        """Give the rows of a page what their columns show."""
        return rows

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """All rows, where ours are."""
        rows: QuerySet[Any] = self.model._default_manager.using(database_alias())
        return rows.order_by(*self.get_ordering(request))

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """The permission to look: Django's own takes the one to change for it, too."""
        return bool(request.user.has_perm(f"{self.opts.app_label}.view_{self.opts.model_name}"))

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Runs make rows."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Rows are no forms."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """What is deleted is deleted by a page of its own."""
        return False


def people(keys: Collection[Any]) -> dict[Any, str]:
    """Names of users by primary key: one statement for a page."""
    wanted = {key for key in keys if key is not None}
    model = get_user_model()
    found = model._default_manager.in_bulk(wanted) if wanted else {}
    return {key: user.get_username() for key, user in found.items()}


def redactor(request: HttpRequest) -> Redactor:
    """The viewer's, made once per request."""
    found: Any = getattr(request, "agui_redactor", None)
    if found is None:
        found = request.agui_redactor = Redactor(request.user)  # type: ignore[attr-defined]
    return found  # type: ignore[no-any-return]


def uuids(texts: list[str]) -> list[UUID]:
    """Addresses of rows; what is none is left out, and what is beyond a page."""
    found = []
    for text in texts[:100]:
        try:
            found.append(UUID(text))
        except ValueError:
            continue
    return found


def log(request: HttpRequest, row: Model, message: str) -> None:
    """Note what somebody did to a row; the message never holds what users or agents wrote."""
    user: Any = request.user
    LogEntry.objects.log_actions(user.pk, [row], CHANGE, message, single_object=True)
