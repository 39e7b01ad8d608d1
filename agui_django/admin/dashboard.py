"""The dashboard on the app's page of the admin: what runs, what fails, how long it takes, what it costs.

Law: each panel has an address of its own and is behind the permission to see runs; texts go through the viewer's
`Redactor`; a number that counts rows leads to the list of just those.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.template.loader import render_to_string
from django.urls import path, reverse
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from agui_django.admin import dashboard_numbers as numbers
from agui_django.admin import guard
from agui_django.admin.clock import in_zone
from agui_django.admin.dashboard_charts import Part, highest, spark, stacked
from agui_django.admin.dashboard_spans import DAYS, HOURS, Span, span
from agui_django.admin.lists import redactor
from agui_django.admin.rights import ANSWER
from agui_django.admin.statuses import seconds
from agui_django.admin.zones import viewer_zone
from agui_django.agents.registry import all_agents
from agui_django.models import ID_LENGTH, Run
from agui_django.runs.pricing import shown

VIEW: Final = "agui_django.view_run"
#: Errors' texts are cut to so many characters.
SHORT: Final = 160
#: The order of a bar, from the bottom.
STACK: Final = ("finished", "interrupted", "cancelled", "queued", "pending", "running", "failed")


def span_of(request: HttpRequest) -> Span:
    """What the address asks for."""
    agent = request.GET.get("agent", "").replace("\0", "")[:ID_LENGTH]
    return span(request.GET.get("range", ""), viewer_zone(request), timezone.now(), agent)


def grouped(number: int) -> str:
    """A number that a person reads."""
    return f"{number:,}".replace(",", "\u202f")


def money(cost: dict[str, int]) -> str:
    """Amounts of several currencies."""
    return " + ".join(shown(nanos, currency) for currency, nanos in cost.items())


def _written(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def runs_url(span: Span, since: datetime | None = None, until: datetime | None = None, **filters: str) -> str:
    """The list of the span's runs, or of those of a part of it.

    Args:
        span: the span.
        since: its beginning; None: the span's.
        until: its end; None: the span's.
        filters: of the list.
    """
    query = {"window": "all", "since": _written(since or span.since), "until": _written(until or span.until)}
    if span.agent:
        query["agent"] = span.agent
    return f"{reverse('admin:agui_django_run_changelist')}?{urlencode({**query, **filters})}"


# ---- the panels ------------------------------------------------------------------------------------------------------


def _now(request: HttpRequest, span: Span) -> dict[str, Any]:
    user: Any = request.user
    agent = {"agent": span.agent} if span.agent else {}
    active = {"window": "all", "status": ",".join([Run.Status.QUEUED, *Run.ACTIVE]), **agent}
    told: dict[str, Any] = {
        "active": numbers.active(span.agent),
        "active_url": f"{reverse('admin:agui_django_run_changelist')}?{urlencode(active)}",
    }
    if user.has_perm("agui_django.view_interrupt") or user.has_perm(ANSWER):
        inbox = urlencode({"state": "open", **agent})
        told["waiting"] = numbers.waiting(span.agent)
        told["waiting_url"] = f"{reverse('admin:agui_django_interrupt_changelist')}?{inbox}"
    return told


def _runs(request: HttpRequest, span: Span) -> dict[str, Any]:
    counts = numbers.by_status(span)
    bars, rows = [], []
    for (since, until), statuses in zip(span.buckets, counts, strict=True):
        label, cells, bar = span.label(since), [], []
        for status in STACK:
            count, url = statuses[status], runs_url(span, since, until, status=status)
            name = Run.Status(status).label
            cells.append((count, url))
            bar.append(Part(count, status, f"{label}: {grouped(count)} {name}", url))
        bars.append(bar)
        rows.append((label, cells))
    statuses = sum(counts, start=type(counts[0])())
    total = sum(statuses.values())
    return {
        "chart": stacked(_("Runs by status"), bars, [row[0] for row in rows], grouped(int(highest(bars)))),
        "rows": rows,
        "statuses": [
            (status, Run.Status(status).label, statuses[status], runs_url(span, status=status)) for status in STACK
        ],
        "total": total,
        "total_url": runs_url(span),
        "rate": numbers.error_rate(statuses),
        "rate_before": numbers.error_rate(numbers.before(span)),
    }


def _times(request: HttpRequest, span: Span) -> dict[str, Any]:
    told = []
    timed = ",".join(numbers.TIMED)
    labels = [span.label(since) for since, _until in span.buckets]
    times = numbers.times(span)
    for title, known in ((_("Time"), "run"), (_("First event"), "first")):
        found = times[known]
        bars, rows = [], []
        for number, (since, until) in enumerate(span.buckets):
            median, high = found.buckets.get(number, (None, None))
            url = runs_url(span, since, until, status=timed, timed=known)
            said = f"{labels[number]}: {_('median')} {seconds(median)}, {_('95th percentile')} {seconds(high)}"
            bars.append([Part(median or 0, "median", said, url), Part((high or 0) - (median or 0), "high", said, url)])
            rows.append((labels[number], seconds(median), seconds(high)))
        median, high = found.ranks or (None, None)
        told.append(
            {
                "title": title,
                "chart": stacked(title, bars, labels, seconds(int(highest(bars)))),
                "rows": rows,
                "median": seconds(median),
                "high": seconds(high),
                "count": found.count,
                "url": runs_url(span, status=timed, timed=known),
            }
        )
    return {"times": told}


def _errors(request: HttpRequest, span: Span) -> dict[str, Any]:
    hide = redactor(request)
    rows = []
    for each in numbers.errors(span):
        example = each.example
        rows.append(
            {
                "code": example.error_code if example else "",
                "agent": example.agent if example else "",
                # A place is a line of a traceback.
                "place": example.error_place if example and hide.traceback else "",
                "text": hide.text(example.error_text)[:SHORT] if example else "",
                "short": each.fingerprint[:8],
                "count": each.count,
                "people": each.people,
                "first": each.first,
                "last": each.last,
                "chart": spark(_("How often"), each.buckets),
                "example": reverse("admin:agui_django_run_change", args=[example.pk]) if example else "",
                "url": runs_url(span, same=each.fingerprint),
            }
        )
    return {"errors": rows, "most": numbers.ERRORS}


def _usage(request: HttpRequest, span: Span) -> dict[str, Any]:
    found = numbers.usage(span)
    totals = {key: numbers.total(buckets) for key, buckets in found.items()}
    order = sorted(totals, key=lambda key: (-totals[key].tokens, key))
    drawn = [key for key in order[: numbers.GROUPS] if totals[key].tokens]
    bars: list[list[Part]] = []
    days = []
    for number, (since, until) in enumerate(span.buckets):
        label = span.label(since)
        bar = []
        for place, (agent, model) in enumerate(drawn):
            used = found[agent, model][number]
            said = f"{label}, {agent} / {model or _('no model')}: {grouped(used.tokens)} {money(used.cost)}".strip()
            url = runs_url(span, since, until, agent=agent, model=model)
            bar.append(Part(used.tokens, f"group-{place}", said, url))
        rest = numbers.total(found[key][number] for key in order if key not in drawn)
        bar.append(Part(rest.tokens, "group-rest", f"{label}, {_('others')}: {grouped(rest.tokens)}"))
        bars.append(bar)
        day = numbers.total(buckets[number] for buckets in found.values())
        days.append({"label": label, **_used(day), "url": runs_url(span, since, until)})
    rows = []
    for agent, model in order:
        kind = f"group-{drawn.index((agent, model))}" if (agent, model) in drawn else "group-rest"
        rows.append(
            {
                "agent": agent,
                "model": model,
                "kind": kind,
                **_used(totals[agent, model]),
                "url": runs_url(span, agent=agent, model=model),
                "not_priced_url": runs_url(span, agent=agent, model=model, priced="no"),
            }
        )
    every = numbers.total(totals.values())
    return {
        "chart": stacked(_("Tokens"), bars, [day["label"] for day in days], grouped(int(highest(bars)))),
        "rows": rows,
        "days": days,
        "total": {**_used(every), "url": runs_url(span), "not_priced_url": runs_url(span, priced="no")},
    }


def _used(used: numbers.Used) -> dict[str, Any]:
    return {"used": used, "cost": money(used.cost)}


PANELS: Final[dict[str, tuple[Any, Callable[[HttpRequest, Span], dict[str, Any]]]]] = {
    "now": (gettext_lazy("Now"), _now),
    "runs": (gettext_lazy("Runs"), _runs),
    "times": (gettext_lazy("Times"), _times),
    "errors": (gettext_lazy("Top errors"), _errors),
    "usage": (gettext_lazy("Tokens and cost"), _usage),
}


def _panel(request: HttpRequest, name: str) -> HttpResponseBase:
    """A panel's part of the page."""
    if name not in PANELS:
        raise Http404
    return HttpResponse(_body(request, name, span_of(request)))


