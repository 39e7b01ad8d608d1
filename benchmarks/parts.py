"""The parts of a benchmark: each measures one thing and writes its rows into the table."""

from __future__ import annotations

import statistics
import uuid
from collections.abc import Callable
from typing import Any

from benchmarks import joins, measure
from benchmarks.bench import LABEL, Bench
from benchmarks.measure import middle, per_event, ratio
from tests.parts import missing

FLUSH_INTERVAL = 0.05


def rate(result: dict[str, Any]) -> float:
    """Return the events per second of one measurement."""
    return float(result["rate"])


def storage(bench: Bench) -> None:
    """Stored bytes per event."""
    pairs = [(bench.ours[kind], bench.rows[kind]) for kind in bench.databases]
    for what, order, runs in (("20 ms", measure.PACED, 20), ("0 ms", measure.FAST, 20)):
        found = measure.bytes_per_event(bench.load, pairs, order, runs)
        for kind, (ours, rows) in zip(bench.databases, pairs, strict=True):
            mine, theirs = found[ours.name], found[rows.name]
            bench.report.at_most(
                f"stored bytes per event, {what}, {LABEL[kind]}", mine / theirs, 0.6, "x row-per-event",
                f" ({mine:.0f} to {theirs:.0f} bytes)",
            )  # fmt: skip


def speed(bench: Bench) -> None:
    """Events per second at full speed."""
    servers = [bench.raw, bench.bare, *bench.rows.values(), *bench.peers, *bench.ours.values()]
    results = measure.throughput(bench.load, servers, bench.scale)
    bench.watch_load(results)

    for server in servers:
        shown = f"{middle(results, server.name, rate):,.0f}/s, {ratio(results, server.name, 'R', rate):.2f} R"
        cpu = middle(results, server.name, per_event)
        bench.report.fact(f"events/s, 0 ms, 10 at once: {server.name}", f"{shown}, {cpu:.1f} us CPU per event")
    for kind, raw, bare in (("sqlite", 0.65, 1.0), ("postgres", 0.50, 0.85)):
        if kind not in bench.databases:
            continue
        name, what = bench.ours[kind].name, f"events/s, 0 ms, 10 at once, {LABEL[kind]}"
        bench.report.at_least(what, ratio(results, name, "R", rate), raw, "R")
        bench.report.at_least(what, ratio(results, name, "D", rate), bare, "D")
        for peer, target in zip(bench.peers, (1.5, 10), strict=False):
            bench.report.at_least(what, ratio(results, name, peer.name, rate), target, f"x {peer.name}")


def crowd(bench: Bench) -> None:
    """500 streams at once. Runs before `speed`: memory is looked at in the first round, in fresh processes."""
    servers = [bench.raw, bench.bare, *bench.ours.values()]
    results = measure.crowd(bench.load, servers, bench.scale)
    bench.watch_load(results)
    bare = results["D"][0]
    memory = f"{bare['memory'] / 1024:.0f} KB per stream, {bare['threads']} threads"
    bench.report.fact("500 runs x 20 ms: D", f"{per_event(bare):.1f} us CPU per event, {memory}")
    for kind in bench.databases:
        name = bench.ours[kind].name
        first, what = results[name][0], f"500 runs x 20 ms, {LABEL[kind]}"
        short = sum(result["short"] for result in results[name])
        odd = [result["statuses"] for result in results[name] if set(result["statuses"]) != {"200"}]
        bench.report.at_least(f"{what}: rate", ratio(results, name, "R", rate), 0.9, "R")
        bench.report.at_most(f"{what}: short or refused runs", short + len(odd), 0, "", f" {odd}" if odd else "")
        bench.report.at_most(
            f"{what}: server CPU per event", ratio(results, name, "D", per_event), 1.3, "D",
            f" ({middle(results, name, per_event):.1f} us)",
        )  # fmt: skip
        bench.report.at_most(
            f"{what}: memory per open stream", first["memory"] / max(1.0, bare["memory"]), 1.4, "D",
            f" ({first['memory'] / 1024:.0f} to {bare['memory'] / 1024:.0f} KB)",
        )  # fmt: skip
        threads = max(result["threads"] for result in results[name])
        connections = max(result["connections"] for result in results[name])
        bench.report.at_most(f"{what}: threads", threads, 25, "")
        bench.report.at_most(f"{what}: database connections", connections, 5, "")


def first(bench: Bench) -> None:
    """Time to the first event."""
    found = measure.first_event(bench.load, [bench.bare, *bench.ours.values()], bench.scale)
    bare = statistics.median(found["D"])
    for kind, target in (("sqlite", 2.5), ("postgres", 4.0)):
        if kind in bench.databases:
            mine = statistics.median(found[bench.ours[kind].name])
            detail = f" ({mine:.1f} to {bare:.1f} ms)"
            bench.report.at_most(f"time to first event, {LABEL[kind]}", mine / bare, target, "D", detail)


def delay(bench: Bench) -> None:
    """Delay added to a delta."""
    results = measure.delay(bench.load, [bench.raw, *bench.ours.values()], bench.scale)
    bench.watch_load(results)
    for kind in bench.databases:
        name = bench.ours[kind].name
        for part, target in (("50", FLUSH_INTERVAL * 1000), ("99", 1.5 * FLUSH_INTERVAL * 1000 + 10)):

            def late(result: dict[str, Any], part: str = part) -> float:
                return float(result["delays"][part])

            added = middle(results, name, late) - middle(results, "R", late)
            what = f"delay added to a delta, 100 runs x 20 ms, {LABEL[kind]}, p{part}"
            bench.report.at_most(what, added, target, "ms", f" (R: {middle(results, 'R', late):.1f})")


