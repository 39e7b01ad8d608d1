"""The processes of a benchmark: servers on the first core, the load on the second, and what /proc says of them."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import IO, Any

import psycopg

from tests.databases import POSTGRES, ROOT, create_postgres, drop_postgres
from tests.servers import free_port

TICKS = os.sysconf("SC_CLK_TCK")
LAUNCH = str(ROOT / "benchmarks" / "launch.py")
START_SECONDS = 60.0


@functools.cache
def cores() -> tuple[int, int]:
    """Return the core of the servers and the core of the load; the same one where there is only one.

    Asked once, before anybody pins this process to one of them.
    """
    available = sorted(os.sched_getaffinity(0))
    return available[0], available[-1]


class Server:
    """One measured server under uvicorn (httptools, uvloop), one process on one core.

    Args:
        name: how the table calls it.
        app: ``module:attribute``.
        python: the interpreter; for peers, that of their own virtual environment.
        database: "sqlite", "postgres" or "" for none; made for this server and removed with it.
        path: where runs are POSTed.
        socket: where WebSockets are opened.
        headers: more request headers.
        health: an address that answers 200 when the server is up.
        env: more environment.
        prepare: a module to run first, in the server's environment.
        shares: a server whose database this one uses, too.
    """

    def __init__(
        self, name: str, app: str, folder: Path, *, python: str = sys.executable, database: str = "",
        path: str = "/run", socket: str = "/", headers: dict[str, str] | None = None, health: str = "/health",
        env: dict[str, str] | None = None, prepare: str = "", shares: Server | None = None,
    ) -> None:  # fmt: skip
        """Describe the server; `start` starts it."""
        self.name, self.app, self.folder, self.python, self.database = name, app, folder, python, database
        self.path, self.socket, self.headers = path, socket, headers or {}
        self.health, self.prepare = health, prepare
        self.port = 0
        self.log_path = folder / f"{name.replace(' ', '-').replace('/', '-')}-{uuid.uuid4().hex[:4]}.log"
        self.shares = shares
        self.database_name = ""
        self.extra = env or {}
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    @property
    def target(self) -> dict[str, Any]:
        """How the load generator reaches it."""
        reached = {"name": self.name, "port": self.port, "path": self.path, "socket": self.socket}
        return {**reached, "headers": self.headers}

    @property
    def pid(self) -> int:
        """The server's process."""
        assert self._process is not None
        return self._process.pid

    def environment(self) -> dict[str, str]:
        """Return the environment of the server's process."""
        site = {"PYTHONPATH": str(ROOT), "AGUI_DATABASE": self.database, "AGUI_DATABASE_NAME": self.database_name}
        return {**os.environ, **site, **self.extra}

    def start(self) -> Server:
        """Make the database, start, and wait until it answers.

        Raises:
            RuntimeError: it does not; the message ends with its log.
        """
        if self.shares is not None:
            self.database_name, self.prepare = self.shares.database_name, ""
        elif self.database == "postgres":
            self.database_name = f"agui_bench_{os.getpid()}_{uuid.uuid4().hex[:6]}"
            create_postgres(self.database_name)
        elif self.database:
            self.database_name = str(self.folder / f"{uuid.uuid4().hex[:8]}.sqlite3")
        env = self.environment()
        if self.prepare:
            command = [self.python, "-m", self.prepare]
            done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{self.name}: {done.stdout}{done.stderr}")
        self.port = free_port()
        self._log = self.log_path.open("ab")
        command = [
            self.python, LAUNCH, str(cores()[0]), self.python, "-m", "uvicorn", self.app, "--host", "127.0.0.1",
            "--port", str(self.port), "--loop", "uvloop", "--http", "httptools", "--no-access-log",
            "--log-level", "warning", "--timeout-graceful-shutdown", "5",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT
        )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                self.read(self.health)
                return self
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise RuntimeError(f"{self.name} did not start:\n{self.log_path.read_text(errors='replace')[-4000:]}")

    def read(self, path: str, body: bytes | None = None) -> bytes:
        """GET an address, or POST a body to it."""
        with self.post(path, body) as response:
            answer: bytes = response.read()
            return answer

    def post(self, path: str, body: bytes | None) -> Any:
        """Begin to read the answer to a POST (a GET where there is no body); to be closed."""
        headers = {**self.headers, **({"Content-Type": "application/json"} if body else {})}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data=body, headers=headers)
        return urllib.request.urlopen(request, timeout=60)

    def cpu(self) -> float:
        """Seconds of CPU that the process has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory_and_threads(self) -> tuple[int, int]:
        """Resident bytes and number of threads."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        values = dict(line.split(":", 1) for line in lines)
        return int(values["VmRSS"].split()[0]) * 1024, int(values["Threads"])

    def connections(self) -> int:
        """Number of database connections that it holds open."""
        if self.database == "postgres":
            query = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"
            with psycopg.connect(dbname="postgres", **POSTGRES) as connection:  # type: ignore[arg-type]
                found = connection.execute(query, [self.database_name]).fetchone()
                assert found is not None
                return int(found[0])
        if not self.database:
            return 0
        links = 0
        for descriptor in Path(f"/proc/{self.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                links += descriptor.readlink() == Path(self.database_name)
        return links

    def close(self) -> None:
        """End it and remove its database."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._log is not None:
            self._log.close()
        if self.database == "postgres" and self.database_name and self.shares is None:
            drop_postgres(self.database_name)


class Load:
    """The load generator's process."""

    def __enter__(self) -> Load:
        """Start it."""
        command = [sys.executable, LAUNCH, str(cores()[1]), sys.executable, "-m", "benchmarks.load"]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def start(self, job: str, **arguments: Any) -> None:
        """Begin a job; `result` waits for its end."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"job": job, **arguments}) + "\n")
        self._process.stdin.flush()

    def busy(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for the job's end and tell whether it still goes on."""
        assert self._process.stdout is not None
        return not select.select([self._process.stdout], [], [], seconds)[0]

    def result(self) -> dict[str, Any]:
        """Wait for the job's end and return what it counted."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the load generator ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def run(self, job: str, **arguments: Any) -> dict[str, Any]:
        """Do a job."""
        self.start(job, **arguments)
        return self.result()

    def __exit__(self, *exc_info: object) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


def peers_python(log: IO[str]) -> str | None:
    """Return the interpreter of the peers' virtual environment, made when it is not there; None if it cannot be."""
    folder = ROOT / ".venv-bench"
    python = folder / "bin" / "python"
    requirements = ROOT / "benchmarks" / "requirements.txt"
    stamp = folder / "installed.txt"
    if stamp.exists() and stamp.read_text() == requirements.read_text():
        return str(python)
    print("Making .venv-bench for the peers ...", file=log, flush=True)
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "-r", str(requirements)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"The peers are left out: {done.stderr[-1000:]}", file=log)
            shutil.rmtree(folder, ignore_errors=True)
            return None
    stamp.write_text(requirements.read_text())
    return str(python)
