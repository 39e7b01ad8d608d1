"""A PostgreSQL of the test's own: it can be paused, killed and started again without harm to anybody else."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg

from tests.databases import manage, site_environment
from tests.servers import free_port

DATABASE = "agui"
USER = "agui"


def binaries() -> Path | None:
    """Where PostgreSQL's own programs are; None where there are none."""
    found = shutil.which("initdb") or next(map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))), None)
    return None if found is None else Path(found).resolve().parent


def as_user() -> list[str]:
    """PostgreSQL refuses to run as root; what starts it ends with whoever started that."""
    command = ["setpriv", "--pdeathsig", "KILL"]
    if os.getuid() == 0:
        command += ["--reuid", "postgres", "--regid", "postgres", "--init-groups"]
    return command


class Cluster:
    """One cluster in a folder of its own, as a context manager; it holds one migrated database with the demo users."""

    def __init__(self) -> None:
        found = binaries()
        assert found is not None
        self.bin = found
        self.port = free_port()
        # Not in pytest's folder, which only its owner may enter.
        self.folder = Path(tempfile.mkdtemp(prefix="agui-cluster-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def env(self) -> dict[str, str]:
        """What a site needs to use it."""
        return {
            "AGUI_POSTGRES_HOST": "127.0.0.1", "AGUI_POSTGRES_PORT": str(self.port), "AGUI_POSTGRES_USER": USER,
        }  # fmt: skip

    def connect(self, database: str = DATABASE) -> psycopg.Connection:
        """A connection of the test's own."""
        return psycopg.connect(
            host="127.0.0.1", port=self.port, user=USER, dbname=database, connect_timeout=5, autocommit=True
        )

    def start(self) -> None:
        """Start it and wait until it answers."""
        command = [*as_user(), str(self.bin / "postgres"), "-D", str(self.folder / "data"), "-p", str(self.port)]
        options = {"listen_addresses": "127.0.0.1", "unix_socket_directories": str(self.folder), "fsync": "off"}
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + 60
        while True:
            try:
                self.connect("postgres").close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.1)

    def stop(self, number: int = signal.SIGINT) -> None:
        """End it: SIGINT is a fast shutdown, SIGQUIT an immediate one, without a checkpoint: recovery at the start."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(30)
            self._process = None

    def processes(self) -> list[int]:
        """The server and its children."""
        assert self._process is not None
        parent = self._process.pid
        found = [parent]
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                        found.append(int(entry.name))
        return found

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nobody gets an answer meanwhile; connections are taken by the kernel alone."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)  # first: from now on it has no new children
        stopped = self.processes()
        for pid in stopped[1:]:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def __enter__(self) -> Cluster:
        try:
            if os.getuid() == 0:
                owner = pwd.getpwnam("postgres")
                os.chown(self.folder, owner.pw_uid, owner.pw_gid)
            made = subprocess.run(
                [*as_user(), str(self.bin / "initdb"), "-D", str(self.folder / "data"), "-U", USER, "-A", "trust",
                 "--no-sync", "--no-locale", "-E", "UTF8"],
                cwd=self.folder, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert made.returncode == 0, made.stderr
            self.start()
            with self.connect("postgres") as connection:
                connection.execute(f"CREATE DATABASE {DATABASE}")
            env = site_environment("postgres", DATABASE, self.env)
            manage("migrate", "--verbosity=0", env=env)
            manage("agui_demo_data", env=env)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """End it at once and remove its files."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)