def statements(bench: Bench) -> None:
    """Statements per run and per reconnect."""
    for kind in bench.databases:
        server = bench.up(bench.our_server(kind, counting=True))
        measure.warm_up(bench.load, [server])
        for found in measure.statements(bench.load, server, FLUSH_INTERVAL):
            what = f"statements per run, {LABEL[kind]}, {found['what']} ({found['elapsed']:.1f} s)"
            bench.report.at_most(what, found["per_run"], round(found["allowed"], 1), "")
        count = measure.replay_statements(bench.load, server)
        what = f"statements per reconnect to 10,000 events, {LABEL[kind]} (authentication's one apart)"
        bench.report.at_most(what, count - 1, 3, "")
        server.close()


def replay(bench: Bench) -> None:
    """Reconnecting."""
    for kind in bench.databases:
        ours, rows = bench.ours[kind], bench.rows[kind]
        result = measure.replay(bench.load, ours, rows, bench.scale)
        mine, theirs = (statistics.median(result[server.name]["total_ms"]) for server in (ours, rows))
        what = f"reconnect to 10,000 events, {LABEL[kind]}"
        bench.report.at_least(what, theirs / mine, 10, "x faster", f" ({mine:.1f} to {theirs:.1f} ms)")
        first = statistics.median(result[ours.name]["first_ms"])
        bench.report.at_most(f"{what}: first frame", first, 5, "ms")
        if result[ours.name]["short"] or set(result[ours.name]["statuses"]) != {"200"}:
            bench.report.fails(what, f"{result[ours.name]['statuses']}, {result[ours.name]['short']} short")


def fanout(bench: Bench) -> None:
    """One run and many who follow it, in its process and in another one."""
    if "postgres" not in bench.databases or missing("redis"):
        bench.report.fails("fan-out over two processes", "it takes PostgreSQL and Redis")
        return
    layer = {"AGUI_BENCH_LAYER": f"agui-bench-{uuid.uuid4().hex}"}
    first = bench.up(bench.our_server("postgres", env=layer))
    second = bench.up(bench.our_server("postgres", env=layer, shares=first))
    measure.warm_up(bench.load, [first, second])
    for name, found in measure.fanout(bench.load, first, second, bench.scale).items():
        shown = f"p50 {found['p50']:.1f} ms, p99 {found['p99']:.1f} ms, {found['cpu']:.1f} us CPU per event"
        bench.report.fact(f"delay of a delta with {name}", shown)
        bench.report.at_most(f"short or refused streams with {name}", found["short"], 0, "")
        if "added" in found:
            bench.report.at_most(f"delay added with {name}, p50", found["added"], 50, "ms")


def sockets(bench: Bench) -> None:
    """Events per second over WebSockets, one event per frame."""
    ours = {kind: bench.up(bench.our_server(kind, sockets=True)) for kind in bench.databases}
    measure.warm_up(bench.load, ours.values())
    servers = [bench.raw, *ours.values()]
    results = measure.throughput(bench.load, servers, bench.scale, "sockets")
    bench.watch_load(results)
    for server in servers:
        shown = f"{middle(results, server.name, rate):,.0f}/s, {middle(results, server.name, per_event):.1f} us CPU"
        bench.report.fact(f"WebSocket events/s, 0 ms, 10 at once: {server.name}", f"{shown} per event")
    for kind, server in ours.items():
        what = f"WebSocket events/s, 0 ms, 10 at once, {LABEL[kind]}"
        bench.report.at_least(what, ratio(results, server.name, "R", rate), 0.8, "R")
        odd = [result for result in results[server.name] if set(result["statuses"]) != {"101"}]
        short = sum(result["short"] for result in results[server.name])
        bench.report.at_most(f"{what}: short or refused runs", short + len(odd), 0, "")
        server.close()


def join(bench: Bench) -> None:
    """Joining a running thread, by what it holds and what it held."""
    for kind in bench.databases:
        found = joins.join(bench.load, bench.ours[kind], bench.scale)
        took = {held: statistics.median(found[held.name]["restated_ms"]) for held in joins.threads(bench.scale)}
        for held, milliseconds in took.items():
            result, what = found[held.name], f"join a running thread, {LABEL[kind]}, {held.name}"
            size = result["bytes"] / result["runs"] / 1024
            bench.report.fact(what, f"{milliseconds:.1f} ms until it is restated, {size:,.0f} KB")
            if result["short"] or set(result["statuses"]) != {"200"}:
                bench.report.fails(what, f"{result['statuses']}, {result['short']} short")
        small, *_, past = took
        bench.report.at_most(
            f"join a running thread, {LABEL[kind]}, {past.name}", took[past] / took[small], 1.5, "x without the past",
            f" ({took[past]:.1f} to {took[small]:.1f} ms)",
        )  # fmt: skip
        server = bench.up(bench.our_server(kind, counting=True))
        measure.warm_up(bench.load, [server])
        counts = joins.statements(bench.load, server, bench.scale)
        few, many = min(counts.values()), max(counts.values())
        what = f"statements per join, {LABEL[kind]}: the most beside the fewest"
        bench.report.at_most(what, many - few, 0, "", f" ({few} to {many})")
        server.close()


#: In this order: memory is looked at in fresh processes.
PARTS: dict[str, Callable[[Bench], None]] = {
    "storage": storage,
    "crowd": crowd,
    "speed": speed,
    "sockets": sockets,
    "first": first,
    "delay": delay,
    "statements": statements,
    "replay": replay,
    "join": join,
    "fanout": fanout,
}
