"""What graphs can do beside the stories: subgraphs, questions of every kind, memory, the shared state, errors."""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any

import pytest
from ag_ui.core import CustomEvent
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt
from typing_extensions import TypedDict

from agui_django import AgentError, RunContext
from agui_django.agents.langgraph import LangGraphAgent, current_run, to_own_tools, unless_page, with_page_tools
from agui_django.testing import AgentRun
from agui_django.testing.langchain import ScriptedChatModel
from agui_django.testing.replies import Reply
from tests.running import bodies, checked, run

pytestmark = pytest.mark.asyncio


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    plan: list[str]
    notes: Annotated[list[str], operator.add]


def chain(*nodes: Any, schema: Any = State, **compiled: Any) -> Any:
    """A graph whose nodes follow each other."""
    graph = StateGraph(schema)
    graph.add_sequence([(getattr(node, "__name__", "sub"), node) for node in nodes])
    graph.add_edge(START, getattr(nodes[0], "__name__", "sub"))
    return graph.compile(**compiled)


def model(*replies: Any) -> ScriptedChatModel:
    return ScriptedChatModel(*replies)


def calling(scripted: ScriptedChatModel, name: str = "answer") -> Any:
    async def node(state: State) -> State:
        return {"messages": [await scripted.ainvoke(state["messages"])]}

    node.__name__ = name
    return node


@tool
def look() -> str:
    """Look."""
    return "seen"


def tooled(scripted: ScriptedChatModel, *tools: Any, **options: Any) -> StateGraph:
    """A model and its tools, those of the page among them."""

    async def answer(state: State) -> State:
        return {"messages": [await scripted.bind_tools(with_page_tools(*tools)).ainvoke(state["messages"])]}

    graph = StateGraph(State)
    graph.add_node("answer", answer)
    graph.add_node("tools", ToolNode(tools, **options))
    graph.add_edge(START, "answer")
    graph.add_conditional_edges("answer", to_own_tools())
    graph.add_conditional_edges("tools", unless_page("answer"))
    return graph


def roles(result: AgentRun) -> list[tuple[str, str]]:
    return [(each["role"], each.get("content") or "") for each in result.wire_messages]


# ---- what is streamed ------------------------------------------------------------------------------------------------


async def test_steps_and_custom_events():
    async def first(state: State) -> None:
        write = get_stream_writer()
        write({"name": "mood", "value": {"sunny": True}})
        write(["anything"])
        write(CustomEvent(name="official", value=1))

    def second(state: State) -> State:  # in a thread
        current_run().sync.say(f"to {current_run().user}")
        return {"plan": ["tea"]}

    result = await run(LangGraphAgent(chain(first, second)), "hello")
    assert bodies(result) == [
        ("STEP_STARTED", "first"),
        ("CUSTOM", {"sunny": True}),
        ("CUSTOM", ["anything"]),
        ("CUSTOM", 1),
        ("STEP_FINISHED", "first"),
        ("STEP_STARTED", "second"),
        ("TEXT_MESSAGE_START",),
        ("TEXT_MESSAGE_CONTENT", "to AnonymousUser"),
        ("TEXT_MESSAGE_END",),
        ("STEP_FINISHED", "second"),
    ]
    assert [event["name"] for event in result.events if event["type"] == "CUSTOM"] == ["mood", "langgraph", "official"]


async def test_ids_are_kept_and_used_once():
    async def whole(state: State) -> State:
        given = [each.id for each in state["messages"] if isinstance(each, HumanMessage)]
        return {"messages": [AIMessage(f"{len(given)} of {given}", id=f"answer-{len(state['messages'])}")]}

    async def again(state: State) -> State:  # the same message once more
        return {"messages": state["messages"][-1:]}

    agent = LangGraphAgent(chain(whole, again), steps=False)
    first = await run(agent, [{"id": "u1", "role": "user", "content": "hello"}])
    second = checked(await first.say("more"))
    assert [each["id"] for each in second.wire_messages if each["role"] == "assistant"] == ["answer-1", "answer-3"]
    assert "u1" in second.said[0] and second.said[0].startswith("2 of")


