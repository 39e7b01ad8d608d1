"""What a feed tells of edits that people make: each page ends with the state there is; no run is opened in another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from agui_django.models import Run, Thread
from agui_django.protocol.consumer import Consumer
from agui_django.runs import polling, supervisor
from agui_django.runs.database import get_pool
from agui_django.runs.editing import aedit_state, edit_state
from agui_django.runs.feed import Feed, follow_thread, nothing_comes
from agui_django.runs.reading import Cursor
from agui_django.runs.start import astart_run
from agui_django.testing import override_agent
from tests.runs.test_feed import held, rest, take, types, until
from tests.runs.test_live_edits import Stage

pytestmark = pytest.mark.asyncio

STATE_ONLY = ["RUN_STARTED", "STATE_SNAPSHOT", "RUN_FINISHED"]


@pytest_asyncio.fixture(autouse=True)
async def quick(agui_runtime: None, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    monkeypatch.setattr(polling, "INTERVAL", 0.02)
    yield


async def echoed(thread: str = "t", state: Any = None) -> Run:
    run = await astart_run("echo", thread, "hello", scope="s", state=state)
    await supervisor.settle()
    return run


async def state_of(run: Run) -> Any:
    thread = await get_pool().run(Thread.objects.get, pk=run.thread_id)
    return json.loads(thread.state)


def last(told: list[tuple[str, dict[str, Any]]]) -> Cursor:
    cursor = Cursor.of(told[-1][0])
    assert cursor is not None
    return cursor


async def test_an_edit_at_rest_is_told_as_a_run_of_its_own() -> None:
    run = await echoed(state={"a": 1})
    feed = follow_thread(run.thread_id)
    told = await take(feed, 4)
    client = held(told)
    for number in (2, 3):
        await aedit_state(run.thread, merge={"a": number})
        news = await take(feed, 3)
        assert types(news) == STATE_ONLY
        assert news[1][1]["snapshot"] == {"a": number}
        held(news, client)
        assert (client.state, last(news)) == ({"a": number}, Cursor(run.pk, run.last_seq, number))
    assert [message["role"] for message in client.messages] == ["user", "assistant"]
    await echoed()
    news = await until(feed, "RUN_FINISHED")
    assert types(news)[:2] == ["RUN_STARTED", "STATE_SNAPSHOT"]  # for those who were not told
    held(news, client)
    assert client.state == await state_of(run) == {"a": 3}
    assert last(news).state is None
    feed.close()


async def test_a_cursor_says_which_edits_are_known() -> None:
    run = await echoed(state={"a": 1})
    behind = (await rest(follow_thread(run.thread_id, until_idle=True)))[-1][0]
    assert await rest(follow_thread(run.thread_id, behind, until_idle=True)) == []
    await aedit_state(run.thread, merge={"a": 2})
    assert not await get_pool().run(nothing_comes, run.thread_id, behind)
    news = await rest(follow_thread(run.thread_id, behind, until_idle=True))
    assert types(news) == STATE_ONLY
    assert await get_pool().run(nothing_comes, run.thread_id, news[-1][0])
    assert await rest(follow_thread(run.thread_id, news[-1][0], until_idle=True)) == []
    whole = await rest(follow_thread(run.thread_id, until_idle=True))
    assert (types(whole)[1], whole[-1][0], held(whole).state) == ("MESSAGES_SNAPSHOT", news[-1][0], {"a": 2})
    await echoed()
    told = await rest(follow_thread(run.thread_id, whole[-1][0], until_idle=True))
    assert (types(told)[0], last(told).state) == ("RUN_STARTED", None)


async def test_open_questions_are_told_again_with_the_state() -> None:
    async def agent(run: Any) -> None:
        run.interrupt("sure", message="Sure?")

    with override_agent("asking", agent):
        run = await astart_run("asking", "t", "hello", scope="s")
        await supervisor.settle()
        feed = follow_thread(run.thread_id)
        await take(feed, 4)
        await aedit_state(run.thread, merge={"a": 2})
        news = await take(feed, 3)
    assert news[-1][1]["outcome"]["interrupts"][0]["message"] == "Sure?"
    feed.close()


async def test_edits_of_a_running_run_come_with_its_events() -> None:
    stage = Stage()

    async def agent(run: Any) -> None:
        run.state["own"] = 1
        await run.flush()
        await stage.pause()

    with override_agent("staged", agent):
        run = await astart_run("staged", "t", "hello", scope="s", state={"a": 1}, wait=False)
        await asyncio.wait_for(stage.entered.wait(), 20)
        feeds = [follow_thread(run.thread_id) for _ in range(2)]
        clients = [held(await take(feed, 3)) for feed in feeds]
        await aedit_state(run.thread, merge={"a": 2})
        for feed, client in zip(feeds, clients, strict=True):
            held(await until(feed, "STATE_DELTA"), client)
            assert client.state == {"a": 2, "own": 1}
        # One who joins now is told the same, from the process's memory and from rows.
        joining = held(await take(follow_thread(run.thread_id), 3))
        assert joining.state == {"a": 2, "own": 1}
        stage.go.set()
        for feed, client in zip(feeds, clients, strict=True):
            held(await until(feed, "RUN_FINISHED"), client)
            assert client.state == await state_of(run)
            feed.close()
    await supervisor.settle()


async def test_an_edit_that_the_run_did_not_see_is_told_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "INTERVAL", 30)
    stage = Stage()

    async def agent(run: Any) -> None:
        await stage.pause()
        run.state["own"] = 1

    with override_agent("staged", agent):
        run = await astart_run("staged", "t", "hello", scope="s", state={"a": 1}, wait=False)
        await asyncio.wait_for(stage.entered.wait(), 20)
        feed = follow_thread(run.thread_id)
        client = held(await take(feed, 3))
        await get_pool().run(lambda: edit_state(run.thread, merge={"a": 2}))
        stage.go.set()
        held(await until(feed, "RUN_FINISHED"), client)
        assert client.state == {"a": 1, "own": 1}
        news = await take(feed, 3)
        assert types(news) == STATE_ONLY
        held(news, client)
        assert client.state == await state_of(run) == {"a": 2, "own": 1}
    feed.close()
    await supervisor.settle()


async def test_a_feed_of_another_process_notices_it_by_its_poll() -> None:
    """Edits without a hint: as if another process had made them, with no channel layer."""
    run = await echoed(state={"a": 1})
    feed = follow_thread(run.thread_id)
    client: Consumer = held(await take(feed, 4))
    waiting = asyncio.ensure_future(take(feed, 3))
    await asyncio.sleep(0)
    await get_pool().run(lambda: edit_state(run.thread, merge={"a": 2}))
    held(await waiting, client)
    assert client.state == {"a": 2}
    feed.close()


async def test_a_thread_without_runs() -> None:
    thread = await get_pool().run(lambda: Thread.objects.create(scope="s", thread_id="t", agent="echo"))
    feed: Feed = follow_thread(thread.pk)
    client = held(await take(feed, 3))
    await aedit_state(thread, merge={"a": 1})
    held(await take(feed, 3), client)
    assert client.state == {"a": 1}
    feed.close()
