"""deploy/pgbouncer.ini between two servers and PostgreSQL: transaction pooling, with fewer connections than clients."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests import sse
from tests.databases import POSTGRES, drop_postgres, new_database
from tests.deploy.programs import running, written
from tests.parts import ROOT, require
from tests.processes.parts import SHARED_REDIS, Follower, Frames, contiguous, site, started
from tests.servers import ServerProcess, free_port

CONF = ROOT / "deploy" / "pgbouncer.ini"

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def pooled(tmp_path: Path) -> Iterator[list[ServerProcess]]:
    """Two servers behind a pgbouncer that may use three connections."""
    require("pgbouncer", "postgres", "redis")
    name, port = new_database("postgres", tmp_path), free_port()
    changes = {
        "mysite = host=127.0.0.1 port=5432 dbname=mysite":
            f"{name} = host={POSTGRES['host']} port={POSTGRES['port']} dbname={name} user={POSTGRES['user']}",
        "listen_port = 6432": f"listen_port = {port}",
        # The tests' PostgreSQL lets its users in without a password.
        "auth_type = scram-sha-256": "auth_type = any",
        "auth_file = /etc/pgbouncer/userlist.txt": "unix_socket_dir =",
        "default_pool_size = 10": "default_pool_size = 3",
    }  # fmt: skip
    conf = written(CONF, tmp_path / "pgbouncer.ini", changes)
    # It refuses to be root.
    user = ["-u", "nobody"] if os.geteuid() == 0 else []
    env = {"AGUI_POSTGRES_PORT": str(port), "AGUI_PGBOUNCER": "1"}
    try:
        with (
            running("pgbouncer", *user, str(conf), port=port, folder=tmp_path),
            site(2, tmp_path, redis=SHARED_REDIS, env=env, database_name=name) as servers,
        ):
            yield servers
    finally:
        drop_postgres(name)


def test_runs_over_pooled_transactions(pooled: list[ServerProcess]) -> None:
    a, b = pooled
    found: list[Frames] = []
    most = 0

    def run(number: int) -> None:
        with sse.client((a, b)[number % 2].base_url) as http:
            found.append(sse.run(http, "echo", sse.body(f"t{number}", "tokens:60 delay_ms:20 size:24")))

    lanes = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(16)]
    with sse.client(a.base_url) as http, started(http, "echo", sse.body("long", "tokens:150 delay_ms:20")) as running_:
        path, frames = running_
        follower = Follower(b, path)
        for lane in lanes:
            lane.start()
        seen: Frames = []
        for frame in frames:
            seen.append(frame)
            if len(seen) % 30 == 0:
                most = max(most, backends(a.database_name))
    for lane in lanes:
        lane.join(60)
    assert follower.end() == seen
    assert len(found) == 16
    assert all(contiguous(frames) and len(frames) == 64 for frames in found)
    # Each process holds up to five connections to pgbouncer; PostgreSQL sees what the pool may use.
    assert 1 <= most <= 3

    # A question and its answer: locks, constraints and claims live inside one transaction.
    with sse.client(a.base_url) as http, sse.client(b.base_url) as other:
        asked = sse.run(http, "refund", sse.body("ask", "my order"))
        (interrupt,) = asked[-1][1]["outcome"]["interrupts"]
        resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True, "amount": 3}}]
        resumed = sse.run(other, "refund", sse.body("ask", "", messages=[], resume=resume))
    assert resumed[-1][1]["type"] == "RUN_FINISHED"
    assert [run["status"] for run in a.stored("ask")["runs"]] == ["interrupted", "finished"]


def backends(name: str) -> int:
    """Connections that PostgreSQL itself has to a database."""
    with psycopg.connect(dbname="postgres", **POSTGRES) as connection:  # type: ignore[arg-type]
        found = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = %s", [name]).fetchone()
    assert found is not None
    return int(found[0])
