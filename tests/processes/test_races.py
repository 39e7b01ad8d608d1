"""Two processes, one database, the same thing at the same moment: exactly one of them does it.

AGUI_RACE_ROUNDS says how often (1,000 take some minutes: ``python -m benchmarks.races``).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests import sse
from tests.parts import require
from tests.processes.parts import SHARED_REDIS, contiguous, site, started
from tests.servers import ServerProcess

ROUNDS = int(os.environ.get("AGUI_RACE_ROUNDS", "100"))
#: Races under way at once, so that the databases' locks are fought for.
LANES = 4

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60 + 3 * ROUNDS)]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServerProcess]]:
    require("postgres", "redis")
    with site(2, tmp_path_factory.mktemp("two"), redis=SHARED_REDIS) as servers:
        yield servers


def race(two: list[ServerProcess], once: Callable[[list[httpx.Client], str], None]) -> None:
    """Run as many rounds as are wanted, some at a time; the first that fails is told."""

    def lane(numbers: range) -> None:
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(sse.client(server.base_url)) for server in two]
            for number in numbers:
                once(clients, f"race-{number}-{uuid.uuid4().hex}")

    with concurrent.futures.ThreadPoolExecutor(LANES) as pool:
        lanes = [pool.submit(lane, range(first, ROUNDS, LANES)) for first in range(LANES)]
        for done in concurrent.futures.as_completed(lanes):
            done.result()


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """The results of calls that begin at the same moment."""
    gate = threading.Barrier(len(calls))

    def call(function: Callable[[], Any]) -> Any:
        gate.wait(10)
        return function()

    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return [done.result() for done in [pool.submit(call, function) for function in calls]]


def post(http: httpx.Client, agent: str, members: dict[str, Any]) -> tuple[int, list[tuple[int, dict[str, Any]]]]:
    """The status of a start, and its frames where it is a stream."""
    with http.stream("POST", f"/agui/agents/{agent}", json=members) as response:
        if response.status_code != 200:
            response.read()
            return response.status_code, []
        return 200, list(sse.frames(response))


def stored(server: ServerProcess, lock: threading.Lock, thread: str) -> dict[str, Any]:
    """What became of a thread; one question at a time."""
    with lock:
        return server.stored(thread)


def test_the_same_thread(two: list[ServerProcess]) -> None:
    lock = threading.Lock()

    def once(clients: list[httpx.Client], thread: str) -> None:
        # Endless: the winner is still there, however late the other one comes.
        bodies = [sse.body(thread, "tokens:20000 delay_ms:20 size:8") for _ in clients]
        answers = at_once(*[
            lambda h=http, b=body: h.send(h.build_request("POST", "/agui/agents/echo", json=b), stream=True)
            for http, body in zip(clients, bodies, strict=True)
        ])  # fmt: skip
        assert sorted(answer.status_code for answer in answers) == [200, 409]
        (won,) = [answer for answer in answers if answer.status_code == 200]
        clients[0].post(won.headers["Content-Location"].replace("/events", "/cancel"))
        seen = list(sse.frames(won))
        for answer in answers:
            answer.close()
        assert contiguous(seen)
        (run,) = stored(two[0], lock, thread)["runs"]
        assert run["status"] == "cancelled"
        assert len(run["events"]) == len(seen)

    race(two, once)


def test_the_same_request(two: list[ServerProcess]) -> None:
    """A repeat, as a client's retry makes it, is the run that there is."""
    lock = threading.Lock()

    def once(clients: list[httpx.Client], thread: str) -> None:
        body = sse.body(thread, "tokens:4 delay_ms:5 size:8")
        (one, first), (other, second) = at_once(*[lambda h=http: post(h, "echo", body) for http in clients])
        assert (one, other) == (200, 200)
        assert first == second
        assert contiguous(first)
        (run,) = stored(two[0], lock, thread)["runs"]
        assert run["status"] == "finished"

    race(two, once)


def test_the_same_answer(two: list[ServerProcess]) -> None:
    """Two people answer one question: the agent goes on once."""
    lock = threading.Lock()

    def once(clients: list[httpx.Client], thread: str) -> None:
        asked = sse.run(clients[0], "refund", sse.body(thread, "my order, please"))
        (interrupt,) = asked[-1][1]["outcome"]["interrupts"]
        amounts = (11, 12)
        bodies = [
            sse.body(thread, "", messages=[], resume=[
                {"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True, "amount": amount}}
            ])
            for amount in amounts
        ]  # fmt: skip
        calls = [lambda h=http, b=body: post(h, "refund", b) for http, body in zip(clients, bodies, strict=True)]
        answers = at_once(*calls)
        told = ["".join(event.get("delta", "") for _, event in frames) for _, frames in answers]
        assert sorted(text.startswith("Refunded") for text in told) == [False, True]
        for (status, frames), text in zip(answers, told, strict=True):
            if not text:
                refused = [event.get("code") for _, event in frames]
                assert status == 409 or refused == ["resume_conflict"], (status, frames)
        found = stored(two[0], lock, thread)
        assert [run["status"] for run in found["runs"]] == ["interrupted", "finished"]
        texts = [message.get("content") or "" for message in found["messages"]]
        assert len([text for text in texts if text.startswith("Refunded")]) == 1

    race(two, once)


def test_the_same_stop(two: list[ServerProcess]) -> None:
    lock = threading.Lock()

    def once(clients: list[httpx.Client], thread: str) -> None:
        with started(clients[0], "echo", sse.body(thread, "tokens:20000 delay_ms:10 size:8")) as (path, frames):
            seen = [next(frames)]
            stop = path.replace("/events", "/cancel")
            urls = [f"{server.base_url}{stop}" for server in two]
            headers = dict(clients[0].headers)
            answers = at_once(*[lambda u=url: httpx.post(u, headers=headers, timeout=30) for url in urls])
            seen += list(frames)
        assert [answer.status_code for answer in answers] == [200, 200]
        assert any(answer.json()["cancelling"] for answer in answers)
        assert contiguous(seen)
        (run,) = stored(two[0], lock, thread)["runs"]
        assert (run["status"], run["endReason"]) == ("cancelled", "user")
        terminal = [event for event in run["events"] if event["type"] in ("RUN_FINISHED", "RUN_ERROR")]
        assert terminal == [run["events"][-1]]
        assert terminal[0]["outcome"] == {"type": "cancelled"}

    race(two, once)
