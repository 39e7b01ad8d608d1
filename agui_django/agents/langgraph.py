"""A LangGraph graph as an agent: ``register("desk", LangGraphAgent(graph))``. Needs ``agui_django[langgraph]``.

Law: the stored history is the truth, with a checkpointer, too: a graph starts each turn with our messages in the place
of those it remembers. Its checkpoints hold the rest of its state, and where it stands while a question is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakKeyDictionary

try:
    from langchain_core.messages import BaseMessage
    from langchain_core.runnables.config import RunnableConfig, merge_configs
    from langgraph.channels import BinaryOperatorAggregate, DeltaChannel
    from langgraph.pregel import Pregel
    from langgraph.types import Overwrite, StateSnapshot
except ImportError as error:
    raise ImportError("LangGraph agents need langgraph: pip install 'agui_django[langgraph]'") from error

from ag_ui.core import AgentCapabilities

from agui_django.agents.context import RunContext
from agui_django.agents.langgraph_about import capabilities_of
from agui_django.agents.langgraph_lanes import How, Lanes
from agui_django.agents.langgraph_messages import in_conversation, to_langchain, with_known
from agui_django.agents.langgraph_questions import TURN, Ask, Questions, question_of
from agui_django.agents.langgraph_stream import MODES, GraphStream, SharedState, jsonable
from agui_django.agents.langgraph_tools import (
    OWN,
    RUN,
    current_run,
    own_tools,
    page_tools,
    to_own_tools,
    unless_page,
    with_page_tools,
)
from agui_django.agents.langgraph_watch import ModelWatch
from agui_django.agents.openai_chat import with_files
from agui_django.agents.remote_input import thread_id_of, thread_name
from agui_django.agents.sink import Answer

if TYPE_CHECKING:
    from agui_django.models import Thread

__all__ = [
    "LangGraphAgent",
    "current_run",
    "graph_thread_id",
    "graph_thread_ids",
    "page_tools",
    "per_loop",
    "question_of",
    "to_own_tools",
    "unless_page",
    "with_page_tools",
]

T = TypeVar("T")
Wire = dict[str, Any]
Graph = Pregel[Any, Any, Any, Any]
OfRun = Callable[[RunContext[Any]], Any]


def per_loop(make: Callable[[], Awaitable[T]]) -> Callable[[RunContext[Any]], Awaitable[T]]:
    """A `graph` that is made once in each event loop: what holds connections (a checkpointer's pool) belongs to one.

    Args:
        make: a coroutine function that gives the compiled graph.
    """
    made: WeakKeyDictionary[asyncio.AbstractEventLoop, T] = WeakKeyDictionary()
    locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    async def graph(_: RunContext[Any]) -> T:
        loop = asyncio.get_running_loop()
        async with locks.setdefault(loop, asyncio.Lock()):
            if loop not in made:
                made[loop] = await make()
        return made[loop]

    return graph


def graph_thread_id(run: RunContext[Any]) -> str:
    """The checkpointer's name of a run's thread: each agent of a thread has its own, and so has each subagent."""
    lane = run._sink.prefix.rstrip("/") or getattr(run._sink, "id", "")
    return ":".join((thread_id_of(run), run._setup.agent, *([lane] if lane else ())))


def graph_thread_ids(thread: Thread) -> list[str]:
    """The checkpointer's names of a stored thread: those of all agents that it had, without subagents."""
    name = thread_name(thread.scope, thread.thread_id)
    return [f"{name}:{agent}" for agent in sorted({thread.agent, *thread.runs.values_list("agent", flat=True)})]


class LangGraphAgent:
    """A compiled graph as an agent of this site; shared by all runs.

    Messages, reasoning, tool calls and results are streamed under LangGraph's own ids, nodes as steps, subgraphs as
    subagents, what ``get_stream_writer()`` writes as CUSTOM events. ``interrupt()`` asks a person; the answers go back
    to it. Errors: a model's provider that is away or limits is a `ProviderError`; an `AgentError` is told as it is;
    anything else is a bug, and ends as ``agent_exception``.

    Args:
        graph: the compiled graph, or a function of the run that gives it, which may be a coroutine function.
        messages: the key of its state that holds the conversation, and nothing else; None: there is none.
        state: the keys of its state that are shared with the page, in both directions.
        input: a function of the run and its messages that makes the input of a turn; default: the messages and the
            shared state under their keys.
        context: the graph's runtime context, or a function of the run that gives it.
        config: LangChain's configuration, or a function of the run that gives it: ``recursion_limit``,
            ``configurable``, ``callbacks``, ``tags``. The thread is the adapter's.
        result: the run's result: a key of the final state, or a function of it.
        subgraphs: ``subagents``; ``inline``: their messages are the run's own; ``hidden``: nothing of them is shown.
        steps: whether nodes are shown as steps.
        question: what ``run.ask`` is given for an interrupt; see `question_of`.
        declined: what ``interrupt()`` returns where the question was cancelled or has expired: a function of the
            answer; default: the run ends as cancelled.
        show_tool_errors: whether the text of a result with the status ``error`` is shown, and stored; LangGraph may
            have written an exception into it.
        thread_id: a function of the run that names its thread for the checkpointer.
    """

    def __init__(
        self,
        graph: Graph | OfRun,
        *,
        messages: str | None = "messages",
        state: Iterable[str] = (),
        input: Callable[[RunContext[Any], list[BaseMessage]], Any] | None = None,
        context: Any = None,
        config: RunnableConfig | OfRun | None = None,
        result: str | Callable[[Any], Any] | None = None,
        subgraphs: How = "subagents",
        steps: bool = True,
        question: Ask = question_of,
        declined: Callable[[Answer], Any] | None = None,
        show_tool_errors: bool = False,
        thread_id: Callable[[RunContext[Any]], str] = graph_thread_id,
    ) -> None:
        self._graph = graph
        self._messages = messages
        self._state = (state,) if isinstance(state, str) else tuple(state)
        if messages in self._state:
            raise TypeError("The messages are no part of the shared state: the page would write the history.")
        if not isinstance(graph, Pregel) and not callable(graph):
            raise TypeError(f"{type(graph).__name__} is no compiled graph; a StateGraph has to be compiled first.")
        needed = {*self._state, *((messages,) if messages and input is None else ())}
        if isinstance(graph, Pregel) and (unknown := needed - graph.channels.keys()):
            raise TypeError(f"The graph's state has no {', '.join(sorted(unknown))}.")
        self._input = input
        self._context = context
        self._config = config
        self._result = result
        self._subgraphs = subgraphs
        self._steps = steps
        self._question = question
        self._declined = declined
        self._show_errors = show_tool_errors
        self._thread_id = thread_id

    @classmethod
    def accepts(cls, obj: Any) -> bool:
        """Whether it is a graph, for the setting ``ADAPTERS``."""
        return isinstance(obj, Pregel)

    def capabilities(self) -> AgentCapabilities | None:
        """What the graph tells: its tools, its subgraphs, whether it can ask."""
        if not isinstance(self._graph, Pregel):
            return None
        return capabilities_of(self._graph, shared=bool(self._state), subagents=self._subgraphs == "subagents")

    async def run(self, run: RunContext[Any]) -> Any:
        """One run of the graph."""
        graph = self._graph if isinstance(self._graph, Pregel) else cast("Graph", await _given(self._graph, run))
        own = frozenset(own_tools(graph))
        watch = ModelWatch(run)
        config = merge_configs(
            await _given(self._config, run),
            {
                "configurable": {"thread_id": self._thread_id(run), RUN: run, OWN: own},
                "metadata": {TURN: run.turn},
                "callbacks": [watch],
            },
        )
        keeps = graph.checkpointer not in (None, True, False)
        stops = bool(graph.interrupt_before_nodes or graph.interrupt_after_nodes)
        lanes = Lanes(run, graph, self._subgraphs, self._messages)
        shared = SharedState(run, self._state)
        questions = Questions(run, self._question, self._declined, breakpoints=stops)
        stream = GraphStream(
            run,
            shared,
            lanes,
            messages=self._messages,
            steps=self._steps,
            page=run._sink.tool_names - own,
            show_errors=self._show_errors,
        )
        waits = False
        try:
            at = await graph.aget_state(config) if keeps else None
            start: Any = False
            if questions.goes_on(at) and at is not None:
                stream.remember(_held(at).get(self._messages or "") or ())
                start = questions.resume(at, self._edited(graph, at, shared.given()))
            else:
                start = await self._start(run, graph, lanes, at, shared.given())
            if start is not False:
                parts = graph.astream(
                    start,
                    config,
                    context=await _given(self._context, run),
                    stream_mode=MODES,
                    subgraphs=self._subgraphs != "hidden",
                )
                async with aclosing(cast("AsyncGenerator[Any]", parts)) as each:
                    async for part in each:
                        await stream.take(*(part if self._subgraphs != "hidden" else ((), *part)))
            if stream.asked or stops or start is False:
                pending = [call.id for call in stream.pending()]
                waits = keeps and questions.put(await graph.aget_state(config), lanes, stream.asked, pending)
                if stream.asked and not keeps:
                    raise RuntimeError("interrupt() needs a graph with a checkpointer.")
        except BaseException as error:
            stream.close(error)
            told = watch.provider_error(error)
            if told is not None:
                raise told from error
            raise
        stream.close()
        if waits:
            run.suspend()
        return self._resulting(stream.values)

    # ---- what it starts from ---------------------------------------------------------------------------------------

    async def _start(
        self, run: RunContext[Any], graph: Graph, lanes: Lanes, at: StateSnapshot | None, shared: Wire
    ) -> Any:
        """The input of a turn: our messages in the place of the graph's."""
        wires = in_conversation(run._sink.messages(), lanes.private_message)
        messages = to_langchain(await with_files(run, wires))
        messages = with_known(messages, _held(at).get(self._messages or "") or ())
        if self._input is not None:
            made = self._input(run, messages)
            return await made if isawaitable(made) else made
        given = {key: _replaced(graph, key, value) for key, value in shared.items()}
        if self._messages is not None:
            given[self._messages] = _replaced(graph, self._messages, messages)
        return given

    def _edited(self, graph: Graph, at: StateSnapshot, shared: Wire) -> Wire:
        """The shared state where it was edited while the graph waited."""
        held = _held(at)
        return {
            key: _replaced(graph, key, value)
            for key, value in shared.items()
            if key not in held or jsonable(held[key]) != value
        }

    def _resulting(self, values: Any) -> Any:
        if self._result is None:
            # A graph of the functional API has a value and no state.
            return None if isinstance(values, Mapping) or values is None else jsonable(values)
        found = self._result(values) if callable(self._result) else (values or {}).get(self._result)
        return jsonable(found)


def _held(at: StateSnapshot | None) -> Mapping[str, Any]:
    """The state of a checkpoint."""
    return at.values if at is not None and isinstance(at.values, Mapping) else {}


def _replaced(graph: Graph, key: str, value: Any) -> Any:
    """A value that takes the place of what the graph has, instead of being merged into it."""
    merges = isinstance(graph.channels.get(key), BinaryOperatorAggregate | DeltaChannel)
    return Overwrite(value) if merges else value


async def _given(value: Any, run: RunContext[Any]) -> Any:
    """A value, or what a function of the run gives."""
    found = value(run) if callable(value) and not isinstance(value, type) else value
    return await found if isawaitable(found) else found
