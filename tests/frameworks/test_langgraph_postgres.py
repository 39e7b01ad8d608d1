"""Graphs with LangGraph's own checkpointer on PostgreSQL, through HTTP: which history counts, what a restart keeps."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import interrupt
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool
from typing_extensions import TypedDict

from agui_django import RunContext
from agui_django.agents.langgraph import LangGraphAgent, graph_thread_id, graph_thread_ids, per_loop
from agui_django.models import Thread
from tests.databases import POSTGRES, create_postgres, drop_postgres
from tests.frameworks.stories import approve
from tests.frameworks.world import World, user
from tests.live import wait_until
from tests.parts import require

NAME = f"agui_test_{os.getpid()}_langgraph"
CONNINFO = f"host={POSTGRES['host']} port={POSTGRES['port']} user={POSTGRES['user']} dbname={NAME}"


@pytest.fixture(scope="module")
def checkpoints() -> Iterator[None]:
    """An empty database."""
    require("postgres")
    create_postgres(NAME)
    yield
    drop_postgres(NAME)


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    turns: int


class Desk:
    """A graph that says what it was given, or asks."""

    def __init__(self, world: World, stack: ExitStack) -> None:
        self.pools: list[tuple[asyncio.AbstractEventLoop, AsyncConnectionPool[Any]]] = []
        self.requests: list[list[str]] = []
        self.name = uuid.uuid4().hex
        self.names: set[str] = set()
        self.world = world
        self.start()
        stack.callback(self.stop)

    def start(self) -> None:
        """A process that knows nothing yet."""
        agent = LangGraphAgent(per_loop(self.graph), state=["turns"], thread_id=self.thread_id)
        self.world.override("lg-postgres", agent)

    def stop(self) -> None:
        """What it had open."""
        for loop, pool in self.pools:
            asyncio.run_coroutine_threadsafe(pool.close(), loop).result(30)

    def thread_id(self, run: RunContext) -> str:
        """As the default; but tests share a database, and their users' numbers."""
        self.names.add(f"{self.name} {graph_thread_id(run)}")
        return f"{self.name} {graph_thread_id(run)}"

    async def graph(self) -> Any:
        kwargs = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        pool: AsyncConnectionPool[Any] = AsyncConnectionPool(CONNINFO, open=False, min_size=1, kwargs=kwargs)
        await pool.open()
        self.pools.append((asyncio.get_running_loop(), pool))
        saver = AsyncPostgresSaver(pool)
        await saver.setup()
        graph = StateGraph(State)
        graph.add_node("answer", self.answer)
        graph.add_edge(START, "answer")
        return graph.compile(checkpointer=saver)

    async def answer(self, state: State) -> State:
        self.requests.append([str(each.text) for each in state["messages"]])
        if state["messages"][-1].text == "wait":
            await asyncio.sleep(3600)
        told = interrupt("Which?") if state["messages"][-1].text == "ask" else len(state["messages"])
        return {"messages": [AIMessage(f"answer {told}")], "turns": state.get("turns", 0) + 1}


@pytest.fixture
def desk(world: World, checkpoints: None) -> Iterator[Desk]:
    with ExitStack() as stack:
        yield Desk(world, stack)


def test_asking_again_and_editing(desk: Desk, world: World):
    """What went out of play is out of the graph's memory, too; the rest of its state stays."""
    first, second = user("one"), user("two")
    world.run(first)
    world.run(second)
    world.read(world._body([first]), [])  # asks again, behind the first
    assert desk.requests[-1] == ["one"]
    world.run("edited", forwardedProps={"supersedeAfter": ""})
    assert desk.requests[-1] == ["edited"]
    world.run("more")
    assert desk.requests[-1] == ["edited", "answer 1", "more"]
    stored = world.stored()
    assert [each["content"] for each in stored["messages"]] == ["edited", "answer 1", "more", "answer 3"]
    assert stored["state"]["turns"] == 5
    [name] = desk.names
    assert name == f"{desk.name} {graph_thread_ids(Thread.objects.get())[0]}"


def test_a_question_outlives_the_process(desk: Desk, world: World):
    asked = world.run("ask")[-1]["outcome"]["interrupts"]
    desk.start()
    world.run(resume=approve(asked, {"name": "this one"}))
    stored = world.stored()
    assert stored["messages"][-1]["content"] == "answer {'name': 'this one'}" and len(desk.pools) == 2
    assert [run["status"] for run in stored["runs"]] == ["interrupted", "finished"]


def test_a_run_that_was_cancelled(desk: Desk, world: World):
    """Its connection is whole, and the next turn begins anew."""
    with world.running("wait") as run:
        wait_until(lambda: bool(desk.requests), 30)
        run.cancel()
    assert run.events[-1]["outcome"] == {"type": "cancelled"}
    world.run("go")
    assert desk.requests[-1] == ["wait", "go"] and world.stored()["messages"][-1]["content"] == "answer 2"
