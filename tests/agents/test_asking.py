"""Questions, their answers, keys: law 3 and law 4."""

from __future__ import annotations

import datetime
from enum import Enum
from typing import Any

import pytest
from django.utils import timezone
from pydantic import BaseModel
from typing_extensions import TypedDict

from agui_django import Declined, RunContext
from agui_django.agents.registry import AgentEntry
from agui_django.protocol.errors import (
    InterruptExpired,
    KeyReused,
    ResumeConflict,
    ResumeIncomplete,
    ResumeInvalid,
    RunSuspended,
)
from agui_django.runs.driver import DriveOptions, RunControl, drive
from agui_django.runs.setup import Answer, Closing, RunSetup
from agui_django.testing import MemoryLog
from tests.running import checked, run

pytestmark = pytest.mark.asyncio


class Decision(BaseModel):
    approved: bool
    note: str | None = None


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


class Address(TypedDict):
    street: str


async def test_the_function_is_called_from_the_top_with_the_answer():
    passes: list[bool] = []

    async def agent(run: RunContext) -> Any:
        passes.append(run.resumed)
        return run.interrupt("q", message="Sure?", reason="confirm", metadata={"m": 1}, tool_call_id="c")

    first = await run(agent)
    assert first.terminal["outcome"]["interrupts"] == [
        {
            "id": f"{first.setup.turn}:q",
            "reason": "confirm",
            "message": "Sure?",
            "toolCallId": "c",
            "metadata": {"m": 1},
        }
    ]
    second = checked(await first.resume({"q": {"yes": True}}))
    assert second.outcome == "success"
    assert second.result == {"yes": True}
    assert passes == [False, True]
    assert second.setup.turn == first.setup.turn


@pytest.mark.parametrize(
    ("schema", "payload", "value", "wire"),
    [
        (int, 7, 7, {"type": "integer"}),
        (str, "x", "x", {"type": "string"}),
        (bool, False, False, {"type": "boolean"}),
        (list[int], [1], [1], {"items": {"type": "integer"}, "type": "array"}),
        (Size, "l", Size.LARGE, {"enum": ["s", "l"], "type": "string"}),
        (datetime.date, "2026-01-02", datetime.date(2026, 1, 2), {"format": "date", "type": "string"}),
        (Address, {"street": "s"}, {"street": "s"},
         {"properties": {"street": {"type": "string"}}, "required": ["street"], "type": "object"}),
        (Decision, {"approved": True}, Decision(approved=True),
         {"properties": {"approved": {"type": "boolean"}, "note": {"type": "string"}}, "required": ["approved"],
          "type": "object"}),
        ({"enum": [1, 2]}, 2, 2, {"enum": [1, 2]}),
    ],
)  # fmt: skip
async def test_an_answer_is_a_value_of_its_type(schema: Any, payload: Any, value: Any, wire: Any):
    got: list[Any] = []

    async def agent(run: RunContext) -> None:
        got.append(run.interrupt("q", response_schema=schema))

    first = await run(agent)
    assert first.interrupts["q"].response_schema == wire
    await first.resume({"q": payload})
    assert got == [value]


@pytest.mark.parametrize(("schema", "payload"), [(int, "7"), (int, True), (Decision, {}), ({"enum": [1]}, 2)])
async def test_an_answer_that_does_not_fit_is_refused(schema: Any, payload: Any):
    async def agent(run: RunContext) -> None:
        run.interrupt("q", response_schema=schema)

    first = await run(agent)
    with pytest.raises(ResumeInvalid):
        await first.resume({"q": payload})


async def test_a_cancelled_question_raises_declined():
    async def agent(run: RunContext) -> str:
        try:
            run.interrupt("q")
        except Declined:
            assert run.answer("q").status == "cancelled"  # type: ignore[union-attr]
            return "no"
        return "yes"

    result = await (await run(agent)).resume(cancelled=["q"])
    assert result.result == "no"


async def test_uncaught_it_ends_the_run_as_cancelled():
    async def agent(run: RunContext) -> None:
        run.interrupt("q")

    result = checked(await (await run(agent)).resume(cancelled=["q"]))
    assert result.outcome == "cancelled"


async def test_several_questions_are_answered_by_one_resume():
    async def agent(run: RunContext) -> list[Any]:
        first, second = run.ask("a"), run.ask("b", response_schema=int)
        return [first.answer(), second.answer()]

    asked = await run(agent)
    assert list(asked.interrupts) == ["a", "b"]
    with pytest.raises(ResumeIncomplete):
        await asked.resume({"a": 1})
    with pytest.raises(ResumeConflict):
        await asked.resume({"a": 1, f"{asked.setup.turn}:a": 2, "b": 1})
    assert (await asked.resume({"a": "x", "b": 2})).result == ["x", 2]


async def test_questions_one_after_the_other_keep_their_answers():
    async def agent(run: RunContext) -> list[Any]:
        return [run.interrupt("a"), run.interrupt("b"), sorted(run.answers)]

    second = await (await run(agent)).resume({"a": 1})
    assert list(second.interrupts) == ["b"]
    third = await second.resume({"b": 2})
    assert third.result == [1, 2, ["a", "b"]]


async def test_suspend_leaves_with_what_was_asked():
    async def agent(run: RunContext) -> None:
        run.ask("a")
        run.suspend()

    assert (await run(agent)).outcome == "interrupt"


async def test_suspend_with_nothing_outside_is_an_error():
    async def agent(run: RunContext) -> None:
        run.suspend()

    result = await run(agent)
    assert result.outcome == "error"
    assert "nothing was asked" in result.failure.text


