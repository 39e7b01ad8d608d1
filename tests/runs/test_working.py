"""The worker's side without a queue: what stops a worker's task ends its run in order, and a claim is taken once."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar
from uuid import UUID

import pytest

from agui_django.models import Run
from agui_django.protocol.codec import decode
from agui_django.runs import supervisor, working
from agui_django.runs.database import get_pool
from agui_django.runs.engine import get_engine
from agui_django.runs.runners import Runner, get_runner
from agui_django.runs.start import astart_run
from agui_django.runs.stream import read_entries
from agui_django.testing import override_agent


class Listed(Runner):
    """A queue in memory that nobody empties."""

    submitted: ClassVar[list[str]] = []

    def submit(self, run_uuid: str) -> None:
        self.submitted.append(run_uuid)


class Broken(Runner):
    """A broker that is down."""

    def submit(self, run_uuid: str) -> None:
        raise ConnectionError("no broker")


@pytest.fixture
def ada(agui_runtime: None, django_user_model: Any) -> Any:
    return django_user_model.objects.create_user("ada")


@pytest.fixture
def listed(settings: Any) -> Iterator[list[str]]:
    settings.AGUI_DJANGO = {"RUNNER": f"{__name__}.Listed", "CANCEL_GRACE": 1}
    Listed.submitted.clear()
    yield Listed.submitted


async def stored(run: Run) -> Run:
    return await get_pool().run(lambda: Run.objects.get(pk=run.pk))


def test_no_runner_by_default() -> None:
    assert get_runner() is None


@pytest.mark.asyncio
async def test_a_run_waits_for_its_worker(ada: Any, listed: list[str]) -> None:
    run = await astart_run("echo", "t", "hi", ada, wait=False)
    await supervisor.settle()
    assert (run.status, run.claim) == ("pending", "")
    assert listed == [str(run.pk)]
    assert get_engine().slots.held == 0, "a run that others execute takes no slot here"
    assert await working.aexecute(listed[0]) is True
    assert await working.aexecute(listed[0]) is False
    assert (await stored(run)).status == "finished"
    assert get_engine().slots.held == 0


@pytest.mark.asyncio
async def test_delivered_to_many_at_once(ada: Any, listed: list[str]) -> None:
    calls: list[int] = []

    async def agent(run: Any) -> None:
        calls.append(1)
        await run.say("once")

    with override_agent("agent", agent):
        await astart_run("agent", "t", "hi", ada, wait=False)
        await supervisor.settle()
        done = await asyncio.gather(*(working.aexecute(listed[0]) for _ in range(10)))
    assert Counter(done) == {True: 1, False: 9}
    assert calls == [1]


@pytest.mark.asyncio
async def test_a_task_that_is_cancelled_cancels_its_run(ada: Any, listed: list[str]) -> None:
    entered = asyncio.Event()

    async def agent(run: Any) -> None:
        entered.set()
        await asyncio.Event().wait()

    with override_agent("agent", agent):
        run = await astart_run("agent", "t", "hi", ada, wait=False)
        await supervisor.settle()
        task = asyncio.create_task(working.aexecute(listed[0]))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    ended = await stored(run)
    assert (ended.status, ended.end_reason) == ("cancelled", "shutdown")


@pytest.mark.asyncio
async def test_a_worker_thread_executes_in_the_loop_of_its_process(ada: Any, listed: list[str]) -> None:
    threads: list[str] = []

    async def agent(run: Any) -> None:
        threads.append(threading.current_thread().name)
        await run.say("there")

    with override_agent("agent", agent):
        run = await astart_run("agent", "t", "hi", ada, wait=False)
        await supervisor.settle()
        assert await asyncio.to_thread(working.execute, listed[0]) is True
    assert threads == ["agui-runs"]
    assert (await stored(run)).status == "finished"


@pytest.mark.asyncio
async def test_a_time_limit_in_a_workers_thread(ada: Any, listed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As Celery's soft limit does: an exception in the thread that waits."""
    from concurrent.futures import Future

    entered = threading.Event()

    async def agent(run: Any) -> None:
        entered.set()
        await asyncio.Event().wait()

    class SoftTimeLimit(Exception):
        pass

    real = Future.result

    def limited(self: Any, timeout: float | None = None) -> Any:
        if threading.current_thread().name == "worker" and timeout is None:
            entered.wait(20)
            raise SoftTimeLimit
        return real(self, timeout)

    monkeypatch.setattr(Future, "result", limited)
    raised: list[type[BaseException]] = []

    def work() -> None:
        try:
            working.execute(listed[0])
        except BaseException as error:
            raised.append(type(error))

    with override_agent("agent", agent):
        run = await astart_run("agent", "t", "hi", ada, wait=False)
        await supervisor.settle()
        thread = threading.Thread(target=work, name="worker")
        thread.start()
        await asyncio.to_thread(thread.join, 20)
    assert raised == [SoftTimeLimit]
    ended = await stored(run)
    assert (ended.status, ended.end_reason) == ("cancelled", "shutdown")


