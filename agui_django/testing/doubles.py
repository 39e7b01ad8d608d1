"""Agents that do what a list says, and putting them in the place of others."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ag_ui.core import RunAgentInput

from agui_django.agents.context import RunContext
from agui_django.agents.registry import AgentEntry, AgentOptions, swap
from agui_django.agents.sink import Event


class ScriptedAgent:
    """An agent that does what a list says; shared by runs, which it remembers.

    Args:
        script: for each step an event to yield, an exception to raise, or a callable that takes the run: it may be
            asynchronous, and what it returns, unless None, is yielded. RUN_STARTED and RUN_FINISHED get the run's ids.

    Attributes:
        inputs: what each run was started with.
    """

    def __init__(self, script: Iterable[Event | BaseException | Callable[[RunContext[Any]], Any]]) -> None:
        self.script = list(script)
        self.inputs: list[RunAgentInput] = []

    async def run(self, run: RunContext[Any]) -> AsyncIterator[Event]:
        """Do it once."""
        self.inputs.append(run.input)
        for step in self.script:
            if isinstance(step, BaseException):
                raise step
            event: Any = step
            if callable(step) and not isinstance(step, Mapping):
                event = step(run)
                if inspect.isawaitable(event):
                    event = await event
            if event is None:
                continue
            if isinstance(event, Mapping) and event.get("type") in ("RUN_STARTED", "RUN_FINISHED"):
                event = {"threadId": run.input.thread_id, "runId": run.run_id, **event}
            yield event


@contextmanager
def override_agent(name: str, agent: Any, **options: Any) -> Iterator[AgentEntry]:
    """Put another agent under a registered name while the block runs; for tests through HTTP.

    Args:
        name: the name; it need not be registered.
        agent: what runs instead.
        options: as for `agui_django.agent`; default: those of the agent that is replaced.
    """
    held = swap(name, None)
    before = held.options if held is not None else AgentOptions()
    entry = AgentEntry(name, agent, replace(before, **options), f"{__name__}:override_agent")
    swap(name, entry)
    try:
        yield entry
    finally:
        swap(name, held)
