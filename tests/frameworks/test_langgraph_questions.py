"""A graph's questions and its shared state."""

from __future__ import annotations

import dataclasses
import operator
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from agui_django.agents.langgraph import LangGraphAgent, current_run
from agui_django.testing.replies import Reply
from tests.frameworks.langgraph_samples import State, calling, chain, look, model, roles, tooled
from tests.running import checked, run

pytestmark = pytest.mark.asyncio


# ---- questions -------------------------------------------------------------------------------------------------------


class Decision(TypedDict):
    approved: bool


async def test_two_at_once_and_two_in_a_row():
    def hotel(state: State) -> State:
        name = interrupt({"question": "Which hotel?", "reason": "choice", "of": ["Ritz", "Ibis"]})
        return {"notes": [f"{name}, {interrupt('How many nights?')} nights"]}

    def seat(state: State) -> State:
        decision = interrupt("A seat?", response_schema=Decision)
        return {"notes": [f"seat {decision['approved']}"]}

    graph = StateGraph(State)
    graph.add_node("hotel", hotel)
    graph.add_node("seat", seat)
    graph.add_edge(START, "hotel")
    graph.add_edge(START, "seat")
    first = await run(LangGraphAgent(graph.compile(checkpointer=InMemorySaver()), result="notes"), "a trip")
    asked = {str(each.message): (key, each) for key, each in first.interrupts.items()}
    assert asked.keys() == {"Which hotel?", "A seat?"}
    assert asked["Which hotel?"][1].reason == "choice" and asked["Which hotel?"][1].metadata["value"]["of"]
    assert asked["A seat?"][1].response_schema["properties"]["approved"] == {"title": "Approved", "type": "boolean"}
    second = checked(await first.resume({asked["Which hotel?"][0]: "Ritz", asked["A seat?"][0]: {"approved": True}}))
    assert [each.message for each in second.interrupts.values()] == ["How many nights?"]
    third = checked(await second.resume({next(iter(second.interrupts)): 3}))
    assert third.result == ["Ritz, 3 nights", "seat True"]


async def test_a_tool_that_asks_with_an_id_that_was_used_before():
    """The question names the call, by the thread's own id for it, and the result finds it in the next run."""

    @tool
    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}" if interrupt("Pay?") else "not paid"

    scripted = model(Reply(calls=[("pay", {"amount": 1}), ("look", {})]), "done")
    agent = LangGraphAgent(tooled(scripted, pay, look).compile(checkpointer=InMemorySaver()))
    result = await run(agent, "one", tools=["pay"])
    for text in ("two", "three"):
        ((key, question),) = result.interrupts.items()
        calls = {call["id"]: call for each in result.wire_messages for call in each.get("toolCalls", ())}
        assert question.reason == "tool_call" and calls[question.tool_call_id]["function"]["name"] == "pay"
        result = checked(await result.resume({key: text == "two"}))
        assert result.said == ["done"] and result.pending == {}
        result = checked(await result.say(text))
    told = [text for role, text in roles(result) if role == "tool"]
    assert told == ["seen", "paid 1", "seen", "not paid", "seen"]


async def test_a_review_names_the_call_that_waits():
    def review(state: State) -> None:
        interrupt("Let it?")

    scripted = model(Reply(calls=[("look", {})]))
    result = await run(LangGraphAgent(chain(calling(scripted), review, checkpointer=InMemorySaver())))
    (question,) = result.interrupts.values()
    assert (question.reason, question.tool_call_id) == ("tool_call", next(iter(result.pending)))


async def test_declined_questions():
    def ask(state: State) -> State:
        return {"plan": [str(interrupt("Go?"))]}

    ends = LangGraphAgent(chain(ask, checkpointer=InMemorySaver()), result="plan")
    first = await run(ends)
    assert (await first.resume(cancelled=[*first.interrupts])).outcome == "cancelled"
    goes_on = LangGraphAgent(
        chain(ask, checkpointer=InMemorySaver()), result="plan", declined=lambda answer: answer.status
    )
    first = await run(goes_on)
    assert (await first.resume(cancelled=[*first.interrupts])).result == ["cancelled"]


async def test_an_answer_left_behind():
    """The user wrote on: the graph begins a new turn, and asks again."""
    passes: list[Any] = []

    def ask(state: State) -> State:
        passes.append(len(state["messages"]))
        return {"messages": [AIMessage(f"on {interrupt('Which day?')}")]}

    first = await run(LangGraphAgent(chain(ask, checkpointer=InMemorySaver())), "book it")
    second = checked(await first.say("the train, I mean"))
    assert second.outcome == "interrupt" and passes == [1, 2]
    third = checked(await second.resume({next(iter(second.interrupts)): "Monday"}))
    assert third.said == ["on Monday"]


async def test_breakpoints():
    def before(state: State) -> State:
        return {"notes": ["before"]}

    def after(state: State) -> State:
        return {"notes": ["after"]}

    graph = chain(before, after, checkpointer=InMemorySaver(), interrupt_before=["after"])
    first = await run(LangGraphAgent(graph, result="notes"))
    ((key, question),) = first.interrupts.items()
    assert (question.message, question.reason) == ("Go on with after?", "breakpoint")
    assert (await first.resume({key: {"approved": False}})).outcome == "cancelled"
    assert (await first.resume({key: {"approved": True}})).result == ["before", "after"]