@pytest.mark.asyncio
async def test_a_stop_that_came_before_the_worker(ada: Any, listed: list[str]) -> None:
    run = await astart_run("echo", "t", "hi", ada, wait=False)
    await supervisor.settle()
    assert await get_engine().cancel(run.pk, "user") is True
    ended = await stored(run)
    assert (ended.status, ended.end_reason) == ("cancelled", "user")
    assert await working.aexecute(listed[0]) is False
    assert (await astart_run("echo", "t", "hi", ada, wait=False)).status == "pending"
    await supervisor.settle()


@pytest.mark.asyncio
async def test_an_agent_that_the_worker_does_not_know(ada: Any, listed: list[str]) -> None:
    async def agent(run: Any) -> None:
        await run.say("never")

    with override_agent("here only", agent):
        run = await astart_run("here only", "t", "hi", ada, wait=False)
        await supervisor.settle()
    assert await working.aexecute(listed[0]) is True
    ended = await stored(run)
    assert (ended.status, ended.error_code) == ("failed", "agent_exception")
    assert "There is no such agent" in ended.traceback
    entries = await get_pool().run(read_entries, run.pk, 0)
    types = [decode(text)["type"] for _, text, _ in entries]
    assert (types[0], types[-1]) == ("RUN_STARTED", "RUN_ERROR")


@pytest.mark.asyncio
async def test_a_queue_that_refuses(ada: Any, settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    settings.AGUI_DJANGO = {"RUNNER": f"{__name__}.Broken"}
    run = await astart_run("echo", "t", "hi", ada)
    assert (run.status, run.error_code) == ("failed", "abandoned")
    assert "no broker" in run.error_text
    assert "could not be handed" in caplog.text
    assert get_engine().slots.held == 0


@pytest.mark.asyncio
async def test_what_waits_goes_to_the_queue_when_the_thread_is_free(ada: Any, listed: list[str], settings: Any) -> None:
    settings.AGUI_DJANGO = {**settings.AGUI_DJANGO, "BUSY": "queue"}
    first = await astart_run("echo", "t", "1", ada, wait=False)
    second = await astart_run("echo", "t", "2", ada, wait=False)
    await supervisor.settle()
    assert (second.status, listed) == ("queued", [str(first.pk)])
    await working.aexecute(listed[0])
    await supervisor.settle()
    assert listed == [str(first.pk), str(second.pk)]
    assert (await stored(second)).status == "pending"
    await working.aexecute(listed[1])
    await supervisor.settle()
    runs = await get_pool().run(lambda: list(Run.objects.order_by("created_at").values_list("pk", "status")))
    assert runs == [(first.pk, "finished"), (second.pk, "finished")]
    assert UUID(listed[1]) == second.pk
