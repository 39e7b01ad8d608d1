"""Subgraphs as subagents."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import interrupt

from agui_django import RunContext
from agui_django.agents.langgraph import LangGraphAgent
from tests.frameworks.langgraph_samples import State, calling, chain, lanes, model, roles
from tests.running import checked, run

pytestmark = pytest.mark.asyncio


# ---- subgraphs -------------------------------------------------------------------------------------------------------


async def test_a_subgraph_that_shares_the_conversation():
    seen: list[list[str]] = []

    async def look(state: State) -> None:
        seen.append([str(each.text) for each in state["messages"]])

    sub = chain(calling(model("from below")))
    agent = LangGraphAgent(chain(look, sub, calling(model("one", "from above"))))
    first = await run(agent, "hello")
    assert lanes(first) == [("from below", "sub"), ("from above", "-")]
    assert [event["name"] for event in first.events if event["type"] == "SUBAGENT_STARTED"] == ["sub"]
    await first.say("more")
    assert seen[-1] == ["hello", "from below", "from above", "more"]
    flat = await run(LangGraphAgent(chain(sub, calling(model("one", "from above"))), subgraphs="inline"))
    assert lanes(flat) == [("from below", "-"), ("from above", "-")]
    silent = await run(LangGraphAgent(chain(sub), subgraphs="hidden"))
    assert "SUBAGENT_STARTED" not in silent.types and lanes(silent) == [("from below", "-")]  # what it gave on
    assert silent.types.count("STEP_STARTED") == 1 and silent.types.count("TEXT_MESSAGE_CONTENT") == 1


async def test_a_subgraph_that_a_function_calls_keeps_its_words_to_itself():
    seen: list[list[str]] = []
    sub = chain(calling(model("thinking aloud", "the answer"), "one"), calling(model("x", "the answer"), "two"))

    async def desk(state: State) -> State:
        seen.append([str(each.text) for each in state["messages"]])
        found = await sub.ainvoke({"messages": state["messages"]})
        return {"messages": found["messages"][-1:]}

    first = await run(LangGraphAgent(chain(desk)), "hello")
    assert lanes(first) == [("thinking aloud", "desk"), ("the answer", "desk"), ("the answer", "-")]
    await first.say("more")
    assert seen[1] == ["hello", "the answer", "more"]


async def test_a_subagent_asks_and_goes_on():
    async def ask(state: State) -> State:
        return {"messages": [AIMessage(f"it is {interrupt('Which year?')}")]}

    sub = chain(calling(model("wait")), ask)
    first = await run(LangGraphAgent(chain(sub, checkpointer=InMemorySaver())), "hello")
    assert first.outcome == "interrupt"
    ((key, question),) = first.interrupts.items()
    assert question.message == "Which year?" and key.startswith("sub:")
    ended = [event for event in first.events if event["type"] == "SUBAGENT_FINISHED"]
    assert ended[0]["outcome"]["type"] == "suspended" and ended[0]["outcome"]["interruptIds"] == [question.id]
    second = checked(await first.resume({key: 1998}))
    assert second.outcome == "success" and lanes(second) == [("wait", "sub"), ("it is 1998", "sub")]
    owners = {each["subagentRunId"] for each in second.wire_messages if each.get("subagentRunId")}
    assert len(owners) == 1


async def test_a_subgraph_that_a_function_calls_twice_and_that_asks():
    def ask(state: State) -> State:
        return {"messages": [AIMessage(f"got {interrupt('Which?')}")]}

    quiet, sub = chain(calling(model("quiet"))), chain(calling(model("thinking")), ask)

    async def desk(state: State) -> State:
        given = {"messages": state["messages"]}
        await quiet.ainvoke(given)
        return {"messages": (await sub.ainvoke(given))["messages"][-1:]}

    first = await run(LangGraphAgent(chain(desk, checkpointer=InMemorySaver())))
    second = checked(await first.resume({next(iter(first.interrupts)): "x"}))
    assert lanes(second)[-3:] == [("thinking", "desk"), ("got x", "desk"), ("got x", "-")]
    assert len({each.get("subagentRunId") for each in second.wire_messages[1:]}) == 3


async def test_subgraphs_in_subgraphs():
    def ask(state: State) -> State:
        return {"messages": [AIMessage(f"got {interrupt('Which?')}")]}

    graph = chain(chain(chain(chain(ask))), checkpointer=InMemorySaver())
    first = await run(LangGraphAgent(graph))
    assert first.types.count("SUBAGENT_STARTED") == first.types.count("SUBAGENT_FINISHED") == 3
    ((key, question),) = first.interrupts.items()
    assert len(question.id) < 255  # what the store takes
    assert roles(checked(await first.resume({key: "x"})))[-1] == ("assistant", "got x")


async def test_a_graph_as_a_subagent_of_ours():
    """Its questions pass through, and so do the answers, those of the agent around it among them."""

    def ask(state: State) -> State:
        return {"messages": [AIMessage(f"{state['messages'][-1].text}: {interrupt('Which?')}")]}

    graph = LangGraphAgent(chain(ask, checkpointer=InMemorySaver()))

    async def desk(run: RunContext) -> None:
        year = run.interrupt("year", message="Which year?")
        async with run.subagent("graph", key="g", text=f"in {year}") as sub:
            await graph.run(sub)
        await run.say("done")

    first = await run(desk)
    second = checked(await first.resume({"year": 1998}))
    (key,) = second.interrupts
    assert key.startswith("g/")
    assert checked(await second.resume({key: "that"})).said == ["in 1998: that", "done"]
