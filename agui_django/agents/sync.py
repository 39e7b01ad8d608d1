"""`SyncRunContext`: the run for code in a thread. The same names as `RunContext`, and nothing to await.

Law: whatever emits is handed to the loop in order; what returns a value waits for the loop; both raise RunCancelled
once after the run was cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from decimal import Decimal
from functools import partial
from types import TracebackType
from typing import Any, TypeVar, cast, overload

from agui_django.agents.asking import Asks
from agui_django.agents.calls import ToolCall
from agui_django.agents.dispatching import SyncDispatches
from agui_django.agents.facts import Facts, S, wire_part
from agui_django.agents.items import MessageBlock
from agui_django.agents.once import SyncOnce
from agui_django.agents.predicting import Predicts
from agui_django.agents.sink import Event, RunSink
from agui_django.agents.subagents import SyncDelegates

T = TypeVar("T")


class SyncRunContext(Facts[S], SyncDelegates, Predicts, Asks, SyncOnce, SyncDispatches):
    """One run, for an agent or a tool in a thread.

    Type parameter: a TypedDict that says what ``run.state`` holds.
    """

    def __init__(self, sink: RunSink, run: Any) -> None:
        super().__init__(sink)
        self._run = run  # the RunContext of the same run

    def check(self) -> None:
        """Raise RunCancelled if the run was cancelled: for long work that emits nothing."""
        self._sink.check()

    # ---- what is shown ----

    def say(self, text: str | Iterable[str], *, key: str | None = None) -> str:
        """Emit one whole message; gives its text. See `RunContext.say`."""
        block = SyncMessageBlock(self._run.message(key=key))
        with block:
            for piece in (text,) if isinstance(text, str) else text:
                block.write(piece)
        return block.text

    def message(
        self,
        *,
        key: str | None = None,
        id: str | None = None,
        role: str = "assistant",
        name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> SyncMessageBlock:
        """A block that writes one message. See `RunContext.message`."""
        return SyncMessageBlock(self._run.message(key=key, id=id, role=role, name=name, metadata=metadata))

    def reasoning(self, *, key: str | None = None) -> SyncMessageBlock:
        """A block whose ``write`` is reasoning."""
        return SyncMessageBlock(self._run.reasoning(key=key))

    def step(self, name: str) -> AbstractContextManager[Any]:
        """A block between STEP_STARTED and STEP_FINISHED."""
        return cast("AbstractContextManager[Any]", self._run.step(name))

    def activity(
        self,
        type: str,
        content: Mapping[str, Any],
        *,
        key: str | None = None,
    ) -> dict[str, Any]:
        """Show structured progress; gives a live dict. See `RunContext.activity`."""
        return cast("dict[str, Any]", self._run.activity(type, content, key=key))

    def custom(self, name: str, value: Any) -> None:
        """Emit a CUSTOM event."""
        self._run.custom(name, value)

    def emit(self, event: Event) -> None:
        """Emit anything: an official model, a wire dict, or text."""
        self._run.emit(event)

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
        """Report the tokens of a model call. See `RunContext.usage`."""
        counts: Any = {"input_tokens": input_tokens, "output_tokens": output_tokens, **parts}
        self._run.usage(model=model, provider=provider, cost=cost, currency=currency, **counts)

    # ---- tool calls ----

    def tool_call(
        self,
        name: str,
        args: Mapping[str, Any] | None = None,
        *,
        key: str | None = None,
        parent: SyncMessageBlock | str | None = None,
    ) -> SyncToolCall:
        """Show a tool call of ours. See `RunContext.tool_call`."""
        holder = parent._block if isinstance(parent, SyncMessageBlock) else parent
        return SyncToolCall(self._run.tool_call(name, args, key=key, parent=holder))

    def call_frontend_tool(
        self, name: str, args: Mapping[str, Any] | None = None, *, key: str | None = None
    ) -> SyncToolCall:
        """Have the page execute a tool. See `RunContext.call_frontend_tool`."""
        return SyncToolCall(self._run.call_frontend_tool(name, args, key=key))

    @property
    def pending_calls(self) -> list[SyncToolCall]:
        """This turn's calls without a result: ours and the page's."""
        return [SyncToolCall(call) for call in self._run.pending_calls]

    # ---- files ----

    def attachment(self, part: Any) -> bytes:
        """The bytes of a file in a message. See `RunContext.attachment`."""
        return self._sink.wait(partial(self._sink.attachment, wire_part(part)))

    # ---- the state, the log ----

    def edit_state(self) -> AbstractContextManager[S]:
        """A block whose edits of the state leave as one patch; rolled back on an exception."""
        return cast("AbstractContextManager[S]", self._sink.document.edit())

    def flush(self) -> None:
        """Wait until all so far is stored and visible."""
        self._sink.wait(self._sink.flush)


class SyncMessageBlock:
    """A `MessageBlock` for code in a thread."""

    def __init__(self, block: MessageBlock) -> None:
        self._block = block
        self.id = block.id

    @property
    def text(self) -> str:
        """What was written so far."""
        return self._block.text

    @property
    def tool_calls(self) -> list[SyncToolCall]:
        """The calls of this message, in the order they were made."""
        return [SyncToolCall(call) for call in self._block.tool_calls]

    def write(self, text: str | None) -> None:
        """Append text; None and "" do nothing."""
        self._block.write(text)

    def reasoning(self, text: str | None) -> None:
        """Append to the reasoning; None and "" do nothing."""
        self._block.reasoning(text)

    def tool_call_delta(
        self, index: Any, *, id: str | None = None, name: str | None = None, args: str | None = None
    ) -> None:
        """Append to the call that a model's stream knows by its index. See `MessageBlock.tool_call_delta`."""
        self._block.tool_call_delta(index, id=id, name=name, args=args)

    def encrypted_value(self, value: str, *, type: str | None = None, call: SyncToolCall | str | None = None) -> None:
        """Store a provider's opaque artefact. See `MessageBlock.encrypted_value`."""
        self._block.encrypted_value(value, type=type, call=call if call is None or isinstance(call, str) else call.id)

    def __enter__(self) -> SyncMessageBlock:
        self._block.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._block.__exit__(kind, error, trace)


class SyncToolCall:
    """A `ToolCall` for code in a thread."""

    def __init__(self, call: ToolCall) -> None:
        self._call = call
        self.id = call.id
        self.name = call.name
        self.frontend = call.frontend

    def __repr__(self) -> str:
        return repr(self._call)

    @property
    def args_text(self) -> str:
        """The arguments as they were streamed."""
        return self._call.args_text

    @property
    def args(self) -> dict[str, Any]:
        """The arguments. See `ToolCall.args`."""
        return self._call.args

    @property
    def done(self) -> bool:
        """Whether it has a result."""
        return self._call.done

    def result(self, value: Any, *, failed: bool = False) -> None:
        """Give the call its result. See `ToolCall.result`."""
        self._call.result(value, failed=failed)

    def run(self, fn: Callable[..., Any]) -> Any:
        """Call a function with the arguments, here, and give its value as the result. See `ToolCall.run`."""
        return self._call.run_here(fn)

    @overload
    def answer(self) -> str: ...
    @overload
    def answer(self, type: type[T]) -> T: ...
    def answer(self, type: Any = str) -> Any:
        """What the page answered. See `ToolCall.answer`."""
        return self._call.answer(type)

    def __enter__(self) -> SyncToolCall:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call.__exit__(kind, error, trace)
