"""Settling all tool calls of a model's turn: ours are carried out, the page's and people's answers are waited for.

Law: a call is settled once; page calls and questions never end the same run. What fails in a tool is the model's to
read, what concerns the run is raised.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import PermissionDenied

from agui_django.agents.calls import FAILED, ToolCall
from agui_django.agents.executing import Execution, suspends
from agui_django.agents.sink import RunSink
from agui_django.protocol.errors import (
    AgentError,
    AgentFlood,
    Declined,
    LogLimit,
    OnceUnknown,
    ProtocolViolation,
    RunClosed,
)

Tool = Callable[..., Any]

#: What concerns the run, and no model can do anything about.
_RAISED = (OnceUnknown, ProtocolViolation, RunClosed, LogLimit, AgentFlood)
NOT_PERMITTED = "Not permitted."
TAKEN = "A tool of the page has the same name: this one was not called."


class Dispatches:
    """`dispatch_tool_calls` for an agent in the event loop."""

    _sink: RunSink
    _pending: Callable[[], list[ToolCall]]

    async def dispatch_tool_calls(self, *tools: Tool, **named: Tool) -> None:
        """Settle this turn's calls that have no result, whoever's they are; the model goes on behind it.

        First those of ours that need no approval are carried out. Then, if calls wait for the page, the run ends here,
        and the page's answers begin the next one. Then everything that needs an approval is asked for at once; the
        answers bring the run back here, and what was allowed is carried out. What fails, is declined or is unknown gets
        a failed result for the model to read; of a bug it reads a reference, which the log has, too. So does a call of
        ours that would have to wait while the page has a tool of the same name.

        Args:
            tools: the functions that may be called, by their names.
            named: more of them, by other names.

        Raises:
            RunSuspended: something outside has to be waited for; leave it alone.
            OnceUnknown: an earlier pass died in an approved call, and nobody knows whether it was done.
            TypeError: two tools have one name, or one has none.
        """
        work = _Dispatch(self._sink, self._sink.call(self._pending), _by_name(tools, named))
        for call, execution in work.free():
            with work.settling(call):
                await call.carry_out(execution)
        for call, execution in work.approved():
            with work.settling(call):
                await call.carry_out(execution)
        work.end()


class SyncDispatches:
    """`dispatch_tool_calls` for code in a thread."""

    _sink: RunSink
    _pending: Callable[[], list[ToolCall]]

    def dispatch_tool_calls(self, *tools: Tool, **named: Tool) -> None:
        """Settle this turn's calls that have no result. See `RunContext.dispatch_tool_calls`."""
        work = _Dispatch(self._sink, self._sink.call(self._pending), _by_name(tools, named))
        for call, execution in work.free():
            with work.settling(call):
                call.carry_out_here(execution)
        for call, execution in work.approved():
            with work.settling(call):
                call.carry_out_here(execution)
        work.end()


class _Dispatch:
    """The calls of one `dispatch_tool_calls`; from any thread."""

    def __init__(self, sink: RunSink, calls: list[ToolCall], tools: Mapping[str, Tool]) -> None:
        self._sink = sink
        self._calls = calls
        self._tools = tools
        self._page = False  # whether calls wait for the page
        self._held: list[tuple[ToolCall, Execution]] = []
        self._suspended = False  # whether a tool has asked something itself
        self._asked: set[str] = set()  # what it asked

    def free(self) -> Iterator[tuple[ToolCall, Execution]]:
        """What can be carried out at once; the others are sorted on the way."""
        for call in self._calls:
            tool = self._tools.get(call.name)
            if tool is None:
                if call.frontend:
                    self._page = True
                else:
                    call.result(f"There is no tool {call.name!r}.", failed=True)
                continue
            execution = None
            with self.settling(call):
                execution = call.prepare(tool)
            if execution is None:
                continue
            if execution.approval is None:
                yield call, execution
            else:
                self._held.append((call, execution))

    def approved(self) -> Iterator[tuple[ToolCall, Execution]]:
        """What people have decided on; leaves the agent's function where they have not."""
        if self._page:
            for call, _ in self._held:
                if self._claimed(call):
                    call.result(TAKEN, failed=True)
            # Tools that asked are called again when the page has answered, and ask again.
            self._sink.call(self._sink.withdraw, self._asked)
            self._sink.call(self._sink.suspend)
        questions = [execution.ask() for _, execution in self._held]
        if any(question is not None and not question.answered for question in questions):
            self._sink.call(self._sink.suspend)
        yield from self._held

    def _claimed(self, call: ToolCall) -> bool:
        """Whether the page has a tool of this name, too: while a call of ours waits, it could give that its result."""
        return call.name in self._sink.tool_names

    def end(self) -> None:
        """Leave the agent's function, where a tool has asked."""
        if self._suspended:
            self._sink.call(self._sink.suspend)

    @contextmanager
    def settling(self, call: ToolCall) -> Iterator[None]:
        """Give the call a failed result for what its tool raises, and go on with the next."""
        before = self._sink.call(self._sink.asked)
        try:
            yield
        except BaseException as error:
            if suspends(error):
                asked = self._sink.call(self._sink.asked) - before
                if self._claimed(call):
                    self._sink.call(self._sink.withdraw, asked)
                    call.result(TAKEN, failed=True)
                    return
                self._suspended = True
                self._asked |= asked
            elif not isinstance(error, Exception) or _concerns_the_run(error):
                call.fail(error)
                raise
            else:
                call.fail(error, self._told(call, error))

    def _told(self, call: ToolCall, error: Exception) -> str:
        if isinstance(error, AgentError | Declined):
            return str(error)
        if isinstance(error, PermissionDenied):
            return NOT_PERMITTED
        reference = secrets.token_hex(6)
        self._sink.context.log.error("The tool %s failed (reference %s)", call.name, reference, exc_info=error)
        return f"{FAILED} Reference: {reference}"


def _by_name(tools: tuple[Tool, ...], named: Mapping[str, Tool]) -> dict[str, Tool]:
    found: dict[str, Tool] = {}
    for name, tool in [*((_name(tool), tool) for tool in tools), *named.items()]:
        if name in found:
            raise TypeError(f"Two tools are called {name!r}; give one another name: dispatch_tool_calls(other=…).")
        found[name] = tool
    return found


def _name(tool: Tool) -> str:
    name = getattr(tool, "__name__", None)
    if not isinstance(name, str) or name == "<lambda>":
        raise TypeError(f"{tool!r} has no name; give it one: dispatch_tool_calls(name=…).")
    return name


def _concerns_the_run(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(map(_concerns_the_run, error.exceptions))
    return isinstance(error, _RAISED)
