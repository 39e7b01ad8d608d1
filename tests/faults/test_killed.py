"""Servers that are killed at the worst moments, beside one that lives: what was seen stays, nothing happens twice."""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agui_django.runs.history import UNKNOWN
from tests import sse
from tests.parts import require
from tests.processes.parts import SHARED_REDIS, Follower, Frames, contiguous, started
from tests.servers import ServerProcess

LONG = "tokens:2000 delay_ms:5 size:24"
SHORT = "tokens:3 delay_ms:0 size:4"


class Pair:
    """Two processes of one site; the first is killed and started again."""

    def __init__(self, first: ServerProcess, second: ServerProcess, folder: Path) -> None:
        self.first, self.second = first, second
        self.fault, self.paid = folder / "fault", folder / "payments"

    def arm(self, point: str) -> None:
        """Let the first process die at its next visit of a place."""
        part = self.fault.with_suffix(".part")
        part.write_text(point)
        part.rename(self.fault)

    def died(self) -> None:
        """Wait until the first process is gone, at the place."""
        self.first.wait(20)
        self.first.kill()
        assert not self.fault.exists()

    def payments(self) -> list[str]:
        """What was paid."""
        return self.paid.read_text().split() if self.paid.exists() else []


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def processes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    redis = ""
    if request.param == "postgres":
        require("postgres", "redis")
        redis = SHARED_REDIS
    folder = tmp_path_factory.mktemp("killed")
    env = {
        "DJANGO_SETTINGS_MODULE": "tests.faults.site.settings", "AGUI_SETTINGS": '{"LEASE": 8}',
        "AGUI_PAYMENTS": str(folder / "payments"), "AGUI_REDIS": redis, "AGUI_REDIS_PREFIX": uuid.uuid4().hex,
    }  # fmt: skip
    options: dict[str, Any] = {"database": request.param, "tmp_path": folder}
    mortal = {**env, "AGUI_FAULT": str(folder / "fault")}
    with (
        ServerProcess("uvicorn", env=mortal, **options) as first,
        ServerProcess("uvicorn", env=env, database_name=first.database_name, **options) as second,
    ):
        yield Pair(first, second, folder)


@pytest.fixture
def pair(processes: Pair) -> Pair:
    processes.fault.unlink(missing_ok=True)
    processes.paid.unlink(missing_ok=True)
    if not processes.first.running:
        processes.first.start()
    return processes


def read(frames: Iterator[Any], seen: Frames, count: int = 0) -> None:
    """Read so many frames, or (0) on to the end or the cut of the stream."""
    with contextlib.suppress(httpx.TransportError):
        for found in frames:
            seen.append(found)
            if len(seen) == count:
                return


def whole(pair: Pair, thread: str, path: str, seen: Frames, follower: Follower) -> list[dict[str, Any]]:
    """Check that all who followed the thread's only run were told its log; gives that."""
    log = follower.end()
    assert contiguous(log)
    (run,) = pair.second.stored(thread)["runs"]
    assert [event for _, event in log] == run["events"]
    # What the dead server's client saw is its beginning; what it asks for now is the rest, and nothing twice.
    assert seen == log[: len(seen)]
    assert Follower(pair.second, path, len(seen)).end() == log[len(seen) :]
    return run["events"]


def goes_on(pair: Pair, thread: str) -> None:
    """Check that the thread is free."""
    with sse.client(pair.second.base_url) as http:
        after = sse.run(http, "echo", sse.body(thread, SHORT))
    assert contiguous(after)
    assert after[-1][1]["type"] == "RUN_FINISHED"


