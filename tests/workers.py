"""Real workers of real task queues beside a real server: all on one PostgreSQL database.

Law: whatever was started ends with the ``with`` block, by its own process group.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import redis

from tests.databases import ROOT, create_postgres, drop_postgres, manage, new_database, site_environment
from tests.servers import LAUNCH, ServerProcess, living

KINDS = ["Celery", "Procrastinate", "DjangoTasks"]


def environment(kind: str) -> dict[str, str]:
    """What makes the demo site one with that queue."""
    return {"DJANGO_SETTINGS_MODULE": "tests.runs.queue_site.settings", "AGUI_TEST_RUNNER": kind}


@functools.cache
def _template(kind: str) -> str:
    """A database with the tables of that queue, made once."""
    folder = Path(tempfile.gettempdir())
    name = new_database("postgres", folder)
    atexit.register(drop_postgres, name)
    manage("migrate", "--verbosity=0", env=site_environment("postgres", name, environment(kind)))
    return name


@contextlib.contextmanager
def site(kind: str, tmp_path: Path, settings: str = "{}", **env: str) -> Iterator[ServerProcess]:
    """The web tier of a site whose runs are executed by workers."""
    name = f"agui_test_{os.getpid()}_{uuid.uuid4().hex[:8]}"
    create_postgres(name, _template(kind))
    queue = f"agui-{uuid.uuid4().hex}"
    named = environment(kind) | {"AGUI_SETTINGS": settings, "AGUI_TEST_QUEUE": queue, **env}
    try:
        with ServerProcess("uvicorn", database="postgres", tmp_path=tmp_path, env=named, database_name=name) as server:
            yield server
    finally:
        drop_postgres(name)
        if kind == "Celery":
            with redis.Redis(db=9) as broker, contextlib.suppress(redis.ConnectionError):
                broker.delete(queue, f"_kombu.binding.{queue}", f"_kombu.binding_permanent.{queue}")


class Worker:
    """A worker of a site, as a context manager."""

    def __init__(self, kind: str, env: Mapping[str, str], folder: Path) -> None:
        self.kind, self.env = kind, dict(env)
        self.log_path = folder / f"worker-{uuid.uuid4().hex[:6]}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The worker's own process, which may have children."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """Everything the worker wrote."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def command(self) -> list[str]:
        """What a site runs."""
        if self.kind == "Celery":
            app = "tests.runs.queue_site.celery_app"
            return [sys.executable, "-m", "celery", "-A", app, "worker", "--concurrency=2", "--loglevel=info",
                    "--without-gossip", "--without-mingle"]  # fmt: skip
        if self.kind == "Procrastinate":
            return [sys.executable, "manage.py", "procrastinate", "worker", "--concurrency=20"]
        return [sys.executable, "manage.py", "db_worker", "--interval=0.1", "--queue-name=*", "--no-reload"]

    def start(self) -> Worker:
        """Start it; it takes tasks as soon as it can."""
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", LAUNCH, *self.command()], cwd=ROOT, env=self.env, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        return self

    def members(self) -> list[int]:
        """The worker and its children."""
        return living(self.pid)

    def terminate(self, timeout: float = 40) -> None:
        """Ask it to end, and wait for that."""
        os.kill(self.pid, signal.SIGTERM)
        assert self._process is not None
        self._process.wait(timeout)

    def kill(self) -> None:
        """End it and its children at once."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        deadline = time.monotonic() + 10
        while living(self._process.pid) and time.monotonic() < deadline:
            time.sleep(0.01)

    def __enter__(self) -> Worker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        if error is not None:
            print(f"---- {self.kind} worker ----\n{self.log[-6000:]}")


def in_site(server: ServerProcess, code: str) -> str:
    """What a line of Python prints in a process of the site."""
    done = subprocess.run(
        [sys.executable, "-c", f"import django; django.setup()\n{code}"],
        cwd=ROOT, env=server.env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def runs(server: ServerProcess, thread_id: str) -> list[dict[str, Any]]:
    """A thread's runs as they are stored."""
    found: list[dict[str, Any]] = server.stored(thread_id).get("runs", [])
    return found


__all__ = ["KINDS", "Worker", "in_site", "runs", "site"]
