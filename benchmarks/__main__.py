"""``python -m benchmarks``: starts every server, measures them in turn, prints the table.

Options: ``--quick`` (under two minutes), ``--no-peers``, ``--no-postgres``, ``--only`` parts, ``--strict``
(exit code 1 when a target was missed), ``--no-write``. A full run writes its table into docs/performance.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import statistics
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.measure import FULL, QUICK, Scale, middle, per_event, ratio
from benchmarks.processes import Load, Server, cores, peers_python
from benchmarks.report import Report
from tests.databases import ROOT, postgres_reachable
from tests.parts import missing

PARTS = ("storage", "crowd", "speed", "first", "delay", "statements", "replay", "fanout")
FLUSH_INTERVAL = 0.05
LABEL = {"sqlite": "SQLite", "postgres": "PostgreSQL"}


def rate(result: dict[str, Any]) -> float:
    """Return the events per second of one measurement."""
    return float(result["rate"])


class Bench:
    """The servers of one benchmark, up at once."""

    def __init__(self, folder: Path, options: argparse.Namespace, stack: contextlib.ExitStack) -> None:
        """Start everything and let every server do some work."""
        self.folder, self.options, self.stack = folder, options, stack
        self.scale: Scale = QUICK if options.quick else FULL
        self.report = Report()
        self.databases = ["sqlite"]
        if options.postgres and postgres_reachable():
            self.databases.append("postgres")
        else:
            self.report.fails("everything on PostgreSQL", "switched off, or not reachable")
        self.load = stack.enter_context(Load())
        self.raw = self.up(Server("R", "benchmarks.sites.raw:application", folder))
        self.bare = self.up(Server("D", "benchmarks.sites.bare:application", folder))
        self.ours = {kind: self.up(self.our_server(kind)) for kind in self.databases}
        self.rows = {
            kind: self.up(Server(f"N {LABEL[kind]}", "benchmarks.sites.rows:application", folder, database=kind))
            for kind in self.databases
        }
        self.peers: list[Server] = []
        python = peers_python(sys.stderr) if options.peers else None
        if python:
            encoder = Server("FastAPI + EventEncoder", "benchmarks.sites.encoder:application", folder, python=python)
            django = Server(
                "django-ag-ui", "benchmarks.sites.django_ag_ui_peer:application", folder, python=python, path="/run/"
            )
            self.peers = [self.up(encoder), self.up(django)]
        self.load_cpu: list[float] = []
        measure.warm_up(self.load, [self.raw, self.bare, *self.ours.values(), *self.rows.values(), *self.peers])

    def up(self, server: Server) -> Server:
        """Start a server; it ends with the benchmark."""
        measure.say(f"starting {server.name}")
        self.stack.callback(server.close)
        return server.start()

    def our_server(
        self, database: str, *, counting: bool = False, env: dict[str, str] | None = None, shares: Server | None = None
    ) -> Server:
        """Return agui_django on a new database, or on that of another server."""
        env = {"DJANGO_SETTINGS_MODULE": "benchmarks.sites.ours.settings", **(env or {})}
        return Server(
            f"agui_django {LABEL[database]}{' (counting)' if counting else ''}{', second' if shares else ''}",
            "benchmarks.sites.ours.asgi:application", self.folder, database=database,
            path="/agui/agents/work", headers={"Authorization": "Token bench"},
            health="/agui/health", prepare="benchmarks.sites.ours.prepare",
            env={**env, "AGUI_BENCH_COUNT": "1"} if counting else env, shares=shares,
        )  # fmt: skip

    def storage(self) -> None:
        """Stored bytes per event."""
        pairs = [(self.ours[kind], self.rows[kind]) for kind in self.databases]
        for what, order, runs in (("20 ms", measure.PACED, 20), ("0 ms", measure.FAST, 20)):
            found = measure.bytes_per_event(self.load, pairs, order, runs)
            for kind, (ours, rows) in zip(self.databases, pairs, strict=True):
                mine, theirs = found[ours.name], found[rows.name]
                self.report.at_most(
                    f"stored bytes per event, {what}, {LABEL[kind]}", mine / theirs, 0.6, "x row-per-event",
                    f" ({mine:.0f} to {theirs:.0f} bytes)",
                )  # fmt: skip

    def speed(self) -> None:
        """Events per second at full speed."""
        servers = [self.raw, self.bare, *self.rows.values(), *self.peers, *self.ours.values()]
        results = measure.throughput(self.load, servers, self.scale)
        self._watch(results)

        for server in servers:
            shown = f"{middle(results, server.name, rate):,.0f}/s, {ratio(results, server.name, 'R', rate):.2f} R"
            cpu = middle(results, server.name, per_event)
            self.report.fact(f"events/s, 0 ms, 10 at once: {server.name}", f"{shown}, {cpu:.1f} us CPU per event")
        for kind, raw, bare in (("sqlite", 0.65, 1.0), ("postgres", 0.50, 0.85)):
            if kind not in self.databases:
                continue
            name, what = self.ours[kind].name, f"events/s, 0 ms, 10 at once, {LABEL[kind]}"
            self.report.at_least(what, ratio(results, name, "R", rate), raw, "R")
            self.report.at_least(what, ratio(results, name, "D", rate), bare, "D")
            for peer, target in zip(self.peers, (1.5, 10), strict=False):
                self.report.at_least(what, ratio(results, name, peer.name, rate), target, f"x {peer.name}")

    def crowd(self) -> None:
        """500 streams at once. Runs before `speed`: memory is looked at in the first round, in fresh processes."""
        servers = [self.raw, self.bare, *self.ours.values()]
        results = measure.crowd(self.load, servers, self.scale)
        self._watch(results)
        bare = results["D"][0]
        memory = f"{bare['memory'] / 1024:.0f} KB per stream, {bare['threads']} threads"
        self.report.fact("500 runs x 20 ms: D", f"{per_event(bare):.1f} us CPU per event, {memory}")
        for kind in self.databases:
            name = self.ours[kind].name
            first, what = results[name][0], f"500 runs x 20 ms, {LABEL[kind]}"
            short = sum(result["short"] for result in results[name])
            odd = [result["statuses"] for result in results[name] if set(result["statuses"]) != {"200"}]
            self.report.at_least(f"{what}: rate", ratio(results, name, "R", rate), 0.9, "R")
            self.report.at_most(f"{what}: short or refused runs", short + len(odd), 0, "", f" {odd}" if odd else "")
            self.report.at_most(
                f"{what}: server CPU per event", ratio(results, name, "D", per_event), 1.3, "D",
                f" ({middle(results, name, per_event):.1f} us)",
            )  # fmt: skip
            self.report.at_most(
                f"{what}: memory per open stream", first["memory"] / max(1.0, bare["memory"]), 1.4, "D",
                f" ({first['memory'] / 1024:.0f} to {bare['memory'] / 1024:.0f} KB)",
            )  # fmt: skip
            threads = max(result["threads"] for result in results[name])
            connections = max(result["connections"] for result in results[name])
            self.report.at_most(f"{what}: threads", threads, 25, "")
            self.report.at_most(f"{what}: database connections", connections, 5, "")

    def first(self) -> None:
        """Time to the first event."""
        found = measure.first_event(self.load, [self.bare, *self.ours.values()], self.scale)
        bare = statistics.median(found["D"])
        for kind, target in (("sqlite", 2.5), ("postgres", 4.0)):
            if kind in self.databases:
                mine = statistics.median(found[self.ours[kind].name])
                detail = f" ({mine:.1f} to {bare:.1f} ms)"
                self.report.at_most(f"time to first event, {LABEL[kind]}", mine / bare, target, "D", detail)

    def delay(self) -> None:
        """Delay added to a delta."""
        results = measure.delay(self.load, [self.raw, *self.ours.values()], self.scale)
        self._watch(results)
        for kind in self.databases:
            name = self.ours[kind].name
            for part, target in (("50", FLUSH_INTERVAL * 1000), ("99", 1.5 * FLUSH_INTERVAL * 1000 + 10)):

                def late(result: dict[str, Any], part: str = part) -> float:
                    return float(result["delays"][part])

                added = middle(results, name, late) - middle(results, "R", late)
                what = f"delay added to a delta, 100 runs x 20 ms, {LABEL[kind]}, p{part}"
                self.report.at_most(what, added, target, "ms", f" (R: {middle(results, 'R', late):.1f})")

    def statements(self) -> None:
        """Statements per run and per reconnect."""
        for kind in self.databases:
            server = self.up(self.our_server(kind, counting=True))
            measure.warm_up(self.load, [server])
            for found in measure.statements(self.load, server, FLUSH_INTERVAL):
                what = f"statements per run, {LABEL[kind]}, {found['what']} ({found['elapsed']:.1f} s)"
                self.report.at_most(what, found["per_run"], round(found["allowed"], 1), "")
            count = measure.replay_statements(self.load, server)
            what = f"statements per reconnect to 10,000 events, {LABEL[kind]} (authentication's one apart)"
            self.report.at_most(what, count - 1, 3, "")
            server.close()

    def replay(self) -> None:
        """Reconnecting."""
        for kind in self.databases:
            ours, rows = self.ours[kind], self.rows[kind]
            result = measure.replay(self.load, ours, rows, self.scale)
            mine, theirs = (statistics.median(result[server.name]["total_ms"]) for server in (ours, rows))
            what = f"reconnect to 10,000 events, {LABEL[kind]}"
            self.report.at_least(what, theirs / mine, 10, "x faster", f" ({mine:.1f} to {theirs:.1f} ms)")
            first = statistics.median(result[ours.name]["first_ms"])
            self.report.at_most(f"{what}: first frame", first, 5, "ms")
            if result[ours.name]["short"] or set(result[ours.name]["statuses"]) != {"200"}:
                self.report.fails(what, f"{result[ours.name]['statuses']}, {result[ours.name]['short']} short")

    def fanout(self) -> None:
        """One run and many who follow it, in its process and in another one."""
        if "postgres" not in self.databases or missing("redis"):
            self.report.fails("fan-out over two processes", "it takes PostgreSQL and Redis")
            return
        layer = {"AGUI_BENCH_LAYER": f"agui-bench-{uuid.uuid4().hex}"}
        first = self.up(self.our_server("postgres", env=layer))
        second = self.up(self.our_server("postgres", env=layer, shares=first))
        measure.warm_up(self.load, [first, second])
        for name, found in measure.fanout(self.load, first, second, self.scale).items():
            shown = f"p50 {found['p50']:.1f} ms, p99 {found['p99']:.1f} ms, {found['cpu']:.1f} us CPU per event"
            self.report.fact(f"delay of a delta with {name}", shown)
            self.report.at_most(f"short or refused streams with {name}", found["short"], 0, "")
            if "added" in found:
                self.report.at_most(f"delay added with {name}, p50", found["added"], 50, "ms")

    def _watch(self, results: dict[str, list[dict[str, Any]]]) -> None:
        self.load_cpu += [result["load_cpu"] for found in results.values() for result in found]

    def finish(self, took: float) -> Report:
        """Add the notes."""
        server, load = cores()
        if self.load_cpu:
            share = f"at most {max(self.load_cpu):.0%}, median {statistics.median(self.load_cpu):.0%}"
            self.report.notes.append(f"The load generator used {share} of its core.")
        shared = " (ONE core for both: figures mean little)" if server == load else ""
        self.report.notes.append(
            f"Python {platform.python_version()}, uvicorn with httptools and uvloop, one process on core {server}, the "
            f"load on core {load}{shared}; {self.scale.rounds} interleaved rounds, {took:.0f} s in all."
        )
        return self.report


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter and fewer rounds, under two minutes")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="leave FastAPI and django-ag-ui out")
    parser.add_argument("--no-postgres", dest="postgres", action="store_false", help="measure SQLite only")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="measure only these parts")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target was not met")
    parser.add_argument("--no-write", dest="write", action="store_false", help="leave docs/performance.md alone")
    options = parser.parse_args()
    os.sched_setaffinity(0, {cores()[1]}) if cores()[0] != cores()[1] else None
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="agui-bench-") as folder, contextlib.ExitStack() as stack:
        bench = Bench(Path(folder), options, stack)
        for part in PARTS:
            if part in options.only:
                getattr(bench, part)()
        report = bench.finish(time.monotonic() - started)
    print(report.text())
    if options.write and not options.quick and options.peers and options.only == PARTS:
        report.write_into(ROOT / "docs" / "performance.md")
    return 1 if options.strict and report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
