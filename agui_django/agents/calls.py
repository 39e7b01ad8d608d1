"""Tool calls: their arguments, their results, and the answers of the page.

Law: a call of ours gets exactly one result; a call to the page gets none here (events/tool-calls.mdx), its answer is
the tool message that a later pass finds in the history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from datetime import datetime, timedelta
from threading import get_ident
from types import TracebackType
from typing import Any, TypeVar, overload
from uuid import uuid4

from ag_ui.core import ContentPart
from pydantic import ValidationError

from agui_django.agents.approvals import Approval, approval_of
from agui_django.agents.arguments import read_value, returned_by
from agui_django.agents.contents import content_of, text_of
from agui_django.agents.executing import Execution, suspends
from agui_django.agents.sink import READY, RunSink, Wire
from agui_django.protocol.codec import decode
from agui_django.protocol.errors import AgentError, Declined, InvalidJson, ProtocolViolation, ToolArgumentsError

T = TypeVar("T")
#: What the model and the client are told when a tool fails; exceptions' texts are not ours to show.
FAILED = "The tool failed."
CANCELLED = "The tool was cancelled; a part of its work may have been done."


class ToolCall:
    """A tool call of this turn.

    Awaiting it gives itself. As a block: left without a result it gets "", by an exception a failed one (but stays
    pending where the run is suspended).

    Attributes:
        id: its id on the wire.
        name: the tool.
        frontend: whether the page executes it: it is one of the tools that the request brought.
    """

    def __init__(
        self, sink: RunSink, id: str, name: str, *, frontend: bool | None = None, pause: Awaitable[None] = READY
    ) -> None:
        self.id = id
        self.name = name
        self.frontend = name in sink.tool_names if frontend is None else frontend
        self._sink = sink
        self._pause = pause
        self._done = False

    def __repr__(self) -> str:
        return f"<ToolCall {self.name} {self.id}>"

    def __await__(self) -> Generator[Any, Any, ToolCall]:
        yield from self._pause.__await__()
        return self

    # ---- reading ----

    @property
    def args_text(self) -> str:
        """The arguments as they were streamed."""
        call = self._sink.call(self._sink.call_of, self.id)
        return "" if call is None else str(call["function"]["arguments"])

    @property
    def args(self) -> dict[str, Any]:
        """The arguments.

        Raises:
            ToolArgumentsError: they are no JSON object.
        """
        text = self.args_text
        try:
            value = decode(text or "{}")
        except InvalidJson:
            value = None
        if not isinstance(value, dict):
            raise ToolArgumentsError(f"The arguments of {self.name} are not a JSON object.")
        return value

    @property
    def done(self) -> bool:
        """Whether it has a result, of this pass or an earlier one."""
        if not self._done:
            self._done = self._sink.call(self._sink.result_of, self.id) is not None
        return self._done

    # ---- results ----

    def result(self, value: str | list[ContentPart] | Any, *, failed: bool = False) -> Awaitable[None]:
        """Give the call its result.

        Args:
            value: a text or a list of content parts as they are; other values as JSON.
            failed: the tool failed; the tool message's metadata then say ``{"failed": true}``.

        Raises:
            RuntimeError: the page executes this tool; its result is the page's.
            NotJson: the value cannot be JSON.
        """
        if self.frontend:
            raise RuntimeError(f"The page executes {self.name}; only it can answer.")
        return self._give(value, {"failed": True} if failed else {})

    def _give(self, value: Any, metadata: Wire) -> Awaitable[None]:
        event = self._event(content_of(value), metadata)
        if get_ident() != self._sink.thread:
            self._sink.call(self._sink.send, event)
            self._done = True
            return READY
        done = self._sink.send(event)
        self._done = True
        return done

    def _event(self, content: Any, metadata: Wire) -> Wire:
        # An id of ours is unique in the thread, and the same in a later pass; a provider's may be neither.
        keyed = self.id.startswith(f"{self._sink.setup.turn}:")
        event: Wire = {
            "type": "TOOL_CALL_RESULT",
            "messageId": f"{self.id}:result" if keyed else uuid4().hex,
            "toolCallId": self.id,
            "content": content,
        }
        return {**event, "metadata": metadata} if metadata else event

    def require_approval(
        self,
        message: Any = None,
        *,
        edit: bool = False,
        permission: str | None = None,
        expires: timedelta | datetime | None = None,
    ) -> None:
        """Let a person decide before `run` calls anything. See `approval_required`.

        Args:
            message: what the person is asked; the arguments' names in braces stand for their values.
            edit: whether the person may change the arguments.
            permission: what the person needs to answer.
            expires: when the question closes by itself.
        """
        self._sink.approvals[self.id] = Approval(message, edit, permission, expires)

    async def run(self, fn: Callable[..., Any]) -> Any:
        """Call a function with the arguments and give its value as the result.

        A first parameter named ``run`` gets the run's context. A synchronous function runs in the run's thread. A call
        that was done in an earlier pass is not done again: its stored result is returned. A function that is marked
        `approval_required`, or a call that is, asks a person first, and is executed at most once per approval.

        Raises:
            ToolArgumentsError: the arguments do not fit the function's signature.
            RunSuspended: nobody has approved it yet.
            Declined: it was not approved; the call has a failed result.
            Exception: what the function raised, after a failed result.
        """
        if self.done:
            return self._stored(fn)
        try:
            return await self.carry_out(self.prepare(fn))
        except BaseException as error:
            self.fail(error)
            raise

    def run_here(self, fn: Callable[..., Any]) -> Any:
        """`run` for code in a thread."""
        if self.done:
            return self._stored(fn)
        try:
            return self.carry_out_here(self.prepare(fn))
        except BaseException as error:
            self.fail(error)
            raise

    def prepare(self, fn: Callable[..., Any]) -> Execution:
        """Read the arguments for a function; nothing is asked or done yet.

        Raises:
            ToolArgumentsError: they do not fit.
        """
        # What we execute is ours, whatever tools the client says it has.
        self.frontend = False
        approval = self._sink.approvals.get(self.id) or approval_of(fn)
        return Execution(self._sink, self.id, self.name, self.args_text, fn, approval)

    async def carry_out(self, work: Execution) -> Any:
        """Have it approved, where it must be, call the function, and give the result; a failure is the caller's."""
        work.decide()
        if work.approval is None and self._sink.context.resumed:
            # Should the process die now, the answers were used: what stands in the log says so. Else they would be
            # asked for again, and the function called a second time.
            await self._sink.flush()
        return await work.perform(lambda value: self._give(value, work.metadata))

    def carry_out_here(self, work: Execution) -> Any:
        """`carry_out` for code in a thread."""
        work.decide()
        return work.perform_here(lambda value: self._give(value, work.metadata))

    def fail(self, error: BaseException, text: str = "") -> None:
        """The failed result for an exception; never raises, and leaves the call pending where the run is suspended.

        Args:
            error: what was raised.
            text: what the model is told; default: our own errors' text, of others that the tool failed.
        """
        if suspends(error) or isinstance(error, ProtocolViolation) or self.frontend or self.done:
            return
        if isinstance(error, asyncio.CancelledError):
            text = CANCELLED
        elif not text:
            text = str(error) if isinstance(error, AgentError | Declined) else FAILED
        declined = {"declined": True} if isinstance(error, Declined) else {}
        self._sink.call(self._sink.send_closing, self._event(text, {"failed": True, **declined}))
        self._done = True

    @overload
    def answer(self) -> str: ...
    @overload
    def answer(self, type: type[T]) -> T: ...
    def answer(self, type: Any = str) -> Any:
        """What the page answered.

        Args:
            type: what the answer is read as: its text for str, else JSON.

        Raises:
            RunSuspended: there is no answer yet; the run ends here and the page's answer begins the next one.
            Declined: the page could not, or the user would not; the text says why.
            ToolArgumentsError: the answer is no such value.
        """
        message = self._sink.call(self._sink.result_of, self.id)
        if message is None:
            self._sink.call(self._sink.suspend)
        if message.get("error"):
            raise Declined(message["error"])
        try:
            return read_value(type, text_of(message["content"]))
        except ValidationError:
            raise ToolArgumentsError(f"The answer to {self.name} does not fit.") from None

    def _stored(self, fn: Callable[..., Any]) -> Any:
        """The result of an earlier pass, as what the function gave or raised then."""
        message = self._sink.call(self._sink.result_of, self.id) or {}
        text = text_of(message.get("content", ""))
        metadata = message.get("metadata") or {}
        if metadata.get("failed"):
            raise (Declined if metadata.get("declined") else AgentError)(text)
        returns = returned_by(fn)
        if returns is Any:
            try:
                return decode(text)
            except InvalidJson:
                return text
        try:
            return read_value(returns, text)
        except ValidationError:
            return text

    # ---- as a block ----

    def __enter__(self) -> ToolCall:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.fail(error)
        elif not self.frontend and not self.done:
            self.result("")

    async def __aenter__(self) -> ToolCall:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)
