"""``python -m benchmarks.load``: reads one job per line from standard input, prints one result per line.

Each result holds the generator's own CPU share, so that it is seen not to be the limit.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

from benchmarks.load import joins, sockets, streams

JOBS: dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]] = {
    "window": streams.window,
    "burst": streams.burst,
    "series": streams.series,
    "fanout": streams.fanout,
    "sockets": sockets.window,
    "join": joins.join,
}


async def measured(job: dict[str, Any]) -> dict[str, Any]:
    """Do a job and add what it cost this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = await JOBS[job["job"]](job)
    return {**result, "load_cpu": (time.process_time() - cpu) / (time.perf_counter() - wall)}


def main() -> None:
    """Do jobs until standard input ends."""
    for line in sys.stdin:
        print(json.dumps(uvloop.run(measured(json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
