"""Following a thread: the present restated, then every run, each event once; also of another process's runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from django.db.backends.utils import CursorWrapper

from agui_django.models import Interrupt, Message, Run, RunEvents, Thread
from agui_django.protocol.codec import encode
from agui_django.protocol.consumer import Consumer
from agui_django.runs import polling, reading, recorder, supervisor
from agui_django.runs.broadcaster import broadcaster
from agui_django.runs.database import get_pool
from agui_django.runs.engine import get_engine
from agui_django.runs.feed import Feed, follow_thread
from agui_django.runs.reading import Cursor
from agui_django.runs.requests import AgentPolicy
from agui_django.runs.start import astart_run
from agui_django.testing import override_agent
from tests.runs.given import Statements, says, user
from tests.runs.random_runs import random_events

pytestmark = pytest.mark.asyncio

Told = list[tuple[str, dict[str, Any]]]


class Gates:
    """An agent that goes one step at a time, as the test lets it."""

    def __init__(self) -> None:
        self.queues: dict[str, asyncio.Queue[Any]] = defaultdict(asyncio.Queue)

    async def run(self, run: Any) -> None:
        while (step := await self.queues[run.input.thread_id].get()) is not None:
            if isinstance(step, Exception):
                raise step
            for event in step:
                await run.emit(event)

    def let(self, *events: dict[str, Any], thread: str = "t") -> None:
        self.queues[thread].put_nowait(events)

    def end(self, error: Exception | None = None, thread: str = "t") -> None:
        self.queues[thread].put_nowait(error)


@pytest.fixture
def gates(agui_runtime: None) -> Iterator[Gates]:
    made = Gates()
    with override_agent("gates", made):
        yield made


@pytest_asyncio.fixture(autouse=True)
async def quick(agui_runtime: None, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    monkeypatch.setattr(polling, "INTERVAL", 0.02)
    yield


def text(message_id: str, delta: str) -> dict[str, Any]:
    return {"type": "TEXT_MESSAGE_CONTENT", "messageId": message_id, "delta": delta}


def start(message_id: str, **more: Any) -> dict[str, Any]:
    return {"type": "TEXT_MESSAGE_START", "messageId": message_id, "role": "assistant", **more}


def end(message_id: str) -> dict[str, Any]:
    return {"type": "TEXT_MESSAGE_END", "messageId": message_id}


async def take(feed: Feed, count: int) -> Told:
    """The next so many frames, signs of life left out."""
    told: Told = []
    async with asyncio.timeout(20):
        while len(told) < count:
            told += [(str(number or ""), json.loads(line)) for number, line, _ in await anext(feed)]
    return told


async def rest(feed: Feed) -> Told:
    """Everything until the feed ends."""
    async with asyncio.timeout(20):
        return [(str(number or ""), json.loads(line)) async for batch in feed for number, line, _ in batch]


async def until(feed: Feed, kind: str) -> Told:
    told: Told = []
    async with asyncio.timeout(20):
        while not told or told[-1][1]["type"] != kind:
            told += await take(feed, 1)
    return told


def types(told: Told) -> list[str]:
    return [event["type"] for _, event in told]


def held(told: Told, client: Consumer | None = None) -> Consumer:
    """What a strict client makes of it."""
    client = client or Consumer()
    for _, event in told:
        client.feed(event)
    return client


async def begun(gates: Gates, thread: str = "t", messages: Any = "hi") -> Run:
    return await astart_run("gates", thread, messages, scope="s", wait=False)


async def stored(run: Run) -> tuple[list[dict[str, Any]], Any]:
    def read() -> tuple[list[dict[str, Any]], Any]:
        rows = Message.objects.filter(thread=run.thread_id).in_play()
        state = Thread.objects.get(pk=run.thread_id).state
        return [json.loads(wire) for wire in rows.values_list("wire", flat=True)], json.loads(state)

    return await get_pool().run(read)


async def log(run: Run) -> list[dict[str, Any]]:
    def read() -> list[dict[str, Any]]:
        rows = RunEvents.objects.filter(run=run).order_by("first_seq").values_list("text", flat=True)
        return [json.loads(line) for lines in rows for line in lines.split("\n")]

    return await get_pool().run(read)


async def settled(run: Run) -> Run:
    await supervisor.settle()
    return await get_pool().run(Run.objects.get, pk=run.pk)


# ---- at rest --------------------------------------------------------------------------------------------------------


async def test_a_thread_at_rest() -> None:
    run = await astart_run("echo", "t", "hello", scope="s")
    told = await rest(follow_thread(run.thread_id, until_idle=True))
    assert types(told) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT", "RUN_FINISHED"]
    assert [number for number, _ in told] == ["", "", "", f"{run.pk}:{run.last_seq}"]
    assert "input" not in told[0][1]
    client = held(told)
    assert (client.messages, client.state) == await stored(run)
    # with that cursor there is nothing more to tell
    assert await rest(follow_thread(run.thread_id, told[-1][0], until_idle=True)) == []


async def test_a_thread_without_anything(gates: Gates) -> None:
    thread = await get_pool().run(
        lambda: Thread.objects.create(scope="s", thread_id="t", agent="gates", state='{"a": 1}')
    )
    feed = follow_thread(thread.pk)
    told = await take(feed, 3)
    assert types(told) == ["RUN_STARTED", "STATE_SNAPSHOT", "RUN_FINISHED"]
    assert [number for number, _ in told] == ["", "", ""]
    run = await begun(gates)
    gates.end()
    told += await until(feed, "RUN_FINISHED")
    assert types(told)[3:] == ["RUN_STARTED", "STATE_SNAPSHOT", "RUN_FINISHED"]
    assert told[-1][0] == f"{run.pk}:3"
    client = held(told)
    assert (client.messages, client.state) == await stored(run)


@pytest.mark.parametrize(
    ("how", "outcome"),
    [
        ("failed", None),
        ("cancelled", {"type": "cancelled"}),
        ("called", {"type": "success", "pendingToolCallIds": ["c"]}),
        ("asked", {"type": "interrupt", "interrupts": [{"id": "i", "reason": "confirmation"}]}),
    ],
)
async def test_the_last_run_is_restated_as_it_ended(gates: Gates, how: str, outcome: Any) -> None:
    run = await begun(gates)
    gates.let(start("m"), text("m", "half"))
    if how == "failed":
        gates.end(ValueError("x"))
    elif how == "cancelled":
        await get_engine().cancel(run.pk, "user")
    elif how == "called":
        gates.let(end("m"), {"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "front"})
        gates.let({"type": "TOOL_CALL_END", "toolCallId": "c"})
        gates.end()
    else:
        ids = {"threadId": "t", "runId": run.run_id}
        asked = {"type": "interrupt", "interrupts": [{"id": "i", "reason": "confirmation"}]}
        gates.let(end("m"), {"type": "RUN_FINISHED", **ids, "outcome": asked})
        gates.end()
    run = await settled(run)
    told = await rest(follow_thread(run.thread_id, until_idle=True))
    assert types(told) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT", "RUN_FINISHED"]
    assert told[-1][1].get("outcome") == outcome
    client = held(told)
    assert (client.messages, client.state) == await stored(run)


async def test_answered_questions_are_not_restated(gates: Gates) -> None:
    run = await begun(gates)
    ids = {"threadId": "t", "runId": run.run_id}
    asked = [{"id": "i", "reason": "confirmation", "expiresAt": "2001-01-01T00:00:00Z"}]
    gates.let({"type": "RUN_FINISHED", **ids, "outcome": {"type": "interrupt", "interrupts": asked}})
    gates.end()
    run = await settled(run)
    assert await get_pool().run(Interrupt.objects.filter(run=run).count) == 1
    told = await rest(follow_thread(run.thread_id, until_idle=True))
    assert "outcome" not in told[-1][1]


# ---- live -----------------------------------------------------------------------------------------------------------


async def test_several_runs_in_sequence(gates: Gates) -> None:
    first = await astart_run("echo", "t", "hello", scope="s")
    feed = follow_thread(first.thread_id)
    told = await take(feed, 4)
    for word in ("one", "two", "three"):
        run = await begun(gates, messages=word)
        gates.let(start(word), text(word, word), end(word))
        gates.end()
        told += await until(feed, "RUN_FINISHED")
        assert [number for number, _ in told[-5:]] == [f"{run.pk}:{seq}" for seq in range(1, 6)]
        assert [event for _, event in told[-5:]] == await log(run)
    client = held(told)
    assert (client.messages, client.state) == await stored(first)
    assert [message["role"] for message in client.messages] == ["user", "assistant"] * 4


async def test_a_new_run_wakes_its_feeds_at_once(gates: Gates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "INTERVAL", 3600.0)
    first = await astart_run("echo", "t", "hello", scope="s")
    feeds = [follow_thread(first.thread_id) for _ in range(3)]
    for feed in feeds:
        await take(feed, 4)
    waiting = [asyncio.create_task(take(feed, 1)) for feed in feeds]
    while first.thread_id not in broadcaster.watched():
        await asyncio.sleep(0)
    await begun(gates)
    assert [types(told) for told in await asyncio.gather(*waiting)] == [["RUN_STARTED"]] * 3
    gates.end()
    await supervisor.settle()


async def test_joining_in_the_middle(gates: Gates) -> None:
    run = await begun(gates)
    early = follow_thread(run.thread_id, until_idle=True)
    await take(early, 1)
    gates.let(
        {"type": "STATE_SNAPSHOT", "snapshot": {"n": 1}},
        {"type": "SUBAGENT_STARTED", "subagentRunId": "s", "name": "helper", "description": "helps"},
        {"type": "STEP_STARTED", "stepName": "plan", "subagentRunId": "s"},
        {"type": "STEP_STARTED", "stepName": "plan"},
        {"type": "REASONING_START", "messageId": "r"},
        {"type": "REASONING_MESSAGE_START", "messageId": "r", "role": "reasoning"},
        {"type": "REASONING_MESSAGE_CONTENT", "messageId": "r", "delta": "Hm, "},
        start("done"), text("done", "said"), end("done"),
        start("m", metadata={"k": 1}), {**text("m", "be"), "metadata": {"k": 2}}, text("m", "fore"),
        {"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "look", "parentMessageId": "m"},
        {"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": '{"a":'},
        {"type": "ACTIVITY_SNAPSHOT", "messageId": "a", "activityType": "PLAN", "content": {"done": 1}},
    )  # fmt: skip
    while recorder.recorders[run.pk].last_seq < 17:
        await asyncio.sleep(0.01)
    late, old = follow_thread(run.thread_id, until_idle=True), follow_thread(run.thread_id, legacy=True)
    joined = await take(late, 10)
    assert types(joined) == [
        "RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT", "SUBAGENT_STARTED", "STEP_STARTED", "STEP_STARTED",
        "REASONING_START", "REASONING_MESSAGE_START", "TEXT_MESSAGE_START", "TOOL_CALL_START",
    ]  # fmt: skip
    assert [number for number, _ in joined] == [""] * 9 + [f"{run.pk}:17"]
    assert joined[1][1]["messages"][1:] == [
        {"id": "r", "role": "reasoning", "content": "Hm, "},
        says("done", "said"),
        {**says("m", "before"), "metadata": {"k": 2},
         "toolCalls": [{"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"a":'}}]},
        {"id": "a", "role": "activity", "activityType": "PLAN", "content": {"done": 1}},
    ]  # fmt: skip
    assert joined[3][1]["description"] == "helps"
    assert "metadata" not in joined[8][1]
    assert types(await take(old, 8)) == [
        "RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT", "STEP_STARTED", "REASONING_START",
        "REASONING_MESSAGE_START", "TEXT_MESSAGE_START", "TOOL_CALL_START",
    ]  # fmt: skip
    gates.let(
        text("m", ", after"), {"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": "1}"},
        {"type": "TOOL_CALL_END", "toolCallId": "c"}, end("m"),
        {"type": "REASONING_MESSAGE_CONTENT", "messageId": "r", "delta": "yes."},
        {"type": "REASONING_MESSAGE_END", "messageId": "r"}, {"type": "REASONING_END", "messageId": "r"},
        {"type": "STEP_FINISHED", "stepName": "plan", "subagentRunId": "s"},
        {"type": "STEP_FINISHED", "stepName": "plan"},
        {"type": "SUBAGENT_FINISHED", "subagentRunId": "s"},
        {"type": "STATE_DELTA", "delta": [{"op": "replace", "path": "/n", "value": 2}]},
    )  # fmt: skip
    gates.end()
    joined += await rest(late)
    assert [event for _, event in joined[10:]] == (await log(run))[17:]
    client = held(joined)
    assert (client.messages, client.state) == await stored(run)
    assert client.state == {"n": 2}


async def test_a_run_that_has_not_begun_is_joined() -> None:
    def insert() -> Run:
        thread = Thread.objects.create(scope="s", thread_id="t", agent="echo")
        run = Run.objects.create(
            thread=thread, run_id="r", digest="d", agent="echo", status="pending", input="{}", turn="t"
        )
        Message.objects.create(thread=thread, run=run, message_id="u", role="user", wire=encode(user("u")), order=1)
        return run

    run = await get_pool().run(insert)
    feed = follow_thread(run.thread_id, until_idle=True)
    told = await take(feed, 3)
    assert types(told) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT"]
    assert told[-1][0] == f"{run.pk}:1"

    def work() -> None:
        ids = {"threadId": "t", "runId": "r"}
        log = [{"type": "RUN_STARTED", **ids, "input": {"messages": [user("u")]}}, {"type": "RUN_FINISHED", **ids}]
        RunEvents.objects.create(run=run, first_seq=1, last_seq=2, text="\n".join(map(encode, log)))
        Run.objects.filter(pk=run.pk).update(status="finished", last_seq=2)

    waiting = asyncio.create_task(rest(feed))
    await get_pool().run(work)
    told += await waiting
    assert types(told)[3:] == ["RUN_FINISHED"]
    held(told)


# ---- where the log alone does not tell ------------------------------------------------------------------------------


async def test_a_regenerate_in_another_tab(gates: Gates) -> None:
    run = await begun(gates, messages=[user("u")])
    gates.let(start("old"), text("old", "bad"), end("old"))
    gates.end()
    run = await settled(run)
    feed = follow_thread(run.thread_id)
    told = await take(feed, 4)
    run = await begun(gates, messages=[user("u")])
    told += await take(feed, 3)
    assert types(told)[4:] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT"]
    gates.let(start("new"), text("new", "good"), end("new"))
    gates.end()
    told += await until(feed, "RUN_FINISHED")
    client = held(told)
    assert client.messages == [user("u"), says("new", "good")] == (await stored(run))[0]
    # a watcher that comes back later, with a cursor from before the regenerate
    late = held(await rest(follow_thread(run.thread_id, told[3][0], until_idle=True)), held(told[:4]))
    assert late.messages == client.messages


async def test_a_failure_that_was_missed_is_told_once(gates: Gates) -> None:
    run = await begun(gates, messages=[user("u")])
    gates.let(start("old"), text("old", "bad"), end("old"))
    gates.end()
    run = await settled(run)
    [*_, (cursor, _)] = await rest(follow_thread(run.thread_id, until_idle=True))
    failed = await begun(gates, messages=[user("u")])
    gates.end(ValueError("x"))
    await settled(failed)
    missed = await rest(follow_thread(run.thread_id, cursor, until_idle=True))
    assert types(missed) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT", "RUN_ERROR"]
    assert missed[-1][0].startswith(f"{failed.pk}:")
    again = await rest(follow_thread(run.thread_id, until_idle=True))
    assert types(again)[-1] == "RUN_FINISHED"


async def test_a_large_request_is_followed_by_a_snapshot(gates: Gates) -> None:
    first = await astart_run("echo", "t", "hello", scope="s")
    feed = follow_thread(first.thread_id)
    told = await take(feed, 4)
    large = user("large", "x" * 300_000)
    run = await begun(gates, messages=[large])
    told += await take(feed, 3)
    assert types(told)[4:] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT"]
    assert told[5][1]["messages"][-1] == large
    gates.end()
    told += await until(feed, "RUN_FINISHED")
    assert held(told).messages == (await stored(run))[0]


async def test_a_state_that_the_other_tab_edited(gates: Gates) -> None:
    run = await begun(gates)
    gates.let({"type": "STATE_SNAPSHOT", "snapshot": {"n": 1}})
    gates.end()
    run = await settled(run)
    feed = follow_thread(run.thread_id)
    told = await take(feed, 4)
    second = await astart_run("gates", "t", "edit", scope="s", state={"n": 5, "new": True}, wait=False)
    gates.let({"type": "STATE_DELTA", "delta": [{"op": "replace", "path": "/n", "value": 6}]})
    gates.end()
    told += await until(feed, "RUN_FINISHED")
    assert types(told)[4:] == ["RUN_STARTED", "STATE_SNAPSHOT", "STATE_DELTA", "RUN_FINISHED"]
    assert [number for number, _ in told[4:]] == ["", *(f"{second.pk}:{seq}" for seq in (1, 2, 3))]
    assert held(told).state == {"n": 6, "new": True} == (await stored(run))[1]


async def test_a_call_that_got_a_stand_in(gates: Gates) -> None:
    run = await begun(gates)
    gates.let({"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "front"})
    gates.let({"type": "TOOL_CALL_END", "toolCallId": "c"})
    gates.end()
    run = await settled(run)
    feed = follow_thread(run.thread_id)
    told = await take(feed, 4)
    await begun(gates, messages="never mind")
    gates.end()
    told += await until(feed, "RUN_FINISHED")
    client, (messages, _) = held(told), await stored(run)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "user"]
    assert sorted(client.messages, key=str) == sorted(messages, key=str)


# ---- cursors --------------------------------------------------------------------------------------------------------


async def test_cursors_that_are_none_get_the_present() -> None:
    run = await astart_run("echo", "t", "hello", scope="s")
    other = await astart_run("echo", "other", "hello", scope="s")
    for cursor in ("nonsense", f"{uuid.uuid4()}:3", f"{other.pk}:2", f"{run.pk}:{run.last_seq + 1}", f"{run.pk}:-1"):
        told = await rest(follow_thread(run.thread_id, cursor, until_idle=True))
        assert types(told) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT", "RUN_FINISHED"], cursor


async def test_a_compacted_cursor_gets_the_present(gates: Gates) -> None:
    run = await begun(gates)
    gates.let(start("m"), *(text("m", str(n)) for n in range(20)), end("m"))
    gates.end()
    run = await settled(run)
    await get_pool().run(RunEvents.objects.filter(run=run).delete)
    told = await rest(follow_thread(run.thread_id, f"{run.pk}:5", until_idle=True))
    assert types(told) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT", "RUN_FINISHED"]
    last = RunEvents(run=run, first_seq=run.last_seq, last_seq=run.last_seq, text=encode(told[-1][1]))
    await get_pool().run(last.save)
    told = await rest(follow_thread(run.thread_id, f"{run.pk}:5", until_idle=True))
    assert types(told) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT", "RUN_FINISHED"]
    assert held(told).messages == (await stored(run))[0]


async def test_a_deleted_thread_ends() -> None:
    run = await astart_run("echo", "t", "hello", scope="s")
    feed = follow_thread(run.thread_id)
    await take(feed, 4)
    waiting = asyncio.create_task(rest(feed))
    await get_pool().run(Thread.objects.filter(pk=run.thread_id).delete)
    assert await waiting == []


async def test_a_hidden_run_ends_the_feed(gates: Gates) -> None:
    run = await astart_run("echo", "t", "hello", scope="s")
    feed = follow_thread(run.thread_id, may_see=lambda found: found.agent != "gates")
    await take(feed, 4)
    waiting = asyncio.create_task(rest(feed))
    await begun(gates)
    assert await waiting == []
    assert await rest(follow_thread(run.thread_id, may_see=lambda found: found.agent != "gates")) == []
    gates.end()
    await supervisor.settle()


async def test_feeds_end_when_the_process_drains(monkeypatch: pytest.MonkeyPatch) -> None:
    run = await astart_run("echo", "t", "hello", scope="s")
    feed = follow_thread(run.thread_id)
    await take(feed, 4)
    waiting = asyncio.create_task(rest(feed))
    while run.thread_id not in broadcaster.watched():
        await asyncio.sleep(0)
    monkeypatch.setattr(supervisor._here(), "draining", True)
    for callback in supervisor.on_drain:
        callback()
    assert await waiting == []


async def test_a_run_that_is_given_up_ends_the_feed(gates: Gates) -> None:
    run = await begun(gates)
    feed = follow_thread(run.thread_id)
    gates.let(start("m"), text("m", "x"))
    await until(feed, "TEXT_MESSAGE_START")
    recorder.recorders[run.pk].lose(OSError("no space left on device"))
    assert types(await rest(feed))[-1:] in ([], ["TEXT_MESSAGE_CONTENT"])
    await supervisor.settle()


async def test_silence_gives_signs_of_life(settings: Any) -> None:
    run = await astart_run("echo", "t", "hello", scope="s")
    settings.AGUI_DJANGO = {"HEARTBEAT": 0.05}
    feed = follow_thread(run.thread_id)
    await take(feed, 4)
    assert [list(await anext(feed)) for _ in range(3)] == [[], [], []]


@contextlib.contextmanager
def asked(thread: int | None = None) -> Iterator[Statements]:
    """What is read meanwhile, in one thread or in whichever; writes are the runs' own."""
    statements = Statements()
    real = CursorWrapper.execute

    def execute(self: Any, sql: str, params: Any = None) -> Any:
        if sql.startswith("SELECT") and thread in (None, threading.get_ident()):
            statements.sql.append(sql)
        return real(self, sql, params)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CursorWrapper, "execute", execute)
        yield statements


