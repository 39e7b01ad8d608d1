"""A pydantic-ai run's events as ours.

Law: a model's response is one message; what it thinks, says and calls is out when it comes. Ids are the provider's
where the thread has no such call yet.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import Any

from ag_ui.core import BaseEvent
from pydantic_ai.messages import (
    FilePart,
    FunctionToolResultEvent,
    ModelResponse,
    NativeToolCallPart,
    NativeToolReturnPart,
    OutputToolResultEvent,
    PartDeltaEvent,
    PartEndEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_core import to_json

from agui_django.agents.calls import ToolCall
from agui_django.agents.context import RunContext
from agui_django.agents.items import MessageBlock
from agui_django.agents.pydantic_ai_messages import NATIVE
from agui_django.protocol.codec import encode


class Shown:
    """What a run has shown.

    Attributes:
        ids: pydantic-ai's call ids -> those on the wire.
        edited: wire ids of calls -> the arguments that a person made of theirs.
        unknown: wire ids of approved calls that have begun, and have not ended by themselves.
    """

    def __init__(self, run: RunContext[Any]) -> None:
        self.ids: dict[str, str] = {}
        self.edited: dict[str, Any] = {}
        self.unknown: set[str] = set()
        self._run = run

    def call(self, call_id: str) -> str:
        """The wire id of a call."""
        return self.ids.get(call_id, call_id)

    # ---- a model's response ----

    async def response(self, message: MessageBlock, events: AsyncIterable[Any]) -> None:
        """Write a response into a message."""
        async for event in events:
            if isinstance(event, PartStartEvent):
                await self._start(message, event.index, event.part)
            elif isinstance(event, PartDeltaEvent):
                await self._delta(message, event.index, event.delta)
            elif isinstance(event, PartEndEvent) and isinstance(event.part, ThinkingPart):
                await self._signed(message, event.part)

    async def _start(self, message: MessageBlock, index: int, part: Any) -> None:
        if isinstance(part, TextPart):
            await message.write(part.content)
        elif isinstance(part, ThinkingPart):
            await message.reasoning(part.content)
        elif isinstance(part, ToolCallPart | NativeToolCallPart):
            given = part.tool_call_id
            if isinstance(part, NativeToolCallPart):
                given = f"{NATIVE}{part.provider_name or ''}:{given}"
            await message.tool_call_delta(index, id=given, name=part.tool_name, args=_args(part.args))
            self.ids[part.tool_call_id] = message.tool_calls[-1].id
        elif isinstance(part, FilePart):
            self._run.log.warning("A file that the model made (%s) cannot be shown", part.content.media_type)

    async def _delta(self, message: MessageBlock, index: int, delta: Any) -> None:
        if isinstance(delta, TextPartDelta):
            await message.write(delta.content_delta)
        elif isinstance(delta, ThinkingPartDelta):
            await message.reasoning(delta.content_delta)
        elif isinstance(delta, ToolCallPartDelta):
            await message.tool_call_delta(index, args=_args(delta.args_delta))

    async def _signed(self, message: MessageBlock, part: ThinkingPart) -> None:
        """Keep what the provider wants back with its own reasoning, and end that: the next is another one."""
        names = ("id", "signature", "provider_name", "provider_details")
        about = {name: value for name in names if (value := getattr(part, name)) is not None}
        if about.get("signature") or about.get("id"):
            await message.encrypted_value(to_json(about).decode(), type="pydantic_ai")
        self._run._sink.call(message._end_reasoning)

    async def natives(self, response: ModelResponse) -> None:
        """The results of what the provider executed itself."""
        for part in response.parts:
            if isinstance(part, NativeToolReturnPart):
                await self._result(part)

    def usage(self, response: ModelResponse) -> None:
        """Report what a response has cost."""
        usage = response.usage
        if not usage.has_values():
            return
        parts: dict[str, Any] = {
            "reasoning_tokens": getattr(usage, "output_reasoning_tokens", 0) or usage.details.get("reasoning_tokens"),
            "cached_input_tokens": usage.cache_read_tokens,
            "cache_write_input_tokens": usage.cache_write_tokens,
        }
        self._run.usage(
            model=response.model_name or "",
            provider=response.provider_name or "",
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            **{name: count for name, count in parts.items() if count},
        )

    # ---- tools ----

    async def results(self, events: AsyncIterable[Any]) -> None:
        """Show the results of tools as they come."""
        async for event in events:
            if isinstance(event, FunctionToolResultEvent | OutputToolResultEvent):
                await self._result(event.part)

    async def _result(self, part: Any) -> None:
        call = ToolCall(self._run._sink, self.call(part.tool_call_id), part.tool_name, frontend=False)
        if call.done:
            return
        # Versions before 2.60 have a part of its own for a call that has to be made again.
        outcome = getattr(part, "outcome", "retried" if hasattr(part, "model_response") else "success")
        metadata: dict[str, Any] = {} if outcome == "success" else {"failed": True}
        if outcome == "denied":
            metadata["declined"] = True
        if call.id in self.edited:
            metadata["editedArgs"] = self.edited[call.id]
        for event in _events(getattr(part, "metadata", None)):
            await self._run.emit(event)
        await call._give(_content(part), metadata)

    def fail(self, error: BaseException) -> None:
        """The failed results of the calls that were under way; what became of the unknown ones the next turn tells."""
        shown = set(self.ids.values()) - self.unknown
        for call in self._run.pending_calls:
            if call.id in shown:
                ToolCall(self._run._sink, call.id, call.name, frontend=False).fail(error)


def _args(args: Any) -> str | None:
    """Arguments as they are streamed."""
    return args if args is None or isinstance(args, str) else encode(args)


def _content(part: Any) -> str:
    """A result as the model is told it."""
    told = part.model_response if hasattr(part, "model_response") else part.model_response_str
    return str(told())


def _events(metadata: Any) -> Iterable[BaseEvent]:
    """Official events that a tool has put into its result's metadata, as pydantic-ai's own endpoint takes them."""
    held = metadata if isinstance(metadata, list | tuple) else [metadata]
    return [event for event in held if isinstance(event, BaseEvent)]
