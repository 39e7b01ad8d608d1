"""Subagents: the block in which another agent works, for the event loop and for threads.

Law: whatever becomes of the block, the subagent is closed before what is around it (events/subagents.mdx).
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from agui_django.agents.calls import ToolCall
from agui_django.agents.items import any_thread
from agui_django.agents.lanes import Lane
from agui_django.agents.sink import RunSink

C = TypeVar("C")


class Delegates:
    """`subagent` for an agent in the event loop."""

    _sink: RunSink

    @any_thread
    def subagent(
        self,
        name: str,
        *,
        description: str | None = None,
        text: str | None = None,
        call: ToolCall | str | None = None,
        key: str | None = None,
    ) -> SubagentBlock[Self]:
        """A block in which another agent works: ``async with run.subagent("researcher") as sub``.

        `sub` is a run context whose events belong to the subagent. What is asked in it ends the run as everywhere.

        Args:
            name: what people are shown.
            description: what it is for.
            text: its task: then ``sub.text`` is this, and ``sub.messages`` only what was said in it.
            call: the tool call that it is the execution of.
            key: in a later pass the same subagent goes on; its keys are prefixed ``key/``. Default: the call's id and
                the name, where there is a call.

        Raises:
            KeyReused: the key was used in this pass already.
        """
        lane = Lane(self._sink, name, description, text, call, key)
        return SubagentBlock(lane, lane.open_with(type(self)))


class SyncDelegates:
    """`subagent` for code in a thread."""

    _run: Any

    def subagent(
        self,
        name: str,
        *,
        description: str | None = None,
        text: str | None = None,
        call: Any = None,
        key: str | None = None,
    ) -> SubagentBlock[Self]:
        """A block in which another agent works: ``with run.subagent("researcher") as sub``.

        See `RunContext.subagent`.
        """
        called = call if call is None or isinstance(call, str) else call.id
        block = self._run.subagent(name, description=description, text=text, call=called, key=key)
        return SubagentBlock(block.lane, block.context.sync)


class SubagentBlock(Generic[C]):
    """A subagent from its SUBAGENT_STARTED to its end; gives its run context."""

    def __init__(self, lane: Lane, context: C) -> None:
        self.lane = lane
        self.context = context
        self._entered = False

    def __enter__(self) -> C:
        if self._entered:
            raise RuntimeError("A block can be entered once; make another.")
        self._entered = True
        self.lane.call(self.lane.start)
        return self.context

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lane.call(self.lane.end, error)

    async def __aenter__(self) -> C:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)
