"""``python -m benchmarks.soak --minutes N`` (at most 10): a site of two processes under restless clients.

200 threads start runs, leave them in the middle, come back to another process, stop them, and reload the whole thread.
Exit code 1 when a log has a hole, a run does not end, a client was told something twice or not at all, or when memory,
tasks, threads or connections are not flat.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import psycopg

from benchmarks.report import Report
from tests import sse
from tests.databases import POSTGRES, ROOT, postgres_reachable
from tests.parts import missing
from tests.servers import ServerProcess

THREADS = 200
#: Runs after which a client begins a new thread, so that each costs the same.
RUNS = 8
#: Seconds between two looks at what the processes hold.
LOOK = 5.0
TERMINAL = ("RUN_FINISHED", "RUN_ERROR")


class Server(ServerProcess):
    """A process of the site that also tells what it holds."""

    def command(self) -> list[str]:
        """Serve `benchmarks.sites.soak`."""
        return [part.replace("project.asgi:", "benchmarks.sites.soak:") for part in super().command()]

    def held(self) -> dict[str, float]:
        """What it holds at this moment."""
        found: dict[str, float] = httpx.get(f"{self.base_url}/soak", timeout=30).json()
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        found["memory"] = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
        found["descriptors"] = len(list(Path(f"/proc/{self.pid}/fd").iterdir()))
        return found


class Client:
    """One thread of the site and who uses it."""

    def __init__(self, urls: list[str], http: httpx.AsyncClient, chance: random.Random, did: Counter[str]) -> None:
        """Nothing was done yet."""
        self.urls, self.http, self.chance, self.did = urls, http, chance, did
        self.told: list[tuple[int, str]] = []
        self.wrong: list[str] = []

    async def live(self, until: float) -> None:
        """Run after run, until the time is over."""
        await asyncio.sleep(self.chance.random() * 3)
        thread, count = uuid.uuid4().hex, 0
        while time.monotonic() < until:
            if count == RUNS:
                thread, count = uuid.uuid4().hex, 0
            count += 1
            try:
                await self.run(thread)
            except httpx.HTTPError as error:
                self.wrong.append(f"{type(error).__name__}: {error}")

    async def run(self, thread: str) -> None:
        """Start a run and see it to its end, one way or another."""
        self.told = []
        tokens = self.chance.randrange(5, 80)
        body = sse.body(thread, f"tokens:{tokens} delay_ms:100 size:24", protocolVersion="1.1")
        way = self.chance.choice(["stay", "leave", "leave", "stop", "reload"])
        self.did[way] += 1
        path = ""
        async with self.http.stream("POST", f"{self.url()}/agui/agents/echo", json=body) as response:
            if response.status_code != 200:
                self.wrong.append(f"a start was answered {response.status_code}")
                return
            path = response.headers["Content-Location"]
            limit = None if way == "stay" else self.chance.randrange(1, tokens)
            await self.read(response, limit)
        if way == "stop":
            answer = await self.http.post(f"{self.url()}{path.replace('/events', '/cancel')}")
            if answer.status_code != 200:
                self.wrong.append(f"a stop was answered {answer.status_code}")
        if way == "reload":
            await self.reload(thread)
        while not self.ended():
            self.did["join"] += 1
            headers = {"Last-Event-ID": str(self.told[-1][0])}
            async with self.http.stream("GET", f"{self.url()}{path}", headers=headers) as response:
                if response.status_code != 200:
                    self.wrong.append(f"a join was answered {response.status_code}")
                    return
                await self.read(response, self.chance.choice([None, self.chance.randrange(1, 30)]))
        numbers = [number for number, _ in self.told]
        if numbers != list(range(1, len(numbers) + 1)):
            self.wrong.append(f"{path} was told as {numbers}")

    async def reload(self, thread: str) -> None:
        """A page that is loaded in the middle: the present, then live to the end."""
        params = {"threadId": thread, "until": "idle"}
        types = []
        async with self.http.stream("GET", f"{self.url()}/agui/threads/events", params=params) as response:
            async for _, kind in frames(response):
                types.append(kind)
        if types[:1] != ["RUN_STARTED"] or types[-1:] != ["RUN_FINISHED"]:
            self.wrong.append(f"a reload was told {types[:1]} ... {types[-1:]}")

    async def read(self, response: httpx.Response, limit: int | None) -> None:
        """So many events, or all."""
        count = 0
        async for number, kind in frames(response):
            self.told.append((int(number), kind))
            count += 1
            if count == limit:
                return

    def ended(self) -> bool:
        """Whether the terminal event was told."""
        return bool(self.told) and self.told[-1][1] in TERMINAL

    def url(self) -> str:
        """One of the processes."""
        return self.chance.choice(self.urls)


async def frames(response: httpx.Response) -> AsyncIterator[tuple[str, str]]:
    """The cursor and the type of each event."""
    number = ""
    async for line in response.aiter_lines():
        if line.startswith("id: "):
            number = line[4:]
        elif line.startswith("data: "):
            yield number, json.loads(line[6:])["type"]


class Soak:
    """Servers, clients and what was seen."""

    def __init__(self, servers: list[Server], connections: str) -> None:
        """Nothing was seen."""
        self.servers, self.database = servers, connections
        self.seen: list[dict[str, float]] = []

    def look(self) -> dict[str, float]:
        """What all processes hold together."""
        held = [server.held() for server in self.servers]
        total = {name: sum(each[name] for each in held) for name in held[0]}
        if self.database:
            query = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
            with psycopg.connect(dbname="postgres", **POSTGRES) as connection:  # type: ignore[arg-type]
                found = connection.execute(query, [self.database]).fetchone()
                total["connections"] = float(found[0]) if found else 0.0
        return total

    async def watch(self, until: float) -> None:
        """Look now and then, while all clients are there."""
        while time.monotonic() < until - LOOK:
            await asyncio.sleep(LOOK)
            self.seen.append(await asyncio.to_thread(self.look))

    async def live(self, seconds: float, seed: int) -> tuple[Counter[str], list[str]]:
        """Let the clients be; gives what they did, and what was wrong."""
        did: Counter[str] = Counter()
        # Shorter than the five seconds of uvicorn: a connection that it closes just then would look like a fault.
        limits = httpx.Limits(max_connections=2 * THREADS, keepalive_expiry=2)
        headers = {"Authorization": "Token demo-ada"}
        async with httpx.AsyncClient(headers=headers, limits=limits, timeout=90) as http:
            urls = [server.base_url for server in self.servers]
            clients = [Client(urls, http, random.Random(seed + number), did) for number in range(THREADS)]
            until = time.monotonic() + seconds
            await asyncio.gather(self.watch(until), *(client.live(until) for client in clients))
        return did, [text for client in clients for text in client.wrong]

    def rested(self, calm: dict[str, float]) -> dict[str, float]:
        """What is held when nothing goes on any more: as soon as it is no more than before, or after half a minute."""
        deadline = time.monotonic() + 30
        while True:
            found = self.look()
            quiet = all(found[name] <= calm[name] for name in ("tasks", "threads", "descriptors"))
            if quiet or time.monotonic() > deadline:
                return found
            time.sleep(1)


def measure(soak: Soak, seconds: float, seed: int, report: Report) -> None:
    """Soak, and fill the table."""
    # Every pool, relay and poller has been at work once when the calm is looked at.
    asyncio.run(soak.live(10, seed + 1000))
    calm = soak.rested(soak.look())
    soak.seen.clear()
    did, wrong = asyncio.run(soak.live(seconds, seed))
    rest = soak.rested(calm)
    done = ", ".join(f"{count} {what}" for what, count in sorted(did.items()))
    report.fact(f"{THREADS} threads, {seconds / 60:g} minutes, seed {seed}", done)
    report.at_most("told wrongly", len(wrong), 0, "", "".join(f"; {text}" for text in wrong[:5]))
    third = max(1, len(soak.seen) // 3)
    for name, slack in (("memory", 25), ("tasks", 60), ("threads", 8), ("connections", 4), ("descriptors", 60)):
        if name not in calm:
            continue
        early = statistics.median(look[name] for look in soak.seen[:third])
        late = statistics.median(look[name] for look in soak.seen[-third:])
        unit = "MB" if name == "memory" else ""
        report.at_most(f"{name}, last third beside the first", late - early, max(slack, early / 10), unit,
                       f" ({early:.0f} to {late:.0f})")  # fmt: skip
        if name != "memory":
            report.at_most(f"{name} at rest beside before", rest[name] - calm[name], 4, "",
                           f" ({calm[name]:.0f} to {rest[name]:.0f})")  # fmt: skip
    server = soak.servers[0]
    printed = subprocess.run(
        [sys.executable, "-m", "benchmarks.sites.soak_rows"],
        cwd=ROOT, env=server.env, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    rows = json.loads(printed)
    report.fact("stored", f"{rows['runs']} runs, {rows['events']} events; {rows['statuses']}")
    report.at_most("runs that did not end", rows["open"], 0, "")
    report.at_most("logs with a hole", len(rows["broken"]), 0, "", f" {rows['broken'][:5]}" if rows["broken"] else "")
    failed = rows["statuses"].get("failed", 0)
    report.at_most("runs that failed", failed, 0, "")
    errors = sum(server.log.count("Traceback") for server in soak.servers)
    report.at_most("tracebacks in the servers' logs", errors, 0, "")


def main() -> int:
    """Soak, print, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0, help="how long, at most 10")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="of the clients")
    options = parser.parse_args()
    report = Report()
    kind: Any = "postgres" if postgres_reachable() else "sqlite"
    redis = "" if missing("redis") else "redis://127.0.0.1:6379/0"
    env = {"AGUI_REDIS": redis, "AGUI_REDIS_PREFIX": uuid.uuid4().hex}
    with tempfile.TemporaryDirectory(prefix="agui-soak-") as folder, contextlib.ExitStack() as stack:
        first = Server("uvicorn", database=kind, tmp_path=Path(folder), env=env)
        stack.enter_context(first)
        second = Server("uvicorn", database=kind, tmp_path=Path(folder), env=env, database_name=first.database_name)
        stack.enter_context(second)
        soak = Soak([first, second], first.database_name if kind == "postgres" else "")
        measure(soak, min(options.minutes, 10.0) * 60, options.seed, report)
    report.notes.append(f"Two uvicorn processes on {kind}{', Redis as the channel layer' if redis else ''}.")
    print(report.text())
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
