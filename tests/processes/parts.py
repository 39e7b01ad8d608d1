"""What a site of many processes is made of: a Redis of the test's own, servers that share a database, followers."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from tests import sse
from tests.servers import DatabaseKind, Kind, ServerProcess, free_port

SHARED_REDIS = "redis://127.0.0.1:6379/0"

Frames = list[tuple[int, dict[str, Any]]]


class Redis:
    """A redis-server of the test's own; it may be killed and started again on the same port."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> Redis:
        """Start it, with nothing in it, and wait until it answers."""
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(
            ["redis-server", *options, "--dir", str(self.folder)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wait_for(lambda: self.command(b"PING") == b"+PONG\r\n", "Redis answers")
        return self

    def command(self, words: bytes) -> bytes:
        """Send one inline command; empty where nobody answers."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=2) as link:
            link.sendall(words + b"\r\n")
            return link.recv(4096)
        return b""

    def kill(self) -> None:
        """End it without a word."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Redis:
        return self.start()

    def __exit__(self, *exc_info: object) -> None:
        self.kill()


@contextlib.contextmanager
def site(
    count: int, folder: Path, *, database: DatabaseKind = "postgres", redis: str = "", kind: Kind = "uvicorn",
    workers: int = 1, env: dict[str, str] | None = None, database_name: str | None = None,
) -> Iterator[list[ServerProcess]]:  # fmt: skip
    """Servers of one site; ``redis``: the address of the layer, empty for none."""
    layer = {"AGUI_REDIS": redis, "AGUI_REDIS_PREFIX": uuid.uuid4().hex} if redis else {"AGUI_REDIS": ""}
    options: dict[str, Any] = {"database": database, "tmp_path": folder, "env": {**layer, **(env or {})}}
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(ServerProcess(kind, workers=workers, database_name=database_name, **options))
        servers = [first]
        for _ in range(count - 1):
            more = ServerProcess(kind, workers=workers, database_name=first.database_name, **options)
            servers.append(stack.enter_context(more))
        yield servers


class Follower:
    """Follows a run through a server, in a thread of its own."""

    def __init__(self, server: ServerProcess, path: str, after: int = 0) -> None:
        self.frames: Frames = []
        #: How many frames each chunk brought: many in one when rows are only looked at once a second.
        self.chunks: list[int] = []
        self.status = 0
        self.error: BaseException | None = None
        self._url, self._path, self._after = server.base_url, path, after
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            with (
                sse.client(self._url) as http,
                http.stream("GET", self._path, headers={"Last-Event-ID": str(self._after)}) as response,
            ):
                self.status = response.status_code
                for found in sse.frames(Counted(response, self.chunks)):  # type: ignore[arg-type]
                    self.frames.append(found)
        except BaseException as error:
            self.error = error

    def end(self, seconds: float = 60) -> Frames:
        """Wait for the stream's end and return what came."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), f"the stream goes on after {len(self.frames)} frames"
        if self.error is not None:
            raise self.error
        assert self.status == 200
        return self.frames


class Counted:
    """A response whose chunks are counted."""

    def __init__(self, response: httpx.Response, chunks: list[int]) -> None:
        self._response, self._chunks = response, chunks

    def iter_text(self) -> Iterator[str]:
        """The chunks."""
        for chunk in self._response.iter_text():
            self._chunks.append(chunk.count("data: "))
            yield chunk


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 30) -> Any:
    """Poll what another process does until it is so."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {what}")


@contextlib.contextmanager
def started(http: httpx.Client, agent: str, members: dict[str, Any]) -> Iterator[tuple[str, Iterator[Any]]]:
    """A run as its own client sees it: its address, and its frames as they come."""
    with http.stream("POST", f"/agui/agents/{agent}", json=members) as response:
        if response.status_code != 200:
            response.read()
        assert response.status_code == 200, response.text
        yield response.headers["Content-Location"], sse.frames(response)


def contiguous(frames: Frames) -> bool:
    """Each event once, in order, from the first to the terminal one."""
    numbers = [seq for seq, _ in frames]
    ends = [event["type"] for _, event in frames if event["type"] in ("RUN_FINISHED", "RUN_ERROR")]
    return numbers == list(range(1, len(frames) + 1)) and ends == [frames[-1][1]["type"]]
