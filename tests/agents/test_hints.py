"""What a developer is told with DEBUG on, and nobody without."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from typing import Any

import pytest

from agui_django import RunContext
from tests.running import run

pytestmark = pytest.mark.asyncio


@pytest.fixture
def hints(settings: Any, caplog: pytest.LogCaptureFixture) -> Any:
    settings.DEBUG = True
    caplog.set_level(logging.WARNING, "agui_django.agent")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "agui_django.agent"]


async def test_unkeyed_text_that_is_repeated(hints: Any):
    async def agent(run: RunContext) -> None:
        await run.say("Let me check.")
        await run.say("keyed", key="k")
        run.interrupt("q")

    first = await run(agent)
    assert hints() == []
    await first.resume({"q": 1})
    [hint] = hints()
    assert "Let me check." in hint
    assert "key" in hint


async def test_a_dict_edited_after_it_was_assigned(hints: Any):
    async def agent(run: RunContext) -> None:
        mine: dict[str, Any] = {"items": []}
        run.state = mine
        mine["items"].append(1)

    result = await run(agent)
    assert result.state == {"items": []}
    [hint] = hints()
    assert "copied" in hint


def whole(run: RunContext, mine: Any) -> None:
    run.state = {"deep": [mine]}


def member(run: RunContext, mine: Any) -> None:
    run.state["mine"] = mine


def many(run: RunContext, mine: Any) -> None:
    run.state.update(a=1, b=mine)


def item(run: RunContext, mine: Any) -> None:
    run.state["items"] = [0]
    run.state["items"].append(mine)


def items(run: RunContext, mine: Any) -> None:
    run.state["items"] = [0]
    run.state["items"] += [1, mine]


def replaced(run: RunContext, mine: Any) -> None:
    run.state["items"] = [0]
    run.state["items"][0] = mine


@pytest.mark.parametrize("put", [whole, member, many, item, items, replaced])
@pytest.mark.parametrize("mine", [{"n": 1}, [1]], ids=["dict", "list"])
async def test_what_was_put_anywhere_into_the_state_and_edited(hints: Any, put: Any, mine: Any):
    given = copy.deepcopy(mine)

    async def agent(run: RunContext) -> None:
        put(run, given)
        assert hints() == []
        given.append(2) if isinstance(given, list) else given.update(n=2)

    await run(agent)
    [hint] = hints()
    assert "copied" in hint


async def test_edits_that_do_what_they_say_are_fine(hints: Any):
    async def agent(run: RunContext) -> None:
        row = {"n": 0}
        run.state["rows"] = []
        for n in range(3):  # what is appended again is copied again
            row["n"] = n
            run.state["rows"].append(row)
        run.state["first"] = [run.state["rows"][0]]
        run.state["rows"][0]["n"] = 7
        run.state["rows"].reverse()
        run.state = run.state

    result = await run(agent)
    assert result.state == {"rows": [{"n": 2}, {"n": 1}, {"n": 7}], "first": [{"n": 0}]}
    assert hints() == []


async def test_a_returned_text_with_nothing_said(hints: Any):
    async def agent(run: RunContext) -> str:
        return "You will not see this"

    await run(agent)
    [hint] = hints()
    assert "run.say()" in hint


async def test_a_returned_text_beside_something_said_is_fine(hints: Any):
    async def agent(run: RunContext) -> str:
        await run.say("shown")
        return "result"

    await run(agent)
    assert hints() == []


async def test_a_call_of_ours_without_a_result(hints: Any):
    async def agent(run: RunContext) -> None:
        run.tool_call("find_order")
        run.call_frontend_tool("pick")
        async with run.tool_call("fine"):
            pass

    await run(agent, tools=["pick"])
    [hint] = hints()
    assert "find_order" in hint
    assert "pick" not in hint


async def test_a_swallowed_cancel(hints: Any):
    async def agent(run: RunContext) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    await run(agent, cancel_after=0.01)
    [hint] = hints()
    assert "CancelledError" in hint


async def test_something_after_the_end(hints: Any):
    tasks: list[asyncio.Task[Any]] = []

    async def late(run: RunContext) -> None:
        await asyncio.sleep(0.01)
        await run.say("late")

    async def agent(run: RunContext) -> None:
        tasks.append(asyncio.get_running_loop().create_task(late(run)))

    await run(agent)
    await asyncio.wait(tasks)
    assert tasks[0].exception() is not None
    [hint] = hints()
    assert "after the run had ended" in hint


async def test_nothing_is_told_without_debug(settings: Any, caplog: pytest.LogCaptureFixture):
    settings.DEBUG = False

    async def agent(run: RunContext) -> str:
        run.tool_call("f")
        return "x"

    await run(agent)
    assert [record for record in caplog.records if record.name == "agui_django.agent"] == []