async def test_a_question_needs_a_checkpoint_that_lasts():
    def ask(state: State) -> None:
        interrupt("Go?")

    assert "needs a graph with a checkpointer" in (await run(LangGraphAgent(chain(ask)))).failure.traceback
    graph = chain(ask, checkpointer=InMemorySaver())
    first = await run(LangGraphAgent(graph))
    graph.checkpointer = InMemorySaver()  # the process was started again
    second = await first.resume({next(iter(first.interrupts)): True})
    assert second.error["code"] == "agent_exception" and "needs a checkpointer" in second.failure.traceback


async def test_a_run_that_failed_behind_an_answer_can_be_tried_again():
    """The graph took the answer and failed: the next attempt of the same run finds it gone on."""
    failing = [True]

    def ask(state: State) -> State:
        answer = interrupt("Go?")
        if failing:
            raise ConnectionError(failing.pop())
        return {"plan": [answer]}

    agent = LangGraphAgent(chain(ask, checkpointer=InMemorySaver()), result="plan", steps=False)
    first = await run(agent)
    key = next(iter(first.interrupts))
    assert (await first.resume({key: "yes"})).error["code"] == "agent_exception"
    assert (await first.resume({key: "yes"})).result == ["yes"]


async def test_a_task_of_the_functional_api_is_not_done_again():
    scripted = model("one", "two")

    @task
    async def think(text: str) -> str:
        return str((await scripted.ainvoke(text)).text)

    @entrypoint(checkpointer=InMemorySaver())
    async def flow(given: dict[str, Any]) -> dict[str, Any]:
        return {"thought": await think(given["text"]), "ok": interrupt("Go?")}

    agent = LangGraphAgent(flow, messages=None, input=lambda run, messages: {"text": run.text}, result=dict)
    first = await run(agent, "hello")
    second = checked(await first.resume({next(iter(first.interrupts)): True}))
    assert (second.result, second.said) == ({"thought": "one", "ok": True}, ["one"])


# ---- the state -------------------------------------------------------------------------------------------------------


async def test_state_in_both_directions():
    def work(state: State) -> State:
        return {"plan": [*state["plan"], "pour"], "notes": [str(len(state.get("notes", [])))]}

    agent = LangGraphAgent(chain(work, checkpointer=InMemorySaver()), state=["plan", "notes"])
    first = await run(agent, state={"plan": ["boil"], "notes": ["a", "b"], "page": 1})
    assert first.state == {"plan": ["boil", "pour"], "notes": ["a", "b", "2"], "page": 1}
    second = checked(await first.say("again"))
    assert second.state["plan"] == ["boil", "pour", "pour"] and second.state["notes"] == ["a", "b", "2", "3"]
    with pytest.raises(TypeError, match="history"):
        LangGraphAgent(chain(work), state=["messages"])
    with pytest.raises(TypeError, match="no typo"):
        LangGraphAgent(chain(work), state=["typo"])


async def test_state_that_was_edited_while_the_graph_waited():
    def ask(state: State) -> State:
        return {"plan": [*state["plan"], interrupt("And then?")]}

    first = await run(LangGraphAgent(chain(ask, checkpointer=InMemorySaver()), state="plan"), state={"plan": ["boil"]})
    first.state["plan"].append("steep")  # what the page sends with its answer
    second = checked(await first.resume({next(iter(first.interrupts)): "pour"}))
    assert second.state == {"plan": ["boil", "steep", "pour"]}


async def test_edits_of_others_are_left_alone():
    async def work(state: State) -> State:
        current_run().state["plan"].append("by staff")  # as if somebody had edited it meanwhile
        return {"notes": ["n"]}

    result = await run(LangGraphAgent(chain(work), state=["plan", "notes"]), state={"plan": ["boil"]})
    assert result.state == {"plan": ["boil", "by staff"], "notes": ["n"]}


class Item(BaseModel):
    title: str
    done: bool = False


class Model(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages] = []
    plan: list[Item] = []
    notes: Annotated[list[str], operator.add] = []


@dataclasses.dataclass
class Data:
    messages: Annotated[list[AnyMessage], add_messages] = dataclasses.field(default_factory=list)
    plan: list[Any] = dataclasses.field(default_factory=list)
    notes: Annotated[list[str], operator.add] = dataclasses.field(default_factory=list)


@pytest.mark.parametrize("schema", [Model, Data], ids=["pydantic", "dataclass"])
async def test_state_of_other_kinds(schema: Any):
    def work(state: Any) -> dict[str, Any]:
        return {"plan": [*state.plan, Item(title="pour")], "notes": ["n"]}

    work.__annotations__["state"] = schema
    agent = LangGraphAgent(chain(work, schema=schema), state=["plan", "notes"])
    result = await run(agent, state={"plan": [{"title": "boil", "done": True}], "notes": ["a"]})
    assert result.state == {
        "plan": [{"title": "boil", "done": True}, {"title": "pour", "done": False}], "notes": ["a", "n"],
    }  # fmt: skip
