"""The measurements: each takes the running servers and the load generator and returns what was counted.

Law: only ratios inside one interleaved run count: servers take turns within a round, and ratios are taken per round.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import psycopg

from benchmarks.processes import Load, Server
from benchmarks.work import Order, run_input
from tests.databases import POSTGRES

FAST = Order(tokens=200, delay_ms=0)
PACED = Order(tokens=200, delay_ms=20)
STAMPED = Order(tokens=200, delay_ms=20, stamp=True)
SHORT = Order(tokens=1, delay_ms=0)
LONG = Order(tokens=9996, delay_ms=0)  # with its framing: 10,000 events

Results = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Scale:
    """How long everything takes; `crowd` is a number of runs, `messages` what threads that are joined hold."""

    rounds: int
    seconds: float
    bursts: int
    series: int
    replays: int
    crowd: int = 500
    messages: tuple[int, ...] = (10, 1_000, 10_000)


FULL = Scale(rounds=5, seconds=2.0, bursts=2, series=60, replays=10)
QUICK = Scale(rounds=2, seconds=0.8, bursts=1, series=20, replays=4)
SMOKE = Scale(rounds=1, seconds=0.3, bursts=1, series=3, replays=1, crowd=20, messages=(10, 100))


def say(text: str) -> None:
    """Tell the reader what is going on."""
    print(f"  {text}", file=sys.stderr, flush=True)


def ratio(results: Results, name: str, base: str, value: Callable[[dict[str, Any]], float]) -> float:
    """Return the median over the rounds of a server's value divided by another's of the same round."""
    rounds = zip(results[name], results[base], strict=True)
    return statistics.median(value(mine) / value(theirs) for mine, theirs in rounds)


def middle(results: Results, name: str, value: Callable[[dict[str, Any]], float]) -> float:
    """Return the median over the rounds of a server's value."""
    return statistics.median(value(result) for result in results[name])


def per_event(result: dict[str, Any]) -> float:
    """Return the server's CPU per event in microseconds."""
    return float(result["server_cpu"] / result["events"] * 1e6)


def warm_up(load: Load, servers: Iterable[Server]) -> None:
    """Let every server import, connect and compile what it needs."""
    for server in servers:
        result = load.run("burst", target=server.target, order=asdict(FAST), runs=5, ramp=0.2)
        if result["statuses"] != {"200": 5} or result["short"]:
            log = server.log_path.read_text(errors="replace")[-3000:]
            seen = f"{result['statuses']}, {result['short']} short"
            raise RuntimeError(f"{server.name} does not do the work: {seen}\n{log}")


def throughput(load: Load, servers: list[Server], scale: Scale, job: str = "window") -> Results:
    """Events per second at full speed, ten runs at a time; the job ``sockets`` has them over WebSockets."""
    results: Results = {server.name: [] for server in servers}
    for number in range(scale.rounds):
        say(f"full speed, round {number + 1} of {scale.rounds}")
        for server in servers:
            cpu = server.cpu()
            result = load.run(
                job, target=server.target, order=asdict(FAST), concurrency=10, warm_up=0.3, seconds=scale.seconds
            )
            results[server.name].append({**result, "server_cpu": server.cpu() - cpu})
    return results


def crowd(load: Load, servers: list[Server], scale: Scale) -> Results:
    """500 runs on a fixed schedule; memory, threads and connections are looked at while they stream."""
    runs = scale.crowd
    results: Results = {server.name: [] for server in servers}
    for number in range(scale.bursts):
        for server in servers:
            say(f"{runs} runs x 20 ms, {server.name}, round {number + 1} of {scale.bursts}")
            cpu, (resting, _) = server.cpu(), server.memory_and_threads()
            load.start("burst", target=server.target, order=asdict(PACED), runs=runs, ramp=1.0)
            seen: list[tuple[int, int, int]] = []
            while load.busy(0.4):
                memory, threads = server.memory_and_threads()
                seen.append((memory, threads, server.connections()))
            result = load.result()
            results[server.name].append({
                **result, "server_cpu": server.cpu() - cpu,
                "memory": (max(memory for memory, _, _ in seen) - resting) / runs,
                "threads": max(threads for _, threads, _ in seen),
                "connections": max(connections for _, _, connections in seen),
            })  # fmt: skip
    return results


def first_event(load: Load, servers: list[Server], scale: Scale) -> dict[str, list[float]]:
    """Milliseconds from connecting to the first event, one run at a time, the servers in turn."""
    say("time to the first event")
    targets = [server.target for server in servers]
    load.run("series", targets=targets, order=asdict(SHORT), times=5)
    result = load.run("series", targets=targets, order=asdict(SHORT), times=scale.series)
    return {server.name: result[server.name]["first_ms"] for server in servers}


def delay(load: Load, servers: list[Server], scale: Scale) -> Results:
    """Milliseconds between an agent's handing over a delta and its arrival, 100 runs on a fixed schedule."""
    results: Results = {server.name: [] for server in servers}
    for number in range(scale.bursts):
        for server in servers:
            say(f"delay of a delta, {server.name}, round {number + 1} of {scale.bursts}")
            result = load.run("burst", target=server.target, order=asdict(STAMPED), runs=100, ramp=1.0)
            results[server.name].append(result)
    return results


