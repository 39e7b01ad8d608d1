"""Compacted logs tell what they told; cursors keep their meaning, and those inside of what was merged are told so."""

from __future__ import annotations

import asyncio
import json
import random
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from agui_django.models import Run, RunEvents
from agui_django.protocol.codec import encode
from agui_django.protocol.consumer import Consumer
from agui_django.protocol.downgrade import needs_downgrade
from agui_django.protocol.errors import CursorGone
from agui_django.runs import compaction
from agui_django.runs.feed import follow_thread
from agui_django.runs.stream import Follow, follow, read_entries
from tests.runs.given import Given, user
from tests.runs.random_runs import random_events

Event = dict[str, Any]
NOW = timezone.now


def text(key: str, delta: str, **more: Any) -> Event:
    return {"type": "TEXT_MESSAGE_CONTENT", "messageId": key, "delta": delta, **more}


def start(key: str) -> Event:
    return {"type": "TEXT_MESSAGE_START", "messageId": key, "role": "assistant"}


def end(key: str) -> Event:
    return {"type": "TEXT_MESSAGE_END", "messageId": key}


IDS = {"threadId": "t1", "runId": "r1"}
STARTED = {"type": "RUN_STARTED", **IDS}
FINISHED = {"type": "RUN_FINISHED", **IDS}


def logged(given: Given, events: list[Event], cuts: int = 3, says: list[Event] | None = None) -> Run:
    """A finished run whose log holds these events between its first and its last, in rows of so many."""
    run = given.turn(user("u1"), says=says or [])
    log = [STARTED, *events, FINISHED]
    RunEvents.objects.filter(run=run).delete()
    for at in range(0, len(log), cuts):
        some = log[at : at + cuts]
        RunEvents.objects.create(
            run=run, first_seq=at + 1, last_seq=at + len(some), text="\n".join(map(encode, some)),
            plain=not any(map(needs_downgrade, some)),
        )  # fmt: skip
    Run.objects.filter(pk=run.pk).update(last_seq=len(log))
    run.refresh_from_db()
    return run


def rows(run: Run) -> list[tuple[int, int, list[Event]]]:
    found = RunEvents.objects.filter(run=run).order_by("first_seq")
    return [(row.first_seq, row.last_seq, [json.loads(line) for line in row.text.split("\n")]) for row in found]


def entries(given: Given, run: Run, after: int = 0) -> list[tuple[int, Event]]:
    return [(seq, json.loads(line)) for seq, line, _ in given.do(read_entries, run.pk, after)]


def test_one_start_one_content_one_end(given: Given) -> None:
    events = [start("m"), *(text("m", str(n), timestamp=100 + n) for n in range(10)), end("m")]
    run = logged(given, events)
    assert given.do(compaction.compact, run.pk) == compaction.Compacted(14, 5, given_saved(events))
    assert entries(given, run) == [
        (1, STARTED), (2, start("m")), (12, text("m", "0123456789", timestamp=100)), (13, end("m")), (14, FINISHED),
    ]  # fmt: skip
    assert [(first, last) for first, last, _ in rows(run)] == [(1, 2), (3, 12), (13, 14)]
    assert Run.objects.get(pk=run.pk).compacted
    # again: nothing
    before = rows(run)
    assert given.do(compaction.compact, run.pk) == compaction.Compacted()
    Run.objects.filter(pk=run.pk).update(compacted=False)
    assert given.do(compaction.compact, run.pk).saved == 0
    assert rows(run) == before


def given_saved(events: list[Event]) -> int:
    deltas = [encode(event) for event in events if event["type"] == "TEXT_MESSAGE_CONTENT"]
    whole = encode(text("m", "0123456789", timestamp=100))
    return sum(len(line) + 1 for line in deltas) - len(whole) - 1


def test_what_is_not_merged(given: Given) -> None:
    events = [
        start("a"), start("b"), text("a", "1"), text("b", "2"), text("a", "3"),  # interleaved
        text("a", "4", metadata={"k": 1}), text("a", "5", rawEvent={}), text("a", "6", subagentRunId="s"),
        text("a", "7"), {"type": "CUSTOM", "name": "x", "value": {"delta": "y"}}, text("a", "8"),
        {"type": "STATE_DELTA", "delta": []}, {"type": "TOOL_CALL_ARGS", "toolCallId": "a", "delta": "9"},
    ]  # fmt: skip
    run = logged(given, events)
    before = rows(run)
    assert given.do(compaction.compact, run.pk) == compaction.Compacted(15, 15, 0)
    assert rows(run) == before


def test_every_cursor_gets_what_follows_it_or_is_refused(given: Given) -> None:
    events = [start("m"), *(text("m", str(n)) for n in range(5)), end("m"), start("n"), text("n", "x"), end("n")]
    run = logged(given, events)
    whole = entries(given, run)
    given.do(compaction.compact, run.pk)
    for after in range(run.last_seq + 1):
        if 3 <= after < 7:
            with pytest.raises(CursorGone):
                given.do(read_entries, run.pk, after)
            continue
        wanted = whole[after:]
        if after < 3:
            wanted = [*whole[after:2], (7, text("m", "01234")), *whole[7:]]
        assert entries(given, run, after) == wanted, after
    # a page is cut between events only: its end is a place to go on from
    first = given.do(read_entries, run.pk, 0, 1)
    assert entries(given, run, first[-1][0])[0] == (7, text("m", "01234"))


