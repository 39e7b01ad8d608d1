"""`RunContext`: what an agent is given, and everything it can do.

Law: a method that emits is a plain function; the event is out when the call returns, and awaiting only adds
back-pressure. What really waits is a coroutine.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Mapping
from contextlib import AbstractContextManager
from decimal import Decimal
from functools import cached_property
from hashlib import sha256
from typing import Any, Literal, cast
from uuid import uuid4

from agui_django.agents.asking import Asks, plain, use_key
from agui_django.agents.calls import ToolCall
from agui_django.agents.costs import Cost
from agui_django.agents.dispatching import Dispatches
from agui_django.agents.facts import Facts, S, wire_part
from agui_django.agents.items import MessageBlock, StepBlock, any_thread
from agui_django.agents.once import Once
from agui_django.agents.predicting import Predicts
from agui_django.agents.sink import After, Event, Wire
from agui_django.agents.state import Snapshot
from agui_django.agents.subagents import Delegates
from agui_django.agents.sync import SyncRunContext
from agui_django.protocol.codec import encode

_USAGE = {
    "reasoning_tokens": "reasoningTokens",
    "cached_input_tokens": "cachedInputTokens",
    "cache_write_input_tokens": "cacheWriteInputTokens",
}
Role = Literal["developer", "system", "assistant", "user"]


class RunContext(Facts[S], Delegates, Predicts, Asks, Once, Dispatches):
    """One run, for an agent in the event loop. Any thread may emit through it.

    Type parameter: a TypedDict that says what ``run.state`` holds.
    """

    @cached_property
    def sync(self) -> SyncRunContext[S]:
        """The same run for code in a thread: the same names, and nothing to await."""
        return SyncRunContext(self._sink, self)

    # ---- messages ----

    def say(self, text: str | AsyncIterable[str], *, key: str | None = None) -> Awaitable[str]:
        """Emit one whole message; awaiting gives its text.

        Args:
            text: the text, or what streams it (then it has to be awaited).
            key: emitted once per turn: a later pass skips it and gives the text of the first.
        """
        return self._say(text, key) if isinstance(text, str) else self._stream(text, key)

    @any_thread
    def _say(self, text: str, key: str | None) -> Awaitable[str]:
        block = self.message(key=key)
        with block:
            done = block.write(text)
        return After(done, block.text) if key is not None else After(done, text)

    async def _stream(self, pieces: AsyncIterable[str], key: str | None) -> str:
        block = self.message(key=key)
        async with block:
            if not block._skip:
                async for piece in pieces:
                    await block.write(piece)
        return block.text

    @any_thread
    def message(
        self,
        *,
        key: str | None = None,
        id: str | None = None,
        role: Role = "assistant",
        name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> MessageBlock:
        """A block that writes one message, its reasoning and its tool calls.

        Args:
            key: emitted once per turn; in a later pass the block writes nothing.
            id: the id on the wire; default: a new one, or the key's.
            role: who says it.
            name: the speaker's name, where a role has several.
            metadata: stored with the message.
        """
        message_id, skip = self._place(key, id)
        return MessageBlock(
            self._sink,
            message_id,
            role=role,
            name=name,
            metadata=plain(metadata) if metadata else None,
            skip=skip,
            keyed=key is not None,
        )

    @any_thread
    def reasoning(self, *, key: str | None = None) -> MessageBlock:
        """A block whose ``write`` is reasoning."""
        message_id, skip = self._place(key, None)
        return MessageBlock(self._sink, message_id, skip=skip, thinking=True, keyed=True)

    def _place(self, key: str | None, id: str | None) -> tuple[str, bool]:
        if key is None:
            return id or uuid4().hex, False
        keyed = use_key(self._sink, key)
        message_id = id or keyed
        return message_id, self._sink.message(message_id) is not None

    # ---- the rest of what is shown ----

    def step(self, name: str) -> StepBlock:
        """A block between STEP_STARTED and STEP_FINISHED."""
        return StepBlock(self._sink, name)

    @any_thread
    def activity(
        self,
        type: str,
        content: Mapping[str, Any],
        *,
        key: str | None = None,
    ) -> dict[str, Any]:
        """Show structured progress; gives a live dict whose edits leave as patches.

        Args:
            type: what the page renders it as.
            content: a JSON object; it is copied.
            key: the same activity in a later pass goes on under the same id.
        """
        activity_id = uuid4().hex if key is None else use_key(self._sink, key)
        head: Wire = {"messageId": activity_id, "activityType": type}

        def changed(edits: Any) -> Wire:
            if isinstance(edits, Snapshot):
                return {"type": "ACTIVITY_SNAPSHOT", **head, "content": edits.value}
            return {"type": "ACTIVITY_DELTA", **head, "patch": edits}

        document = self._sink.live(plain(content), changed)
        self._sink.send({"type": "ACTIVITY_SNAPSHOT", **head, "content": document.plain()})
        return document.root

    def custom(self, name: str, value: Any) -> Awaitable[None]:
        """Emit a CUSTOM event."""
        event = {"type": "CUSTOM", "name": name, "value": plain(value)}
        return self._send(event)

    def emit(self, event: Event) -> Awaitable[None]:
        """Emit anything: an official model, a wire dict, or text."""
        return self._emit(event)

    @any_thread
    def _emit(self, event: Event) -> Awaitable[None]:
        return self._sink.emitted(event)

    @any_thread
    def _send(self, event: Wire) -> Awaitable[None]:
        return self._sink.send(event)

    def usage(
        self,
        *,
        model: str,
        provider: str = "",
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        cost: Decimal | float | str | None = None,
        currency: str = "",
        **parts: int,
    ) -> None:
        """Report the tokens of a model call; summed per provider and model, sent with the terminal event.

        Args:
            model: the model's name.
            provider: the provider's name.
            input_tokens: every prompt token, cached ones included.
            output_tokens: every generated token, reasoning included.
            cost: what the call cost, where the provider says so; clients are not sent it. Without it ``PRICES`` counts.
            currency: of the cost: ``"USD"``.
            parts: ``reasoning_tokens``, ``cached_input_tokens``, ``cache_write_input_tokens``: parts of the totals.
        """
        entry: Wire = {"provider": provider} if provider else {}
        entry["model"] = model
        for name, count in (("inputTokens", input_tokens), ("outputTokens", output_tokens)):
            if count is not None:
                entry[name] = int(count)
        for name, count in parts.items():
            if name not in _USAGE:
                raise TypeError(f"usage() got an unknown part {name!r}; known are {', '.join(_USAGE)}.")
            if count is not None:
                entry[_USAGE[name]] = int(count)
        self._sink.call(self._sink.add_usage, entry, None if cost is None else Cost(cost, currency))

    # ---- tool calls ----

    @any_thread
    def tool_call(
        self,
        name: str,
        args: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        parent: MessageBlock | str | None = None,
    ) -> ToolCall:
        """Show a tool call of ours: START, ARGS and END at once.

        Args:
            name: the tool.
            args: its arguments.
            key: emitted once per turn; in a later pass the earlier call is given back.
            parent: the message it belongs to; default: one of its own.
        """
        call_id = uuid4().hex if key is None else use_key(self._sink, key)
        return self._call(call_id, name, args, parent, frontend=None)

    @any_thread
    def call_frontend_tool(
        self, name: str, args: Mapping[str, Any] | None = None, *, key: str | None = None
    ) -> ToolCall:
        """Have the page execute a tool; ``answer()`` of what this gives ends the run until the page has answered.

        Args:
            name: one of ``run.tools``.
            args: its arguments.
            key: names the call within the turn; default: the name and a digest of the arguments.
        """
        given = plain(args or {})
        if key is None:
            key = f"{name}:{sha256(encode(given).encode()).hexdigest()[:12]}"
        return self._call(use_key(self._sink, key), name, given, self._asking_message(), frontend=True)

    def _asking_message(self) -> str | None:
        """The last message where it is nothing but calls that wait: they are parallel, and models want those together.

        It is also what keeps the page's list in order: it appends the answers behind all that was asked.
        """
        last = next(iter(self._sink.turn_messages()[-1:]), None)
        if last is None or last["role"] != "assistant" or not last.get("toolCalls") or last.get("content"):
            return None
        return str(last["id"])

    def _call(
        self, call_id: str, name: str, args: Any, parent: MessageBlock | str | None, *, frontend: bool | None
    ) -> ToolCall:
        if self._sink.call_of(call_id) is not None:  # an earlier pass has made it
            return ToolCall(self._sink, call_id, name, frontend=frontend)
        start: Wire = {"type": "TOOL_CALL_START", "toolCallId": call_id, "toolCallName": name}
        if parent is not None:
            start["parentMessageId"] = parent if isinstance(parent, str) else parent.id
        text = encode(plain(args)) if args is not None else ""
        self._sink.send(start)
        if text:
            self._sink.send({"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": text})
        pause = self._sink.send({"type": "TOOL_CALL_END", "toolCallId": call_id})
        return ToolCall(self._sink, call_id, name, frontend=frontend, pause=pause)

    @property
    def pending_calls(self) -> list[ToolCall]:
        """This turn's calls without a result: ours and the page's."""
        return self._sink.call(self._pending)

    # ---- files ----

    async def attachment(self, part: Any) -> bytes:
        """The bytes of a file in a message: of a part of `messages` or of `input`.

        Args:
            part: an official model or a wire dict.

        Raises:
            ValueError: it holds no file, or one at an address that is not this thread's. Those are not fetched: an
                address comes from the client, and could name any server that this one can reach.
            FileNotFoundError: the file is gone.
        """
        return await self._sink.attachment(wire_part(part))

    # ---- the state, the log ----

    def edit_state(self) -> AbstractContextManager[S]:
        """A block whose edits of the state leave as one patch; rolled back on an exception. No await inside."""
        return cast("AbstractContextManager[S]", self._sink.document.edit())

    async def flush(self) -> None:
        """Wait until all so far is stored and visible."""
        await self._sink.flush()
