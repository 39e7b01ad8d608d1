"""Who watches: a run that its agent does not want alone is cancelled some time after its last watcher has left."""

from __future__ import annotations

import asyncio
import gc
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from agui_django.models import Run
from agui_django.runs import signs, supervisor
from agui_django.runs.database import get_pool
from agui_django.runs.feed import follow_thread
from agui_django.runs.start import astart_run
from agui_django.runs.stream import Follow
from agui_django.runs.watching import Vigil, Watch, watchers
from agui_django.testing import override_agent
from tests.transports.asgi import Exchange
from tests.transports.conftest import Gate, ada, body, gate, headers, token

__all__ = ["ada", "body", "gate", "headers", "token"]

pytestmark = pytest.mark.asyncio


async def the_run() -> Run:
    return await get_pool().run(Run.objects.get)


# ---- counting -------------------------------------------------------------------------------------------------------


async def test_the_grace_counts_from_the_last_ones_leaving() -> None:
    run, told = uuid.uuid4(), asyncio.Event()
    loop = asyncio.get_running_loop()
    Vigil(run, 0.2, told.set)
    first, second = Watch(run), Watch(run)
    first.close()
    first.close()
    assert watchers.count(run) == 1
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(told.wait(), 0.3)
    second.close()
    left = loop.time()
    await asyncio.wait_for(told.wait(), 5)
    assert loop.time() - left >= 0.19
    assert watchers.count(run) == 0
    assert run not in watchers._vigils


async def test_who_comes_back_keeps_it_alive() -> None:
    run, told = uuid.uuid4(), asyncio.Event()
    vigil = Vigil(run, 0.1, told.set)
    for _ in range(5):
        Watch(run).close()
        again = Watch(run)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(told.wait(), 0.15)
        again.close()
    vigil.end()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(told.wait(), 0.2)
    assert run not in watchers._vigils


async def test_each_leaving_starts_the_grace_anew() -> None:
    run, told = uuid.uuid4(), asyncio.Event()
    loop = asyncio.get_running_loop()
    Vigil(run, 0.3, told.set)
    Watch(run).close()
    await asyncio.sleep(0.2)
    Watch(run).close()
    left = loop.time()
    await asyncio.wait_for(told.wait(), 5)
    assert loop.time() - left >= 0.29


async def test_others_elsewhere_keep_it_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agui_django.runs.watching.AGAIN", 0.05)
    run, told, asked = uuid.uuid4(), asyncio.Event(), asyncio.Semaphore(0)
    watched = True

    async def elsewhere() -> bool:
        asked.release()
        return watched

    Vigil(run, 0.0, told.set, elsewhere)
    Watch(run).close()
    for _ in range(5):
        await asyncio.wait_for(asked.acquire(), 5)
    assert not told.is_set()
    watched = False
    await asyncio.wait_for(told.wait(), 5)