async def test_a_provider_that_counts_anew():
    """Calls of every turn have the ids of the first; the thread's are unique, and results and answers find them."""
    scripted = model(Reply(calls=[("look", {}), ("pick", {})]), "done")
    agent = LangGraphAgent(tooled(scripted, look).compile(checkpointer=InMemorySaver()))
    result = await run(agent, "one", tools=["pick"])
    for turn, text in enumerate(("two", "three"), 1):
        result = checked(await result.answer_frontend({"pick": f"red {turn}"}))
        result = checked(await result.say(text))
    assert roles(result) == [
        *[("user", "one"), ("assistant", ""), ("tool", "seen"), ("tool", "red 1"), ("assistant", "done")],
        *[("user", "two"), ("assistant", ""), ("tool", "seen"), ("tool", "red 2"), ("assistant", "done")],
        *[("user", "three"), ("assistant", ""), ("tool", "seen")],
    ]
    assert [len(request) for request in scripted.script.requests] == [1, 4, 6, 9, 11]


async def test_usage_of_models_that_nobody_sees():
    hidden = model(Reply("internal", input_tokens=30)).with_config(tags=["nostream"])

    async def think(state: State) -> State:
        return {"plan": [str((await hidden.ainvoke(state["messages"])).content)]}

    result = await run(LangGraphAgent(chain(think, calling(model("shown")))), "hello")
    assert result.said == ["shown"]
    assert [(entry["model"], entry["inputTokens"], entry["outputTokens"]) for entry in result.usage] == [
        ("scripted", 33, 4)
    ]


async def test_result():
    def work(state: State) -> State:
        return {"plan": ["tea"]}

    @entrypoint()
    async def functional(given: dict[str, Any]) -> dict[str, Any]:
        return {"asked": given["text"]}

    assert (await run(LangGraphAgent(chain(work), result="plan"))).result == ["tea"]
    assert (await run(LangGraphAgent(chain(work), result=lambda values: len(values["plan"])))).result == 1
    assert (await run(LangGraphAgent(chain(work)))).result is None
    task = LangGraphAgent(functional, messages=None, input=lambda run, messages: {"text": run.text}, result=dict)
    assert (await run(task, "hello")).result == {"asked": "hello"}


# ---- the conversation ------------------------------------------------------------------------------------------------


