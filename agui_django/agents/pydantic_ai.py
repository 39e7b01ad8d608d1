"""pydantic-ai's agents: ``register("support", PydanticAIAgent(agent))``. Needs ``agui_django[pydantic-ai]``.

Law: the agent runs in the run's own task, from our stored history; what it emits goes through the same pipeline as
anything. Its tools' synchronous functions run in the run's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import is_dataclass, replace
from functools import partial
from inspect import isawaitable
from typing import Any

try:
    from pydantic_ai import DeferredToolRequests, ToolDefinition, exceptions
except ImportError as error:
    raise ImportError("pydantic-ai's agents need pydantic-ai: pip install 'agui_django[pydantic-ai]'") from error

from ag_ui.core import (
    AgentCapabilities,
    HumanInTheLoopCapabilities,
    OutputCapabilities,
    ReasoningCapabilities,
    StateCapabilities,
    Tool,
    ToolsCapabilities,
)
from pydantic import BaseModel
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.capabilities import ReinjectSystemPrompt
from pydantic_ai.models import Model
from pydantic_ai.toolsets import ExternalToolset, FunctionToolset
from pydantic_core import to_jsonable_python

from agui_django.agents.approvals import approval_of
from agui_django.agents.context import RunContext
from agui_django.agents.executing import suspends
from agui_django.agents.openai_chat import with_files
from agui_django.agents.provider_errors import provider_error
from agui_django.agents.pydantic_ai_deferred import Carefully, Deferred, Marks
from agui_django.agents.pydantic_ai_messages import to_history
from agui_django.agents.pydantic_ai_stream import Shown
from agui_django.agents.sink import RunSink
from agui_django.protocol.errors import AgentError

#: What a provider refuses for good: told to staff, as any bug. Versions before 2.60 tell them by their status only.
_REFUSALS = tuple(
    getattr(exceptions, name)
    for name in ("ModelQuotaExceededError", "ModelRequestRejectedError")
    if hasattr(exceptions, name)
)


class PydanticAIAgent:
    """An agent of pydantic-ai as one of this site's; shared by all runs.

    Text, reasoning, tool calls and their results are streamed; usage is reported per model response, the output is the
    run's result. The tools of the page are offered to the model as an external toolset. Tools that require approval
    (``requires_approval=True``, or `ApprovalRequired` raised) are asked about as any tool of ours: all at once, and
    what was approved is executed at most once; other deferred calls are asked for, and the answer is their result.

    What a model call raises is a `ProviderError`: ``provider_rate_limited`` for 429, ``provider_unavailable`` for 5xx
    and a network that failed. A refused key, a bad request, an exhausted quota and what tools raise are bugs of the
    site, and end as ``agent_exception``.

    Args:
        agent: the agent.
        deps: what its tools get as ``ctx.deps``: a value, or a function of the run that gives it and may be a coroutine
            function. Default: the run itself, so that ``ctx.deps.state`` is the live shared state. What has a ``state``
            (pydantic-ai's `StateDeps`) gets the shared state, as its model, and what tools make of it is emitted.
        edit: names of the tools whose arguments the person who approves may change; True: all of them.
        provider_files: tell the model of files that its provider keeps. Clients choose their ids: only where whoever
            may run the agent may read all files of the provider's account.
        options: passed to ``agent.iter()``: ``model``, ``model_settings``, ``usage_limits`` …

    Raises:
        TypeError: a tool's function is marked `approval_required`, but the tool does not require approval.
    """

    def __init__(
        self,
        agent: Any,
        *,
        deps: Any = None,
        edit: bool | Iterable[str] = (),
        provider_files: bool = False,
        **options: Any,
    ) -> None:
        self.agent = agent
        self._provider_files = provider_files
        self._deps = deps
        self._options = options
        self._edit = edit if isinstance(edit, bool) else frozenset(edit)
        self._marks(self._tools())

    def _tools(self) -> dict[str, Any]:
        """The agent's function tools as they are now, by name."""
        return {name: tool for toolset in self.agent.toolsets for name, tool in _functions(toolset)}

    def _marks(self, tools: dict[str, Any]) -> Marks:
        marked = {name: mark for name, tool in tools.items() if (mark := approval_of(tool.function)) is not None}
        for name in marked:
            if not tools[name].requires_approval:
                raise TypeError(
                    f"{name} is marked approval_required: give it to the agent with requires_approval=True."
                )
        editable = self._edit if isinstance(self._edit, frozenset) else frozenset(tools if self._edit else ())
        return Marks(marked, editable, {name: tool.tool_def.parameters_json_schema for name, tool in tools.items()})

    @classmethod
    def accepts(cls, obj: Any) -> bool:
        """For the setting ``ADAPTERS``: whether it is one of pydantic-ai's agents."""
        return isinstance(obj, AbstractAgent)

    def capabilities(self) -> AgentCapabilities:
        """What the agent tells of itself; whether its model thinks only where it was given as an object."""
        model = self.agent.model
        thinks = bool(model.profile.get("supports_thinking")) if isinstance(model, Model) else None
        tools = self._tools()
        marks = self._marks(tools)
        defined = {name: tool.tool_def for name, tool in tools.items()}
        return AgentCapabilities(
            tools=ToolsCapabilities(
                supported=True,
                items=[
                    Tool(name=name, description=tool.description or "", parameters=tool.parameters_json_schema)
                    for name, tool in defined.items()
                ],
                parallel_calls=True,
                client_provided=True,
            ),
            output=OutputCapabilities(structured_output=self.agent.output_type is not str),
            state=StateCapabilities(snapshots=True, deltas=True),
            reasoning=None if thinks is None else ReasoningCapabilities(supported=thinks, streaming=thinks),
            human_in_the_loop=HumanInTheLoopCapabilities(
                supported=True,
                interrupts=True,
                approvals=any(tool.kind == "unapproved" for tool in defined.values()),
                approve_with_edits=bool(marks.edit) or any(each.edit for each in marks.approvals.values()),
            ),
        )

    async def run(self, run: RunContext[Any]) -> Any:
        """Run once; gives the agent's output."""
        tools = self._tools()
        page = _page(run, tools)
        shown = Shown(run)
        deferred = Deferred(run, self._marks(tools), frozenset(tool.name for tool in page), shown)
        waiting = await deferred.take()
        deps = _Deps(run, await self._given(run))
        arguments: dict[str, Any] = {
            "message_history": to_history(await with_files(run), waiting, provider_files=self._provider_files),
            "deferred_tool_results": deferred.results,
            "conversation_id": str(run._setup.thread_id),
            "deps": deps.value,
            "output_type": [self.agent.output_type, DeferredToolRequests],
            "toolsets": [ExternalToolset(page)] if page else None,
            "capabilities": [ReinjectSystemPrompt(), Carefully(run, deferred, shown)],
            "infer_name": False,
        }
        try:
            with self.agent.using_thread_executor(_RunThread(run._sink)):
                async with self.agent.iter(None, **{**arguments, **self._options}) as agent_run:
                    async for node in agent_run:
                        if self.agent.is_model_request_node(node):
                            await self._respond(run, shown, node, agent_run.ctx)
                        elif self.agent.is_call_tools_node(node):
                            async with node.stream(agent_run.ctx) as events:
                                await shown.results(deps.synced(events))
                        deps.sync()
            output = agent_run.result.output
            if isinstance(output, DeferredToolRequests):
                await deferred.defer(output)
        except BaseException as error:
            if not suspends(error):
                shown.fail(error)
            raise
        return to_jsonable_python(output, fallback=str, bytes_mode="base64")

    # ---- parts of a run ----

    async def _given(self, run: RunContext[Any]) -> Any:
        if self._deps is None:
            return run
        given = self._deps(run) if isinstance(self._deps, Callable) else self._deps  # type: ignore[arg-type]
        return await given if isawaitable(given) else given

    async def _respond(self, run: RunContext[Any], shown: Shown, node: Any, context: Any) -> None:
        with _told():
            async with run.message() as message, node.stream(context) as stream:
                try:
                    await shown.response(message, stream)
                finally:
                    shown.usage(response := stream.response)
        await shown.natives(response)


def _page(run: RunContext[Any], own: Container[str]) -> list[ToolDefinition]:
    """The page's tools.

    Raises:
        AgentError: one has the name of a tool of the agent. Who answers its calls could not be told.
    """
    for tool in run.tools:
        if tool.name in own:
            raise AgentError(f"The page's tool {tool.name} has the name of one of the agent's.", "tool_conflict")
    return [
        ToolDefinition(
            name=tool.name,
            description=tool.description,
            parameters_json_schema=tool.parameters or {"type": "object", "properties": {}},
        )
        for tool in run.tools
    ]


class _Deps:
    """A run's dependencies, and the shared state in them."""

    def __init__(self, run: RunContext[Any], given: Any) -> None:
        self.value = given
        self._run = run
        self._held: Any = None
        if given is run or not is_dataclass(given) or not hasattr(given, "state"):
            return
        state = run._sink.document.plain() or {}
        model = type(given.state) if isinstance(given.state, BaseModel) else None
        self.value = replace(given, state=state if model is None else model.model_validate(state))  # type: ignore[type-var]
        self._held = self._plain()

    def _plain(self) -> dict[str, Any]:
        state: dict[str, Any] = to_jsonable_python(self.value.state)
        return state

    def sync(self) -> None:
        """Emit what was made of the state; of its members only those that were changed, for others may edit it, too."""
        if self._held is None:
            return
        before, self._held = self._held, self._plain()
        for name in self._held.keys() | before.keys():
            if name not in self._held:
                self._run.state.pop(name, None)
            elif name not in before or before[name] != self._held[name]:
                self._run.state[name] = self._held[name]

    async def synced(self, events: Any) -> Any:
        """Events, and before each the state as it is then."""
        async for event in events:
            self.sync()
            yield event


class _RunThread(Executor):
    """The run's one thread, with its database connection."""

    def __init__(self, sink: RunSink) -> None:
        self._sink = sink
        self._loop = asyncio.get_running_loop()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function in it."""

        async def work() -> Any:
            return await self._sink.in_thread(partial(fn, *args, **kwargs))

        return asyncio.run_coroutine_threadsafe(work(), self._loop)


@contextmanager
def _told() -> Iterator[None]:
    """What a model call raises, as what the client may be told."""
    try:
        yield
    except Exception as error:
        if isinstance(error, _REFUSALS):
            raise
        told = provider_error(error)
        if told is None or told is error:
            raise
        raise told from error


def _functions(toolset: Any) -> list[tuple[str, Any]]:
    """The function tools of a toolset and of what it wraps, by name."""
    found: list[tuple[str, Any]] = []

    def look(each: Any) -> None:
        if isinstance(each, FunctionToolset):
            found.extend(each.tools.items())

    toolset.apply(look)
    return found
