"""``python -m benchmarks.copilotkit``: how long CopilotKit's ``/info`` takes, alone and while 200 runs stream.

CopilotKit asks for it when a page opens and again as a probe, and calls a runtime unreachable that takes five seconds.
Target: a median under 50 ms while the runs stream. Takes half a minute for each server.
"""

from __future__ import annotations

import argparse
import http.client
import os
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from benchmarks.processes import Load
from benchmarks.work import Order
from tests.servers import DatabaseKind, Kind, ServerProcess, postgres_reachable

TARGET = 50.0
#: Seconds in which the runs begin.
RAMP = 2.0
HEADERS = {"Authorization": "Token demo-ada"}
#: What the answers have to hold: errors are not measured.
WANTED = (b'"telemetryDisabled"', b'"ok"')


def asked(port: int, seconds: float) -> tuple[list[float], list[float]]:
    """Milliseconds of requests for ``/info`` and, between them, for the site's ``health``.

    Each has a connection of its own, as that of a page that opens.
    """
    found: tuple[list[float], list[float]] = ([], [])
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for path, wanted, times in zip(("/copilotkit/info", "/agui/health"), WANTED, found, strict=True):
            begun = time.perf_counter()
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            connection.request("GET", path, headers=HEADERS)
            answer = connection.getresponse().read()
            times.append((time.perf_counter() - begun) * 1000)
            connection.close()
            if wanted not in answer:
                raise RuntimeError(answer[:500].decode())
        time.sleep(0.05)
    return found


def told(found: list[float]) -> str:
    """Median, 95th percentile and maximum of milliseconds."""
    ordered = sorted(found)
    return f"{statistics.median(found):.1f} / {ordered[int(0.95 * (len(ordered) - 1))]:.1f} / {ordered[-1]:.1f}"


def measured(kind: Kind, database: DatabaseKind, runs: int, delay: int, seconds: float) -> tuple[str, bool]:
    """A row of the table, and whether the target was met."""
    order = Order(tokens=round((seconds + 2 * RAMP) * 1000 / delay), delay_ms=delay)
    with (
        tempfile.TemporaryDirectory() as folder, Load() as load,
        ServerProcess(kind, database=database, tmp_path=Path(folder), env={"AGUI_SQLITE": "wal"}) as server,
    ):  # fmt: skip
        asked(server.port, 1)
        alone, _ = asked(server.port, seconds / 2)
        path = "/copilotkit/agent/echo/run"
        target: dict[str, Any] = {"name": kind, "port": server.port, "path": path, "headers": HEADERS}
        load.start("burst", target=target, order=asdict(order), runs=runs, ramp=RAMP)
        time.sleep(1.5 * RAMP)  # all of them stream, and do until the load ends
        beside, health = asked(server.port, seconds)
        ended = not load.busy(0)
        result = load.result()
    if ended or result["statuses"] != {"200": runs} or result["short"]:
        raise RuntimeError(f"the runs did not stream all the time: {result}\n{server.log[-2000:]}")
    rate = f"{len(alone)} and {len(beside)} requests, {result['rate']:,.0f} events/s"
    row = f"| {kind}, {database} | {told(alone)} | {told(beside)} | {told(health)} | {rate} |"
    return row, statistics.median(beside) < TARGET


def main() -> int:
    """Measure each server on each database, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--delay", type=int, default=20, help="milliseconds between two deltas of a run")
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--server", choices=get_args(Kind), action="append")
    parser.add_argument("--database", choices=get_args(DatabaseKind), action="append")
    options = parser.parse_args()
    kinds = options.database or ["sqlite", *(["postgres"] if postgres_reachable() else [])]
    met = True
    beside = f"beside {options.runs} runs x {options.delay} ms"
    print(f"| ms, median / 95 % / most | alone | {beside} | health then | |\n|---|---|---|---|---|")
    for kind in options.server or ["uvicorn", "daphne"]:
        for database in kinds:
            row, good = measured(kind, database, options.runs, options.delay, options.seconds)
            met = met and good
            print(row, flush=True)
    print(
        f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; target met: {met}", file=sys.stderr
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
