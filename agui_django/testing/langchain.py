"""A chat model for LangChain and LangGraph that says what a list says. Needs ``agui_django[langgraph]``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

try:
    from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
    from langchain_core.language_models import LanguageModelInput
    from langchain_core.language_models.chat_models import BaseChatModel, generate_from_stream
    from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
    from langchain_core.messages.tool import tool_call_chunk
    from langchain_core.outputs import ChatGenerationChunk, ChatResult
    from langchain_core.runnables import Runnable
    from langchain_core.utils.function_calling import convert_to_openai_tool
except ImportError as error:
    raise ImportError("Scripted chat models need langchain-core: pip install 'agui_django[langgraph]'") from error

from pydantic import ConfigDict, Field

from agui_django.agents.langgraph_messages import text_in
from agui_django.protocol.codec import encode
from agui_django.testing.replies import Reply, Request, Script

_ROLES = {"human": "user", "ai": "assistant"}


class ScriptedChatModel(BaseChatModel):
    """A chat model that answers by a script, streamed or not.

    Args:
        replies: as for `Script`; or a `Script`.
        options: as for `BaseChatModel`.

    Attributes:
        script: the script, with the requests so far.
        tools: the names of the tools that it was bound to, call by call of ``bind_tools``.
    """

    script: Script
    tools: list[list[str]] = Field(default_factory=list)

    model_config = ConfigDict(arbitrary_types_allowed=True)

    def __init__(self, *replies: Script | Reply | str | Callable[[Request], Reply | str], **options: Any) -> None:
        super().__init__(script=Script.of(*replies), **options)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(
        self, tools: Sequence[dict[str, Any] | type | Callable[..., Any] | Any], **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """The same model; which tools it was given is in `tools`."""
        self.tools.append([convert_to_openai_tool(tool)["function"]["name"] for tool in tools])
        return self.bind(**kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return generate_from_stream(self._stream(messages, stop, run_manager, **kwargs))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for piece in _pieces(self._next(messages)):
            if isinstance(piece, ChatGenerationChunk):
                if run_manager:
                    run_manager.on_llm_new_token(str(piece.text), chunk=piece)
                yield piece
            else:
                asyncio.run(_awaited(piece))

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for piece in _pieces(self._next(messages)):
            if isinstance(piece, ChatGenerationChunk):
                if run_manager:
                    await run_manager.on_llm_new_token(str(piece.text), chunk=piece)
                yield piece
            else:
                await piece()

    def _next(self, messages: list[BaseMessage]) -> Reply:
        return self.script.next([(_ROLES.get(each.type, each.type), text_in(each)) for each in messages])


def _pieces(reply: Reply) -> Iterator[Any]:
    """Chunks, and functions to await at their place; raises what the reply raises."""
    if reply.reasoning:
        yield _chunk(content=[{"type": "reasoning", "reasoning": reply.reasoning, "index": 0}])
    for piece in reply.pieces:
        yield _chunk(content=piece) if isinstance(piece, str) else piece
    for index, (name, args) in enumerate(reply.calls):
        text, half = encode(dict(args)), len(encode(dict(args))) // 2
        call_id = f"call_{index}"
        yield _chunk(tool_call_chunks=[tool_call_chunk(name=name, args=text[:half], id=call_id, index=index)])
        yield _chunk(tool_call_chunks=[tool_call_chunk(args=text[half:], index=index)])
    if reply.raises is not None:
        raise reply.raises
    total = reply.input_tokens + reply.output_tokens
    usage = {"input_tokens": reply.input_tokens, "output_tokens": reply.output_tokens, "total_tokens": total}
    yield _chunk(usage_metadata=usage, response_metadata={"model_name": "scripted"})


def _chunk(**fields: Any) -> ChatGenerationChunk:
    return ChatGenerationChunk(message=AIMessageChunk(**{"content": "", **fields}))


async def _awaited(piece: Callable[[], Any]) -> None:
    await piece()
