"""What graphs can do beside the stories: what is streamed, whose conversation it is, subgraphs, the page's tools."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ag_ui.core import CustomEvent
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Send

from agui_django import RunContext
from agui_django.agents.langgraph import LangGraphAgent, current_run
from agui_django.testing.replies import Reply
from tests.frameworks.langgraph_samples import State, calling, chain, look, model, roles, tooled
from tests.running import bodies, checked, run

pytestmark = pytest.mark.asyncio


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


async def test_ids_of_what_is_streamed():
    agent = LangGraphAgent(
        tooled(model(Reply(["one ", "two"], calls=[("look", {})]), "done"), look).compile(),
        result=lambda values: [each.id for each in values["messages"]],
    )
    result = await run(agent)
    assert result.result == [each["id"] for each in result.wire_messages] and len(result.result) == 4


THOUGHT, SAID = "Two and two.", {"type": "text", "text": "It is four."}


@pytest.mark.parametrize(
    "message",
    [
        AIMessage(SAID["text"], additional_kwargs={"reasoning_content": THOUGHT}),
        AIMessage([{"type": "reasoning", "reasoning": THOUGHT}, SAID]),
        AIMessage(
            [{"type": "thinking", "thinking": THOUGHT, "signature": "s"}, SAID],
            response_metadata={"model_provider": "anthropic"},
        ),
    ],
    ids=["extra", "blocks", "thinking"],
)
async def test_reasoning_of_several_providers(message: AIMessage):
    def answer(state: State) -> State:
        return {"messages": [message.model_copy()]}

    result = await run(LangGraphAgent(chain(answer)))
    assert roles(result)[1:] == [("reasoning", THOUGHT), ("assistant", SAID["text"])]


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


async def test_nodes_at_once():
    """Steps of one name are one while any of them is on; messages of several models do not mix."""

    async def gate() -> None:
        await asyncio.sleep(0.01)

    def fan(state: State) -> list[Send]:
        return [Send("answer", {"messages": [HumanMessage(str(number))]}) for number in range(3)]

    graph = StateGraph(State)
    graph.add_node("answer", calling(model(Reply(["one ", gate, "two"]))))
    graph.add_conditional_edges(START, fan, ["answer"])
    result = await run(LangGraphAgent(graph.compile()))
    assert result.said == ["one two"] * 3
    assert [kind for kind in result.types if "STEP" in kind] == ["STEP_STARTED", "STEP_FINISHED"]


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
    with pytest.raises(TypeError, match="compiled first"):
        LangGraphAgent(graph)


async def test_a_graph_for_each_run():
    async def graph(run: Any) -> Any:
        return chain(calling(model(f"for {run.text}")))

    assert (await run(LangGraphAgent(graph), "ada")).said == ["for ada"]
