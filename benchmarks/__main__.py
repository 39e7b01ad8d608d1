"""``python -m benchmarks``: starts every server, measures them in turn, prints the table.

Options: ``--quick`` (some two minutes), ``--smoke`` (does it work?), ``--no-peers``, ``--no-postgres``, ``--only``
parts, ``--strict`` (exit code 1 when a target was missed), ``--no-write``. A full run writes its table into
docs/performance.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.parts import PARTS
from benchmarks.processes import cores
from tests.databases import ROOT


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter and fewer rounds, under two minutes")
    parser.add_argument("--smoke", action="store_true", help="as little as shows that it works; figures mean nothing")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="leave FastAPI and django-ag-ui out")
    parser.add_argument("--no-postgres", dest="postgres", action="store_false", help="measure SQLite only")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="measure only these parts")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target was not met")
    parser.add_argument("--no-write", dest="write", action="store_false", help="leave docs/performance.md alone")
    options = parser.parse_args()
    os.sched_setaffinity(0, {cores()[1]}) if cores()[0] != cores()[1] else None
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="agui-bench-") as folder, contextlib.ExitStack() as stack:
        bench = Bench(Path(folder), options, stack)
        for part, measure_part in PARTS.items():
            if part in options.only:
                measure_part(bench)
        report = bench.finish(time.monotonic() - started)
    print(report.text())
    if options.write and not options.quick and not options.smoke and options.peers and options.only == list(PARTS):
        report.write_into(ROOT / "docs" / "performance.md")
    return 1 if options.strict and report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
