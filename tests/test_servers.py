"""The real servers that other tests start: they answer, they say why when they cannot, and nothing is left of them."""

from __future__ import annotations

import os
import urllib.request
from pathlib import Path

import psycopg
import pytest

from tests.databases import POSTGRES, DatabaseKind
from tests.parts import require
from tests.servers import Kind, ServerError, ServerProcess, living

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["daphne", "uvicorn", "gunicorn"])
def test_starts_stops_and_starts_again(kind: Kind, tmp_path: Path) -> None:
    with ServerProcess(kind, tmp_path=tmp_path) as server:
        leader = server.pid
        assert server.running
        assert os.getpgid(leader) == leader
        server.stop()
        assert not server.running
        assert living(leader) == []
        server.start()
        with urllib.request.urlopen(f"{server.base_url}/agui/health", timeout=10) as response:
            assert response.status == 200
        leader = server.pid
    assert living(leader) == []


def test_workers_die_with_their_master(tmp_path: Path) -> None:
    with ServerProcess("gunicorn", tmp_path=tmp_path, workers=2) as server:
        leader = server.pid
        assert len(living(leader)) == 3
        server.kill()
        assert living(leader) == []


def test_the_error_of_a_start_holds_the_log(tmp_path: Path) -> None:
    server = ServerProcess("uvicorn", tmp_path=tmp_path, env={"DJANGO_SETTINGS_MODULE": "no_such_settings"})
    with pytest.raises(ServerError, match="no_such_settings"), server:
        pass
    assert not server.running


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_each_has_a_database_with_the_demo_users(database: DatabaseKind, tmp_path: Path) -> None:
    if database == "postgres":
        require("postgres")
    with ServerProcess("uvicorn", database=database, tmp_path=tmp_path) as server:
        name = server.database_name
        assert server.stored("no such thread") == {}
        count = "from rest_framework.authtoken.models import Token; print(Token.objects.filter(key='demo-ada').count())"
        assert server.manage("shell", "-c", count).split()[-1] == "1"
    if database == "postgres":
        with psycopg.connect(dbname="postgres", **POSTGRES) as connection:  # type: ignore[arg-type]
            assert connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone() is None
