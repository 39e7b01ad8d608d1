"""docs/howto/langgraph.md: its code does what the page says."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import types
from typing import Any

import psycopg
import pytest
from django.db.models.signals import pre_delete

from agui_django.agents import registry
from agui_django.agents.langgraph import LangGraphAgent
from agui_django.models import Thread
from agui_django.testing.langchain import ScriptedChatModel
from agui_django.testing.replies import Reply
from tests.databases import POSTGRES, create_postgres, drop_postgres
from tests.parts import ROOT, require
from tests.running import checked, run

pytestmark = pytest.mark.asyncio

PAGE = (ROOT / "docs" / "howto" / "langgraph.md").read_text()
SIMPLE, TOOLS, REFUND, SAVER, FORGET, PLAN, TESTING = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


class Orders:
    """What stands for the page's shop."""

    objects: Any

    def __init__(self) -> None:
        self.objects = self

    def filter(self, **_: int) -> Any:
        return self

    def values(self) -> Any:
        return self

    async def afirst(self) -> dict[str, Any]:
        return {"id": 7, "what": "kettle"}


def executed(code: str, monkeypatch: pytest.MonkeyPatch, **names: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a sample defines, and what it registers, which is taken back."""
    langchain = types.ModuleType("langchain.chat_models")
    langchain.init_chat_model = lambda name: names["model"]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "langchain", types.ModuleType("langchain"))
    monkeypatch.setitem(sys.modules, "langchain.chat_models", langchain)
    registry.discover()
    held = {name: registry.swap(name, None) for name in ("desk", "helper", "plan")}
    found: dict[str, Any] = {"__name__": "shop.agents", **names}
    exec(code, found)
    new = {name: registry.swap(name, None) for name in held}
    for name, entry in held.items():
        registry.swap(name, entry)
    return found, {name: entry for name, entry in new.items() if entry is not None}


def scripted(*replies: Any) -> ScriptedChatModel:
    return ScriptedChatModel(*replies)


async def test_the_simple_one(monkeypatch: pytest.MonkeyPatch) -> None:
    _, new = executed(SIMPLE, monkeypatch, model=scripted("Hello, Ada."))
    assert new["desk"].options.title == "Desk"
    assert (await run(new["desk"], "hello")).said == ["Hello, Ada."]


async def test_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    model = scripted(Reply(calls=[("find_order", {"order_id": 7}), ("pick", {})]), "Done.")
    _, new = executed(TOOLS, monkeypatch, model=model, Order=Orders())
    first = await run(new["helper"], "order 7?", tools=["pick"])
    assert list(first.pending.values()) == ["pick"] and '"kettle"' in first.wire_messages[-1]["content"]
    assert checked(await first.answer_frontend({"pick": "red"})).said == ["Done."]


async def test_a_question_with_the_checkpointer_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    require("postgres")
    paid: list[int] = []

    def pay(amount: int) -> str:
        paid.append(amount)
        return "paid"

    database = f"agui_test_{os.getpid()}_docs_langgraph"
    create_postgres(database)
    conninfo = f"host={POSTGRES['host']} port={POSTGRES['port']} user={POSTGRES['user']} dbname={database}"
    refund, _ = executed(REFUND, monkeypatch, pay=pay)
    model = scripted(Reply(calls=[("refund", {"amount": 40})]), "Settled.")
    code = TOOLS.replace("find_order)", "refund)").replace("[find_order]", "[refund]")
    graph, _ = executed(code, monkeypatch, model=model, refund=refund["refund"])
    opened, new = executed(SAVER, monkeypatch, graph=graph["graph"], CHECKPOINTS=conninfo)
    pools: list[Any] = []
    made = opened["AsyncConnectionPool"]
    opened["AsyncConnectionPool"] = lambda *args, **kwargs: pools.append(made(*args, **kwargs)) or pools[-1]
    try:
        first = await run(new["desk"], "refund 40")
        ((key, question),) = first.interrupts.items()
        assert question.message == "Refund 40 €?" and paid == []
        assert checked(await first.resume({key: {"approved": True}})).said == ["Settled."]
        assert paid == [40] and len(pools) == 1
        name = f"{first.setup.thread_id}:{new['desk'].name}"
        await asyncio.to_thread(forgets, conninfo, name)
    finally:
        for pool in pools:
            await pool.close()
        await asyncio.to_thread(drop_postgres, database)


def forgets(conninfo: str, thread: str) -> None:
    """The page's receiver deletes what the checkpointer has of a thread."""
    names: dict[str, Any] = {"__name__": "shop.receivers", "CHECKPOINTS": conninfo}
    exec(FORGET, names)
    pre_delete.disconnect(names["forget"], sender=Thread)
    names["graph_thread_ids"] = lambda instance: [instance]
    with psycopg.connect(conninfo, autocommit=True) as connection:
        count = "SELECT count(*) FROM checkpoints WHERE thread_id = %s"
        assert connection.execute(count, [thread]).fetchone() != (0,)
        names["forget"](instance=thread)
        assert connection.execute(count, [thread]).fetchone() == (0,)


async def test_shared_state(monkeypatch: pytest.MonkeyPatch) -> None:
    _, new = executed(PLAN, monkeypatch)
    assert new["plan"].options.initial_state == {"items": []}
    assert (await run(new["plan"], state={"items": ["boil"]})).state == {"items": ["boil", "pour"]}


async def test_testing(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(model: Any) -> Any:
        return executed(TOOLS, monkeypatch, model=model, Order=Orders())[0]["graph"].compile()

    found, _ = executed(TESTING, monkeypatch, build=build, LangGraphAgent=LangGraphAgent)
    await found["test_it"]()


async def test_as_an_adapter(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.AGUI_DJANGO = {**settings.AGUI_DJANGO, "ADAPTERS": ["agui_django.agents.langgraph.LangGraphAgent"]}
    code = SIMPLE.replace('LangGraphAgent(graph.compile()), title="Desk"', "graph.compile(), steps=False")
    _, new = executed(code, monkeypatch, model=scripted("Hello."))
    result = await run(new["desk"], "hello")
    assert result.said == ["Hello."] and "STEP_STARTED" not in result.types
