"""The blocks an agent writes into: messages with their reasoning and calls, and steps.

Law: a block emits when the call returns, opens with its first piece and closes itself, whatever is raised.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from threading import get_ident
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import uuid4

from agui_django.agents.calls import ToolCall
from agui_django.agents.sink import READY, RunSink, Wire

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
B = TypeVar("B", bound="Block")


def any_thread(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """A method of something with a ``_sink``: called in another thread it runs in the loop's, in order."""

    @functools.wraps(method)
    def anywhere(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        sink: RunSink = self._sink  # type: ignore[attr-defined]
        return sink.call(method, self, *args, **kwargs)

    return anywhere


class Block:
    """Something that is open from the beginning of a ``with`` or ``async with`` to its end."""

    def __init__(self, sink: RunSink) -> None:
        self._sink = sink
        self._entered = False
        self._left = False

    def __enter__(self: B) -> B:
        if self._entered:
            raise RuntimeError("A block can be entered once; make another.")
        self._entered = True
        self._sink.call(self._enter)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if get_ident() == self._sink.thread:
            self._leave(error)
        else:
            self._sink.call(self._leave, error)

    async def __aenter__(self: B) -> B:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def _leave(self, error: BaseException | None) -> None:
        try:
            self._sink.settle()  # what threads wrote before comes first
        except Exception:
            self._sink.logger.debug("What came before the end of a block was refused", exc_info=True)
        self._left = True
        self._exit(error)

    def _enter(self) -> None:
        pass

    def _exit(self, error: BaseException | None) -> None:
        pass

    def _usable(self, how: str) -> None:
        if not self._entered:
            raise RuntimeError(f"Open the block first: `async with {how}`.")
        if self._left:
            raise RuntimeError("The block has ended.")


class StepBlock(Block):
    """STEP_STARTED at its beginning, STEP_FINISHED at its end."""

    def __init__(self, sink: RunSink, name: str) -> None:
        super().__init__(sink)
        self.name = name

    def _enter(self) -> None:
        self._sink.send({"type": "STEP_STARTED", "stepName": self.name})

    def _exit(self, error: BaseException | None) -> None:
        self._sink.send_closing({"type": "STEP_FINISHED", "stepName": self.name})


class MessageBlock(Block):
    """One message: text, its reasoning and its tool calls, in any order.

    START comes with the first piece, so an empty block emits nothing. Reasoning closes when text or a call begins; text
    and calls stay open together and close with the block.

    Attributes:
        id: the message's id on the wire.
    """

    def __init__(
        self,
        sink: RunSink,
        id: str,
        *,
        role: str = "assistant",
        name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        skip: bool = False,
        thinking: bool = False,
        keyed: bool = False,
    ) -> None:
        super().__init__(sink)
        self.id = id
        self._opener: Wire = {"role": role}
        if name is not None:
            self._opener["name"] = name
        if metadata:
            self._opener["metadata"] = dict(metadata)
        self._skip = skip
        self._only_reasoning = thinking
        self._keyed = keyed
        self._handle: Any = None
        self._open = False
        self._thought: str | None = None  # the open reasoning's id
        self._thought_handle: Any = None
        self._last_thought: str | None = None
        self._thoughts = 0
        self._calls: list[_StreamedCall] = []
        self._by_index: dict[Any, _StreamedCall] = {}

    # ---- reading ----

    @property
    def text(self) -> str:
        """What was written so far; of a block of reasoning, the reasoning."""
        message = self._sink.call(self._sink.message, self.id)
        content = None if message is None else message.get("content")
        return content if isinstance(content, str) else ""

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The calls of this message, in the order they were made."""
        if not self._skip:
            return [ToolCall(self._sink, call.id, call.name) for call in self._calls]
        message = self._sink.call(self._sink.message, self.id) or {}
        return [ToolCall(self._sink, call["id"], call["function"]["name"]) for call in message.get("toolCalls", ())]

    # ---- writing ----

    def write(self, text: str | None) -> Awaitable[None]:
        """Append text; None and "" do nothing."""
        if text and self._handle is not None:
            return self._sink.piece(self._handle, text)
        if not text:
            return READY
        if get_ident() != self._sink.thread:
            self._sink.post(self._write, text)
            return READY
        return self._write(text)

    def reasoning(self, text: str | None) -> Awaitable[None]:
        """Append to the reasoning; None and "" do nothing."""
        if text and self._thought_handle is not None:
            return self._sink.piece(self._thought_handle, text)
        if not text:
            return READY
        if get_ident() != self._sink.thread:
            self._sink.post(self._reason, text)
            return READY
        return self._reason(text)

    def tool_call_delta(
        self, index: Any, *, id: str | None = None, name: str | None = None, args: str | None = None
    ) -> Awaitable[None]:
        """Append to the call that a model's stream knows by its index.

        Args:
            index: what tells the calls of this message apart.
            id: the provider's id; where it is missing, or names another call already, the call gets one of ours.
            name: the tool; the first piece of an index must have it.
            args: the next piece of the arguments' text.
        """
        call = self._by_index.get(index)
        if call is not None and call.handle is not None and args and not name:
            return self._sink.piece(call.handle, args)
        if get_ident() != self._sink.thread:
            self._sink.post(self._call_delta, index, id, name, args)
            return READY
        return self._call_delta(index, id, name, args)

    @any_thread
    def encrypted_value(
        self, value: str, *, type: str | None = None, call: ToolCall | str | None = None
    ) -> Awaitable[None]:
        """Store a provider's opaque artefact with the reasoning of this message, or with a call.

        Args:
            value: the artefact.
            type: the producer's name for its kind.
            call: the tool call it belongs to; default: the reasoning.
        """
        self._usable("run.message() as m")
        if self._skip:
            return READY
        event: Wire = {"type": "REASONING_ENCRYPTED_VALUE"}
        if call is not None:
            event |= {"subtype": "tool-call", "entityId": call if isinstance(call, str) else call.id}
        else:
            if self._last_thought is None:
                self._start_reasoning()
            event |= {"subtype": "message", "entityId": self._last_thought}
        event["encryptedValue"] = value
        if type is not None:
            event["encryptedValueType"] = type
        return self._sink.send(event)

    # ---- in the loop's thread ----

    def _write(self, text: str) -> Awaitable[None]:
        if self._only_reasoning:
            return self._reason(text)
        self._sink.settle()
        self._usable("run.message() as m")
        if not isinstance(text, str):
            raise TypeError(f"A message takes text, not {type(text).__name__}.")
        if self._skip:
            return READY
        self._end_reasoning()
        if not self._open:
            self._sink.send({"type": "TEXT_MESSAGE_START", "messageId": self.id, **self._opener})
            self._open = True
        done = self._sink.send({"type": "TEXT_MESSAGE_CONTENT", "messageId": self.id, "delta": text})
        self._handle = self._sink.handle("TEXT_MESSAGE_CONTENT", self.id)
        return done

    def _reason(self, text: str) -> Awaitable[None]:
        self._sink.settle()
        self._usable("run.reasoning() as r" if self._only_reasoning else "run.message() as m")
        if not isinstance(text, str):
            raise TypeError(f"Reasoning is text, not {type(text).__name__}.")
        if self._skip:
            return READY
        if self._thought is None:
            self._start_reasoning()
        done = self._sink.send({"type": "REASONING_MESSAGE_CONTENT", "messageId": self._thought, "delta": text})
        self._thought_handle = self._sink.handle("REASONING_MESSAGE_CONTENT", str(self._thought))
        if self._only_reasoning:
            self._handle = self._thought_handle
        return done

    def _start_reasoning(self) -> None:
        self._thoughts += 1
        number = "" if self._thoughts == 1 else str(self._thoughts)
        thought = self.id if self._only_reasoning else f"{self.id}:reasoning{number}"
        # A span and the message inside it may share an id (events/reasoning.mdx).
        self._sink.send({"type": "REASONING_START", "messageId": thought})
        self._sink.send({"type": "REASONING_MESSAGE_START", "messageId": thought, "role": "reasoning"})
        self._thought = self._last_thought = thought
        self._handle = None  # the next text has to end the reasoning first

    def _end_reasoning(self) -> None:
        if self._thought is None:
            return
        thought, self._thought, self._thought_handle = self._thought, None, None
        self._sink.send_closing({"type": "REASONING_MESSAGE_END", "messageId": thought})
        self._sink.send_closing({"type": "REASONING_END", "messageId": thought})

    def _call_delta(self, index: Any, id: str | None, name: str | None, args: str | None) -> Awaitable[None]:
        self._sink.settle()
        self._usable("run.message() as m")
        if self._skip:
            return READY
        call = self._by_index.get(index)
        if call is None or (name and id and id != call.given):  # some providers count every call as the first
            if not name:
                raise ValueError(f"The first piece of the tool call {index!r} must have its name.")
            self._end_reasoning()
            # Some providers count calls anew in every answer; an id names one call of the thread.
            free = id is not None and self._sink.call_of(id) is None
            call = self._by_index[index] = _StreamedCall(id if id and free else uuid4().hex, name, id)
            self._calls.append(call)
            start = {"type": "TOOL_CALL_START", "toolCallId": call.id, "toolCallName": name, "parentMessageId": self.id}
            done = self._sink.send(start)
        else:
            done = READY
        if args:
            self._end_reasoning()
            done = self._sink.send({"type": "TOOL_CALL_ARGS", "toolCallId": call.id, "delta": args})
            call.handle = self._sink.handle("TOOL_CALL_ARGS", call.id)
        return done

    def _exit(self, error: BaseException | None) -> None:
        self._end_reasoning()
        self._handle = None
        for call in self._calls:
            call.handle = None
            self._sink.send_closing({"type": "TOOL_CALL_END", "toolCallId": call.id})
        if self._open:
            self._open = False
            self._sink.send_closing({"type": "TEXT_MESSAGE_END", "messageId": self.id})
            if not self._keyed:
                self._sink.repeated(self.id)


class _StreamedCall:
    __slots__ = ("given", "handle", "id", "name")

    def __init__(self, id: str, name: str, given: str | None) -> None:
        self.id = id
        self.given = given  # the provider's id
        self.name = name
        self.handle: Any = None