# ---- what it costs --------------------------------------------------------------------------------------------------


async def statements_of(run: Run, after: str = "", count: int = 3) -> Statements:
    with asked() as statements:
        await take(follow_thread(run.thread_id, after), count)
    return statements


async def test_the_past_adds_nothing(gates: Gates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "INTERVAL", 3600.0)
    policy = AgentPolicy("gates")

    def past() -> Thread:
        thread = Thread.objects.create(scope="s", thread_id="long", agent=policy.name)
        old = Run.objects.create(
            thread=thread, run_id="r", digest="d", agent="gates", status="finished", input="{}", turn="t",
            last_seq=20_000,
        )  # fmt: skip
        Message.objects.bulk_create(
            Message(thread=thread, run=old, superseded_by=old, message_id=f"m{n}", role="user",
                    wire=encode(user(f"m{n}", "x" * 100)), order=n)
            for n in range(10_000)
        )  # fmt: skip
        RunEvents.objects.bulk_create(
            RunEvents(run=old, first_seq=n * 100 + 1, last_seq=n * 100 + 100, text="\n".join(["{}"] * 100))
            for n in range(200)
        )
        return thread

    await get_pool().run(past)
    runs = []
    for thread in ("short", "long"):
        runs.append(await begun(gates, thread))
        await take(follow_thread(runs[-1].thread_id), 3)
    short, long = runs
    for run, thread in zip(runs, ("short", "long"), strict=True):
        gates.let(start("m"), thread=thread)
        while recorder.recorders[run.pk].committed < 2:
            await asyncio.sleep(0.01)
    sizes = []
    for run in (short, long):
        with asked() as statements:
            batch = await anext(follow_thread(run.thread_id))
        # The run is executed here: only which run it is was asked.
        assert len(statements) == 1, statements.sql
        sizes.append(sum(len(line) for _, line, _ in batch))
    assert abs(sizes[0] - sizes[1]) < 100
    gates.end(thread="short")
    gates.end(thread="long")
    await supervisor.settle()
    for run in (short, long):
        statements = await statements_of(run, count=4)
        assert len(statements) == 4, statements.sql
        assert not statements.of("agui_django_runevents")


