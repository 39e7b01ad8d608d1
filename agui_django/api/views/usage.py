"""What runs used, by day, agent, model and user."""

from __future__ import annotations

import zoneinfo
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from typing import Any, ClassVar, Final

from django.db import connections
from django.db.models import Case, Count, DateField, F, Q, QuerySet, Sum, Value, When
from django.db.models.functions import Coalesce, TruncDate
from django.http import HttpResponseBase, QueryDict
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter

from agui_django.api.answers import json_answer
from agui_django.api.base import ApiView
from agui_django.api.filters import UsageFilters
from agui_django.api.schema import operation
from agui_django.api.serializers import UsageReportShape
from agui_django.models import Run
from agui_django.protocol.errors import InvalidInput
from agui_django.runs.database import database_alias
from agui_django.runs.pricing import together

#: Days that are counted where nobody says, and at most; groups that are listed at most.
DAYS, MOST_DAYS, MOST_GROUPS = 30, 366, 5000
#: Days that SQLite compares moments with.
COMPARED_DAYS = 100

GROUPS: Final = {"day": "day", "agent": "agent", "model": "model", "user": "user_id"}

SUMS: Final = {
    "runs": Count("pk"),
    "failed": Count("pk", filter=Q(status=Run.Status.FAILED)),
    **{
        name: Coalesce(Sum(column), 0)
        for name, column in {
            "inputTokens": "input_tokens",
            "cachedTokens": "cached_tokens",
            "outputTokens": "output_tokens",
            "reasoningTokens": "reasoning_tokens",
            "toolCalls": "tool_calls",
            "durationMs": "duration_ms",
        }.items()
    },
    "notPriced": Count("pk", filter=Run.NOT_PRICED),
}


class Usage(ApiView):
    """Usage totals."""

    filters: ClassVar = UsageFilters
    query: ClassVar = ("since", "until", "timeZone", "by", *UsageFilters.base_filters)

    @operation(
        operation_id="usage_retrieve",
        parameters=[
            OpenApiParameter("since", date, description="The first day; by default 30 days are counted."),
            OpenApiParameter("until", date, description="The last day; by default today."),
            OpenApiParameter("timeZone", str, description="Whose days; by default the site's."),
            OpenApiParameter(
                "by",
                {"type": "array", "items": {"type": "string", "enum": list(GROUPS)}},
                description="What is grouped by, separated by commas; `day` by default.",
                style="form",
                explode=False,
            ),
        ],
        responses={200: UsageReportShape},
    )
    def get(self) -> HttpResponseBase:
        """What the caller's runs used; for staff with the permission to view runs: all runs."""
        query = self.request._request.GET
        zone, groups = _zone(query), _groups(query)
        since, until = _days(query, zone)
        rows = self._seen().filter(
            created_at__gte=_begin(since, zone), created_at__lt=_begin(until + timedelta(1), zone)
        )
        rows = self.filters.narrow(rows, query).order_by()
        if "day" in groups:
            rows = rows.annotate(day=_day_of(rows.db, since, until, zone))
        sums: Any = SUMS
        order = [F(GROUPS[name]).desc() if name == "day" else F(GROUPS[name]).asc(nulls_last=True) for name in groups]
        grouped = rows.values(*(GROUPS[name] for name in groups)).annotate(**sums).order_by(*order)
        found = list(grouped[: MOST_GROUPS + 1])
        names = [GROUPS[name] for name in groups]
        costs = _costs(rows, names)
        return json_answer(
            {
                "since": since,
                "until": until,
                "timeZone": str(zone),
                "by": groups,
                "results": [
                    {**_shown(row, groups), "cost": _shown_costs(costs.get(tuple(row[name] for name in names), {}))}
                    for row in found[:MOST_GROUPS]
                ],
                "complete": len(found) <= MOST_GROUPS,
                "total": {**rows.aggregate(**sums), "cost": _shown_costs(together(costs.values()))},
            }
        )

    def _seen(self) -> QuerySet[Run]:
        user = self.sight.caller.user
        if self.sight.beyond("view", Run) or not user.is_authenticated:
            return self.sight.rows(Run)
        # A scope may be a team's, and a user's may change: what somebody used is what ran for them.
        return Run.objects.using(database_alias()).filter(user=user)


def _costs(rows: QuerySet[Run], names: list[str]) -> dict[tuple[Any, ...], dict[str, int]]:
    """The costs of each group by currency: amounts of two currencies are never added."""
    found: dict[tuple[Any, ...], dict[str, int]] = {}
    priced = rows.filter(cost_nanos__isnull=False).values_list(*names, "currency").annotate(nanos=Sum("cost_nanos"))
    for *group, currency, nanos in priced:
        found.setdefault(tuple(group), {})[currency] = int(nanos)
    return found


def _shown_costs(costs: dict[str, int]) -> dict[str, str]:
    return {currency: f"{Decimal(nanos).scaleb(-9):.9f}" for currency, nanos in costs.items()}


def _shown(row: dict[str, Any], groups: list[str]) -> dict[str, Any]:
    names = {GROUPS[name]: name for name in groups}
    return {names.get(name, name): value for name, value in row.items()}


def _refused(name: str, message: str) -> InvalidInput:
    return InvalidInput("The query is malformed.", fields=[{"path": name, "message": message}])


def _zone(query: QueryDict) -> tzinfo:
    name = query.get("timeZone", "")
    if not name:
        return timezone.get_current_timezone()
    try:
        return zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        raise _refused("timeZone", "is not a time zone, such as Europe/Berlin") from None


def _groups(query: QueryDict) -> list[str]:
    groups = [name for name in query.get("by", "day").split(",") if name]
    if not set(groups) <= GROUPS.keys():
        raise _refused("by", f"takes {', '.join(GROUPS)}, separated by commas")
    return [name for name in GROUPS if name in groups] or ["day"]


def _days(query: QueryDict, zone: tzinfo) -> tuple[date, date]:
    until = _day(query, "until") or timezone.localdate(timezone=zone)
    since = _day(query, "since") or until - timedelta(DAYS - 1)
    if not 0 <= (until - since).days < MOST_DAYS:
        raise _refused("since", f"must lie before until, by at most {MOST_DAYS} days")
    return since, until


def _day(query: QueryDict, name: str) -> date | None:
    text = query.get(name, "")
    if not text:
        return None
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise _refused(name, "must be a day, such as 2026-01-31") from None
    if not 1000 < day.year < 9000:
        raise _refused(name, "is not a day of this world")
    return day


def _day_of(alias: str, since: date, until: date, zone: tzinfo) -> Any:
    """A run's day. SQLite would call Python for each run; where there are few days, it compares with their ends."""
    days = [since + timedelta(number) for number in range((until - since).days + 1)]
    if connections[alias].vendor != "sqlite" or len(days) > COMPARED_DAYS:
        return TruncDate("created_at", tzinfo=zone)
    ends = (When(created_at__lt=_begin(day + timedelta(1), zone), then=Value(day)) for day in days)
    return Case(*ends, output_field=DateField())


def _begin(day: date, zone: tzinfo) -> datetime:
    """The first moment of a day."""
    return datetime.combine(day, time(), zone).astimezone(UTC)
