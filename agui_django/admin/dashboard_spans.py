"""The stretch of time that the dashboard counts: whole hours or days of the viewer, the last one up to now.

Law: a bucket is the time between two moments, so the day that a clock is put forward has 23 hours, and a list that is
filtered by the same two moments has the very rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Any, Final

from django.db import connections
from django.db.models import Case, F, Func, IntegerField, Q, QuerySet, Value, When
from django.db.models.expressions import Combinable
from django.utils.formats import date_format

from agui_django.models import Run
from agui_django.runs.database import database_alias

#: Name in the address -> hours, or days.
HOURS: Final = {"24h": 24}
DAYS: Final = {"7d": 7, "30d": 30}
#: Where the address names none.
DEFAULT: Final = "24h"


@dataclass(frozen=True)
class Span:
    """A stretch of time in buckets.

    Attributes:
        name: ``24h``, ``7d`` or ``30d``.
        zone: whose hours and days.
        bounds: the moments between the buckets, in UTC: one more than there are buckets; the last one is now.
        agent: whose runs are counted; empty: all agents'.
    """

    name: str
    zone: tzinfo
    bounds: tuple[datetime, ...]
    agent: str = ""

    @property
    def since(self) -> datetime:
        """Its first moment."""
        return self.bounds[0]

    @property
    def until(self) -> datetime:
        """The moment behind its last one."""
        return self.bounds[-1]

    @property
    def buckets(self) -> list[tuple[datetime, datetime]]:
        """Each one's first moment, and that behind its last one."""
        return list(zip(self.bounds, self.bounds[1:], strict=False))

    def label(self, moment: datetime) -> str:
        """How a bucket is called: its hour or its day."""
        local = moment.astimezone(self.zone)
        return f"{local:%H:%M}" if self.name in HOURS else date_format(local, "j M")

    def rows(self) -> QuerySet[Run]:
        """The runs of the span."""
        return self._between(self.since, self.until)

    def before(self) -> QuerySet[Run]:
        """The runs of the same length of time before."""
        return self._between(self.since - (self.until - self.since), self.since)

    def _between(self, since: datetime, until: datetime) -> QuerySet[Run]:
        rows = Run.objects.using(database_alias()).filter(created_at__gte=since, created_at__lt=until)
        return (rows.filter(agent=self.agent) if self.agent else rows).order_by()

    def bucketed(self) -> QuerySet[Any]:
        """The same with ``bucket``, the number of each one's bucket."""
        return self.rows().annotate(bucket=_bucket(self.bounds[:-1]))


def span(name: str, zone: tzinfo, now: datetime, agent: str = "") -> Span:
    """The span of a name; another one's is the default's.

    Args:
        name: of the address.
        zone: the viewer's.
        now: the moment up to which is counted.
        agent: whose runs; empty: all.
    """
    now = now.astimezone(UTC)
    if name in DAYS:
        today = now.astimezone(zone).date()
        starts = [_midnight(today - timedelta(days), zone) for days in range(DAYS[name] - 1, -1, -1)]
    else:
        name = DEFAULT
        hour = now.astimezone(zone).replace(minute=0, second=0, microsecond=0).astimezone(UTC)
        starts = [hour - timedelta(hours=hours) for hours in range(HOURS[name] - 1, -1, -1)]
    return Span(name, zone, (*starts, now), agent)


def _midnight(day: date, zone: tzinfo) -> datetime:
    return datetime.combine(day, time(), zone).astimezone(UTC)


def _bucket(starts: Sequence[datetime]) -> Combinable:
    """The number of the bucket that a run began in, from 0; no run is earlier than the first."""
    if connections[database_alias()].vendor == "postgresql":
        # One look at a sorted list, where CASE would compare with each.
        return Func(F("created_at"), Value(list(starts)), function="width_bucket", output_field=IntegerField()) - 1
    whens = [When(Q(created_at__gte=start), then=Value(n)) for n, start in reversed(list(enumerate(starts)))]
    return Case(*whens, default=Value(0), output_field=IntegerField())
