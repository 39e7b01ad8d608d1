"""Tool calls: their arguments, their results, and the answers of the page.

Law: a call of ours gets exactly one result; a call to the page gets none here (events/tool-calls.mdx), its answer is
the tool message that a later pass finds in the history.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Generator
from threading import get_ident
from types import TracebackType
from typing import Any, TypeVar, overload
from uuid import uuid4

from ag_ui.core import ContentPart
from pydantic import ValidationError

from agui_django.agents.arguments import read_value, signature_of
from agui_django.agents.asking import plain
from agui_django.agents.sink import READY, RunSink, Wire
from agui_django.protocol.codec import decode, encode
from agui_django.protocol.enforcement import enforce
from agui_django.protocol.errors import (
    AgentError,
    Declined,
    InvalidJson,
    ProtocolViolation,
    RunSuspended,
    ToolArgumentsError,
)

T = TypeVar("T")
#: What the model and the client are told when a tool fails; exceptions' texts are not ours to show.
FAILED = "The tool failed."
CANCELLED = "The tool was cancelled."


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
        event: Wire = {
            "type": "TOOL_CALL_RESULT",
            "messageId": f"{self.id}:result" if self._keyed else uuid4().hex,
            "toolCallId": self.id,
            "content": content_of(value),
        }
        if failed:
            event["metadata"] = {"failed": True}
        if get_ident() != self._sink.thread:
            self._sink.call(self._sink.send, event)
            self._done = True
            return READY
        done = self._sink.send(event)
        self._done = True
        return done

    async def run(self, fn: Callable[..., Any]) -> Any:
        """Call a function with the arguments and give its value as the result.

        A first parameter named ``run`` gets the run's context. A synchronous function runs in the run's thread. A call
        that was done in an earlier pass is not done again: its stored result is returned.

        Raises:
            ToolArgumentsError: the arguments do not fit the function's signature.
            Exception: what the function raised, after a failed result.
        """
        signature = signature_of(fn)
        if self.done:
            return self._stored(signature.returns)
        if self._sink.context.resumed:
            # Should the process die now, the answers were used: what stands in the log says so. Else they would be
            # asked for again, and the function called a second time.
            await self._sink.flush()
        try:
            args, kwargs = signature.read(self.name, self.args_text)
            if inspect.iscoroutinefunction(fn):
                head = [self._sink.context] if signature.takes_run else []
                value = await fn(*head, *args, **kwargs)
            else:
                head = [self._sink.context.sync] if signature.takes_run else []
                value = await self._sink.in_thread(functools.partial(fn, *head, *args, **kwargs))
            if isinstance(value, Awaitable):
                value = await value
            await self.result(value)
        except BaseException as error:
            self.fail(error)
            raise
        return value

    def run_here(self, fn: Callable[..., Any]) -> Any:
        """`run` for code in a thread."""
        signature = signature_of(fn)
        if self.done:
            return self._stored(signature.returns)
        try:
            args, kwargs = signature.read(self.name, self.args_text)
            if inspect.iscoroutinefunction(fn):
                head = [self._sink.context] if signature.takes_run else []
                value = self._sink.wait(functools.partial(fn, *head, *args, **kwargs))
            else:
                head = [self._sink.context.sync] if signature.takes_run else []
                value = fn(*head, *args, **kwargs)
            self.result(value)
        except BaseException as error:
            self.fail(error)
            raise
        return value

    def fail(self, error: BaseException) -> None:
        """The failed result for an exception; never raises, and leaves the call pending where the run is suspended."""
        if isinstance(error, RunSuspended | ProtocolViolation) or self.frontend or self.done:
            return
        text = CANCELLED if isinstance(error, asyncio.CancelledError) else FAILED
        if isinstance(error, AgentError):
            text = str(error)
        event = {
            "type": "TOOL_CALL_RESULT",
            "messageId": f"{self.id}:result" if self._keyed else uuid4().hex,
            "toolCallId": self.id,
            "content": text,
            "metadata": {"failed": True},
        }
        self._sink.call(self._sink.send_closing, event)
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

    def _stored(self, returns: Any) -> Any:
        message = self._sink.call(self._sink.result_of, self.id) or {}
        text = text_of(message.get("content", ""))
        if returns is Any:
            try:
                return decode(text)
            except InvalidJson:
                return text
        try:
            return read_value(returns, text)
        except ValidationError:
            return text

    @property
    def _keyed(self) -> bool:
        # An id of ours is unique in the thread, and the same in a later pass; a provider's may be neither.
        return self.id.startswith(f"{self._sink.setup.turn}:")

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


def content_of(value: Any) -> str | list[Any]:
    """A tool's value as a tool message's content: a text, content parts, or JSON text."""
    clean = plain(value)
    if isinstance(clean, str):
        return clean
    if isinstance(clean, list) and clean and _are_parts(clean):
        return clean
    return encode(clean)


def text_of(content: Any) -> str:
    """The text of a content: of parts, that of the text parts."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content or () if part.get("type") == "text")


def _are_parts(value: list[Any]) -> bool:
    """Whether a list is exactly content parts; a list of a tool's own dicts is data."""
    event = {"type": "TOOL_CALL_RESULT", "messageId": "", "toolCallId": "", "content": value}
    try:
        return enforce(event) is event
    except ProtocolViolation:
        return False
