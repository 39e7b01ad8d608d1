"""Jobs over HTTP: runs and followers on raw sockets, whose events and bytes are counted and no more."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from benchmarks.work import SIZE, Order, run_input

MARK = b"data:"
STAMP = re.compile(rb'"delta":\s?"(\d{%d})"' % SIZE)
ADDRESS = re.compile(rb"content-location:\s*(\S+)", re.IGNORECASE)
RUN_TIMEOUT = 60.0


class Counted(Protocol):
    """What is counted of a run, whatever carried it."""

    status: str
    events: int
    bytes: int


class Stream(asyncio.Protocol):
    """One request on one connection; it ends when the server closes."""

    def __init__(
        self, request: bytes, *, stamped: bool = False, on_events: Callable[[int], None] | None = None
    ) -> None:
        """Prepare to send ``request``; ``stamped``: read the clock in each delta."""
        self.request, self.stamped, self.on_events = request, stamped, on_events
        self.events = self.bytes = 0
        self.status = ""
        self.opened = time.perf_counter()
        self.first: float | None = None
        self.delays: list[float] = []
        self.head = b""
        self._since = time.monotonic_ns()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        transport.write(self.request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        """Count the events that begin in it, also the one whose mark is cut in two."""
        if not self.bytes:
            self.status = data[9:12].decode("latin-1")
            self.head = data[:4096]
        self.bytes += len(data)
        new = data.count(MARK) + (self._tail + data[: len(MARK) - 1]).count(MARK)
        self._tail = (self._tail + data)[-(len(MARK) - 1) :]
        if new:
            if self.first is None:
                self.first = time.perf_counter() - self.opened
            self.events += new
            if self.on_events is not None:
                self.on_events(new)
        if self.stamped:
            now = time.monotonic_ns()
            # What was written before this stream began is a replay, and late by nature.
            stamps = [stamp for stamp in map(int, STAMP.findall(data)) if stamp >= self._since]
            self.delays += [(now - stamp) / 1e6 for stamp in stamps]

    def connection_lost(self, exc: Exception | None) -> None:
        """The run is over."""
        if not self.ended.done():
            self.ended.set_result(None)


def post(target: dict[str, Any], order: Order) -> bytes:
    """Return a request that starts a new run on a new thread."""
    body = run_input(order)
    more = f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n"
    return _head(target, "POST", target["path"], more) + body


def get(target: dict[str, Any], path: str) -> bytes:
    """Return a request that reads."""
    return _head(target, "GET", path, "")


def _head(target: dict[str, Any], method: str, path: str, more: str) -> bytes:
    headers = "".join(f"{name}: {value}\r\n" for name, value in target.get("headers", {}).items())
    host = f"Host: 127.0.0.1:{target['port']}\r\nAccept: text/event-stream\r\nConnection: close\r\n"
    return f"{method} {path} HTTP/1.1\r\n{host}{headers}{more}\r\n".encode()


async def exchange(target: dict[str, Any], request: bytes, **options: Any) -> Stream:
    """Send one request and wait for the end of its answer."""
    loop = asyncio.get_running_loop()
    stream = Stream(request, **options)
    transport, _ = await loop.create_connection(lambda: stream, "127.0.0.1", target["port"])
    try:
        await asyncio.wait_for(stream.ended, RUN_TIMEOUT)
    except TimeoutError:
        stream.status = "timeout"
    finally:
        transport.close()
    return stream


async def window(job: dict[str, Any]) -> dict[str, Any]:
    """Keep N runs going for a time, each on a connection of its own, and count the events of that time."""
    target, order = job["target"], Order(**job["order"])

    async def one(on_events: Callable[[int], None]) -> Stream:
        return await exchange(target, post(target, order), on_events=on_events)

    return await counted(job, one)


async def counted(job: dict[str, Any], one: Callable[[Callable[[int], None]], Awaitable[Counted]]) -> dict[str, Any]:
    """Keep N runs going for a time and count the events of that time; the runs under way are let finish.

    Args:
        job: ``warm_up`` and ``seconds``, and N as ``concurrency``.
        one: does a run and tells of new events.
    """
    begin = time.perf_counter() + job["warm_up"]
    end = begin + job["seconds"]
    events = 0
    finished: list[Counted] = []

    def count(new: int) -> None:
        nonlocal events
        if begin <= time.perf_counter() < end:
            events += new

    async def worker() -> None:
        while time.perf_counter() < end:
            finished.append(await one(count))

    await asyncio.gather(*(worker() for _ in range(job["concurrency"])))
    return {"rate": events / job["seconds"], **summary(finished, Order(**job["order"]))}


async def burst(job: dict[str, Any]) -> dict[str, Any]:
    """Open N runs within a short ramp and follow each to its end."""
    target, order = job["target"], Order(**job["order"])
    started = time.perf_counter()

    async def one(index: int) -> Stream:
        await asyncio.sleep(job["ramp"] * index / job["runs"])
        return await exchange(target, post(target, order), stamped=order.stamp)

    streams = await asyncio.gather(*(one(index) for index in range(job["runs"])))
    elapsed = time.perf_counter() - started
    events = sum(stream.events for stream in streams)
    return {
        "rate": events / elapsed, "elapsed": elapsed, **summary(streams, order),
        "delays": _percentiles(streams),
    }  # fmt: skip


async def series(job: dict[str, Any]) -> dict[str, Any]:
    """Send requests one after the other, a turn for each target; note the time to the first event and to the end."""
    order = Order(**job["order"])
    results: dict[str, list[Stream]] = {target["name"]: [] for target in job["targets"]}
    took: dict[str, list[float]] = {name: [] for name in results}
    for _ in range(job["times"]):
        for target in job["targets"]:
            request = get(target, target["read"]) if "read" in target else post(target, order)
            stream = await exchange(target, request)
            took[target["name"]].append((time.perf_counter() - stream.opened) * 1000)
            results[target["name"]].append(stream)
    return {
        name: {
            "first_ms": [(stream.first or 0) * 1000 for stream in streams], "total_ms": took[name],
            **summary(streams, order),
        }
        for name, streams in results.items()
    }  # fmt: skip


async def fanout(job: dict[str, Any]) -> dict[str, Any]:
    """Start one run, and follow it with so many streams through each of some servers."""
    target, order = job["target"], Order(**job["order"])
    begun = asyncio.Event()
    own = Stream(post(target, order), stamped=True, on_events=lambda _: begun.set())
    await asyncio.get_running_loop().create_connection(lambda: own, "127.0.0.1", target["port"])
    await asyncio.wait_for(begun.wait(), RUN_TIMEOUT)
    address = ADDRESS.search(own.head)
    if address is None:
        raise RuntimeError(f"no address in {own.head!r}")
    watchers = [watcher for watcher in job["watchers"] for _ in range(watcher["streams"])]
    streams = await asyncio.gather(
        *(exchange(watcher, get(watcher, address[1].decode()), stamped=True) for watcher in watchers)
    )
    await asyncio.wait_for(own.ended, RUN_TIMEOUT)
    followed: dict[str, list[Stream]] = {watcher["name"]: [] for watcher in job["watchers"]}
    for watcher, stream in zip(watchers, streams, strict=True):
        followed[watcher["name"]].append(stream)
    return {
        name: {"delays": _percentiles(found), **summary(found, order)}
        for name, found in {**followed, "own": [own]}.items()
    }


def _percentiles(streams: list[Stream]) -> dict[str, float]:
    delays = sorted(delay for stream in streams for delay in stream.delays)
    return {str(part): delays[int(part / 100 * (len(delays) - 1))] for part in (50, 90, 99)} if delays else {}


def summary(streams: Sequence[Counted], order: Order) -> dict[str, Any]:
    """How many runs and events there were, how they were answered, and how many ended early."""
    statuses: dict[str, int] = {}
    for stream in streams:
        statuses[stream.status] = statuses.get(stream.status, 0) + 1
    return {
        "runs": len(streams), "events": sum(stream.events for stream in streams),
        "bytes": sum(stream.bytes for stream in streams), "statuses": statuses,
        "short": sum(stream.events < order.tokens for stream in streams),
    }  # fmt: skip
