"""Databases for real servers: made from a migrated template with the demo users, removed when they are done with."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import psycopg
from psycopg import sql

ROOT = Path(__file__).resolve().parent.parent
POSTGRES = {"host": "127.0.0.1", "port": 5432, "user": os.environ.get("AGUI_POSTGRES_USER", "root")}

OWNED = re.compile(r"agui_(?:template|test|bench)_(\d+)_")

DatabaseKind = Literal["sqlite", "postgres"]


class ManageError(RuntimeError):
    """A management command failed; the message is what it printed."""


def postgres_reachable() -> bool:
    """Tell whether the PostgreSQL that the tests use answers."""
    try:
        with psycopg.connect(dbname="postgres", connect_timeout=3, **POSTGRES):  # type: ignore[arg-type]
            return True
    except psycopg.OperationalError:
        return False


def create_postgres(name: str, template: str | None = None) -> None:
    """Create a database, as a copy of ``template`` when one is given."""
    statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
    if template is not None:
        statement += sql.SQL(" TEMPLATE {}").format(sql.Identifier(template))
    with psycopg.connect(dbname="postgres", autocommit=True, **POSTGRES) as connection:  # type: ignore[arg-type]
        connection.execute(statement)


def drop_postgres(name: str) -> None:
    """Drop a database and end whoever is still connected to it; one that is gone already is fine."""
    with psycopg.connect(dbname="postgres", autocommit=True, **POSTGRES) as connection:  # type: ignore[arg-type]
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def sweep_postgres() -> None:
    """Drop what test runs and benchmarks left behind that were killed: their process id is in the name."""
    with psycopg.connect(dbname="postgres", **POSTGRES) as connection:  # type: ignore[arg-type]
        names = [name for (name,) in connection.execute("SELECT datname FROM pg_database").fetchall()]
    for name in names:
        owner = OWNED.match(name)
        if owner is not None and not Path(f"/proc/{owner[1]}").exists():
            drop_postgres(name)


def site_environment(database: DatabaseKind, name: str, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment in which the demo site uses that database."""
    path = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH", "")) if part)
    site = {
        "DJANGO_SETTINGS_MODULE": "project.settings",
        "AGUI_DEBUG": "1",
        "AGUI_DATABASE": database,
        "AGUI_DATABASE_NAME": name,
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
    }
    return {**os.environ, **site, **(extra or {})}


def manage(*arguments: str, env: Mapping[str, str], timeout: float = 120) -> str:
    """Run a management command of the demo site and return what it printed.

    Raises:
        ManageError: the command failed.
    """
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT, env=dict(env), capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    if done.returncode:
        raise ManageError(f"manage.py {' '.join(arguments)} failed:\n{done.stdout}\n{done.stderr}")
    return done.stdout


@functools.cache
def _template(database: DatabaseKind) -> str:
    """Return a migrated database with the demo data, made once per test process and removed with it."""
    if database == "postgres":
        sweep_postgres()
        name = f"agui_template_{os.getpid()}_{uuid.uuid4().hex[:6]}"
        create_postgres(name)
        atexit.register(drop_postgres, name)
    else:
        folder = tempfile.mkdtemp(prefix="agui-template-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        name = str(Path(folder) / "template.sqlite3")
    env = site_environment(database, name)
    manage("migrate", "--verbosity=0", env=env)
    manage("agui_demo_data", env=env)
    return name


def new_database(database: DatabaseKind, folder: Path) -> str:
    """Return a fresh migrated database with the demo users: a file in ``folder``, or a PostgreSQL name."""
    template = _template(database)
    if database == "postgres":
        name = f"agui_test_{os.getpid()}_{uuid.uuid4().hex[:8]}"
        create_postgres(name, template)
        return name
    path = folder / f"{uuid.uuid4().hex[:8]}.sqlite3"
    # The backup API sees what is still in a write-ahead log, a file copy would not.
    with contextlib.closing(sqlite3.connect(template)) as source, contextlib.closing(sqlite3.connect(path)) as target:
        source.backup(target)
    return str(path)