@pytest.mark.parametrize("point", ["commit", "send"])
def test_between_commit_wake_up_and_send(point: str, pair: Pair) -> None:
    thread = uuid.uuid4().hex
    seen: Frames = []
    with sse.client(pair.first.base_url) as http, started(http, "echo", sse.body(thread, LONG)) as (path, frames):
        follower = Follower(pair.second, path)
        read(frames, seen, 60)
        pair.arm(point)
        read(frames, seen)
    pair.died()
    assert 60 <= len(seen) < 2000
    events = whole(pair, thread, path, seen, follower)
    assert [event["type"] for event in events[-2:]] == ["TEXT_MESSAGE_END", "RUN_ERROR"]
    assert events[-1]["code"] == "abandoned"
    # Something was committed that its client was not told, and its message is a row as far as it came.
    said = "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")
    told = "".join(event["delta"] for _, event in seen if event["type"] == "TEXT_MESSAGE_CONTENT")
    assert len(said) > len(told)
    assert pair.second.stored(thread)["messages"][-1]["content"] == said
    goes_on(pair, thread)


def test_between_the_last_commit_and_its_wake_up(pair: Pair) -> None:
    thread = uuid.uuid4().hex
    seen: Frames = []
    with (
        sse.client(pair.first.base_url) as http,
        started(http, "echo", sse.body(thread, "tokens:100 delay_ms:10 size:8")) as (path, frames),
    ):
        follower = Follower(pair.second, path)
        pair.arm("last commit")
        read(frames, seen)
    pair.died()
    assert seen[-1][1]["type"] != "RUN_FINISHED"
    events = whole(pair, thread, path, seen, follower)
    assert len(events) == 104
    # It had ended in order: nothing is left to reap.
    assert events[-1]["type"] == "RUN_FINISHED"
    assert pair.second.stored(thread)["runs"][0]["status"] == "finished"
    goes_on(pair, thread)


def test_in_the_middle_of_a_tool_call(pair: Pair) -> None:
    thread = uuid.uuid4().hex
    seen: Frames = []
    deltas: list[dict[str, Any]] = []
    for number in range(400):
        deltas += [{"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": f"{number},"}, {"$sleep": 0.01}]
    script = [{"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "count"}, *deltas]
    body = sse.body(thread, json.dumps(script))
    with sse.client(pair.first.base_url) as http, started(http, "script", body) as (path, frames):
        follower = Follower(pair.second, path)
        read(frames, seen, 60)
        pair.first.kill()
        read(frames, seen)
    events = whole(pair, thread, path, seen, follower)
    assert [event["type"] for event in events[-2:]] == ["TOOL_CALL_END", "RUN_ERROR"]
    arguments = "".join(event["delta"] for event in events if event["type"] == "TOOL_CALL_ARGS")
    (call,) = pair.second.stored(thread)["messages"][-1]["toolCalls"]
    assert call["function"] == {"name": "count", "arguments": arguments}
    goes_on(pair, thread)


def ask(pair: Pair, thread: str, amount: int) -> dict[str, Any]:
    """Let the agent ask; gives the request that answers."""
    with sse.client(pair.second.base_url) as http:
        asked = sse.run(http, "payout", sse.body(thread, "pay me"))
    (interrupt,) = asked[-1][1]["outcome"]["interrupts"]
    resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"amount": amount}}]
    return sse.body(thread, "", messages=[], resume=resume)


def answer(pair: Pair, body: dict[str, Any], point: str, agent: str = "payout") -> None:
    """Answer, and die on the way."""
    pair.arm(point)
    with contextlib.suppress(httpx.TransportError), sse.client(pair.first.base_url) as http:
        sse.run(http, agent, body)
    pair.died()


@pytest.mark.parametrize("point", ["opening", "opened", "answered"])
def test_during_a_resume_before_it_acted(point: str, pair: Pair) -> None:
    """The questions are open again (or still): the same answer, sent once more, is taken."""
    thread = uuid.uuid4().hex
    body = ask(pair, thread, 7)
    answer(pair, body, point)
    assert pair.payments() == []
    with sse.client(pair.second.base_url) as http:
        again = sse.run(http, "payout", body)
    assert contiguous(again)
    assert again[-1][1]["type"] == "RUN_FINISHED"
    assert pair.second.stored(thread)["messages"][-1]["content"] == "Paid 7."
    stored = pair.second.stored(thread)
    lost = [] if point == "opening" else ["failed"]
    assert [run["status"] for run in stored["runs"]] == ["interrupted", *lost, "finished"]
    assert [row["status"] for row in stored["interrupts"]] == ["resolved"]
    assert pair.payments() == ["7"]