async def test_who_comes_and_leaves_while_others_are_asked_for_has_a_grace() -> None:
    run, told, asked, answer = uuid.uuid4(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def elsewhere() -> bool:
        asked.set()
        await answer.wait()
        return False

    loop = asyncio.get_running_loop()
    Vigil(run, 0.3, told.set, elsewhere)
    Watch(run).close()
    await asyncio.wait_for(asked.wait(), 5)
    Watch(run).close()
    left = loop.time()
    await asyncio.sleep(0)
    answer.set()
    await asyncio.wait_for(told.wait(), 5)
    assert loop.time() - left >= 0.29


async def test_from_other_threads() -> None:
    run, told = uuid.uuid4(), asyncio.Event()
    Vigil(run, 0.0, told.set)

    def watch() -> None:
        for _ in range(200):
            Watch(run).close()

    held = Watch(run)
    await asyncio.gather(*(asyncio.to_thread(watch) for _ in range(4)))
    assert watchers.count(run) == 1
    assert not told.is_set()
    held.close()
    await asyncio.wait_for(told.wait(), 5)


async def test_a_follower_that_is_dropped_has_left(agui_runtime: None) -> None:
    run = uuid.uuid4()
    follower = Follow(run)
    assert watchers.count(run) == 1
    del follower
    gc.collect()
    assert watchers.count(run) == 0


# ---- signs of other processes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["cancel", "continue"])
async def test_a_sign_is_left_where_it_matters(policy: Any, ada: Any, gate: Gate) -> None:
    with override_agent("gate", gate, on_disconnect=policy):
        run = await astart_run("gate", None, "hi", ada, wait=False)
        assert await signs.leave() is False, "nobody watches"
        watcher = Follow(run.pk)
        # Started by the site: nobody here waits for the last one to leave, as where somebody else took the request.
        assert await signs.leave() is (policy == "cancel")
        assert await signs.fresh(run.pk, 10) is (policy == "cancel")
        watcher.close()
        assert await signs.leave() is False
        gate.opened.set()
        await supervisor.settle()


async def test_a_sign_grows_old(ada: Any, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signs, "FRESH", 1.0)

    def age(seconds: float) -> None:
        Run.objects.update(watched_at=timezone.now() - timedelta(seconds=seconds))

    with override_agent("gate", gate, on_disconnect="cancel"):
        run = await astart_run("gate", None, "hi", ada, wait=False)
        await get_pool().run(age, 30)
        assert not await signs.fresh(run.pk, 20)
        assert await signs.fresh(run.pk, 60)
        watcher = Follow(run.pk)
        await signs.leave()
        assert await signs.fresh(run.pk, 20)
        gate.opened.set()
        await supervisor.settle()
        await get_pool().run(age, 30)
        await signs.leave()
        assert not await signs.fresh(run.pk, 20), "a run that has ended needs none"
        watcher.close()


# ---- the policy -----------------------------------------------------------------------------------------------------


async def test_the_last_watcher_leaves(headers: Any, body: Callable[..., bytes], gate: Gate) -> None:
    with override_agent("gate", gate, on_disconnect="cancel", disconnect_grace=0.3):
        async with Exchange("POST", "/agui/agents/gate", body(), headers) as first:
            await first.events(3)
            async with Exchange("GET", first.headers["content-location"], b"", headers) as second:
                await second.events(3)
                await first.leave()
                await asyncio.sleep(0.5)
                assert (await the_run()).status == "running", "one still watches"
        await supervisor.settle()
        run = await the_run()
        assert (run.status, run.end_reason) == ("cancelled", "disconnect")
        assert watchers._counts == {} and watchers._vigils == {}


async def test_a_page_that_is_loaded_again(headers: Any, body: Callable[..., bytes], gate: Gate) -> None:
    same = body()
    with override_agent("gate", gate, on_disconnect="cancel", disconnect_grace=4.0):
        async with Exchange("POST", "/agui/agents/gate", same, headers) as first:
            await first.events(3)
            location = first.headers["content-location"]
        for method, path, content in (
            ("POST", "/agui/agents/gate", same),
            ("GET", location, b""),
            ("GET", "/agui/threads/events?threadId=t1", b""),
        ):
            async with Exchange(method, path, content, headers) as again:
                await again.until(lambda again=again: b"".join(again.chunks).count(b"data:") > 1)  # type: ignore[misc]
                await asyncio.sleep(4.2)
                assert (await the_run()).status == "running"
        gate.opened.set()
        await supervisor.settle()
        assert (await the_run()).status == "finished"


async def test_a_feed_watches(headers: Any, body: Callable[..., bytes], gate: Gate) -> None:
    with override_agent("gate", gate, on_disconnect="cancel", disconnect_grace=0.2):
        async with Exchange("POST", "/agui/agents/gate", body(), headers) as first:
            await first.events(3)
            run = await the_run()
            feed = follow_thread(run.thread_id)
            assert await anext(feed)
        await asyncio.sleep(0.4)
        assert (await the_run()).status == "running"
        feed.close()
        await supervisor.settle()
        assert (await the_run()).end_reason == "disconnect"


async def test_leaving_while_it_waits_in_the_queue(headers: Any, body: Callable[..., bytes], gate: Gate) -> None:
    with override_agent("gate", gate, busy="queue", on_disconnect="cancel", disconnect_grace=0.1):
        async with Exchange("POST", "/agui/agents/gate", body(), headers) as first:
            await first.events(3)
            async with Exchange("POST", "/agui/agents/gate", body(), headers) as second:
                await second.until(lambda: second.chunks)
                assert second.chunks == [b":\n\n"], "the stream is open, its run has not started"
            waiting = await get_pool().run(lambda: Run.objects.get(status="queued"))
            deadline = asyncio.get_running_loop().time() + 10
            while waiting.status == "queued" and asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(0.05)
                await get_pool().run(waiting.refresh_from_db)
            assert (waiting.status, waiting.end_reason) == ("cancelled", "disconnect")
            gate.opened.set()
            await first.read()
        await supervisor.settle()
        assert gate.calls == 1


async def test_what_the_site_started_goes_on(ada: Any, gate: Gate) -> None:
    with override_agent("gate", gate, on_disconnect="cancel", disconnect_grace=0):
        run = await astart_run("gate", None, "hi", ada, wait=False)
        watcher = Follow(run.pk)
        await anext(watcher)
        watcher.close()
        await asyncio.sleep(0.2)
        gate.opened.set()
        await supervisor.settle()
        assert (await the_run()).status == "finished"
