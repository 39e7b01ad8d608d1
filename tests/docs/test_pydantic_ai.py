"""docs/howto/pydantic_ai.md: its code runs as it stands, but for the model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic_ai import models

from agui_django import get_agent
from agui_django.agents import registry
from agui_django.agents.pydantic_ai import PydanticAIAgent
from agui_django.protocol.errors import AgentError, answer_for
from agui_django.testing import Reply
from agui_django.testing.pydantic_ai import ScriptedModel
from tests.parts import ROOT
from tests.running import checked, run

pytestmark = pytest.mark.asyncio

PAGE = (ROOT / "docs" / "howto" / "pydantic_ai.md").read_text()
SAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)


class Order:
    """A shop of one order, of ada's."""

    objects: Any

    def get(self, pk: int, customer: str) -> Order:
        assert (pk, customer) == (7, "ada")
        return self

    def describe(self) -> str:
        return "a kettle"


Order.objects = Order()


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the page's samples define, one behind the other; what they register goes again."""
    names: dict[str, Any] = {"__name__": "shop.agents", "Order": Order, "paid": []}
    names["pay_back"] = lambda order_id, amount: names["paid"].append((order_id, amount)) or "refunded"
    names["is_sent"] = lambda order_id: True
    before = {entry.name: registry.swap(entry.name, None) for entry in registry.all_agents()}
    monkeypatch.setattr(models, "ALLOW_MODEL_REQUESTS", False)
    try:
        for sample in SAMPLES:
            exec(sample, names)
        yield names
    finally:
        for entry in registry.all_agents():
            registry.swap(entry.name, None)
        for name, held in before.items():
            registry.swap(name, held)


async def told(name: str, *replies: Any, text: str = "hello", **options: Any) -> Any:
    """A run of a registered agent with a scripted model."""
    target = get_agent(name).target
    with target.agent.override(model=ScriptedModel(*replies)):
        return await run(get_agent(name), text, **options)


async def test_the_first_one(page: dict[str, Any]) -> None:
    r = await told("support", Reply(calls=[("find_order", {"order_id": 7})]), "It is a kettle.", user="ada")
    assert r.said == ["It is a kettle."]
    assert next(each["content"] for each in r.wire_messages if each["role"] == "tool") == "a kettle"
    assert {tool.name for tool in get_agent("support").capabilities.tools.items} == {  # type: ignore[union-attr]
        "find_order", "refund", "cancel_order",
    }  # fmt: skip


async def test_approvals(page: dict[str, Any]) -> None:
    calls = [("refund", {"order_id": 7, "amount": 40}), ("cancel_order", {"order_id": 7})]
    agent = get_agent("desk").target.agent
    with agent.override(model=ScriptedModel(Reply(calls=calls), "Settled.")):
        first = await run(get_agent("desk"), "both", user="ada")
        questions = {question.message: (key, question) for key, question in first.interrupts.items()}
        assert set(questions) == {"Run refund?", "Order 7 is on its way. Cancel it?"}
        assert "editedArgs" in questions["Run refund?"][1].response_schema["properties"]
        edited = {"approved": True, "editedArgs": {"order_id": 7, "amount": 25}}
        no = {"approved": False, "reason": "Too much."}
        answers = {questions["Run refund?"][0]: edited, questions["Order 7 is on its way. Cancel it?"][0]: no}
        last = checked(await first.resume(answers))
    assert page["paid"] == [(7, 25)]
    results = [each["content"] for each in last.wire_messages if each["role"] == "tool"]
    assert sorted(results) == ["Not approved: Too much.", "refunded"]


async def test_the_state(page: dict[str, Any]) -> None:
    r = await told("planner", Reply(calls=[("add", {"item": "tea"})]), "Added.", state={"items": ["milk"]})
    assert r.state == {"items": ["milk", "tea"]}
    assert next(each["content"] for each in r.wire_messages if each["role"] == "tool") == "2 in the cart"


async def test_the_table_of_errors(page: dict[str, Any]) -> None:
    from pydantic_ai.exceptions import ModelHTTPError

    for code, error in (
        ("provider_rate_limited", ModelHTTPError(429, "m")),
        ("provider_unavailable", ModelHTTPError(408, "m")),
        ("agent_exception", ModelHTTPError(401, "m")),
    ):
        assert f"`{code}`" in PAGE
        r = await told("support", Reply(raises=error))
        assert r.error["code"] == code
    r = await told("support", "Hi.", tools=["refund"])
    assert r.error["code"] == "tool_conflict" and "`tool_conflict`" in PAGE
    assert issubclass(AgentError, Exception) and answer_for(AgentError)
    assert get_agent("patient").retry is not None and get_agent("patient").retry.attempts == 3  # type: ignore[union-attr]


async def test_dependencies_as_said(page: dict[str, Any]) -> None:
    text = re.search(r"`PydanticAIAgent\((support, deps=lambda run:\s+Deps\(shop=run.extra\[\"shop\"\]\))\)`", PAGE)
    assert text
    seen: list[Any] = []

    class Deps:
        def __init__(self, shop: str) -> None:
            seen.append(shop)

    agent = eval(f"PydanticAIAgent({text[1]})", {**page, "Deps": Deps, "PydanticAIAgent": PydanticAIAgent})
    with agent.agent.override(model=ScriptedModel("Hi.")):
        assert (await run(agent, extra={"shop": "tea"})).said == ["Hi."]
    assert seen == ["tea"]
