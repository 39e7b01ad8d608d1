"""One call of one function with the arguments of a tool call: read, approved where it must be, performed.

Law: nothing is performed before its arguments were read, nor what needs an approval before that is there; and that only
through a claim that is made once per turn.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from agui_django.agents.approvals import Approval, approval_key
from agui_django.agents.arguments import signature_of
from agui_django.agents.asking import Question, ask
from agui_django.agents.once import perform, perform_here, read_back
from agui_django.agents.sink import RunSink, Wire
from agui_django.protocol.codec import decode
from agui_django.protocol.errors import RunSuspended


class Execution:
    """A function about to be called.

    Attributes:
        approval: how a person is asked first, or None.
        metadata: what the tool message says beside the result.
    """

    def __init__(
        self, sink: RunSink, call_id: str, tool: str, arguments: str, fn: Callable[..., Any], approval: Approval | None
    ) -> None:
        """Read the arguments.

        Raises:
            ToolArgumentsError: they do not fit the function's signature.
        """
        self.approval = approval
        self.metadata: Wire = {}
        self._sink = sink
        self._call_id = call_id
        self._tool = tool
        self._text = arguments
        self._fn = fn
        self._signature = signature_of(fn)
        self._args, self._kwargs = self._signature.read(tool, arguments)
        self._key = approval_key(call_id, tool, arguments)
        self._question: Question[Any] | None = None

    def ask(self) -> Question[Any] | None:
        """Ask, where somebody has to approve it; once per pass."""
        if self.approval is not None and self._question is None:
            self._question = self._sink.call(self._ask, self.approval)
        return self._question

    def _ask(self, approval: Approval) -> Question[Any]:
        positional = zip(self._signature.positional, self._args, strict=False)
        return ask(
            self._sink,
            self._key,
            message=approval.question(self._tool, dict(positional) | self._kwargs),
            reason="tool_call",
            response_schema=approval.schema(self._signature),
            tool_call_id=self._call_id,
            permission=approval.permission,
            expires=approval.expires,
        )

    def decide(self) -> None:
        """Go on only where it needs no approval, or has it; take the arguments that the person changed.

        Raises:
            RunSuspended: nobody has answered yet.
            Declined: it was not approved.
            ToolArgumentsError: the changed arguments do not fit.
        """
        question = self.ask()
        if self.approval is None or question is None:
            return
        edited = self.approval.allowed(question)
        if edited is not None:
            self._args, self._kwargs = self._signature.read(self._tool, edited)
            self.metadata = {"editedArgs": decode(edited)}

    async def perform(self, emit: Callable[[Any], Awaitable[None]]) -> Any:
        """Call the function, and emit its value as the result; gives the value."""
        if self.approval is None:
            value = await self._called()
            await emit(value)
            return value
        return self._read(await perform(self._sink, self._key, self._called, emit))

    def perform_here(self, emit: Callable[[Any], Awaitable[None]]) -> Any:
        """`perform` for code in a thread."""
        if self.approval is None:
            value = self._called_here()
            emit(value)
            return value
        return self._read(perform_here(self._sink, self._key, self._called_here, emit))

    def _read(self, value: Any) -> Any:
        """The stored value as the function's caller gets it, in this pass as in a later one."""
        return read_back(self._signature.returns, value)

    async def _called(self) -> Any:
        with self._sink.executing(self._call_id, self._tool):
            if inspect.iscoroutinefunction(self._fn):
                return await self._fn(*self._head(self._sink.context), *self._args, **self._kwargs)
            head = self._head(self._sink.context.sync)
            value = await self._sink.in_thread(functools.partial(self._fn, *head, *self._args, **self._kwargs))
            return await value if isinstance(value, Awaitable) else value

    def _called_here(self) -> Any:
        with self._sink.executing(self._call_id, self._tool):
            if inspect.iscoroutinefunction(self._fn):
                head = self._head(self._sink.context)
                return self._sink.wait(functools.partial(self._fn, *head, *self._args, **self._kwargs))
            return self._fn(*self._head(self._sink.context.sync), *self._args, **self._kwargs)

    def _head(self, context: Any) -> list[Any]:
        return [context] if self._signature.takes_run else []


def suspends(error: BaseException) -> bool:
    """Whether an exception is nothing but the way out to ask; a TaskGroup wraps it."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(suspends, error.exceptions))
    return isinstance(error, RunSuspended)
