"""Cancel, timeout and grace: what an agent hears, what it may still say, and that it cannot hold a run."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from agui_django import Event, RunContext, SyncRunContext
from agui_django.agents.registry import AgentEntry
from agui_django.protocol.errors import RunCancelled, RunClosed
from agui_django.runs.driver import DriveOptions, RunControl, drive
from agui_django.runs.setup import Closing, RunSetup
from agui_django.testing import MemoryLog
from tests.running import run

pytestmark = pytest.mark.asyncio


async def driven(agent: Any, control: RunControl, grace: float = 0.1) -> tuple[Closing, MemoryLog]:
    log = MemoryLog()
    setup = RunSetup("r", "t", "address", "agent", {"threadId": "t", "runId": "r"}, turn="turn")
    return await drive(AgentEntry("agent", agent), setup, log, control, DriveOptions(5, None, grace)), log


async def test_coroutines_see_an_ordinary_cancel_and_may_say_last_words():
    reasons = []

    async def agent(run: RunContext) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            reasons.append(run.cancelled)
            await run.say("bye")
            raise

    result = await run(agent, cancel_after=0.01)
    assert result.outcome == "cancelled"
    assert result.said == ["bye"]
    assert reasons == ["user"]


async def test_generators_get_it_at_their_yield():
    async def agent(run: RunContext) -> AsyncIterator[Event]:
        try:
            while True:
                yield "x"
        except asyncio.CancelledError:
            yield " bye"
            raise

    result = await run(agent, cancel_after=0.01)
    assert result.outcome == "cancelled"
    assert result.said[0].endswith("x bye")


async def test_threads_hear_of_it_at_their_next_call():
    heard: list[type] = []

    def agent(run: SyncRunContext) -> None:
        try:
            while True:
                run.custom("n", 1)
                time.sleep(0.001)
        except RunCancelled as error:
            heard.append(type(error))
            run.say(f"bye {run.cancelled}")
            raise

    result = await run(agent, cancel_after=0.02)
    assert result.outcome == "cancelled"
    assert result.said == ["bye user"]
    assert heard == [RunCancelled]


async def test_sync_generators_hear_of_it_at_their_yield():
    def agent(run: SyncRunContext) -> Iterator[Event]:
        try:
            while True:
                yield {"type": "CUSTOM", "name": "n", "value": 1}
        except RunCancelled:
            yield "bye"
            raise

    result = await run(agent, cancel_after=0.02)
    assert result.outcome == "cancelled"
    assert result.said == ["bye"]


async def test_check_is_for_work_that_emits_nothing():
    def agent(run: SyncRunContext) -> None:
        while True:
            run.check()
            time.sleep(0.001)

    assert (await run(agent, cancel_after=0.01)).outcome == "cancelled"


async def test_swallowing_a_cancel_changes_nothing():
    async def agent(run: RunContext) -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await run.say("I go on")
        return "result"

    result = await run(agent, cancel_after=0.01)
    assert result.outcome == "cancelled"
    assert result.said == ["I go on"]
    assert "result" not in result.terminal


async def test_the_first_reason_stands():
    async def agent(run: RunContext) -> None:
        control.cancel("staff")
        control.cancel("user")
        await asyncio.Event().wait()

    control = RunControl()
    closing, _ = await driven(agent, control)
    assert closing.end_reason == "staff"


async def test_a_run_cancelled_before_it_began_never_calls_the_agent():
    async def agent(run: RunContext) -> None:
        raise AssertionError("must not be called")

    control = RunControl()
    control.cancel("superseded")
    closing, log = await driven(agent, control)
    assert closing.status == "cancelled"
    assert closing.spent is False
    assert len(log.texts) == 1


async def test_a_second_cancel_comes_after_the_grace():
    cancels = 0

    async def agent(run: RunContext) -> None:
        nonlocal cancels
        while cancels < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancels += 1
        await run.say("after two")

    control = RunControl()
    asyncio.get_running_loop().call_later(0.01, control.cancel, "user")
    closing, _ = await driven(agent, control)
    assert closing.status == "cancelled"
    assert [message["content"] for message in closing.messages] == ["after two"]


async def test_an_agent_that_does_not_end_is_left_behind():
    let_go = asyncio.Event()
    late: list[BaseException] = []

    async def agent(run: RunContext) -> None:
        async with run.message() as m:
            await m.write("half")
            while not let_go.is_set():
                try:
                    await let_go.wait()
                except asyncio.CancelledError:
                    continue
            try:
                await m.write("too late")
            except RunClosed as error:
                late.append(error)
        with pytest.raises(RunClosed):
            run.state["x"] = 1
            run.custom("n", 1)

    control = RunControl()
    asyncio.get_running_loop().call_later(0.01, control.cancel, "user")
    closing, log = await driven(agent, control)
    assert closing.status == "cancelled"
    recorded = len(log.texts)
    assert log.texts[-1].startswith('{"type":"TEXT_MESSAGE_END"')
    let_go.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(late) == 1
    assert len(log.texts) == recorded


async def test_a_thread_that_does_not_end_is_left_behind():
    let_go = threading.Event()
    late: list[BaseException] = []

    def agent(run: SyncRunContext) -> None:
        let_go.wait(10)
        try:
            run.say("too late")
        except RunClosed as error:
            late.append(error)

    control = RunControl()
    asyncio.get_running_loop().call_later(0.01, control.cancel, "user")
    closing, log = await driven(agent, control)
    assert closing.status == "cancelled"
    let_go.set()
    for thread in threading.enumerate():
        if thread.name.startswith("agui-run"):
            await asyncio.to_thread(thread.join, 5)
    assert len(late) == 1
    assert len(log.texts) == 1


async def test_a_thread_that_waits_for_room_is_released():
    waiting = threading.Event()
    cancelled: list[int] = []

    def tool(run: SyncRunContext) -> None:
        with run.message() as m:
            m.write("a")
            waiting.set()
            try:
                for _ in range(100_000):
                    m.write("x")
            except (RunCancelled, RunClosed):  # as it happens: the agent may have ended meanwhile
                cancelled.append(1)
                raise

    class Behind(MemoryLog):
        def crowded(self) -> bool:
            return waiting.is_set()  # the writer never catches up

    async def agent(run: RunContext) -> None:
        await run.tool_call("t").run(tool)

    control = RunControl()
    log = Behind()
    setup = RunSetup("r", "t", "address", "agent", {}, turn="turn")
    task = asyncio.ensure_future(drive(AgentEntry("agent", agent), setup, log, control, DriveOptions(5, None, 1)))
    await asyncio.to_thread(waiting.wait, 5)
    await asyncio.sleep(0.05)
    control.cancel("user")
    closing = await task
    assert closing.status == "cancelled"
    for thread in threading.enumerate():
        if thread.name.startswith("agui-run"):
            await asyncio.to_thread(thread.join, 5)
    assert cancelled == [1]


async def test_an_aborted_run_records_nothing_more():
    async def agent(run: RunContext) -> None:
        await run.say("a")
        control.abort()
        try:
            await asyncio.Event().wait()
        finally:
            with pytest.raises(RunClosed):
                run.custom("n", 1)

    control = RunControl()
    _, log = await driven(agent, control)
    assert control.aborted
    assert len(log.texts) == 4


async def test_a_log_that_is_taken_away_aborts_the_run():
    class Taken(MemoryLog):
        def append(self, text: str, **how: Any) -> None:
            if len(self.texts) >= 3:
                raise RunClosed
            super().append(text, **how)

    async def agent(run: RunContext) -> None:
        while True:
            await run.say("a")

    control = RunControl()
    log = Taken()
    setup = RunSetup("r", "t", "address", "agent", {}, turn="turn")
    await drive(AgentEntry("agent", agent), setup, log, control, DriveOptions(5, None, 0.1))
    assert control.aborted
    assert len(log.texts) == 3


async def test_a_timeout_waits_for_the_clean_up():
    done = []

    async def agent(run: RunContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.02)
            done.append(run.cancelled)

    result = await run(agent, timeout=0.02)
    assert result.error is not None
    assert result.error["code"] == "timeout"
    assert done == ["timeout"]


async def test_what_a_child_task_emits_after_the_end_is_refused():
    tasks: list[asyncio.Task[None]] = []

    async def child(run: RunContext) -> None:
        await asyncio.sleep(0.02)
        await run.say("late")

    async def agent(run: RunContext) -> None:
        tasks.append(asyncio.get_running_loop().create_task(child(run)))

    result = await run(agent)
    with pytest.raises(RunClosed):
        await tasks[0]
    assert result.said == []


async def test_an_agent_that_never_awaits_is_cancelled_at_a_turn_of_the_loop():
    async def agent(run: RunContext) -> None:
        while True:
            await run.custom("n", 1)

    assert (await run(agent, cancel_after=0.02)).outcome == "cancelled"


async def test_an_await_waits_for_the_writer_when_it_is_far_behind():
    log_holder: list[Any] = []

    class Slow(MemoryLog):
        rooms = 0
        behind = 0

        def crowded(self) -> bool:
            return len(self.texts) - self.behind > 100

        def room(self) -> Any:
            async def stored() -> None:
                Slow.rooms += 1
                await asyncio.sleep(0)
                self.behind = len(self.texts)

            return stored()

    async def agent(run: RunContext) -> None:
        async with run.message() as m:
            for _ in range(1000):
                await m.write("x")
                log_holder.append(len(log.texts) - log.behind)

    control = RunControl()
    log = Slow()
    setup = RunSetup("r", "t", "address", "agent", {}, turn="turn")
    closing = await drive(AgentEntry("agent", agent), setup, log, control, DriveOptions(5, None, 1))
    assert closing.status == "finished"
    assert Slow.rooms >= 5
    assert max(log_holder) <= 100 + 64 + 1