async def test_another_process_is_read_in_few_statements(gates: Gates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "INTERVAL", 3600.0)
    run = await begun(gates)
    gates.let(start("m"), *(text("m", "x") for _ in range(3_000)))
    feed = follow_thread(run.thread_id)
    await until(feed, "TEXT_MESSAGE_CONTENT")
    here = recorder.recorders[run.pk]
    while here.committed < 3_002:
        await asyncio.sleep(0.01)
    del recorder.recorders[run.pk]
    try:
        with asked() as statements:
            told = await take(follow_thread(run.thread_id), 4)
    finally:
        recorder.recorders[run.pk] = here
    assert types(told) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT", "TEXT_MESSAGE_START"]
    assert told[1][1]["messages"][-1] == says("m", "x" * 3_000)
    assert len(statements) == 4, statements.sql
    gates.let(end("m"))
    gates.end()
    await supervisor.settle()


async def test_many_idle_feeds_are_polled_by_one_statement() -> None:
    runs = [await astart_run("echo", f"t{n}", "hello", scope="s") for n in range(5)]
    feeds = [follow_thread(run.thread_id) for run in runs for _ in range(2)]
    for feed in feeds:
        await take(feed, 4)
    waiting = [asyncio.create_task(take(feed, 1)) for feed in feeds]
    while len(set(broadcaster.watched()) & {run.thread_id for run in runs}) < 5:
        await asyncio.sleep(0)

    def look() -> int:
        with asked(threading.get_ident()) as statements:
            found = polling.read_progress([*(run.pk for run in runs), *(run.thread_id for run in runs)])
        assert {key for key in found if isinstance(key, int)} == {run.thread_id for run in runs}
        return len(statements)

    assert await get_pool().run(look) == 1
    # runs of another process: nobody here tells these feeds of them
    await get_pool().run(lambda: [elsewhere(run) for run in runs])
    assert [types(told) for told in await asyncio.gather(*waiting)] == [["RUN_STARTED"]] * 10