def test_a_hole_is_told(given: Given) -> None:
    run = logged(given, [start("m"), *(text("m", str(n)) for n in range(9)), end("m")])
    RunEvents.objects.get(run=run, first_seq=4).delete()
    for after in (0, 3, 5):
        with pytest.raises(CursorGone):
            given.do(read_entries, run.pk, after)
    assert entries(given, run, 6)[0][0] == 7


@pytest.mark.parametrize("seed", range(20))
def test_any_log_tells_the_same(seed: int, given: Given) -> None:
    chance = random.Random(seed)
    events = random_events(chance)
    run = logged(given, events, cuts=chance.randint(1, 7))

    def told() -> tuple[Any, Any]:
        consumer = Consumer()
        for _, event in entries(given, run):
            consumer.feed(event)
        return consumer.messages, consumer.state

    before, numbers = told(), dict(entries(given, run))
    counted = given.do(compaction.compact, run.pk)
    assert told() == before
    assert len(entries(given, run)) == counted.after <= counted.before
    after = dict(entries(given, run))
    assert after.keys() <= numbers.keys()
    assert {key: event for key, event in after.items() if not event["type"].endswith(("CONTENT", "ARGS"))} == {
        key: event for key, event in numbers.items() if not event["type"].endswith(("CONTENT", "ARGS"))
    }
    plain = {row.first_seq: row.plain for row in RunEvents.objects.filter(run=run)}
    assert plain == {first: not any(map(needs_downgrade, some)) for first, _, some in rows(run)}


def test_which_runs(given: Given) -> None:
    old = given.turn(user("u1"))
    Run.objects.filter(pk=old.pk).update(finished_at=NOW() - timedelta(days=8))
    given.turn(user("u2"))
    given.open(threadId="t2")
    week = NOW() - timedelta(days=7)
    assert given.do(compaction.candidates, week) == [old.pk]
    assert given.do(compaction.candidates, week, ["other"]) == []
    assert given.do(compaction.candidates, week, ["echo"]) == [old.pk]
    active = given.open(threadId="t3").run
    assert active is not None
    assert given.do(compaction.compact, active.pk) == compaction.Compacted()
    assert not Run.objects.get(pk=active.pk).compacted
    # dry: only counted
    before = rows(old)
    assert given.do(lambda: compaction.compact(old.pk, dry=True)).before == 2
    assert rows(old) == before and not Run.objects.get(pk=old.pk).compacted


async def collected(source: Any) -> list[tuple[Any, Event]]:
    return [(seq, json.loads(line)) async for batch in source for seq, line, _ in batch]


@pytest.mark.asyncio
@pytest.mark.parametrize("legacy", [False, True])
async def test_followers(legacy: bool, given: Given) -> None:
    says = [{"id": "m", "role": "assistant", "content": "01234"}]
    events = [start("m"), *(text("m", str(n)) for n in range(5)), end("m")]
    run = await asyncio.to_thread(logged, given, events, 3, says)
    await asyncio.to_thread(given.do, compaction.compact, run.pk)
    merged = [(1, STARTED), (2, start("m")), (7, text("m", "01234")), (8, end("m")), (9, FINISHED)]
    assert await collected(follow(run.pk, legacy=legacy)) == merged
    assert await collected(follow(run.pk, 2, legacy=legacy, last=9)) == merged[2:]
    assert await collected(follow(run.pk, 7, legacy=legacy)) == merged[3:]
    # inside: the present, and behind it the same end
    told = await collected(follow(run.pk, 4, legacy=legacy, last=9))
    assert [event["type"] for _, event in told] == [
        "RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT", "RUN_FINISHED",
    ]  # fmt: skip
    assert [seq for seq, _ in told] == [0, 0, 0, 9]
    assert told[1][1]["messages"][1] == says[0]
    with pytest.raises(CursorGone):
        await collected(Follow(run.pk, 4, last=9, exact=True))
    # the thread's feed: exact where it can be, else the present
    pk = run.thread_id
    for after in (2, 7):
        frames = await collected(follow_thread(pk, f"{run.pk}:{after}", legacy=legacy, until_idle=True))
        assert frames == [(f"{run.pk}:{seq}", event) for seq, event in merged if seq > after]
    frames = await collected(follow_thread(pk, f"{run.pk}:5", legacy=legacy, until_idle=True))
    assert [event["type"] for _, event in frames] == [event["type"] for _, event in told]
    assert frames[-1][0].startswith(f"{run.pk}:9")


@pytest.mark.asyncio
async def test_a_log_that_is_compacted_while_it_is_read(given: Given) -> None:
    """What was told ends without a terminal event: a restatement inside of it would be a run inside a run."""
    events = [start("m"), *(text("m", str(n)) for n in range(30)), end("m")]
    run = await asyncio.to_thread(logged, given, events, 4)
    source = Follow(run.pk, last=run.last_seq)
    first = await asyncio.to_thread(given.do, read_entries, run.pk, 0, 3)
    source.cursor = first[-1][0]
    await asyncio.to_thread(given.do, compaction.compact, run.pk)
    assert await collected(source) == []
