"""The relay of one process: what it says to whom, and that a layer in trouble troubles no run."""

from __future__ import annotations

import asyncio
import logging
import re
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from channels.layers import get_channel_layer
from django.test import override_settings

from agui_django.models import Run
from agui_django.runs import nudges, relay
from agui_django.runs.broadcaster import broadcaster
from agui_django.runs.claims import process_name
from agui_django.runs.database import get_pool
from agui_django.runs.polling import poller
from agui_django.runs.start import astart_run
from agui_django.testing import override_agent
from tests.parts import ROOT
from tests.runs.counting_layer import CountingLayer

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def layer(agui_runtime: None) -> AsyncIterator[CountingLayer]:
    with override_settings(CHANNEL_LAYERS={"default": {"BACKEND": "tests.runs.counting_layer.CountingLayer"}}):
        yield get_channel_layer()


class Talks:
    """An agent of twenty deltas, each of them stored before the next; it waits where it is asked to."""

    def __init__(self) -> None:
        self.entered, self.go_on = asyncio.Event(), asyncio.Event()

    async def run(self, run: Any) -> None:
        self.entered.set()
        await self.go_on.wait()
        async with run.message() as message:
            for _ in range(20):
                await message.write("word ")
                await run.flush()


async def until(condition: Callable[[], Any], seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def wakes(layer: CountingLayer, run: uuid.UUID) -> list[str]:
    return [to for to, message in layer.sent if message["type"] == nudges.WAKE and run.hex in message["keys"]]


async def running(talks: Talks, ada: Any) -> tuple[asyncio.Task[Run], uuid.UUID]:
    whole = asyncio.create_task(astart_run("talks", None, "hi", ada))
    await talks.entered.wait()
    (run,) = poller.executing
    return whole, run


async def test_a_run_that_nobody_follows_costs_one_message(layer: CountingLayer, ada: Any) -> None:
    talks = Talks()
    talks.go_on.set()
    with override_agent("talks", talks):
        run = await astart_run("talks", None, "hi", ada)
    assert wakes(layer, run.pk) == []
    # the thread's feeds elsewhere cannot know of the run before they are told
    await until(lambda: layer.sent)
    assert [(to, message["keys"]) for to, message in layer.sent] == [
        (nudges.group("key", run.thread_id), [str(run.thread_id)])
    ]


async def test_who_follows_is_told_once_per_flush(layer: CountingLayer, ada: Any) -> None:
    talks = Talks()
    with override_agent("talks", talks):
        whole, run = await running(talks, ada)
        mine = nudges.group("process", process_name())
        await until(lambda: mine in layer.groups)
        channel = await layer.new_channel()
        watch = {"type": nudges.WATCH, "keys": [run.hex], "channel": channel, "by": "another process"}
        await layer.group_send(mine, watch)
        # the answer: what was committed before we were known
        assert (await asyncio.wait_for(layer.receive(channel), 10))["keys"] == [run.hex]
        talks.go_on.set()
        await whole
    await until(lambda: len(wakes(layer, run)) > 2)
    assert set(wakes(layer, run)) == {channel}
    # Commits: RUN_STARTED, one per flush (the first with the message's start), its end and the terminal event.
    assert len(wakes(layer, run)) <= 24


async def test_a_follower_asks_the_process_that_executes_the_run(layer: CountingLayer, ada: Any) -> None:
    run = await astart_run("echo", None, "hi", ada)

    def elsewhere() -> None:
        Run.objects.filter(pk=run.pk).update(status="running", claim="another process")

    await get_pool().run(elsewhere)
    subscription = broadcaster.subscribe(run.pk)
    theirs = nudges.group("process", "another process")
    await until(lambda: [to for to, _ in layer.sent if to == theirs])
    ((_, asked),) = [sent for sent in layer.sent if sent[0] == theirs]
    assert (asked["type"], asked["keys"]) == (nudges.WATCH, [run.pk.hex])
    await layer.send(asked["channel"], {"type": nudges.WAKE, "keys": [run.pk.hex], "by": "another process"})
    assert await subscription.wait(10)
    # and a stop: its process looks at the column at once
    layer.sent.clear()
    relay.relay.look(run.pk)
    await until(lambda: layer.sent)
    assert [(to, message["type"]) for to, message in layer.sent] == [(theirs, nudges.STOP)]
    subscription.close()


async def test_a_layer_that_is_down_is_told_once_and_found_again(
    layer: CountingLayer, ada: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "PAUSE", 0.01)
    monkeypatch.setattr(relay, "LONGEST_PAUSE", 0.02)
    layer.down = True
    with caplog.at_level(logging.WARNING, "agui_django.runs"):
        for _ in range(3):
            run = await astart_run("echo", None, "hi", ada)
            assert run.status == "finished"
            await asyncio.sleep(0.05)
        layer.down = False
        await until(lambda: nudges.group("process", process_name()) in layer.groups)
    assert [record.message for record in caplog.records if "channel layer" in record.message] == [
        "The channel layer fails; runs of other processes are read once a second: OSError('nobody is there')"
    ]


async def test_a_layer_that_hangs_holds_no_run_up(layer: CountingLayer, ada: Any) -> None:
    layer.hangs = True
    async with asyncio.timeout(4):  # less than the layer's own time for an answer
        for _ in range(3):
            assert (await astart_run("echo", None, "hi", ada)).status == "finished"


async def test_what_is_none_of_ours_is_not_ours(layer: CountingLayer, ada: Any) -> None:
    await astart_run("echo", None, "hi", ada)
    mine = nudges.group("process", process_name())
    await until(lambda: mine in layer.groups)
    for odd in ({"type": "else"}, {"type": nudges.WAKE, "keys": ["x"]}, {"type": nudges.WATCH}, {"type": nudges.STOP}):
        await layer.group_send(mine, odd)
    talks = Talks()
    with override_agent("talks", talks):
        whole, run = await running(talks, ada)
        channel = await layer.new_channel()
        watch = {"type": nudges.WATCH, "keys": [run.hex], "channel": channel, "by": "another process"}
        await layer.group_send(mine, watch)
        assert (await asyncio.wait_for(layer.receive(channel), 10))["keys"] == [run.hex]
        talks.go_on.set()
        await whole


async def test_groups_are_hashed() -> None:
    names = {nudges.group("key", key) for key in (7, 8, uuid.uuid4())} | {nudges.group("process", 'odd "name" ü')}
    assert len(names) == 4
    assert all(re.fullmatch(r"[A-Za-z0-9-]{1,99}", name) for name in names)


async def test_without_a_layer_nothing_is_imported() -> None:
    code = """
import django, os, sys
from django.conf import settings
settings.configure(INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "agui_django"])
django.setup()
import asyncio
from agui_django.runs.engine import get_engine
from agui_django.runs.broadcaster import broadcaster
async def main():
    broadcaster.subscribe(7)
    broadcaster.publish(7)
asyncio.run(main())
print([name for name in sys.modules if name.split(".")[0] in ("channels", "channels_redis", "redis")])
"""
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
