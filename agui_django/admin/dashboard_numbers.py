"""The dashboard's numbers. Each statement reads the runs of the span once; nothing of what was written is read.

Law: a number is the count of a list that a filter of the run list shows, and the link beside it has that filter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django.db import connections
from django.db.models import Aggregate, Count, F, IntegerField, Max, Min, Q, QuerySet, Sum, Window
from django.db.models.functions import RowNumber
from django.utils import timezone

from agui_django.admin.dashboard_spans import Span
from agui_django.models import Interrupt, Run
from agui_django.runs.database import database_alias
from agui_django.runs.pricing import together

#: Errors that are listed, and groups of a chart that have a colour of their own.
ERRORS, GROUPS = 10, 5
#: Runs whose time says something: a cancel's is its user's patience.
TIMED: Final = (Run.Status.FINISHED, Run.Status.INTERRUPTED, Run.Status.FAILED)
#: Their names, and the columns in milliseconds.
COLUMNS: Final = {"run": "duration_ms", "first": "first_event_ms"}
#: The ranks that are told, in percent.
RANKS: Final = (50, 95)


def by_status(span: Span) -> list[Counter[str]]:
    """How many runs began in each bucket, by status."""
    found: list[Counter[str]] = [Counter() for _ in span.buckets]
    for bucket, status, count in span.bucketed().values_list("bucket", "status").annotate(count=Count("pk")):
        found[bucket][status] += count
    return found


def error_rate(statuses: Counter[str]) -> float | None:
    """Failed runs among those that have ended, in percent; None where none has."""
    ended = sum(statuses[status] for status in Run.TERMINAL)
    return 100 * statuses[Run.Status.FAILED] / ended if ended else None


def before(span: Span) -> Counter[str]:
    """The statuses of the runs of the same length of time before."""
    return Counter(dict(span.before().values_list("status").annotate(count=Count("pk"))))


# ---- times -----------------------------------------------------------------------------------------------------------


@dataclass
class Times:
    """The ranks of a column in milliseconds, and of how many runs: of all, and by bucket where there are any."""

    count: int = 0
    ranks: tuple[int, ...] = ()
    buckets: dict[int, tuple[int, ...]] = field(default_factory=dict)


def times(span: Span) -> dict[str, Times]:
    """The nearest ranks of each of `COLUMNS`: the value that so many percent of the values do not exceed."""
    rows = span.bucketed().filter(status__in=TIMED)
    found = {name: Times(count=count) for name, count in rows.aggregate(**_each(Count)).items()}
    if connections[database_alias()].vendor == "postgresql":
        for row in rows.values("bucket").annotate(**_each(_Ranks)):
            for name in COLUMNS:
                if row[name] is not None:
                    found[name].buckets[row["bucket"]] = tuple(row[name])
        for name, ranks in rows.aggregate(**_each(_Ranks)).items():
            found[name].ranks = tuple(ranks or ())
        return found
    for name, told in found.items():
        column = COLUMNS[name]
        known = rows.filter(**{f"{column}__isnull": False})
        told.buckets = dict(_ranked(known, column, "bucket"))
        told.ranks = dict(_ranked(known, column)).get(None, ())
    return found


def _each(aggregate: type[Aggregate]) -> dict[str, Any]:
    """An aggregate of each column, under its name."""
    return {name: aggregate(column) for name, column in COLUMNS.items()}


class _Ranks(Aggregate):
    """`RANKS` of a column, in PostgreSQL."""

    template = f"percentile_disc(ARRAY{[rank / 100 for rank in RANKS]}) WITHIN GROUP (ORDER BY %(expressions)s)"
    output_field = IntegerField()

    def get_db_converters(self, connection: Any) -> list[Any]:
        """It is a list of numbers."""
        return []


def _ranked(rows: QuerySet[Any], column: str, *partition: str) -> Iterable[tuple[Any, tuple[int, ...]]]:
    """The same where there is no such aggregate: each group's rows in order, and of them those of the ranks."""
    groups = [F(name) for name in partition]
    numbered = rows.annotate(
        number=Window(RowNumber(), partition_by=groups or None, order_by=F(column).asc()),
        of=Window(Count("pk"), partition_by=groups or None),
    )
    # The rank of n values is their number's share, rounded up.
    shares = [F("of") * rank / 100.0 for rank in RANKS]
    wanted = [Q(number__gte=share, number__lt=share + 1) for share in shares]
    found: dict[Any, dict[int, int]] = {}
    for row in numbered.filter(wanted[0] | wanted[1]).values("number", "of", column, *partition):
        group = tuple(row[name] for name in partition)
        for rank in RANKS:
            if row["number"] == -(-row["of"] * rank // 100):
                found.setdefault(group, {})[rank] = row[column]
    for group, ranks in found.items():
        yield (group[0] if group else None), tuple(ranks[rank] for rank in RANKS)


# ---- errors ----------------------------------------------------------------------------------------------------------


@dataclass
class SameErrors:
    """Runs that failed in the same way."""

    fingerprint: str
    count: int
    people: int
    first: datetime
    last: datetime
    buckets: list[int]
    example: Run | None = None


def errors(span: Span) -> list[SameErrors]:
    """The errors that were met most often. Three statements."""
    failed = span.bucketed().filter(status=Run.Status.FAILED).exclude(error_fingerprint="")
    grouped = failed.values("error_fingerprint").annotate(
        count=Count("pk"), people=Count("user", distinct=True), first=Min("created_at"), last=Max("created_at")
    )
    found: dict[str, SameErrors] = {}
    for row in grouped.order_by("-count", "-last", "error_fingerprint")[:ERRORS]:
        fingerprint = row.pop("error_fingerprint")
        found[fingerprint] = SameErrors(fingerprint, **row, buckets=[0] * len(span.buckets))
    if not found:
        return []
    within = failed.filter(error_fingerprint__in=found)
    for name, bucket, count in within.values_list("error_fingerprint", "bucket").annotate(count=Count("pk")):
        found[name].buckets[bucket] = count
    latest = Q()
    for each in found.values():
        latest |= Q(error_fingerprint=each.fingerprint, created_at=each.last)
    columns = ("error_fingerprint", "error_code", "error_place", "error_text", "agent")
    for run in span.rows().filter(latest, status=Run.Status.FAILED).only(*columns):
        found[run.error_fingerprint].example = run
    return list(found.values())


# ---- usage -----------------------------------------------------------------------------------------------------------


@dataclass
class Used:
    """What some runs used, and what it cost by currency, in nanos."""

    runs: int = 0
    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0
    not_priced: int = 0
    cost: dict[str, int] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """All of them: the cached are in the input, those of reasoning in the output."""
        return self.input + self.output

    def __iadd__(self, other: Used) -> Used:
        for name in ("runs", "input", "cached", "output", "reasoning", "not_priced"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.cost = together([self.cost, other.cost])
        return self


def usage(span: Span) -> dict[tuple[str, str], list[Used]]:
    """What runs used, by agent and model: a list of the buckets. One statement."""
    sums = {
        "runs": Count("pk"), "input": Sum("input_tokens"), "cached": Sum("cached_tokens"),
        "output": Sum("output_tokens"), "reasoning": Sum("reasoning_tokens"), "nanos": Sum("cost_nanos"),
        "not_priced": Count("pk", filter=Run.NOT_PRICED),
    }  # fmt: skip
    found: dict[tuple[str, str], list[Used]] = {}
    for row in span.bucketed().values("bucket", "agent", "model", "currency").annotate(**sums):
        buckets = found.setdefault((row["agent"], row["model"]), [Used() for _ in span.buckets])
        nanos = row["nanos"]
        cost = {} if nanos is None else {row["currency"]: int(nanos)}
        counts = {name: int(row[name]) for name in sums if name != "nanos"}
        buckets[row["bucket"]] += Used(**counts, cost=cost)
    return found


def total(parts: Iterable[Used]) -> Used:
    """All of them together."""
    found = Used()
    for part in parts:
        found += part
    return found


# ---- now -------------------------------------------------------------------------------------------------------------


def active(agent: str) -> int:
    """Runs that have begun, or wait for their turn, and have not ended."""
    rows = Run.objects.using(database_alias()).filter(status__in=[Run.Status.QUEUED, *Run.ACTIVE])
    return (rows.filter(agent=agent) if agent else rows).count()


def waiting(agent: str) -> dict[str, Any]:
    """Questions that can still be answered: their ``count``, since when the ``oldest`` waits, what expires ``next``."""
    rows = Interrupt.objects.using(database_alias()).open(timezone.now())
    rows = rows.filter(run__agent=agent) if agent else rows
    return rows.aggregate(count=Count("pk"), oldest=Min("created_at"), next=Min("expires_at"))