async def test_what_a_graph_is_given():
    seen: list[Any] = []

    async def look(state: State) -> None:
        seen.extend(state["messages"])

    picture = {"type": "image", "source": {"type": "data", "value": "aGk=", "mimeType": "image/png"}}
    linked = {"type": "document", "source": {"type": "url", "value": "https://example.com/a.pdf"}}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    dangling = {"id": "d", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    await run(
        LangGraphAgent(chain(look)),
        [
            {"id": "1", "role": "developer", "content": "Be kind."},
            {"id": "2", "role": "user", "content": [{"type": "text", "text": "look"}, picture, linked]},
            {"id": "3", "role": "reasoning", "content": "hm"},
            {"id": "4", "role": "assistant", "content": "well", "toolCalls": [call, dangling]},
            {"id": "5", "role": "tool", "toolCallId": "c", "content": "no", "metadata": {"failed": True}},
            {"id": "6", "role": "user", "content": "go"},
        ],
    )
    blocks = [
        {"type": "text", "text": "look"},
        {"type": "image", "base64": "aGk=", "mime_type": "image/png"},
        {"type": "file", "url": "https://example.com/a.pdf"},
    ]
    called = {"type": "tool_call", "id": "c", "name": "f", "args": {"a": 1}}
    assert [each for each in seen if each.id != "6" and each.content != ""] == [
        SystemMessage("Be kind.", id="1"),
        HumanMessage(blocks, id="2"),
        AIMessage("well", id="4", tool_calls=[called]),
        ToolMessage("no", id="5", name="f", tool_call_id="c", status="error"),
    ]


async def test_a_checkpoint_knows_more_but_says_the_same():
    """What the graph remembers of a message is kept; what it remembers beyond the history is not."""
    seen: list[list[AnyMessage]] = []

    async def answer(state: State) -> State:
        seen.append(list(state["messages"]))
        signed = AIMessage("signed", id=f"a{len(seen)}", response_metadata={"signature": "s"})
        return {"messages": [SystemMessage("the graph's own"), signed], "notes": [f"n{len(seen)}"]}

    agent = LangGraphAgent(chain(answer, checkpointer=InMemorySaver()), result="notes")
    first = await run(agent, "hello")
    second = checked(await first.say("more"))
    assert [(each.type, each.text) for each in seen[1]] == [("human", "hello"), ("ai", "signed"), ("human", "more")]
    assert seen[1][1].response_metadata == {"signature": "s"}
    assert second.result == ["n1", "n2"]  # the rest of the state is the checkpoint's


async def test_memories_do_not_meet():
    """Two threads, and two subagents of one thread: each has a memory of its own."""

    def count(state: State) -> State:
        return {"notes": ["again"]}

    counter = LangGraphAgent(chain(count, checkpointer=InMemorySaver()), result="notes", steps=False)

    async def desk(run: RunContext) -> dict[str, int]:
        counts = {}
        for name in ("a", "b"):
            async with run.subagent(name, key=name) as sub:
                counts[name] = len(await counter.run(sub))
        return counts

    first = await run(desk)
    assert first.result == {"a": 1, "b": 1}
    assert (await first.say("more")).result == {"a": 2, "b": 2}
    assert (await run(desk)).result == {"a": 1, "b": 1}


# ---- subgraphs -------------------------------------------------------------------------------------------------------


def lanes(result: AgentRun) -> list[tuple[str, str]]:
    """Each message's text and the node that it is a subagent of."""
    return [
        (each.get("content") or "", (each.get("subagentRunId") or ":-:").split(":")[-2])
        for each in result.wire_messages
        if each["role"] == "assistant"
    ]


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


# ---- the page's tools ------------------------------------------------------------------------------------------------


async def test_tools_of_both_in_one_message():
    scripted = model(Reply(calls=[("look", {}), ("pick", {"of": 2})]), "Done.")
    # A page's tool of our tool's name changes nothing.
    first = await run(LangGraphAgent(tooled(scripted, look).compile()), tools=["pick", "look"])
    assert scripted.tools == [["look", "pick"]]
    assert list(first.pending.values()) == ["pick"] and roles(first)[-1] == ("tool", "seen")
    second = checked(await first.answer_frontend({"pick": "red"}))
    assert roles(second)[1:] == [("assistant", ""), ("tool", "seen"), ("tool", "red"), ("assistant", "Done.")]


async def test_outside_of_an_agent():
    with pytest.raises(LookupError, match="No LangGraphAgent"):
        current_run()


# ---- what it tells of itself -----------------------------------------------------------------------------------------


async def test_capabilities():
    @tool
    def find(where: str) -> str:
        """Look somewhere."""
        return where

    sub = chain(calling(model("x")))
    graph = StateGraph(State)
    graph.add_node("tools", ToolNode([find]))
    graph.add_node("sub", sub)
    graph.add_edge(START, "tools")
    agent = LangGraphAgent(graph.compile(checkpointer=InMemorySaver(), name="desk"), state="plan")
    told = agent.capabilities().model_dump(by_alias=True, exclude_none=True)
    assert told["identity"] == {"type": "langgraph", "name": "desk"}
    assert [(each["name"], each["description"]) for each in told["tools"]["items"]] == [("find", "Look somewhere.")]
    assert told["tools"]["items"][0]["parameters"]["required"] == ["where"]
    assert told["humanInTheLoop"]["interrupts"] is True and told["state"]["deltas"] is True
    assert told["multiAgent"]["subagents"] == [{"name": "sub"}]
    assert LangGraphAgent(lambda run: sub).capabilities() is None
    assert LangGraphAgent.accepts(sub) and not LangGraphAgent.accepts(agent)


async def test_a_graph_for_each_run():
    async def graph(run: Any) -> Any:
        return chain(calling(model(f"for {run.text}")))

    assert (await run(LangGraphAgent(graph), "ada")).said == ["for ada"]
