"""What a run has to know of a graph's model calls beside their text: what they used, and whether they failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.outputs import LLMResult

from agui_django.agents.context import RunContext
from agui_django.agents.provider_errors import causes, provider_error
from agui_django.protocol.errors import ProviderError


class ModelWatch(BaseCallbackHandler):
    """Reports usage to a run, also of models that do not stream; remembers what model calls raised.

    Args:
        run: the run.
    """

    run_inline = True  # in the order of things, and in the loop's thread where the model is called there

    def __init__(self, run: RunContext[Any]) -> None:
        self._run = run
        self._called: dict[UUID, Mapping[str, Any]] = {}
        self._failed: list[BaseException] = []

    def on_chat_model_start(
        self, serialized: Any, messages: Any, *, run_id: UUID, metadata: Mapping[str, Any] | None = None, **_: Any
    ) -> None:
        """A call begins."""
        self._called[run_id] = metadata or {}

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        """A call has ended: its usage is the run's."""
        about = self._called.pop(run_id, {})
        for generation in (each for row in response.generations for each in row):
            message = getattr(generation, "message", None)
            if isinstance(message, AIMessage) and message.usage_metadata:
                self._report(message, about)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """A call has failed."""
        self._called.pop(run_id, None)
        self._failed.append(error)

    def provider_error(self, error: BaseException) -> ProviderError | None:
        """What the client is told, where it was a model's provider that failed."""
        for each in causes(error):
            if any(each is failed for failed in self._failed):
                return provider_error(each)
        return None

    def _report(self, message: AIMessage, about: Mapping[str, Any]) -> None:
        usage: Any = message.usage_metadata
        read, written = usage.get("input_token_details") or {}, usage.get("output_token_details") or {}
        parts = {
            "reasoning_tokens": written.get("reasoning"),
            "cached_input_tokens": read.get("cache_read"),
            "cache_write_input_tokens": read.get("cache_creation"),
        }
        told = message.response_metadata
        self._run.usage(
            model=str(told.get("model_name") or told.get("model") or about.get("ls_model_name") or ""),
            provider=str(told.get("model_provider") or about.get("ls_provider") or ""),
            input_tokens=usage["input_tokens"],
            output_tokens=usage["output_tokens"],
            **{name: count for name, count in parts.items() if count},
        )
