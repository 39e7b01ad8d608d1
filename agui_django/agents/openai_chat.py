"""Chat completions, the interface of most model servers: messages and tools for a request, and what is streamed back.

Law: needs no package; pure but for `feed`. What a model must not see (reasoning, activities) or would refuse (calls
without a result, results without a call) is left out, and a result stands directly behind its call.
"""

from __future__ import annotations

import base64
import functools
import inspect
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ag_ui.core import Message, Tool
from pydantic import BaseModel
from pydantic.errors import PydanticUserError

from agui_django.agents.arguments import signature_of
from agui_django.agents.contents import text_of
from agui_django.agents.items import MessageBlock
from agui_django.protocol.attachments import referred
from agui_django.protocol.errors import ProviderError
from agui_django.protocol.interrupts import flat_schema
from agui_django.protocol.models import read_model

if TYPE_CHECKING:
    from agui_django.agents.context import RunContext
    from agui_django.agents.sync import SyncMessageBlock

Wire = dict[str, Any]

#: What stands for the files of a tool's result, which follow it: a tool message holds text only.
FILES_FOLLOW: Final = "The files are in the next message."
_AUDIO: Final = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav", "vnd.wave": "wav", "x-m4a": "m4a", "mp4": "m4a"}


# ---- messages --------------------------------------------------------------------------------------------------------


def to_messages(messages: Iterable[Message | Mapping[str, Any]]) -> list[Wire]:
    """The conversation as chat-completions messages.

    Reasoning and activities are left out; so are calls that nobody has answered, and what a subagent said while it
    executed a call that has its result: that stands for it. Files of the user become parts: images, audio, and others
    by data, address or the provider's file id. Those of a tool's result follow in a message of the user.

    Args:
        messages: official models or wire dicts: ``run.messages``, with or without more around it.
    """
    wires = [read_model(each) if isinstance(each, BaseModel) else dict(each) for each in messages]
    results = results_of(wires)
    executed = [f"/{call_id}:" for call_id in {call for position, call in results}]
    out: list[Wire] = []
    for position, message in enumerate(wires):
        lane = f"/{message.get('subagentRunId') or ''}"
        if any(call in lane for call in executed):
            continue
        role = message["role"]
        if role in ("system", "developer"):
            out.append({"role": role, "content": message["content"], **_named(message)})
        elif role == "user":
            content = message["content"]
            parts = content if isinstance(content, str) else [_part(part) for part in content]
            out.append({"role": role, "content": parts, **_named(message)})
        elif role == "assistant":
            out += _assistant(position, message, results)
    return out


def results_of(messages: Sequence[Wire]) -> dict[tuple[int, str], Wire]:
    """The tool message of each call that has one: (position of the calling message, call id) -> message."""
    waiting: dict[str, int] = {}
    results: dict[tuple[int, str], Wire] = {}
    for position, message in enumerate(messages):
        if message["role"] == "tool":
            caller = waiting.pop(message["toolCallId"], None)
            if caller is not None:
                results[caller, message["toolCallId"]] = message
        for call in message.get("toolCalls") or ():
            waiting[call["id"]] = position  # some providers use an id again in a later message
    return results


def _assistant(position: int, message: Wire, results: Mapping[tuple[int, str], Wire]) -> Iterator[Wire]:
    calls = [call for call in message.get("toolCalls") or () if (position, call["id"]) in results]
    text = message.get("content") or None
    if text is None and not calls:
        return
    said: Wire = {"role": "assistant", "content": text, **_named(message)}
    if calls:
        said["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["function"]["name"], "arguments": call["function"]["arguments"] or "{}"},
            }
            for call in calls
        ]
    yield said
    files: list[Wire] = []
    for call in calls:
        content = results[position, call["id"]]["content"]
        attached = [] if isinstance(content, str) else [part for part in content if part["type"] != "text"]
        files += map(_part, attached)
        told = text_of(content) or (FILES_FOLLOW if attached else "")
        yield {"role": "tool", "tool_call_id": call["id"], "content": told}
    if files:
        yield {"role": "user", "content": files}


def _named(message: Wire) -> Wire:
    return {"name": message["name"]} if message.get("name") else {}


