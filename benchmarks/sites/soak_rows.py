"""Prints what is wrong with the stored runs of a site, as JSON: which did not end, and which logs have holes."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

import django


def main() -> None:
    """Look at every row."""
    django.setup()
    from agui_django.models import Run, RunEvents

    runs: dict[Any, tuple[str, int]] = {pk: (status, last) for pk, status, last in
                                        Run.objects.values_list("pk", "status", "last_seq")}  # fmt: skip
    broken, events = [], 0
    rows = RunEvents.objects.order_by("run", "first_seq").values_list("run", "first_seq", "last_seq", "text")
    for run, batches in groupby(rows.iterator(), key=lambda row: row[0]):
        following, last = 1, ""
        for _, first_seq, last_seq, text in batches:
            lines = text.split("\n")
            if first_seq != following or len(lines) != last_seq - first_seq + 1:
                broken.append(str(run))
            following, last = last_seq + 1, lines[-1]
            events += len(lines)
        ends = json.loads(last)["type"] in ("RUN_FINISHED", "RUN_ERROR")
        if runs[run][1] != following - 1 or not ends:
            broken.append(str(run))
    statuses: dict[str, int] = {}
    for status, _ in runs.values():
        statuses[status] = statuses.get(status, 0) + 1
    open_runs = sum(count for status, count in statuses.items() if status not in Run.TERMINAL)
    found = {
        "runs": len(runs),
        "events": events,
        "statuses": statuses,
        "open": open_runs,
        "broken": sorted(set(broken)),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
