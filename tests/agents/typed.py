"""Checked by mypy in strict mode, never run: what type checkers know about agents. ``# E:`` marks wanted errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import assert_type

from ag_ui.core import CustomEvent
from pydantic import BaseModel
from typing_extensions import TypedDict

from agui_django import Event, RunContext, SyncRunContext, ToolCall, agent, approval_required, register


class Decision(BaseModel):
    approved: bool


class State(TypedDict):
    title: str
    count: int


def pay(amount: int, *, note: str = "") -> int:
    return amount


async def decide(text: str) -> Decision:
    return Decision(approved=True)


@approval_required("Refund {amount} €?", edit=True)
def refund(amount: int) -> str:
    return "x"


@approval_required
async def close(order: int) -> None: ...


assert_type(refund(7), str)
refund("x")  # E: arg-type
approval_required("Pay?", edit="yes")  # E: call-overload


@agent("a")
async def coroutine(run: RunContext) -> None:
    run.state["anything"] = 1
    assert_type(await run.say("x"), str)
    assert_type(run.interrupt("q", response_schema=Decision), Decision)
    assert_type(run.interrupt("n", response_schema=int), int)
    assert_type(run.ask("s", response_schema=str).answer(), str)
    assert_type(await run.tool_call("f"), ToolCall)
    assert_type(run.call_frontend_tool("f").answer(), str)
    assert_type(run.call_frontend_tool("f").answer(int), int)
    assert_type(run.cancelled, str | None)
    async with run.subagent("s", text="t") as sub:
        assert_type(sub, RunContext)
        assert_type(await sub.say("x"), str)
    run.predict_state("key", tool="f")
    assert_type(await run.once("p", pay, 7, note="x"), int)
    assert_type(await run.once("d", decide, "x"), Decision)
    assert_type(await run.once("l", lambda: "x"), str)
    assert_type(run.idempotency_key("p"), str)
    await run.dispatch_tool_calls(pay, decide, other=refund)
    run.once("u", pay, 7)  # E: unused-coroutine
    await run.once("w", pay, "x")  # E: call-overload
    await run.once("w2", pay, 7, note=7)  # E: arg-type
    run.interrupt("n2", response_schema=int).upper()  # E: attr-defined
    run.flush()  # E: unused-coroutine
    run.nothing()  # E: attr-defined
    async with run.message() as m, run.step("s"):
        await m.write(None)
        m.write("x")
        await m.write(7)  # E: arg-type


@agent("b", title="B", busy="queue", timeout=1, state_schema=State)
async def typed(run: RunContext[State]) -> AsyncIterator[Event]:
    assert_type(run.state["count"], int)
    async with run.subagent("s") as sub:
        assert_type(sub.state["count"], int)
    run.state["count"] = "x"  # E: typeddict-item
    run.state["other"] = 1  # E: typeddict-unknown-key
    with run.edit_state() as state:
        assert_type(state["title"], str)
    yield "text"
    yield CustomEvent(name="n", value=1)
    yield {"type": "RAW", "event": 1}
    yield 7  # E: misc


@agent("c")
def function(run: SyncRunContext) -> None:
    assert_type(run.say("x"), str)
    assert_type(run.interrupt("q", response_schema=Decision), Decision)
    run.call_frontend_tool("f").answer(int)
    assert_type(run.once("p", pay, 7), int)
    assert_type(run.once("d", decide, "x"), Decision)
    run.dispatch_tool_calls(pay, other=refund)
    with run.subagent("s") as sub:
        assert_type(sub, SyncRunContext)
    with run.message() as m:
        m.write("x")


@agent("d")
def generator(run: SyncRunContext[State]) -> Iterator[Event]:
    yield "text"


@agent("e")
async def with_a_model(run: RunContext, *, llm: str = "default") -> dict[str, int]:
    await coroutine(run)
    return {}


@agent("f")
class Coroutine:
    async def run(self, run: RunContext) -> None: ...


@agent("g")
class Generator:
    async def run(self, run: RunContext) -> AsyncIterator[Event]:
        yield "text"


@agent("h")
class Function:
    def run(self, run: SyncRunContext) -> None: ...


register("i", partial(with_a_model, llm="other"), title="I")
register("j", Coroutine())
assert_type(Coroutine, type[Coroutine])


@agent("wrong 1")  # E: type-var
def takes_the_async_context(run: RunContext) -> None: ...


@agent("wrong 2")
class WithoutRun:  # E: type-var
    pass


@agent("wrong 3", busy="sometimes")  # E: arg-type
async def bad_option(run: RunContext) -> None: ...


@agent("wrong 4")  # E: type-var
async def takes_nothing() -> None: ...
