"""How runs of graphs end that do not end well."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from agui_django import AgentError, Retry
from agui_django.agents.langgraph import LangGraphAgent
from agui_django.agents.registry import AgentEntry, AgentOptions
from agui_django.testing.replies import Reply
from tests.frameworks.langgraph_samples import State, calling, chain, model, roles, tooled
from tests.running import checked, run

pytestmark = pytest.mark.asyncio


# ---- errors ----------------------------------------------------------------------------------------------------------


class Refused(Exception):
    """As a provider's package has it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"secret {status}")
        self.status_code = status


class APIConnectionError(Exception):
    """As a provider's package has it."""


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (Refused(429), "provider_rate_limited"),
        (Refused(503), "provider_unavailable"),
        (Refused(401), "agent_exception"),
        (APIConnectionError("secret"), "provider_unavailable"),
        (ValueError("secret"), "agent_exception"),
    ],
    ids=["429", "503", "401", "connection", "bug"],
)
async def test_a_model_that_fails(raised: Exception, code: str):
    result = await run(LangGraphAgent(chain(calling(model(Reply("half", raises=raised))))))
    assert result.error["code"] == code and "secret" not in str(result.wire) and result.said == ["half"]
    assert "secret" in result.failure.traceback


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (Refused(429), ("agent_exception", "The tool failed.")),
        (AgentError("There is no order 7.", code="no_order"), ("no_order", "There is no order 7.")),
    ],
    ids=["bug", "told"],
)
async def test_a_tool_that_fails(raised: Exception, told: tuple[str, str]):
    @tool
    async def fail() -> str:
        """Fail."""
        raise raised

    def agent(**options: Any) -> LangGraphAgent:
        return LangGraphAgent(tooled(model(Reply(calls=[("fail", {})]), "I see."), fail, **options).compile())

    result = await run(agent())
    assert (result.error["code"], roles(result)[-1]) == (told[0], ("tool", told[1]))
    handled = await run(agent(handle_tool_errors=True))  # LangGraph writes the exception into the result
    assert roles(handled)[-2:] == [("tool", "The tool failed."), ("assistant", "I see.")]
    assert "secret" not in str(handled.wire)


@pytest.mark.parametrize("asks", [False, True], ids=["at once", "behind an answer"])
async def test_trying_again(asks: bool):
    """Before anything was shown; where the graph has taken an answer already, it goes on with that."""
    attempts: list[int] = []

    def told(request: Any) -> Reply:
        attempts.append(1)
        return Reply(raises=Refused(429)) if len(attempts) == 1 else Reply("now")

    scripted = model(told)

    async def answer(state: State) -> State:
        if asks:
            interrupt("Go?")
        return {"messages": [await scripted.ainvoke(state["messages"])]}

    agent = LangGraphAgent(chain(answer, checkpointer=InMemorySaver()), steps=False)
    result = await run(AgentEntry("lg-retry", agent, AgentOptions(retry=Retry(attempts=2, wait=0))))
    if asks:
        assert attempts == []
        result = checked(await result.resume({next(iter(result.interrupts)): True}))
    assert (result.said, len(attempts)) == (["now"], 2)


# ---- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["in mid-stream", "between nodes"])
async def test_cancel(where: str):
    left = asyncio.Event()

    async def for_ever() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            left.set()

    async def nodes(state: State) -> None:
        await for_ever()

    first = calling(model(Reply(["one ", for_ever] if where == "in mid-stream" else "one ")))
    agent = LangGraphAgent(chain(first, nodes, checkpointer=InMemorySaver()))
    result = await run(agent, cancel_after=0.5)
    assert result.outcome == "cancelled" and result.said == ["one "]
    await asyncio.wait_for(left.wait(), 30)
    again = checked(await result.say("and?", cancel_after=0.5))
    assert [text for role, text in roles(again)][:3] == ["hello", "one ", "and?"]
