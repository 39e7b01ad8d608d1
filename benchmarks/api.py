"""``python -m benchmarks.api``: every list of the REST API on 10,000 threads of 50 messages, with its query plan.

Seeds a database by itself (SQLite, and PostgreSQL where it is reachable), asks the site's application as the owner of
half of the threads and as staff who see all, and prints medians and plans. Target: each list under 50 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.databases import ROOT, drop_postgres, new_database, postgres_reachable, site_environment

TARGET = 50.0
SENTENCE = "where is my order the parcel has not come yet please look it up and tell me when it will be here"
#: Each list as the owner and as staff; `{thread}` is a thread of the owner's, with more of everything.
LISTS = {
    "threads": "threads",
    "threads, page 100": "threads{deep}",
    "threads, filtered": "threads?archived=false&agent=agent3",
    "threads, waiting": "threads?hasOpenInterrupts=true",
    "threads, failed": "threads?hasError=true",
    "threads, searched": "threads?search=parcel",
    "threads, searched for what is rare": "threads?search=4711",
    "messages": "threads/{thread}/messages",
    "runs": "runs",
    "runs, failed": "runs?status=failed",
    "runs of an agent": "runs?agent=agent3",
    "runs of a thread": "threads/{thread}/runs",
    "events": "runs/{run}/events",
    "versions": "threads/{thread}/state/versions",
    "branches": "threads/{thread}/branches",
    "interrupts": "interrupts",
    "interrupts, open": "interrupts?open=true",
    "feedback": "feedback",
    "usage": "usage",
    "usage by agent and user": "usage?by=agent,user",
}


def main() -> None:
    """Measure on each database, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=10_000)
    parser.add_argument("--messages", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--database", choices=["sqlite", "postgres"], action="append")
    parser.add_argument("--no-plans", action="store_true")
    options = parser.parse_args()
    if os.environ.get("AGUI_BENCH_API"):
        asyncio.run(measure(options))
        return
    for kind in options.database or ["sqlite", "postgres"]:
        if kind == "postgres" and not postgres_reachable():
            print("PostgreSQL is not reachable")
            continue
        with tempfile.TemporaryDirectory() as folder:
            name = new_database(kind, Path(folder))
            extra = {"AGUI_BENCH_API": kind, "AGUI_SQLITE": "wal", "DJANGO_SETTINGS_MODULE": "project.settings"}
            try:
                command = [sys.executable, "-m", "benchmarks.api", *sys.argv[1:]]
                subprocess.run(command, cwd=ROOT, env=site_environment(kind, name, extra), check=True)
            finally:
                if kind == "postgres":
                    drop_postgres(name)


def seed(threads: int, messages: int) -> dict[str, Any]:
    """Threads of ada's and of fifty others, with runs, logs, messages, versions, questions and feedback."""
    from django.contrib.auth.models import User
    from django.db import connection
    from django.utils import timezone

    from agui_django import models as m

    now = timezone.now()
    ada = User.objects.get(username="ada")
    others = User.objects.bulk_create(User(username=f"user{number}") for number in range(50))
    words = SENTENCE.split()

    def text(number: int) -> str:
        common = " ".join(words[(number + n) % len(words)] for n in range(30) if (number + n) % len(words) != 6)
        return common + (" parcel" if number % 500 == 0 else "")

    def many(rows: Iterator[Any], model: Any) -> None:
        batch: list[Any] = []
        for row in rows:
            batch.append(row)
            if len(batch) == 5000:
                model.objects.bulk_create(batch, batch_size=1000)
                batch.clear()
        model.objects.bulk_create(batch, batch_size=1000)

    def moment(number: int) -> Any:
        return now - timedelta(minutes=13 * number % 129_600)  # within ninety days

    owners = [ada if number % 2 == 0 else others[number % 50] for number in range(threads)]
    many(
        (
            m.Thread(
                scope=f"user:{owner.pk}", thread_id=f"t{number}", owner=owner, agent=f"agent{number % 7}",
                title=f"Order {number}", archived=number % 10 == 0, state='{"step": 2}', state_version=2,
                last_words=text(number)[:200], created_at=moment(number), updated_at=moment(number),
            )
            for number, owner in enumerate(owners)
        ),
        m.Thread,
    )  # fmt: skip
    keys = list(m.Thread.objects.order_by("pk").values_list("pk", flat=True))
    addresses = [[uuid.uuid4() for _ in range(200 if number == 0 else 2)] for number in range(threads)]
    statuses = ["finished"] * 17 + ["failed", "cancelled", "interrupted"]
    many(
        (
            m.Run(
                uuid=address, thread_id=keys[number], run_id=f"r{place}", digest="", agent=f"agent{number % 7}",
                user=owners[number], status=statuses[(number + place) % 20], input="{}", turn=address.hex,
                input_tokens=100, output_tokens=50, duration_ms=1500, last_seq=20,
                created_at=moment(number) - timedelta(minutes=place),
            )
            for number in range(threads)
            for place, address in enumerate(addresses[number])
        ),
        m.Run,
    )  # fmt: skip
    log = "\n".join(f'{{"type":"TEXT_MESSAGE_CONTENT","messageId":"m","delta":"word {n}"}}' for n in range(20))
    many(
        (m.RunEvents(run_id=each, first_seq=1, last_seq=20, text=log) for found in addresses for each in found),
        m.RunEvents,
    )
    many(
        (
            m.Message(
                thread_id=keys[number], message_id=f"m{place}", role="user" if place % 2 else "assistant",
                wire=f'{{"id":"m{place}","role":"user","content":"{text(number * 50 + place)}"}}',
                search_text=text(number * 50 + place), order=place * 1024, run_id=addresses[number][place % 2],
                created_at=moment(number),
            )
            for number in range(threads)
            for place in range(messages * 20 if number == 0 else messages)
        ),
        m.Message,
    )  # fmt: skip
    many(
        (
            m.StateVersion(thread_id=keys[number], version=version, state='{"step": 2}', origin="agent")
            for number in range(threads)
            for version in range(1, 301 if number == 0 else 3)
        ),
        m.StateVersion,
    )
    many(
        (
            m.Interrupt(
                thread_id=keys[number], run_id=addresses[number][0], interrupt_id="i1", key="i1", reason="tool_call",
                wire="{}", status="open" if number % 100 == 0 else "resolved", created_at=moment(number),
            )
            for number in range(0, threads, 5)
        ),
        m.Interrupt,
    )  # fmt: skip
    spoken = m.Message.objects.filter(message_id="m1").order_by("pk")[::20]
    many((m.Feedback(thread_id=each.thread_id, message=each, user=ada, rating=1) for each in spoken), m.Feedback)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    return {"thread": keys[0], "run": addresses[0][0]}


def clients() -> dict[str, dict[str, str]]:
    """Headers of the owner and of staff."""
    from django.contrib.auth.models import Permission, User
    from rest_framework.authtoken.models import Token

    staff = User.objects.create(username="kim", is_staff=True)
    staff.user_permissions.set(Permission.objects.filter(codename__startswith="view_"))
    return {
        "owner": {"Authorization": "Token demo-ada"},
        "staff": {"Authorization": f"Token {Token.objects.create(user=staff).key}"},
    }


async def measure(options: argparse.Namespace) -> None:
    """Seed, ask, print."""
    import django

    django.setup()
    from django.db import connections

    from agui_django.runs import database
    from tests.transports.asgi import ask

    def prepare() -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
        try:
            return seed(options.threads, options.messages), clients()
        finally:
            connections.close_all()

    begun = time.perf_counter()
    ids, callers = await asyncio.to_thread(prepare)
    kind = os.environ["AGUI_BENCH_API"]
    print(f"\n## {kind}: {options.threads} threads of {options.messages} messages", end="")
    print(
        f" (seeded in {time.perf_counter() - begun:.0f} s)\n\n| list | owner, ms (CPU here) | staff |\n|---|---|---|",
        flush=True,
    )
    seen: list[tuple[str, Any]] = []
    watch(seen)
    plans: list[str] = []
    slow = []
    for name, path in LISTS.items():
        medians: list[float] = []
        processor: list[float] = []
        for who, headers in callers.items():
            place = {**ids, "deep": await deep(headers) if "{deep}" in path else ""}
            address = f"/api/agui/{path.format(**place)}"
            times, work = [], []
            for _ in range(options.rounds + 2):
                seen.clear()
                start, worked = time.perf_counter(), time.process_time()
                exchange = await ask("GET", address, headers=headers)
                times.append(1000 * (time.perf_counter() - start))
                work.append(1000 * (time.process_time() - worked))
                assert exchange.status == 200, exchange.chunks
            medians.append(statistics.median(times[2:]))
            processor.append(statistics.median(work[2:]))
            plans.append(f"### {name}, {who}\n" + await database.get_pool().run(explained, list(seen)))
        slow += [name] if max(medians) > TARGET else []
        cells = [f"{wall:.1f} ({cpu:.1f})" for wall, cpu in zip(medians, processor, strict=True)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print(f"\nOver {TARGET:.0f} ms: {', '.join(slow) or 'none'}")
    if not options.no_plans:
        print("\n\n".join(["", *plans]))
    await database.shutdown()


async def deep(headers: dict[str, str]) -> str:
    """The query of a page far down."""
    import json
    from urllib.parse import parse_qs

    from tests.transports.asgi import ask

    address = "/api/agui/threads?limit=200"
    for _ in range(20):
        page = json.loads(b"".join((await ask("GET", address, headers=headers)).chunks))
        address = page["next"] or address
    cursor = parse_qs(address.partition("?")[2]).get("cursor")
    return f"?cursor={cursor[0]}" if cursor else ""


def watch(seen: list[tuple[str, Any]]) -> None:
    """Note the statements of the app's own threads."""
    from django.db import connections

    from agui_django.runs.database import Pool, database_alias

    def note(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        seen.append((sql, params))
        return execute(sql, params, many, context)

    work = Pool._work

    def watched(self: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        def job() -> Any:
            with connections[database_alias()].execute_wrapper(note):
                return function(*args, **kwargs)

        return work(self, job)

    Pool._work = watched  # type: ignore[method-assign, assignment]


def explained(statements: list[tuple[str, Any]]) -> str:
    """The plans of these, without those of the login."""
    from django.db import connection

    told = []
    for sql, params in statements:
        if not sql.startswith("SELECT") or "authtoken" in sql or "auth_permission" in sql:
            continue
        analysed = connection.vendor == "postgresql"
        prefix = "EXPLAIN (ANALYZE, COSTS OFF, SUMMARY OFF)" if analysed else "EXPLAIN QUERY PLAN"
        with connection.cursor() as cursor:
            cursor.execute(f"{prefix} {sql}", params)
            told.append("\n".join(str(row[-1]) for row in cursor.fetchall()))
    return "\n--\n".join(told)


if __name__ == "__main__":
    main()
