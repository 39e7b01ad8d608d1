"""Following: rows, then live, each event once; also of runs that another process executes, or took away."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio
from django.db.backends.utils import CursorWrapper
from django.utils import timezone

from agui_django.models import Run, RunEvents, Thread
from agui_django.protocol.errors import ResumeIncomplete
from agui_django.runs import polling, recorder, stream, supervisor
from agui_django.runs.database import get_pool
from agui_django.runs.requests import Hydration
from agui_django.runs.start import astart_run
from agui_django.runs.store import ThreadStore
from agui_django.runs.stream import Follow, follow, read_entries
from agui_django.testing import override_agent

pytestmark = pytest.mark.asyncio


def event(seq: int, kind: str = "CUSTOM") -> str:
    return f'{{"type":"{kind}","name":"n","value":{seq}}}'


def store(run: Run, first: int, last: int, *, size: int = 3, plain: bool = True) -> None:
    """Batches as another process's writer would store them."""
    for start in range(first, last + 1, size):
        seqs = range(start, min(start + size, last + 1))
        RunEvents.objects.create(
            run=run, first_seq=seqs[0], last_seq=seqs[-1], text="\n".join(map(event, seqs)), plain=plain
        )


def elsewhere() -> Run:
    """A run that another process executes."""
    thread = Thread.objects.create(scope="s", thread_id=uuid.uuid4().hex, agent="echo")
    return Run.objects.create(
        thread=thread, run_id="r", digest="d", agent="echo", status="running", claim="another", input="{}", turn="t"
    )


@pytest_asyncio.fixture
async def remote(agui_runtime: None, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Run]:
    monkeypatch.setattr(polling, "INTERVAL", 0.02)
    yield await get_pool().run(elsewhere)


async def take(follower: Follow, count: int) -> list[int]:
    """The numbers of the next so many events."""
    seqs: list[int] = []
    async with asyncio.timeout(20):
        while len(seqs) < count:
            seqs += [seq for seq, *_ in await anext(follower)]
    return seqs


async def rest(follower: AsyncIterator[Sequence[stream.Frame]]) -> list[int]:
    async with asyncio.timeout(20):
        return [seq for batch in [batch async for batch in follower] for seq, *_ in batch]


async def test_every_cursor_in_every_batch(remote: Run) -> None:
    def read() -> None:
        store(remote, 1, 50, size=7)
        for after in range(51):
            entries = read_entries(remote.pk, after)
            assert [entry[0] for entry in entries] == list(range(after + 1, 51))
            assert all(text == event(seq) for seq, text, _ in entries)

    await get_pool().run(read)


async def test_a_long_log_is_read_in_pieces(remote: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "ROWS", 2)
    await get_pool().run(store, remote, 1, 50)
    follower = Follow(remote.pk, last=50)
    batches = [batch async for batch in follower]
    assert [len(batch) for batch in batches] == [6] * 8 + [2]
    assert [seq for batch in batches for seq, *_ in batch] == list(range(1, 51))