def elsewhere(before: Run) -> Run:
    """A run that another process began."""
    run = Run.objects.create(
        thread_id=before.thread_id, run_id="r", digest="d", agent="echo", status="running", claim="another",
        input="{}", turn="t",
    )  # fmt: skip
    ids = {"threadId": before.thread.thread_id, "runId": "r"}
    event = {"type": "RUN_STARTED", **ids, "input": {"messages": [], "tools": [], "context": []}}
    RunEvents.objects.create(run=run, first_seq=1, last_seq=1, text=encode(event))
    return run


# ---- every position of random runs --------------------------------------------------------------------------------


async def test_a_cursor_reads_and_writes() -> None:
    run = uuid.uuid4()
    assert Cursor.of(str(Cursor(run, 7))) == Cursor(run, 7)
    assert Cursor.of(f"{run}:1:2") == Cursor(run, 1, 2)
    assert Cursor.of(str(Cursor(run, 1, 2))) == Cursor(run, 1, 2)
    for text_ in ("", "x", f"{run}", f"{run}:", f"{run}:x", f"{run}:1:x", f"{run}:1:2:3", f" {run}:1"):
        assert Cursor.of(text_) is None


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", range(12))
async def test_joining_and_coming_back_at_every_position(gates: Gates, seed: int) -> None:
    rng = random.Random(seed)
    await astart_run("echo", "t", "before", scope="s")
    run = await begun(gates, messages="go")
    events = random_events(rng)
    joined: list[tuple[Feed, Told]] = []
    for event in events:
        # Joined here (from memory), and as another process would (from rows).
        gates.let(event)
        here = recorder.recorders[run.pk]
        before = here.last_seq
        while here.last_seq == before and gates.queues["t"].qsize():
            await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.sleep(0)
        feed = follow_thread(run.thread_id, until_idle=True)
        joined.append((feed, list(await first(feed))))
        if rng.random() < 0.3:
            now = await get_pool().run(reading.read_now, run.thread_id, None)
            assert now is not None
            present = await get_pool().run(reading.read_active, now)
            mine = await here.present()
            if mine is not None and present is not None and mine.seq == present.seq:
                assert present == mine
    gates.end()
    run = await settled(run)
    whole, (messages, state) = await log(run), await stored(run)
    for feed, told in joined:
        told += await rest(feed)
        client = held(told)
        assert client.messages == messages
        assert client.state == state
    full = [(f"{run.pk}:{seq}", event) for seq, event in enumerate(whole, 1)]
    for seq in range(len(whole) + 1):
        again = await rest(follow_thread(run.thread_id, f"{run.pk}:{seq}", until_idle=True))
        assert again == full[seq:]


async def first(feed: Feed) -> Told:
    """The restatement: it is one batch."""
    async with asyncio.timeout(20):
        return [(str(number or ""), json.loads(line)) for number, line, _ in await anext(feed)]