def fanout(load: Load, first: Server, second: Server, scale: Scale) -> dict[str, dict[str, float]]:
    """One run on a fixed schedule with followers in its process or in another one.

    "added" is what a follower in the other process waits longer than the run's own client does, in the same run.
    """
    cases = {
        "1 watcher in another process": second,
        "100 watchers in its process": first,
        "100 watchers in another process": second,
    }
    found: dict[str, dict[str, float]] = {}
    for what, server in cases.items():
        rounds = []
        for number in range(scale.bursts + 1):
            say(f"fan-out, {what}, round {number + 1} of {scale.bursts + 1}")
            cpu = first.cpu() + second.cpu()
            watchers = [{**server.target, "streams": int(what.split()[0])}]
            result = load.run("fanout", target=first.target, order=asdict(STAMPED), watchers=watchers)
            mine = result[server.name]
            rounds.append({
                "p50": mine["delays"]["50"], "p99": mine["delays"]["99"], "short": mine["short"],
                "added": mine["delays"]["50"] - result["own"]["delays"]["50"],
                "cpu": (first.cpu() + second.cpu() - cpu) / mine["events"] * 1e6,
            })  # fmt: skip
        found[what] = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
        found[what]["short"] = sum(each["short"] for each in rounds)
        if server is first:
            del found[what]["added"]
    return found


def stored(server: Server, tables: str, events: str) -> tuple[int, int]:
    """Return the bytes of a log's table with its indexes, and the number of events in it.

    Args:
        server: the server whose database is looked at.
        tables: the table's name.
        events: an SQL expression over the table that counts its events.
    """
    if server.database == "postgres":
        with psycopg.connect(dbname=server.database_name, **POSTGRES) as connection:  # type: ignore[arg-type]
            size = connection.execute("SELECT pg_total_relation_size(%s::regclass)", [tables]).fetchone()
            count = connection.execute(f"SELECT {events} FROM {tables}").fetchone()
            assert size is not None and count is not None
            return int(size[0]), int(count[0] or 0)
    with contextlib.closing(sqlite3.connect(f"file:{server.database_name}?mode=ro", uri=True)) as database:
        inside = "SELECT name FROM sqlite_master WHERE tbl_name = ?"
        size = database.execute(f"SELECT sum(pgsize) FROM dbstat WHERE name IN ({inside})", [tables]).fetchone()
        count = database.execute(f"SELECT {events} FROM {tables}").fetchone()
        return int(size[0]), int(count[0] or 0)


LOG_TABLES = {
    "ours": ("agui_django_runevents", "sum(last_seq - first_seq + 1)"),
    "rows": ("rows_event", "count(*)"),
}


def bytes_per_event(load: Load, pairs: list[tuple[Server, Server]], order: Order, runs: int) -> dict[str, float]:
    """Stored bytes per event that a burst of runs adds; keys are the servers' names."""
    found: dict[str, float] = {}
    for pair in pairs:
        for server, kind in zip(pair, ("ours", "rows"), strict=True):
            say(f"stored bytes, {server.name}")
            table, events = LOG_TABLES[kind]
            size, count = stored(server, table, events)
            load.run("burst", target=server.target, order=asdict(order), runs=runs, ramp=0.5)
            time.sleep(0.2)  # the last batch's commit precedes its frames; row-per-event commits before it shows
            new_size, new_count = stored(server, table, events)
            found[server.name] = (new_size - size) / max(1, new_count - count)
    return found


def statements(load: Load, server: Server, flush_interval: float) -> list[dict[str, Any]]:
    """Statements per run on a counting server: one paced run, a hundred at once, and one of 10,000 events."""
    found = []
    cases = (("1 run x 4 s", PACED, 1), ("100 runs x 4 s at once", PACED, 100), ("10,000 events", LONG, 1))
    for what, order, runs in cases:
        say(f"statements, {server.name}, {what}")
        before = statements_of(server)
        result = load.run("burst", target=server.target, order=asdict(order), runs=runs, ramp=0.0)
        count = (statements_of(server) - before) / runs
        allowed = 18 + result["elapsed"] / flush_interval
        found.append({"what": what, "per_run": count, "allowed": allowed, "elapsed": result["elapsed"]})
    return found


def statements_of(server: Server) -> int:
    """Statements that a counting server has sent so far."""
    return int(json.loads(server.read("/bench/statements"))["statements"])


def replay(load: Load, ours: Server, rows: Server, scale: Scale) -> dict[str, Any]:
    """Reconnecting to a recorded run of 10,000 events, beside row-per-event, in turn."""
    say(f"reconnect to 10,000 events, {ours.name} and {rows.name}")
    seeded = json.loads(rows.read("/seed", run_input(LONG)))["address"]
    targets = [
        {**ours.target, "read": f"{long_run(ours)}?after=0"},
        {**rows.target, "read": seeded},
    ]
    load.run("series", targets=targets, order=asdict(LONG), times=1)
    return load.run("series", targets=targets, order=asdict(LONG), times=scale.replays)


def long_run(ours: Server) -> str:
    """Do a run of 10,000 events and return the address of its events."""
    with ours.post(ours.path, run_input(LONG)) as response:
        response.read()
        location: str = response.headers["Content-Location"]
    return location


def replay_statements(load: Load, server: Server) -> float:
    """Statements that one reconnect costs, on a counting server."""
    target = {**server.target, "read": f"{long_run(server)}?after=0"}
    load.run("series", targets=[target], order=asdict(LONG), times=1)
    before, times = statements_of(server), 5
    load.run("series", targets=[target], order=asdict(LONG), times=times)
    return (statements_of(server) - before) / times
