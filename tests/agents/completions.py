"""Streamed chat completions as the package `openai` gives them, recorded by shape."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from types import SimpleNamespace
from typing import Any


def chunk(delta: Any, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """One chunk of the first answer."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
    return {
        "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-x", "choices": [choice],
        "usage": None, **more,
    }  # fmt: skip


def piece(index: int | None, id: str | None, name: str | None, arguments: str | None) -> dict[str, Any]:
    """A piece of a tool call, without what is None."""
    function = {"name": name, "arguments": arguments}
    known: dict[str, Any] = {"index": index, "id": id}
    found = {key: value for key, value in known.items() if value is not None}
    return {**found, "type": "function", "function": {k: v for k, v in function.items() if v is not None}}


class Loose(SimpleNamespace):
    """An object that has None for everything that it does not have."""

    def __getattr__(self, name: str) -> None:
        return None


def as_objects(value: Any) -> Any:
    """The same as objects with attributes."""
    if isinstance(value, dict):
        return Loose(**{key: as_objects(item) for key, item in value.items()})
    return [as_objects(item) for item in value] if isinstance(value, list) else value


class Model:
    """Stands for a client of a model server: gives the answers it was made with, and keeps what it was asked."""

    def __init__(self, *answers: list[dict[str, Any]]) -> None:
        self.asked: list[tuple[list[dict[str, Any]], list[dict[str, Any]]]] = []
        self._answers = iter(answers)

    async def stream(self, messages: list[dict[str, Any]], *, tools: Any = ()) -> AsyncIterator[Any]:
        """One answer."""
        self.asked.append((messages, list(tools)))
        for each in next(self._answers):
            yield as_objects(each)


def texts(pieces: Iterable[str]) -> list[dict[str, Any]]:
    """An answer of text only."""
    return [chunk({"content": each}) for each in pieces] + [chunk({}, "stop")]


def calls(name: str, arguments: Iterable[str], id: str = "call_1") -> list[dict[str, Any]]:
    """An answer that calls a tool."""
    first = chunk({"role": "assistant", "content": None, "tool_calls": [piece(0, id, name, "")]})
    rest = [chunk({"tool_calls": [piece(0, None, None, each)]}) for each in arguments]
    return [first, *rest, chunk({}, "tool_calls")]


#: Reasoning, text, two calls at once, usage.
ROUND: list[dict[str, Any]] = [
    chunk({"role": "assistant", "content": "", "refusal": None}),
    chunk({"reasoning_content": "I should "}),
    chunk({"reasoning_content": "look."}),
    chunk({"content": "Let me "}),
    chunk({"content": "see."}),
    chunk({"tool_calls": [piece(0, "call_a", "find", "")]}),
    chunk({"tool_calls": [piece(0, None, None, '{"order')]}),
    chunk({"tool_calls": [piece(1, "call_b", "find", '{"order_id"')]}),
    chunk({"tool_calls": [piece(0, None, None, '_id": 7}'), piece(1, None, None, ": 8}")]}),
    chunk({}, "tool_calls"),
    {
        **chunk({}),
        "choices": [],
        "usage": {
            "prompt_tokens": 20, "completion_tokens": 9, "total_tokens": 29,
            "prompt_tokens_details": {"cached_tokens": 12, "audio_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 4},
        },
    },
]  # fmt: skip