def _part(part: Any) -> Wire:
    """A part of a user's message."""
    part = read_model(part) if isinstance(part, BaseModel) else part
    kind = part["type"]
    if kind == "text":
        return {"type": "text", "text": part["text"]}
    source = part["source"]
    value, media_type = source["value"], source.get("mimeType") or ""
    if source["type"] == "file":
        return {"type": "file", "file": {"file_id": value}}
    address = value if source["type"] == "url" else f"data:{media_type};base64,{value}"
    if kind == "audio" and source["type"] == "data":
        suffix = media_type.partition(";")[0].rpartition("/")[2]
        return {"type": "input_audio", "input_audio": {"data": value, "format": _AUDIO.get(suffix, suffix)}}
    if kind == "document":
        return {"type": "file", "file": {"filename": _file_name(part, media_type), "file_data": address}}
    return {"type": f"{kind}_url", f"{kind}_url": {"url": address}}


def _file_name(part: Wire, media_type: str) -> str:
    metadata = part.get("metadata")
    for name in ("filename", "name", "title"):
        if isinstance(metadata, Mapping) and isinstance(metadata.get(name), str):
            return str(metadata[name])
    suffix = media_type.partition(";")[0].rpartition("/")[2]
    return f"document.{'txt' if suffix == 'plain' else suffix or 'pdf'}"


async def with_files(run: RunContext[Any], messages: Iterable[Message | Mapping[str, Any]] | None = None) -> list[Wire]:
    """Messages whose files are in them: those that the thread keeps have an address that no provider can reach.

    Args:
        run: whose files they are.
        messages: official models or wire dicts; default: ``run.messages``.

    Raises:
        FileNotFoundError: a file is gone.
    """
    out = []
    for each in run.messages if messages is None else messages:
        wire = read_model(each) if isinstance(each, BaseModel) else dict(each)
        if isinstance(wire.get("content"), list):
            wire["content"] = [await _with_file(run, part) for part in wire["content"]]
        out.append(wire)
    return out


async def _with_file(run: RunContext[Any], part: Wire) -> Wire:
    if referred(part) is None:
        return part
    data = base64.b64encode(await run.attachment(part)).decode()
    return {**part, "source": {"type": "data", "value": data, "mimeType": part["source"].get("mimeType") or ""}}


# ---- tools -----------------------------------------------------------------------------------------------------------


def to_tools(*tools: Callable[..., Any] | Tool | Mapping[str, Any], **named: Callable[..., Any]) -> list[Wire]:
    """Tools as a request lists them.

    Args:
        tools: functions, described by their signature and docstring; official models or wire dicts (``run.tools``); or
            what a request holds already.
        named: functions under other names.

    Raises:
        TypeError: a function has no name, or a parameter that JSON cannot express.
    """
    out = [_tool(tool) for tool in tools]
    return out + [_function(name, fn) for name, fn in named.items()]


def _tool(tool: Any) -> Wire:
    if isinstance(tool, BaseModel):
        tool = read_model(tool)
    if not isinstance(tool, Mapping):
        return _function(_name_of(tool), tool)
    if "function" in tool:
        return dict(tool)
    function = {"name": tool["name"], "description": tool.get("description") or ""}
    parameters = tool.get("parameters") or {"type": "object", "properties": {}}
    return {"type": "function", "function": {**function, "parameters": parameters}}


def _function(name: str, fn: Callable[..., Any]) -> Wire:
    try:
        parameters = flat_schema(signature_of(fn).model)
    except PydanticUserError as error:
        raise TypeError(f"A parameter of {name} cannot be told in JSON: {error}") from None
    parameters.pop("description", None)
    parameters.setdefault("properties", {})
    function: Wire = {"name": name, "description": inspect.getdoc(_bare(fn)) or "", "parameters": parameters}
    return {"type": "function", "function": function}


def _bare(fn: Any) -> Any:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def _name_of(fn: Any) -> str:
    name = getattr(_bare(fn), "__name__", None)
    if not isinstance(name, str):
        raise TypeError(f"{fn!r} has no name; pass it by one: to_tools(name=...).")
    return name


# ---- what is streamed back -------------------------------------------------------------------------------------------


