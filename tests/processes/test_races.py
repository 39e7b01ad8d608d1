"""Two processes, one database, the same thing at the same moment: exactly one of them does it.

AGUI_RACE_ROUNDS says how often (1,000 take some minutes: ``python -m benchmarks.races``).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import json
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
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
        for (_, frames), text in zip(answers, told, strict=True):
            if not text:
                assert [event.get("code") for _, event in frames] == ["resume_conflict"]
        found = stored(two[0], lock, thread)
        assert [run["status"] for run in found["runs"]] == ["interrupted", "finished"]
        texts = [message.get("content") or "" for message in found["messages"]]
        assert len([text for text in texts if text.startswith("Refunded")]) == 1

    race(two, once)


def inbox(http: httpx.Client, thread: str) -> list[dict[str, Any]]:
    """The questions of a thread, as the REST API lists them."""
    found: list[dict[str, Any]] = http.get("/api/agui/interrupts", params={"threadId": thread}).json()["results"]
    return found


def by_api(http: httpx.Client, question: dict[str, Any], payload: Any) -> tuple[int, dict[str, Any]]:
    """Answer through the REST API."""
    answer = http.post(f"/api/agui/interrupts/{question['id']}/answer", json={"payload": payload})
    return answer.status_code, answer.json()


@pytest.mark.parametrize("same", [False, True])
def test_answers_from_everywhere(same: bool, two: list[ServerProcess]) -> None:
    """A page resumes, and two people answer through the REST API of different processes: the agent goes on once."""
    lock = threading.Lock()

    def once(clients: list[httpx.Client], thread: str) -> None:
        sse.run(clients[0], "refund", sse.body(thread, "my order, please"))
        (question,) = inbox(clients[0], thread)
        first, second, third = ({"approved": True, "amount": 11 if same else 11 + n} for n in range(3))
        resume = [{"interruptId": question["interruptId"], "status": "resolved", "payload": first}]
        (_, frames), *others = at_once(
            lambda: post(clients[0], "refund", sse.body(thread, "", messages=[], resume=resume)),
            lambda: by_api(clients[1], question, second),
            lambda: by_api(clients[0], question, third),
        )
        won = [third["amount"] for status, _ in others[1:] if status == 200]
        won += [second["amount"] for status, _ in others[:1] if status == 200]
        if frames[-1][1]["type"] == "RUN_FINISHED":
            won.append(first["amount"])
        else:
            assert [event.get("code") for _, event in frames] == ["resume_conflict"]
        for status, answer in others:
            assert status == 200 or answer["error"]["code"] == "resume_conflict", answer
        runs = {answer["run"] for status, answer in others if status == 200}
        for run in runs:
            clients[1].get(f"/agui/runs/{run}/events")
        found = stored(two[0], lock, thread)
        assert [run["status"] for run in found["runs"]] == ["interrupted", "finished"]
        assert runs <= {found["runs"][1]["uuid"]}
        assert won == ([11, 11, 11] if same else [found["interrupts"][0]["payload"]["amount"]])
        texts = [message.get("content") or "" for message in found["messages"]]
        assert [text for text in texts if text.startswith("Refunded")] == [f"Refunded {won[0]} € (no reason given)."]

    race(two, once)


def test_the_last_answers_at_once(two: list[ServerProcess]) -> None:
    """Two questions, each answered in another process: one of both completes the other's draft."""
    lock = threading.Lock()
    asks = [{"id": name, "reason": "input_required"} for name in ("one", "two")]
    script = [{"type": "RUN_FINISHED", "outcome": {"type": "interrupt", "interrupts": asks}}]

    def once(clients: list[httpx.Client], thread: str) -> None:
        sse.run(clients[0], "script", sse.body(thread, json.dumps(script)))
        one, other = inbox(clients[0], thread)
        answers = at_once(
            lambda: by_api(clients[0], one, one["interruptId"]), lambda: by_api(clients[1], other, other["interruptId"])
        )
        assert [status for status, _ in answers] == [200, 200]
        (run,) = [answer["run"] for _, answer in answers if answer["complete"]]
        assert [answer["run"] for _, answer in answers if not answer["complete"]] == [None]
        clients[1].get(f"/agui/runs/{run}/events")
        found = stored(two[0], lock, thread)
        assert [each["uuid"] for each in found["runs"][1:]] == [run]
        assert [(row["status"], row["payload"]) for row in found["interrupts"]][:2] == [
            ("resolved", "one"), ("resolved", "two"),
        ]  # fmt: skip

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


@pytest.fixture(scope="module")
def paying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[ServerProcess], Path]]:
    """Two servers whose agents pay into a file."""
    require("postgres", "redis")
    folder = tmp_path_factory.mktemp("paying")
    env = {"DJANGO_SETTINGS_MODULE": "tests.faults.site.settings", "AGUI_PAYMENTS": str(folder / "payments")}
    with site(2, folder, redis=SHARED_REDIS, env=env) as servers:
        yield servers, folder / "payments"


def test_the_same_approval(paying: tuple[list[ServerProcess], Path]) -> None:
    """Two people allow one payment: it is made once."""
    servers, payments = paying
    amounts = itertools.count(1)

    def once(clients: list[httpx.Client], thread: str) -> None:
        amount = str(next(amounts))
        asked = sse.run(clients[0], "clerk", sse.body(thread, amount))
        (interrupt,) = asked[-1][1]["outcome"]["interrupts"]
        resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]
        bodies = [sse.body(thread, "", messages=[], resume=resume) for _ in clients]
        calls = [lambda h=http, b=body: post(h, "clerk", b) for http, body in zip(clients, bodies, strict=True)]
        answers = at_once(*calls)
        ends = [frames[-1][1] for status, frames in answers if status == 200]
        assert ends
        assert any(end["type"] == "RUN_FINISHED" for end in ends), answers
        assert payments.read_text().split().count(amount) == 1

    race(servers, once)