def _body(request: HttpRequest, name: str, span: Span) -> SafeString:
    told = {"span": span, "panel": name, **PANELS[name][1](request, span)}
    return render_to_string(f"admin/agui_django/dashboard/{name}.html", told, request)


def addresses(site: Any) -> list[Any]:
    """Of the panels, below those of runs."""
    return [path("panel/<slug:name>/", guard.page(site, _panel, VIEW), name="agui_django_run_panel")]


def frame(request: HttpRequest) -> SafeString:
    """The dashboard, for who may see runs: its panels load by themselves, or with ``whole`` are a part of the page."""
    user: Any = request.user
    if not user.has_perm(VIEW):
        return SafeString()
    template = "admin/agui_django/dashboard/frame.html"
    return in_zone(request, lambda: render_to_string(template, _frame(request), request))


def _frame(request: HttpRequest) -> dict[str, Any]:
    whole = "whole" in request.GET
    chosen = span_of(request)
    agents = {entry.name: str(entry.options.title or entry.name) for entry in all_agents()}
    if chosen.agent:
        agents.setdefault(chosen.agent, chosen.agent)
    query = urlencode({"range": chosen.name, **({"agent": chosen.agent} if chosen.agent else {})})
    names = {"24h": _("24 hours"), "7d": _("7 days"), "30d": _("30 days")}
    return {
        "panels": [
            (
                name,
                title,
                f"{reverse('admin:agui_django_run_panel', args=[name])}?{query}",
                _body(request, name, chosen) if whole else "",
            )
            for name, (title, _view) in PANELS.items()
        ],
        "whole": whole,
        "query": query,
        "span": chosen,
        "zone": str(chosen.zone),
        "ranges": [(name, names[name]) for name in (*HOURS, *DAYS)],
        "agents": sorted(agents.items()),
    }