async def test_suspending_passes_except_exception_and_runs_finally():
    steps: list[str] = []

    async def agent(run: RunContext) -> None:
        try:
            run.interrupt("q")
        except Exception:
            steps.append("caught")
        finally:
            steps.append("finally")

    await run(agent)
    assert steps == ["finally"]
    assert not issubclass(RunSuspended, Exception)


async def test_expiry():
    moment = timezone.now() + datetime.timedelta(days=1)

    async def agent(run: RunContext) -> None:
        run.ask("a", expires=datetime.timedelta(hours=1))
        run.ask("b", expires=moment)
        run.ask("c", expires=datetime.datetime(2020, 1, 1))
        run.suspend()

    before = timezone.now()
    first = await run(agent)
    told = {key: datetime.datetime.fromisoformat(i.expires_at or "") for key, i in first.interrupts.items()}
    assert before < told["a"] - datetime.timedelta(hours=1) < timezone.now()
    assert told["b"] == moment
    assert told["c"].tzinfo is not None
    with pytest.raises(InterruptExpired):
        await first.resume({"a": 1, "b": 1, "c": 1})


async def test_the_permission_is_kept_for_the_row_and_not_told():
    async def agent(run: RunContext) -> None:
        run.interrupt("q", permission="shop.approve")

    result = await run(agent)
    assert result.closing.interrupt_permissions == {f"{result.setup.turn}:q": "shop.approve"}
    assert "shop.approve" not in "".join(result.wire)


async def asked_again(agent: Any, answer: Answer) -> Closing:
    setup = RunSetup(
        "r", "t", "new", "agent", {}, turn="new", answers={answer.key: answer},
        messages=[{"id": "u", "role": "user", "content": "rather not"}],
    )  # fmt: skip
    return await drive(AgentEntry("agent", agent), setup, MemoryLog(), RunControl(), DriveOptions(5, None, 1))


async def test_a_question_dropped_in_an_earlier_turn_is_asked_again_and_can_be_looked_at():
    seen: list[Any] = []

    async def agent(run: RunContext) -> None:
        seen.append((run.answer("q"), run.answers["q"].status))
        run.interrupt("q")

    closing = await asked_again(agent, Answer("q", "old:q", "cancelled"))
    assert closing.status == "interrupted"
    assert seen == [(None, "cancelled")]


async def test_an_interrupt_that_the_agent_yields_is_answered_under_its_own_id():
    async def agent(run: RunContext) -> Any:
        found = run.answer("native")
        if found is not None:
            return found.value
        await run.emit({
            "type": "RUN_FINISHED", "threadId": run.input.thread_id, "runId": run.run_id,
            "outcome": {"type": "interrupt", "interrupts": [{"id": "native", "reason": "r"}]},
        })  # fmt: skip
        return None

    second = await (await run(agent)).resume({"native": 7})
    assert second.result == 7


# ---- keys ----


async def test_keyed_things_happen_once_per_turn():
    calls: list[str] = []

    async def tool(a: int) -> str:
        calls.append("called")
        return "found"

    async def pieces() -> Any:
        calls.append("streamed")
        yield "str"
        yield "eamed"

    async def agent(run: RunContext) -> list[Any]:
        out: list[Any] = [await run.say("Looking.", key="look"), await run.say(pieces(), key="stream")]
        async with run.message(key="m") as m:
            await m.reasoning("hm")
            await m.write("text")
            await m.tool_call_delta(0, id="c", name="f", args="{}")
        out += [m.text, [call.id for call in m.tool_calls]]
        async with run.reasoning(key="why") as r:
            await r.write("because")
        out.append(await run.tool_call("f", {"a": 1}, key="call").run(tool))
        await run.say("again and again")
        run.interrupt("q")
        return out

    first = await run(agent)
    second = checked(await first.resume({"q": 1}))
    assert second.outcome == "success", second.failure
    assert second.result == ["Looking.", "streamed", "text", ["c"], "found"]
    assert calls == ["streamed", "called"]
    assert second.said == ["Looking.", "streamed", "text", "again and again", "again and again"]
    assert second.types == [
        "RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "RUN_FINISHED"
    ]  # fmt: skip


async def test_a_keyed_thing_has_the_same_id_in_every_pass_of_its_turn():
    async def agent(run: RunContext) -> None:
        await run.say("a", key="intro")
        run.activity("progress", {"n": int(run.resumed)}, key="bar")
        run.interrupt("q")

    first = await run(agent)
    turn = first.setup.turn
    assert [message["id"] for message in first.closing.messages] == [f"{turn}:intro", f"{turn}:bar"]
    second = checked(await first.resume({"q": 1}))
    assert [(message["id"], message["content"]) for message in second.closing.messages] == [(f"{turn}:bar", {"n": 1})]
    third = checked(await second.say("another turn"))
    assert third.setup.turn != turn
    assert third.said == ["a"]


@pytest.mark.parametrize("use", [
    lambda run: run.say("x", key="k"), lambda run: run.message(key="k"), lambda run: run.tool_call("f", key="k"),
    lambda run: run.activity("a", {}, key="k"), lambda run: run.ask("k"),
    lambda run: run.call_frontend_tool("f", key="k"),
])  # fmt: skip
async def test_a_key_names_one_thing(use: Any):
    async def agent(run: RunContext) -> None:
        run.reasoning(key="k")
        with pytest.raises(KeyReused, match="number it"):
            use(run)

    assert (await run(agent)).outcome == "success"


async def test_a_loop_with_numbered_keys():
    async def agent(run: RunContext) -> list[Any]:
        return [run.interrupt(f"q{n}") for n in range(3)]

    result = await run(agent)
    for n in range(3):
        result = checked(await result.resume({f"q{n}": n * 10}))
    assert result.result == [0, 10, 20]
