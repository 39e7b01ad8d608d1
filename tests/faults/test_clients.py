"""Clients of every kind: too slow, coming and going, in crowds; each is told the whole log, and harms nobody."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import sse
from tests.parts import require
from tests.processes.parts import SHARED_REDIS, Follower, contiguous, site, started
from tests.servers import ServerProcess

JOINS = 50
FOLLOWERS = 200
SLOW_READERS = 6


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServerProcess]]:
    require("postgres", "redis")
    with site(2, tmp_path_factory.mktemp("clients"), redis=SHARED_REDIS) as servers:
        yield servers


# ---- one byte a second ----------------------------------------------------------------------------------------------


class SlowReader:
    """A follower on a bare socket with a small buffer, that takes one byte and then no more for a second."""

    def __init__(self, server: ServerProcess, path: str) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.connect(("127.0.0.1", server.port))
        self._socket.settimeout(60)
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Token demo-ada\r\nConnection: close\r\n\r\n"
        self._socket.sendall(head.encode())
        self._read = b""

    def byte(self) -> None:
        """One byte."""
        self._read += self._socket.recv(1)

    def rest(self) -> list[str]:
        """Everything else, as fast as it comes; gives all its lines but comments."""
        parts = [self._read]
        while part := self._socket.recv(1 << 20):
            parts.append(part)
        self._socket.close()
        head, _, body = b"".join(parts).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        return [line for line in unchunked(body).decode().split("\n") if line and not line.startswith(":")]


def unchunked(body: bytes) -> bytes:
    """The content of a chunked body, which must be complete."""
    parts, at = [], 0
    while True:
        end = body.index(b"\r\n", at)
        length = int(body[at:end], 16)
        if length == 0:
            return b"".join(parts)
        parts.append(body[end + 2 : end + 2 + length])
        at = end + 2 + length + 2


def memory(server: ServerProcess) -> int:
    """Resident bytes of the server."""
    return int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_one_byte_a_second(tmp_path: Path) -> None:
    """The run does not wait for them, others do not, and what they have not read is not kept for them."""
    fast = "tokens:8000 delay_ms:0 size:2000"
    with ServerProcess("uvicorn", tmp_path=tmp_path) as server, sse.client(server.base_url) as http:
        log = sse.run(http, "echo", sse.body("warm", fast))
        size = sum(len(json.dumps(event)) for _, event in log)
        before = memory(server)
        with started(http, "echo", sse.body("t", fast)) as (path, frames):
            readers = [SlowReader(server, path) for _ in range(SLOW_READERS)]
            for reader in readers:
                reader.byte()
            seen = list(frames)
        for _ in range(3):
            time.sleep(1)
            for reader in readers:
                reader.byte()
        assert contiguous(seen)
        assert len(seen) == 8_004
        # The log is some 17 MB, and six are waiting for nearly all of it: 100 MB.
        assert size > 16_000_000
        assert memory(server) - before < 80_000_000
        assert server.stored("t")["runs"][0]["status"] == "finished"
        lines = readers[0].rest()
        numbers = [int(line.removeprefix("id: ")) for line in lines[::2]]
        assert (
            list(zip(numbers, (json.loads(line.removeprefix("data: ")) for line in lines[1::2]), strict=True)) == seen
        )
        for reader in readers[1:]:
            assert reader.rest() == lines


# ---- coming and going -----------------------------------------------------------------------------------------------


def taste(server: ServerProcess, path: str, after: str, limit: int, **params: str) -> tuple[int, list[tuple[str, Any]]]:
    """Join behind a cursor, and leave when so many bytes have come, wherever that is: whole frames count."""
    text = ""
    headers = {"Last-Event-ID": after} if after else {}
    with (
        sse.client(server.base_url) as http,
        http.stream("GET", path, headers=headers, params=params or None) as response,
    ):
        if response.status_code != 200:
            return response.status_code, []
        for chunk in response.iter_text():
            text += chunk
            if len(text) >= limit:
                break
    whole = text[:limit].rpartition("\n\n")[0]
    found = []
    for frame in whole.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in frame.split("\n") if line and not line.startswith(":"))
        if "data" in lines:
            found.append((lines.get("id", ""), json.loads(lines["data"])))
    return 200, found


def test_fifty_joins_at_random_points(two: list[ServerProcess]) -> None:
    chance = random.Random(seed := random.randrange(10**6))
    print(f"seed {seed}")
    thread = uuid.uuid4().hex
    told: list[tuple[int, Any]] = []
    with sse.client(two[0].base_url) as http:
        body = sse.body(thread, "tokens:1200 delay_ms:4 size:24")
        with started(http, "echo", body) as (path, frames):
            told += [next(frames) for _ in range(chance.randrange(1, 20))]
        # Left in its middle; the run goes on.
        for _ in range(JOINS):
            after = str(told[-1][0])
            status, found = taste(chance.choice(two), path, after, chance.randrange(1, 8000))
            assert status == 200 or (status == 204 and told[-1][1]["type"] == "RUN_FINISHED")
            told += [(int(cursor), event) for cursor, event in found]
    told += taste_all(two[1], path, told)
    assert contiguous(told)
    assert len(told) == 1204
    (run,) = two[0].stored(thread)["runs"]
    assert [event for _, event in told] == run["events"]


def taste_all(server: ServerProcess, path: str, told: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """Whatever is left."""
    _, found = taste(server, path, str(told[-1][0]), 1 << 30)
    return [(int(cursor), event) for cursor, event in found]


def test_a_feed_joined_fifty_times(two: list[ServerProcess]) -> None:
    """The same for a whole thread: across three runs, by the cursor of the last frame that had one."""
    chance = random.Random(seed := random.randrange(10**6))
    print(f"seed {seed}")
    thread = uuid.uuid4().hex
    told: list[Any] = []
    with sse.client(two[0].base_url) as http:
        sse.run(http, "echo", sse.body(thread, "hi"))
        _, shown = taste(two[1], "/agui/threads/events", "", 1 << 30, threadId=thread, until="idle")
        cursor = shown[-1][0]
        assert [event["type"] for _, event in shown[-1:]] == ["RUN_FINISHED"]
        for number in range(3):
            with started(http, "echo", sse.body(thread, f"tokens:300 delay_ms:4 size:{20 + number}")) as (_, frames):
                next(frames)
            ended = False
            for _ in range(JOINS // 3):
                limit = chance.randrange(200, 8000)
                status, found = taste(
                    chance.choice(two), "/agui/threads/events", cursor, limit, threadId=thread, until="idle"
                )
                if status == 204:
                    break
                for at, event in found:
                    assert at, "each event of a run has a cursor"
                    cursor = at
                    told.append(event)
            while not ended:
                status, found = taste(two[0], "/agui/threads/events", cursor, 1 << 30, threadId=thread, until="idle")
                ended = status == 204
                for at, event in found:
                    cursor = at
                    told.append(event)
    stored = two[0].stored(thread)["runs"]
    assert len(stored) == 4
    assert told == [event for run in stored[1:] for event in run["events"]]


# ---- crowds ---------------------------------------------------------------------------------------------------------


def test_two_hundred_clients_follow_one_run(two: list[ServerProcess]) -> None:
    thread = uuid.uuid4().hex

    async def follow(http: httpx.AsyncClient, server: ServerProcess, path: str, after: int) -> str:
        headers = {"Last-Event-ID": str(after)}
        async with http.stream("GET", f"{server.base_url}{path}", headers=headers) as response:
            assert response.status_code == 200
            text = "".join([part async for part in response.aiter_text()])
        return "".join(frame + "\n\n" for frame in text.split("\n\n") if frame.startswith("id: "))

    async def everybody(path: str) -> list[str]:
        headers = {"Authorization": "Token demo-ada"}
        limits = httpx.Limits(max_connections=FOLLOWERS)
        async with httpx.AsyncClient(headers=headers, limits=limits, timeout=90) as http:
            return await asyncio.gather(*(follow(http, two[n % 2], path, n // 2) for n in range(FOLLOWERS)))

    with (
        sse.client(two[0].base_url) as http,
        started(http, "echo", sse.body(thread, "tokens:300 delay_ms:20 size:24")) as (path, frames),
    ):
        next(frames)
        texts = asyncio.run(everybody(path))
        rest = list(frames)
        follower = Follower(two[1], path)
    (run,) = two[0].stored(thread)["runs"]
    assert [event for _, event in follower.end()] == run["events"]
    assert [event for _, event in rest] == run["events"][1:]
    whole = texts[0].split("\n\n")
    assert len(whole) == 304 + 1
    for number, text in enumerate(texts):
        assert text.split("\n\n") == whole[number // 2 :], f"the one that joined behind {number // 2}"


def test_sigterm_under_load(tmp_path: Path) -> None:
    """Thirty runs, each followed here and elsewhere: half of them end by themselves, half are stopped; all in order."""
    require("postgres", "redis")
    env = {"AGUI_SETTINGS": json.dumps({"GRACE": 3, "CANCEL_GRACE": 1})}
    with site(2, tmp_path, redis=SHARED_REDIS, env=env) as (first, second), sse.client(first.base_url) as http:
        runs = []
        for number in range(30):
            tokens = 40 if number % 2 else 20_000
            body = sse.body(f"t{number}", f"tokens:{tokens} delay_ms:50 size:8", protocolVersion="1.1")
            with started(http, "echo", body) as (path, frames):
                next(frames)
            runs.append((f"t{number}", tokens, Follower(first, path), Follower(second, path)))
        first.signal(signal.SIGTERM)
        logs = [(thread, tokens, here.end(), there.end()) for thread, tokens, here, there in runs]
        first.wait(30)
        for thread, tokens, here, there in logs:
            assert contiguous(here)
            assert here == there
            (run,) = second.stored(thread)["runs"]
            assert run["events"] == [event for _, event in here]
            expected = ("finished", "") if tokens == 40 else ("cancelled", "shutdown")
            assert (run["status"], run["endReason"]) == expected
        assert "Traceback" not in first.log
