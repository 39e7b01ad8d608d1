"""A model for pydantic-ai that says what a list says. Needs ``agui_django[pydantic-ai]``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

try:
    from pydantic_ai.messages import (
        ModelMessage,
        ModelResponse,
        ModelResponseStreamEvent,
        SystemPromptPart,
        TextPart,
        ThinkingPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )
except ImportError as error:
    raise ImportError("Scripted models need pydantic-ai: pip install 'agui_django[pydantic-ai]'") from error
from pydantic_ai.models import StreamedResponse
from pydantic_ai.models.function import (
    AgentInfo,
    DeltaThinkingPart,
    DeltaToolCall,
    FunctionModel,
    FunctionStreamedResponse,
)
from pydantic_ai.usage import RequestUsage

from agui_django.protocol.codec import encode
from agui_django.testing.replies import Reply, Request, Script


class ScriptedModel(FunctionModel):
    """A model that answers by a script, streamed or not.

    Args:
        replies: as for `Script`; or a `Script`.
        options: as for `FunctionModel`.

    Attributes:
        script: the script, with the requests so far.
        messages: what it was given, as pydantic-ai's messages.
    """

    def __init__(self, *replies: Script | Reply | str | Callable[[Request], Reply | str], **options: Any) -> None:
        self.script = Script.of(*replies)
        self.messages: list[list[ModelMessage]] = []
        self._streamed: dict[int, Reply] = {}  # by the identity of what the model was given
        options.setdefault("model_name", "scripted")
        super().__init__(self._answer, stream_function=self._stream, **options)

    def _next(self, messages: list[ModelMessage], info: AgentInfo) -> Reply:
        self.messages.append(list(messages))
        asked = [part for message in messages for part in _told(message)]
        return self.script.next([("system", info.instructions), *asked] if info.instructions else asked)

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        reply = self._next(messages, info)
        text = ""
        for piece in reply.pieces:
            if isinstance(piece, str):
                text += piece
            else:
                await piece()
        if reply.raises is not None:
            raise reply.raises
        parts: list[Any] = [ThinkingPart(reply.reasoning)] if reply.reasoning else []
        parts += [TextPart(text)] if text else []
        parts += [ToolCallPart(name, dict(args)) for name, args in reply.calls]
        return ModelResponse(
            parts, usage=RequestUsage(input_tokens=reply.input_tokens, output_tokens=reply.output_tokens)
        )

    async def _stream(self, messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        self._streamed[id(messages)] = reply = self._next(messages, info)
        if reply.reasoning:
            yield {0: DeltaThinkingPart(content=reply.reasoning)}
        for piece in reply.pieces:
            if isinstance(piece, str):
                yield piece
            else:
                await piece()
        for number, (name, args) in enumerate(reply.calls, 1):
            yield {number: DeltaToolCall(name, encode(args), tool_call_id=f"call_{number}")}
        if reply.raises is not None:
            raise reply.raises

    @asynccontextmanager
    async def request_stream(
        self, messages: list[ModelMessage], *args: Any, **kwargs: Any
    ) -> AsyncGenerator[StreamedResponse]:
        """As `FunctionModel`, with the script's usage instead of an estimate."""
        async with super().request_stream(messages, *args, **kwargs) as streamed:
            counted = _Counted(
                model_request_parameters=streamed.model_request_parameters,
                _model_name=streamed.model_name,
                _iter=cast(FunctionStreamedResponse, streamed)._iter,
            )
            yield counted.of(self._streamed.pop(id(messages)))


class _Counted(FunctionStreamedResponse):
    """A streamed response whose usage is told at its end."""

    def of(self, reply: Reply) -> _Counted:
        """The response that streams a reply."""
        self._told = RequestUsage(input_tokens=reply.input_tokens, output_tokens=reply.output_tokens)
        return self

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        async for event in super()._get_event_iterator():
            yield event
        self._usage = self._told


def _told(message: ModelMessage) -> Request:
    """A message as (role, text); a response is one, whatever its parts are."""
    if isinstance(message, ModelResponse):
        return [("assistant", "".join(part.content for part in message.parts if isinstance(part, TextPart)))]
    told: Request = []
    for part in message.parts:
        if isinstance(part, SystemPromptPart):
            told.append(("system", part.content))
        elif isinstance(part, UserPromptPart):
            content = [part.content] if isinstance(part.content, str) else part.content
            told.append(("user", "".join(each for each in content if isinstance(each, str))))
        elif isinstance(part, ToolReturnPart):
            told.append(("tool", part.model_response_str()))
    return told