def answer_by_api(pair: Pair, thread: str, amount: int) -> int:
    """Answer through the REST API of the first process, in which the run that carries the answer begins."""
    with sse.client(pair.first.base_url) as http:
        listed = patiently(lambda: http.get("/api/agui/interrupts", params={"threadId": thread}))
        assert listed.status_code == 200, listed.text
        (question,) = listed.json()["results"]
        address = f"/api/agui/interrupts/{question['id']}/answer"
        return patiently(lambda: http.post(address, json={"payload": {"amount": amount}})).status_code


def patiently(ask: Callable[[], httpx.Response]) -> httpx.Response:
    """The answer to a request; asked again while the database is away, as the answer 503 invites to."""
    until = time.monotonic() + 20
    while (answer := ask()).status_code == 503 and time.monotonic() < until:
        time.sleep(0.5)
    return answer


@pytest.mark.parametrize("point", ["opening", "opened", "answered"])
def test_during_an_answer_through_the_api(point: str, pair: Pair) -> None:
    """Nothing is half done: the question is open (again), and the answer, given once more, is taken."""
    thread = uuid.uuid4().hex
    ask(pair, thread, 7)
    pair.arm(point)
    with contextlib.suppress(httpx.TransportError):
        answer_by_api(pair, thread, 7)
    pair.died()
    assert pair.payments() == []
    lost = [] if point == "opening" else ["running"]
    before = pair.second.stored(thread)
    assert [run["status"] for run in before["runs"]] == ["interrupted", *lost]
    assert [(row["status"], row["draft"]) for row in before["interrupts"]] == [
        ("resolved" if lost else "open", None),
    ]  # fmt: skip
    pair.first.start()
    assert answer_by_api(pair, thread, 7) == 200
    (*_, last) = pair.second.stored(thread)["runs"]
    with sse.client(pair.second.base_url) as http:
        events = http.get(f"/agui/runs/{last['uuid']}/events").text
    assert '"RUN_FINISHED"' in events
    after = pair.second.stored(thread)
    assert [run["status"] for run in after["runs"]] == ["interrupted", *(["failed"] if lost else []), "finished"]
    assert [(row["status"], row["payload"], row["draft"]) for row in after["interrupts"]] == [
        ("resolved", {"amount": 7}, None),
    ]  # fmt: skip
    assert pair.payments() == ["7"]


@pytest.mark.parametrize("point", ["paying", "paid"])
def test_during_a_resume_that_has_acted(point: str, pair: Pair) -> None:
    """Nobody can know whether the payment went through, so nobody pays again: the repeat is told how it ended."""
    thread = uuid.uuid4().hex
    body = ask(pair, thread, 7)
    answer(pair, body, point)
    assert pair.payments() == ["7"]
    with sse.client(pair.second.base_url) as http:
        again = sse.run(http, "payout", body)
    assert (again[-1][1]["type"], again[-1][1]["code"]) == ("RUN_ERROR", "abandoned")
    stored = pair.second.stored(thread)
    assert [run["status"] for run in stored["runs"]] == ["interrupted", "failed"]
    assert [row["status"] for row in stored["interrupts"]] == ["resolved"]
    goes_on(pair, thread)
    assert pair.payments() == ["7"]


def page(pair: Pair, thread: str) -> list[dict[str, Any]]:
    """Let the agent call the page; gives the requests that answer, one call each."""
    tools = [{"name": name, "description": "", "parameters": {}} for name in ("one", "two")]
    with sse.client(pair.second.base_url) as http:
        seen = sse.run(http, "between", sse.body(thread, "go", tools=tools))
    calls = {event["toolCallName"]: event["toolCallId"] for _, event in seen if event["type"] == "TOOL_CALL_START"}
    answers = [
        {"id": uuid.uuid4().hex, "role": "tool", "toolCallId": calls[name], "content": "x"} for name in ("one", "two")
    ]
    return [sse.body(thread, "", messages=[message], tools=tools) for message in answers]