async def feed(
    message: MessageBlock, chunks: AsyncIterable[Any] | Awaitable[AsyncIterable[Any]], *, provider: str = ""
) -> str | None:
    """Write a streamed completion into a message: text, reasoning, tool calls; its usage becomes the run's.

    Args:
        message: an open block.
        chunks: the stream, or what gives it when awaited; dicts or objects. It is closed in the end.
        provider: what usage is reported under.

    Returns:
        The finish reason (``stop``, ``tool_calls``, ``length`` …), or None where there was none.

    Raises:
        ProviderError: the stream says so.
    """
    source: Any = await chunks if isinstance(chunks, Awaitable) else chunks
    completion = _Completion(message, provider)
    try:
        async for chunk in source:
            for pause in completion.take(chunk):
                await pause
    finally:
        completion.report()
        close = getattr(source, "aclose", None) or getattr(source, "close", None)
        if close is not None:
            with suppress(RuntimeError):  # a generator that is running
                closing = close()
                if isinstance(closing, Awaitable):
                    await closing
    return completion.finish_reason


def feed_sync(message: SyncMessageBlock, chunks: Iterable[Any], *, provider: str = "") -> str | None:
    """`feed` for code in a thread."""
    completion = _Completion(message._block, provider)
    try:
        for chunk in chunks:
            for _ in completion.take(chunk):
                pass
    finally:
        completion.report()
        close = getattr(chunks, "close", None)
        if close is not None:
            close()
    return completion.finish_reason


class _Completion:
    """One answer, as it comes."""

    def __init__(self, message: MessageBlock, provider: str) -> None:
        self.finish_reason: str | None = None
        self._message = message
        self._provider = provider
        self._model = ""
        self._usage: Any = None
        self._last: Any = None

    def take(self, chunk: Any) -> Iterator[Awaitable[None]]:
        """Write what a chunk brings."""
        error = _get(chunk, "error")
        if error:  # an answer that has begun cannot get another status any more
            limited = str(_get(error, "code")) == "429"
            code = "provider_rate_limited" if limited else "provider_unavailable"
            raise ProviderError("The model's provider failed.", code)
        self._model = _get(chunk, "model") or self._model
        self._usage = _get(chunk, "usage") or self._usage  # the last one holds all
        for choice in _get(chunk, "choices") or ():
            if _get(choice, "index"):  # the first answer only
                continue
            self.finish_reason = _get(choice, "finish_reason") or self.finish_reason
            delta = _get(choice, "delta")
            if delta is not None:
                yield from self._write(delta)

    def _write(self, delta: Any) -> Iterator[Awaitable[None]]:
        message = self._message
        thought = _get(delta, "reasoning_content") or _get(delta, "reasoning")
        if isinstance(thought, str) and thought:
            yield message.reasoning(thought)
        for text in (_get(delta, "content"), _get(delta, "refusal")):
            if text:
                yield message.write(text)
        for call in _get(delta, "tool_calls") or ():
            function = _get(call, "function")
            call_id = _get(call, "id") or None
            index = _get(call, "index")
            if index is None:  # some servers count nothing: an id begins a call, what has none continues the last
                index = self._last if call_id is None else call_id
            self._last = index
            name, args = _get(function, "name") or None, _get(function, "arguments") or None
            yield message.tool_call_delta(index, id=call_id, name=name, args=args)

    def report(self) -> None:
        """Tell the run what was used."""
        if self._usage is None:
            return
        usage, self._usage = self._usage, None
        read, written = _get(usage, "prompt_tokens_details"), _get(usage, "completion_tokens_details")
        parts = {
            "reasoning_tokens": _count(written, "reasoning_tokens"),
            "cached_input_tokens": _count(read, "cached_tokens"),
        }
        self._message._sink.context.usage(
            model=str(self._model),
            provider=self._provider,
            input_tokens=_count(usage, "prompt_tokens"),
            output_tokens=_count(usage, "completion_tokens"),
            **{name: count for name, count in parts.items() if count is not None},
        )


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def _count(value: Any, name: str) -> int | None:
    count = _get(value, name)
    return count if type(count) is int and count >= 0 else None
