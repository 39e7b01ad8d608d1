"""What the parts of a benchmark share: the servers, all up at once, the load, and the table."""

from __future__ import annotations

import argparse
import contextlib
import platform
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.measure import FULL, QUICK, SMOKE, Scale
from benchmarks.processes import Load, Server, cores, peers_python
from benchmarks.report import Report
from tests.databases import postgres_reachable

LABEL = {"sqlite": "SQLite", "postgres": "PostgreSQL"}


class Bench:
    """The servers of one benchmark, up at once."""

    def __init__(self, folder: Path, options: argparse.Namespace, stack: contextlib.ExitStack) -> None:
        """Start everything and let every server do some work."""
        self.folder, self.options, self.stack = folder, options, stack
        self.scale: Scale = SMOKE if options.smoke else QUICK if options.quick else FULL
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
        self, database: str, *, counting: bool = False, sockets: bool = False, env: dict[str, str] | None = None,
        shares: Server | None = None,
    ) -> Server:  # fmt: skip
        """Return agui_django on a new database, or on that of another server."""
        more = (" (counting)" if counting else "") + (" (sockets)" if sockets else "") + (", second" if shares else "")
        env = {"DJANGO_SETTINGS_MODULE": "benchmarks.sites.ours.settings", **(env or {})}
        return Server(
            f"agui_django {LABEL[database]}{more}",
            f"benchmarks.sites.ours.{'sockets' if sockets else 'asgi'}:application", self.folder, database=database,
            path="/agui/agents/work", socket="/agui/ws/work", headers={"Authorization": "Token bench"},
            health="/agui/health", prepare="benchmarks.sites.ours.prepare",
            env={**env, "AGUI_BENCH_COUNT": "1"} if counting else env, shares=shares,
        )  # fmt: skip

    def watch_load(self, results: dict[str, list[dict[str, Any]]]) -> None:
        """Note what the load generator cost."""
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
