"""Real servers for tests: the demo site in a process of its own, on a database of its own.

Law: whatever was started ends with the ``with`` block, and nothing is shared between two servers but the
migrated template their databases are copied from. Knows the demo site only by its environment and addresses.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Literal

from tests.databases import (
    ROOT,
    DatabaseKind,
    drop_postgres,
    manage,
    new_database,
    postgres_reachable,
    site_environment,
)

__all__ = [
    "DatabaseKind",
    "Kind",
    "ServerError",
    "ServerProcess",
    "StoredReader",
    "free_port",
    "living",
    "postgres_reachable",
]

START_SECONDS = 60.0

Kind = Literal["daphne", "uvicorn", "gunicorn"]

# A server must not outlive the test run that is killed. PR_SET_PDEATHSIG survives the exec.
LAUNCH = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"


class ServerError(RuntimeError):
    """A server did not start or stop as it should; the message ends with its log."""


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def living(group: int) -> list[int]:
    """Return the living processes of a process group; those that only wait to be reaped are not."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == group and fields[0] not in "ZX":
                    members.append(int(entry.name))
    return members


class ServerProcess:
    """The demo site under a real server, as a context manager.

    Args:
        kind: which server.
        database: which database; a new one is made and removed again unless ``database_name`` names one.
        tmp_path: folder for the database file and the log.
        env: more environment, such as another DJANGO_SETTINGS_MODULE.
        database_name: an existing database to use (the second server of one site).
        workers: number of worker processes, with gunicorn only.
        root: the folder of the code, where that is not this one.
    """

    def __init__(
        self, kind: Kind = "uvicorn", *, database: DatabaseKind = "sqlite", tmp_path: Path,
        env: Mapping[str, str] | None = None, database_name: str | None = None, workers: int = 1,
        root: Path = ROOT,
    ) -> None:  # fmt: skip
        self.kind, self.database, self.workers, self.root = kind, database, workers, root
        self.folder = tmp_path
        self.log_path = tmp_path / f"{kind}-{uuid.uuid4().hex[:6]}.log"
        self._owns_database = database_name is None
        self.database_name = database_name or new_database(database, tmp_path)
        self.env = site_environment(database, self.database_name, env)
        if root != ROOT:
            self.env["PYTHONPATH"] = str(root)
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._reader: StoredReader | None = None

    @property
    def base_url(self) -> str:
        """The address of the site, without a slash at its end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of the server (of gunicorn: the master)."""
        if self._process is None:
            raise ServerError("the server was not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """Everything the server wrote so far, over all starts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def command(self) -> list[str]:
        """Return the command line that serves on ``self.port``."""
        port, app = str(self.port), "project.asgi:application"
        python = [sys.executable, "-W", "default", "-m"]
        if self.kind == "daphne":
            return [*python, "daphne", "-b", "127.0.0.1", "-p", port, app]
        if self.kind == "uvicorn":
            return [*python, "uvicorn", app, "--host", "127.0.0.1", "--port", port, "--no-access-log"]
        worker = ["-k", "uvicorn_worker.UvicornWorker", "-w", str(self.workers), "--graceful-timeout", "30"]
        return [*python, "gunicorn", app, "-b", f"127.0.0.1:{port}", *worker]

    def start(self, port: int | None = None) -> ServerProcess:
        """Start the server, on a port where one is given, and wait until ``agui/health`` answers 200.

        Raises:
            ServerError: it ended, or did not answer within a minute.
        """
        if self.running:
            raise ServerError("the server runs already")
        for attempt in range(3):
            self.port = port or free_port()
            seen = len(self.log)
            self._spawn()
            if self._wait_for_health():
                return self
            alive = self.running
            self.kill()
            # Somebody else may have taken the port between the probe and the start.
            if alive or attempt == 2 or "in use" not in self.log[seen:].lower():
                break
        raise ServerError(f"{self.kind} did not start:\n{self.log[-8000:]}")

    def _spawn(self) -> None:
        command = self.command()
        # The death signal goes out when the starting *thread* ends, so only the main thread may ask for it.
        if threading.current_thread() is threading.main_thread():
            command = [sys.executable, "-c", LAUNCH, *command]
        self._log = self.log_path.open("ab")
        self._process = subprocess.Popen(
            command, cwd=self.root, env=self.env, stdin=subprocess.DEVNULL,
            stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def _wait_for_health(self) -> bool:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.running:
            try:
                with urllib.request.urlopen(f"{self.base_url}/agui/health", timeout=5) as response:
                    if response.status == 200:
                        return True
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        return False

    def signal(self, number: int) -> None:
        """Send a signal to the server's own process (of gunicorn: to the master)."""
        os.kill(self.pid, number)

    def wait(self, timeout: float = 30) -> int:
        """Wait until the process ended and return its exit code.

        Raises:
            ServerError: it still lives after ``timeout`` seconds.
        """
        if self._process is None:
            raise ServerError("the server was not started")
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ServerError(f"{self.kind} still lives after {timeout} s:\n{self.log[-8000:]}") from None

    def stop(self, timeout: float = 30) -> int:
        """End the server in order, by SIGTERM, and return its exit code; it is killed when it does not end."""
        try:
            if self.running:
                self.signal(signal.SIGTERM)
            return self.wait(timeout)
        finally:
            self.kill()

    def kill(self) -> None:
        """End the server and its workers at once, by SIGKILL; one that ended already is fine."""
        if self._process is not None:
            # The group outlives its leader: workers whose master is gone are in it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            # Workers are not our children: the kernel takes a moment to end them.
            deadline = time.monotonic() + 10
            while living(self._process.pid) and time.monotonic() < deadline:
                time.sleep(0.01)
        if self._log is not None:
            self._log.close()
            self._log = None

    def manage(self, *arguments: str) -> str:
        """Run a management command on this server's database and return what it printed."""
        return manage(*arguments, env=self.env)

    def stored(self, thread_id: str, user: str = "ada") -> dict[str, Any]:
        """Return what the database holds of a user's thread; see ``tests.stored``."""
        if self._reader is None:
            self._reader = StoredReader(self.env)
        return self._reader.thread(thread_id, user)

    def close(self) -> None:
        """Kill the server and remove the database that was made for it."""
        self.kill()
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        if self._owns_database and self.database == "postgres":
            drop_postgres(self.database_name)

    def __enter__(self) -> ServerProcess:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class StoredReader:
    """A process with Django that answers what a thread's rows hold, so that a test needs no Django of that database."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.stored"],
            cwd=ROOT, env=dict(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def thread(self, thread_id: str, user: str) -> dict[str, Any]:
        """Return the thread as ``tests.stored`` describes it."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        stdin.write(json.dumps({"threadId": thread_id, "user": user}) + "\n")
        stdin.flush()
        line = stdout.readline()
        if not line:
            raise ServerError(f"the reader of stored threads ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the reader's process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.kill()
        self._process.wait()
