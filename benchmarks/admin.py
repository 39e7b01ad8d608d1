"""``python -m benchmarks.admin --runs 100000``: the admin's pages and the dashboard's panels at size, on PostgreSQL.

Seeds a scratch database by ``manage.py agui_seed`` (or takes one that is there), asks for each page as staff who see
everything, and prints medians, statements and, with ``--plans``, the plan of each page's slowest statement.
On a machine that does other work the fastest round says more than the median.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.databases import ROOT, drop_postgres, manage, new_database, site_environment

#: Milliseconds that the median of a page, and of a panel, may take.
PAGE, PANEL = 100.0, 300.0
RUNS, THREADS, INBOX = (f"/admin/agui_django/{name}/" for name in ("run", "thread", "interrupt"))
PAGES = {
    "runs, 7 days": RUNS,
    "runs, all time": f"{RUNS}?window=all",
    "runs, page 2": "{older}",
    "runs that failed, 30 days": f"{RUNS}?window=30d&status=failed",
    "runs of an agent": f"{RUNS}?window=30d&agent={{agent}}",
    "runs of a person": f"{RUNS}?window=all&user={{user}}",
    "runs with the same error": f"{RUNS}?window=all&same={{error}}",
    "runs not priced, 30 days": f"{RUNS}?window=30d&priced=no",
    "runs by an error's reference": f"{RUNS}?q={{reference}}",
    "runs by a word": f"{RUNS}?q=parcel",
    "a run": f"{RUNS}{{run}}/change/",
    "a run's events": f"{RUNS}{{run}}/events/",
    "threads": THREADS,
    "a thread": f"{THREADS}{{thread}}/change/",
    "the inbox": INBOX,
    "a question": f"{INBOX}{{question}}/change/",
    "the app's page": "/admin/agui_django/",
}
PANELS = ("now", "runs", "times", "errors", "usage")
RANGES = ("24h", "7d", "30d")


def main() -> None:
    """Seed, and measure in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--messages", type=int, help="by default five for each run")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--database", help="a seeded PostgreSQL database; it is left as it is")
    parser.add_argument("--plans", action="store_true")
    options = parser.parse_args()
    if os.environ.get("AGUI_BENCH_ADMIN"):
        measure(options)
        return
    extra = {"AGUI_BENCH_ADMIN": "1", "DJANGO_SETTINGS_MODULE": "project.settings"}
    with tempfile.TemporaryDirectory() as folder:
        name = options.database or new_database("postgres", Path(folder))
        try:
            if not options.database:
                amounts = [f"--runs={options.runs}"]
                amounts += [f"--messages={options.messages}"] if options.messages is not None else []
                print(
                    manage("agui_seed", *amounts, env=site_environment("postgres", name), timeout=4 * 3600), flush=True
                )
            command = [sys.executable, "-m", "benchmarks.admin", *sys.argv[1:]]
            subprocess.run(command, cwd=ROOT, env=site_environment("postgres", name, extra), check=True)
        finally:
            if not options.database:
                drop_postgres(name)


def measure(options: argparse.Namespace) -> None:
    """Ask, print."""
    import django
    from django.conf import settings

    django.setup()
    settings.DEBUG = False
    from django.contrib.auth import get_user_model
    from django.test import Client

    from agui_django.models import Message, Run

    settings.ALLOWED_HOSTS = ["*"]
    staff, _ = get_user_model().objects.get_or_create(
        username="benchmark", defaults={"is_staff": True, "is_superuser": True}
    )
    client = Client()
    client.force_login(staff)
    print(f"{Run.objects.count():,} runs, {Message.objects.count():,} messages; load {os.getloadavg()[0]:.1f}\n")
    print("| page | median ms | fastest | CPU here | statements | slowest statement |\n|---|---|---|---|---|---|")
    late, plans = [], []
    for name, address, target in addresses(client):
        times, work, seen = [], [], []
        for _ in range(options.rounds + 2):
            seen = []
            start, worked = time.perf_counter(), time.process_time()
            with noted(seen):
                response = client.get(address)
            times.append(1000 * (time.perf_counter() - start))
            work.append(1000 * (time.process_time() - worked))
            assert response.status_code == 200, (address, response.status_code)
        took, sql, params = max(seen, key=lambda each: each[0])
        median = statistics.median(times[2:])
        late += [name] if median > target else []
        cells = [f"{value:.0f}" for value in (median, min(times[2:]), statistics.median(work[2:]), len(seen), took)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
        if options.plans:
            plans.append(f"### {name}\n{explained(sql, params)}")
    print(f"\nOver {PAGE:.0f} ms for a page, {PANEL:.0f} ms for a panel: {', '.join(late) or 'none'}")
    print(f"load {os.getloadavg()[0]:.1f}")
    print("\n\n".join(["", *plans]))


def addresses(client: Any) -> Iterator[tuple[str, str, float]]:
    """Names, addresses and targets."""
    from django.db.models import Count

    from agui_django.models import Interrupt, Run

    failed = Run.objects.exclude(error_fingerprint="").latest("created_at")
    run = Run.objects.annotate(said=Count("messages")).filter(status="finished").order_by("-created_at", "-said")[0]
    older = client.get(RUNS).context_data["cl"].older
    ids = {
        "older": f"{RUNS}{older}", "agent": run.agent, "user": run.user_id, "run": run.pk,
        "thread": run.thread_id, "error": failed.error_fingerprint, "reference": failed.error_reference,
        "question": Interrupt.objects.latest("created_at").pk,
    }  # fmt: skip
    for name, address in PAGES.items():
        yield name, address.format(**ids), PAGE
    for range_ in RANGES:
        for panel in PANELS:
            yield f"panel {panel}, {range_}", f"{RUNS}panel/{panel}/?range={range_}", PANEL


@contextmanager
def noted(seen: list[tuple[float, str, Any]]) -> Iterator[None]:
    """Notes statements with their milliseconds."""
    from django.db import connection

    def note(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        start = time.perf_counter()
        try:
            return execute(sql, params, many, context)
        finally:
            seen.append((1000 * (time.perf_counter() - start), sql, params))

    with connection.execute_wrapper(note):
        yield


def explained(sql: str, params: Any) -> str:
    """The plan of a statement."""
    from django.db import connection

    if not sql.startswith("SELECT"):
        return sql[:100]
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, SUMMARY OFF) {sql}", params)
        return "\n".join(str(row[-1]) for row in cursor.fetchall())


if __name__ == "__main__":
    main()