@pytest.mark.parametrize(("point", "paid", "told"), [
    ("claiming", [], "Paid 7."), ("claimed", [], "outcome_unknown"), ("paying", ["7"], "outcome_unknown"),
    ("kept", ["7"], "Paid 7."),
])  # fmt: skip
def test_between_a_claim_and_its_value(point: str, paid: list[str], told: str, pair: Pair) -> None:
    """What was claimed and not settled is never done again, in whatever run of the turn; what was settled is known."""
    thread = uuid.uuid4().hex
    one, two = page(pair, thread)
    answer(pair, one, point, "between")
    assert pair.payments() == paid
    with sse.client(pair.second.base_url) as http:
        after = sse.run(http, "between", two)
    assert contiguous(after)
    last = after[-1][1]
    if told == "outcome_unknown":
        assert (last["type"], last["code"]) == ("RUN_ERROR", told)
    else:
        assert last["type"] == "RUN_FINISHED"
        assert pair.second.stored(thread)["messages"][-1]["content"] == told
    # Nothing was done for what was not claimed, so it is done now.
    assert pair.payments() == (["7"] if point == "claiming" else paid)
    assert [run["status"] for run in pair.second.stored(thread)["runs"]][1] == "failed"


def allow(pair: Pair, thread: str) -> dict[str, Any]:
    """Let the agent ask for an approval; gives the request that grants it."""
    with sse.client(pair.second.base_url) as http:
        asked = sse.run(http, "clerk", sse.body(thread, "7"))
    (interrupt,) = asked[-1][1]["outcome"]["interrupts"]
    assert (interrupt["reason"], interrupt["message"]) == ("tool_call", "Pay 7?")
    resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]
    return sse.body(thread, "", messages=[], resume=resume)


@pytest.mark.parametrize("point", ["opening", "opened", "claiming"])
def test_between_an_approval_and_its_execution(point: str, pair: Pair) -> None:
    """Nothing was claimed: the question is open again, and the same approval is taken, once."""
    thread = uuid.uuid4().hex
    body = allow(pair, thread)
    answer(pair, body, point, "clerk")
    assert pair.payments() == []
    with sse.client(pair.second.base_url) as http:
        again = sse.run(http, "clerk", body)
        replayed = sse.run(http, "clerk", body)
    assert again[-1][1]["type"] == "RUN_FINISHED"
    assert replayed == again
    assert pair.payments() == ["7"]
    stored = pair.second.stored(thread)
    assert [message["content"] for message in stored["messages"] if message["role"] == "tool"] == ["7"]


@pytest.mark.parametrize(("point", "paid"), [("claimed", []), ("paying", ["7"]), ("paid", ["7"])])
def test_during_an_approved_execution(point: str, paid: list[str], pair: Pair) -> None:
    """It is executed at most once per approval, whoever repeats that."""
    thread = uuid.uuid4().hex
    body = allow(pair, thread)
    answer(pair, body, point, "clerk")
    assert pair.payments() == paid
    with sse.client(pair.second.base_url) as http:
        for repeat in (body, {**body, "runId": uuid.uuid4().hex}):
            again = sse.run(http, "clerk", repeat)
            assert (again[-1][1]["type"], again[-1][1]["code"]) == ("RUN_ERROR", "abandoned")
    stored = pair.second.stored(thread)
    assert [run["status"] for run in stored["runs"]] == ["interrupted", "failed"]
    assert [row["status"] for row in stored["interrupts"]] == ["resolved"]
    # What it gave is stored with its result, or neither is.
    results = [message["content"] for message in stored["messages"] if message["role"] == "tool"]
    assert results == (["7"] if point == "paid" else [])
    goes_on(pair, thread)
    assert pair.payments() == paid
    # The next turn's model reads that nobody knows, so that it does not simply ask for another approval.
    told = [message["content"] for message in pair.second.stored(thread)["messages"] if message["role"] == "tool"]
    assert told == (["7"] if point == "paid" else [UNKNOWN])