async def test_a_run_that_has_ended_takes_few_statements(remote: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def end() -> None:
        store(remote, 1, 10_000, size=50)
        Run.objects.filter(pk=remote.pk).update(status="finished", last_seq=10_000)

    await get_pool().run(end)
    statements: list[str] = []
    real = CursorWrapper.execute

    def execute(self: Any, sql: str, params: Any = None) -> Any:
        statements.append(sql)
        return real(self, sql, params)

    monkeypatch.setattr(CursorWrapper, "execute", execute)
    follower = Follow(remote.pk, last=10_000)
    # The first row of a long log is there before the rest is read.
    assert [seq for seq, *_ in await anext(follower)] == list(range(1, 51))
    assert len(statements) == 1
    assert await rest(follower) == list(range(51, 10_001))
    assert len(statements) == 2
    statements.clear()
    assert len(await rest(follow(remote.pk, 9_000, last=10_000))) == 1_000
    assert len(statements) == 1
    statements.clear()
    assert await rest(follow(remote.pk, 9_990)) == list(range(9_991, 10_001))
    assert len(statements) <= 3


async def test_progress_of_another_process(remote: Run) -> None:
    follower = Follow(remote.pk)
    waiting = asyncio.create_task(take(follower, 3))
    await get_pool().run(store, remote, 1, 3)
    assert await waiting == [1, 2, 3]
    waiting = asyncio.create_task(rest(follower))

    def end() -> None:
        store(remote, 4, 5)
        Run.objects.filter(pk=remote.pk).update(status="finished", last_seq=5)

    await get_pool().run(end)
    assert await waiting == [4, 5]


async def test_many_followers_are_polled_by_one_statement(remote: Run) -> None:
    others = [await get_pool().run(elsewhere) for _ in range(5)]
    followers = [Follow(run.pk) for run in [remote, *others] for _ in range(3)]
    waiting = [asyncio.create_task(take(follower, 1)) for follower in followers]
    asked = asyncio.Event()
    calls: list[Sequence[uuid.UUID]] = []
    real = polling.read_progress

    def counted(runs: Sequence[uuid.UUID]) -> Any:
        calls.append(runs)
        loop.call_soon_threadsafe(asked.set)
        return real(runs)

    loop = asyncio.get_running_loop()
    polling.read_progress, before = counted, polling.read_progress
    try:
        await asyncio.wait_for(asked.wait(), 20)
    finally:
        polling.read_progress = before
    assert sorted(calls[0]) == sorted(run.pk for run in [remote, *others])
    for run in [remote, *others]:
        await get_pool().run(store, run, 1, 1)
    assert await asyncio.gather(*waiting) == [[1]] * 18


async def test_silence_gives_signs_of_life(remote: Run, settings: Any) -> None:
    settings.AGUI_DJANGO = {"HEARTBEAT": 0.05}
    follower = Follow(remote.pk)
    assert [list(await anext(follower)) for _ in range(3)] == [[], [], []]


async def test_a_deleted_run_ends(remote: Run) -> None:
    await get_pool().run(store, remote, 1, 3)
    follower = Follow(remote.pk)
    assert await take(follower, 3) == [1, 2, 3]
    waiting = asyncio.create_task(rest(follower))
    await get_pool().run(remote.thread.delete)
    assert await waiting == []


async def test_followers_of_another_process_end_when_this_one_drains(
    remote: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = asyncio.create_task(rest(follow(remote.pk)))
    subscribed = asyncio.Event()
    loop = asyncio.get_running_loop()
    real = polling.read_progress
    monkeypatch.setattr(polling, "read_progress", lambda runs: loop.call_soon_threadsafe(subscribed.set) and real(runs))
    await asyncio.wait_for(subscribed.wait(), 20)
    monkeypatch.setattr(supervisor._here(), "draining", True)
    for callback in supervisor.on_drain:
        callback()
    assert await waiting == []


async def test_an_abandoned_run_is_followed_to_its_end(agui_runtime: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is taken from this process: what the reaper wrote is shown, and nothing else."""
    monkeypatch.setattr(polling, "INTERVAL", 0.02)
    go_on = asyncio.Event()

    async def agent(run: Any) -> None:
        async with run.message() as message:
            await message.write("before")
            await go_on.wait()
            await message.write("after")

    with override_agent("gone", agent):
        run = await astart_run("gone", None, "hi", scope="s", wait=False)
        follower = Follow(run.pk)
        assert await take(follower, 3) == [1, 2, 3]

        def lose() -> bool:
            Run.objects.filter(pk=run.pk).update(heartbeat=timezone.now() - timedelta(hours=1))
            return ThreadStore().reap(run.pk)

        assert await get_pool().run(lose)
        go_on.set()
        seqs = await rest(follower)
    stored = await get_pool().run(read_entries, run.pk, 0)
    assert [seq for seq, *_ in stored] == [1, 2, 3, *seqs]
    assert '"RUN_ERROR"' in stored[-1][1]
    assert "abandoned" in stored[-1][1]
    assert not [text for _, text, _ in stored if "after" in text]
    assert recorder.recorders == {}


async def test_a_run_that_is_given_up_ends_without_a_terminal_event(agui_runtime: None) -> None:
    go_on = asyncio.Event()

    async def agent(run: Any) -> None:
        await run.say("before")
        await go_on.wait()

    with override_agent("lost", agent):
        run = await astart_run("lost", None, "hi", scope="s", wait=False)
        follower = Follow(run.pk)
        assert await take(follower, 4) == [1, 2, 3, 4]
        found = recorder.get(run.pk)
        assert found is not None
        found.lose(OSError("no space left on device"))
        assert await rest(follower) == []
        await supervisor.settle()


async def test_only_what_needs_it_is_shaped_for_old_clients(remote: Run) -> None:
    def fill() -> None:
        store(remote, 1, 2)
        for seq, text in (
            (3, '{"type":"SUBAGENT_STARTED","subagentRunId":"s","name":"n"}'),
            (4, '{"type":"TOOL_CALL_RESULT","messageId":"m","toolCallId":"c","content":[{"type":"text","text":"x"}]}'),
            (5, '{"type":"RUN_FINISHED","threadId":"t","runId":"r","outcome":{"type":"cancelled"}}'),
        ):
            RunEvents.objects.create(run=remote, first_seq=seq, last_seq=seq, text=text, plain=False)

    await get_pool().run(fill)
    batches = [list(batch) async for batch in follow(remote.pk, legacy=True, last=5)]
    assert [(seq, text) for batch in batches for seq, text, _ in batch] == [
        (1, event(1)),
        (2, event(2)),
        (4, '{"type":"TOOL_CALL_RESULT","messageId":"m","toolCallId":"c","content":"x"}'),
        (5, '{"type":"RUN_FINISHED","threadId":"t","runId":"r"}'),
    ]
    # a batch of which nothing is left is no sign of silence
    await get_pool().run(RunEvents.objects.filter(first_seq__gt=3).delete)
    assert [batch async for batch in follow(remote.pk, 2, legacy=True, last=3)] == []


def timeless(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events without their times, which are what every event of ours carries."""
    now = time.time() * 1000
    stamps = [event["timestamp"] for event in events]
    assert all(type(stamp) is int and now - 60_000 < stamp <= now + 1 for stamp in stamps)
    assert stamps == sorted(stamps)
    return [{key: value for key, value in event.items() if key != "timestamp"} for event in events]


async def test_what_is_not_recorded_has_its_time() -> None:
    refusal = stream.refusal(ResumeIncomplete("Open interrupts are without an answer: i"))
    text = "Open interrupts are without an answer: i"
    assert timeless(refusal) == [{"type": "RUN_ERROR", "message": text, "code": "resume_incomplete"}]

    async def live() -> stream.Batches:
        yield [(1, '{"type":"RUN_STARTED"}', True)]

    joined = stream.join(
        Hydration("t", "r", [{"id": "u", "role": "user", "content": "x"}], {}, []), live(), legacy=False
    )
    told = [frame async for batch in joined for frame in batch]
    assert [seq for seq, _, _ in told] == [1, 0, 0]
    snapshots = timeless([json.loads(text) for _, text, _ in told[1:]])
    assert [event["type"] for event in snapshots] == ["MESSAGES_SNAPSHOT", "STATE_SNAPSHOT"]


async def test_restated() -> None:
    question = {"id": "i", "reason": "confirmation"}
    ids = {"threadId": "t", "runId": "r"}
    message = {"id": "u", "role": "user", "content": "x"}
    events = stream.restated(Hydration("t", "r", [message], {"a": 1}, [question]))
    assert timeless(events) == [
        {"type": "RUN_STARTED", **ids, "protocolVersion": "1.1"},
        {"type": "MESSAGES_SNAPSHOT", "messages": [message]},
        {"type": "STATE_SNAPSHOT", "snapshot": {"a": 1}},
        {"type": "RUN_FINISHED", **ids, "outcome": {"type": "interrupt", "interrupts": [question]}},
    ]
    # an empty MESSAGES_SNAPSHOT would delete the message the user is typing
    assert [each["type"] for each in stream.restated(Hydration("t", "r", [], {}, []))] == [
        "RUN_STARTED",
        "STATE_SNAPSHOT",
        "RUN_FINISHED",
    ]
