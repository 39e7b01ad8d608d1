"""What a graph streams, as events of a run: messages, results, steps, subagents, custom events, the shared state.

Law: LangGraph's parts come in order, but of several nodes at once; so what is open is kept by its id, and closed with
the task that it belongs to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from ag_ui.core import BaseEvent
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langgraph.types import StreamMode
from pydantic_core import to_jsonable_python

from agui_django.agents.asking import plain
from agui_django.agents.calls import FAILED, ToolCall
from agui_django.agents.context import RunContext
from agui_django.agents.items import MessageBlock, StepBlock
from agui_django.agents.langgraph_lanes import Lanes, Path
from agui_django.agents.langgraph_messages import parts_in
from agui_django.protocol.codec import encode

Wire = dict[str, Any]

#: What a graph is asked to stream.
MODES: Final[list[StreamMode]] = ["messages", "values", "custom", "tasks"]
#: The name of a CUSTOM event whose value brings none.
CUSTOM = "langgraph"


class Origin(NamedTuple):
    """Where an interrupt came from: a namespace, and the tool call that was being executed, if it was one."""

    path: Path = ()
    call_id: str | None = None


class SharedState:
    """Chosen keys of a graph's state, as the run's.

    Args:
        run: whose state it is.
        keys: the keys.
    """

    def __init__(self, run: RunContext[Any], keys: tuple[str, ...]) -> None:
        self._run = run
        self._keys = keys
        self._seen = self.given()

    def given(self) -> Wire:
        """What the graph starts from."""
        return {key: plain(self._run.state[key]) for key in self._keys if key in self._run.state}

    def take(self, values: Mapping[str, Any]) -> None:
        """What the graph has now. Only what it changed is written: people may edit the state meanwhile."""
        changed = {}
        for key in self._keys:
            if key in values and self._seen.get(key, ...) != (now := jsonable(values[key])):
                changed[key] = self._seen[key] = now
        if changed:
            self._run.state = {**self._run.state, **changed}


class GraphStream:
    """One run of a graph.

    Args:
        run: the run.
        shared: the shared state.
        lanes: its subagents.
        messages: the key of the graph's state that holds the conversation, or None.
        steps: whether nodes are shown as steps.
        page: the names of the tools that the page executes.
        show_errors: whether the text of a failed tool is shown.

    Attributes:
        values: the last state of the graph.
        asked: where the interrupts came from, by id.
    """

    def __init__(
        self,
        run: RunContext[Any],
        shared: SharedState,
        lanes: Lanes,
        *,
        messages: str | None,
        steps: bool,
        page: frozenset[str],
        show_errors: bool,
    ) -> None:
        self.values: Any = None
        self.asked: dict[str, Origin] = {}
        self._run = run
        self._shared = shared
        self._lanes = lanes
        self._messages = messages
        self._with_steps = steps
        self._page = page
        self._show_errors = show_errors
        self._steps: dict[tuple[Path, str], tuple[StepBlock, set[str]]] = {}
        self._open: dict[str, tuple[MessageBlock, str]] = {}  # by message id: the block, and the task it belongs to
        self._placed: dict[str, Path] = {}
        self._calls: dict[str, str] = {}  # the provider's call ids -> ours
        self._executed: dict[str, str] = {}  # by task: the call that it is the execution of

    def remember(self, messages: Iterable[Any]) -> None:
        """What the graph knew when it stopped: calls that have other ids here."""
        for message in messages:
            ours = self._run._sink.message(str(message.id)) if isinstance(message, AIMessage) else None
            for call, own in zip(message.tool_calls if ours else (), (ours or {}).get("toolCalls") or (), strict=False):
                self._calls[str(call["id"])] = own["id"]

    async def take(self, path: Path, mode: str, data: Any) -> None:
        """One part of the stream."""
        if mode == "messages":
            for pause in self._message(path, *data):
                await pause
        elif mode == "custom":
            await self._custom(path, data)
        elif mode == "tasks":
            for pause in self._ended(path, data) if "result" in data else self._began(path, data):
                await pause
        elif not path:
            self.values = data
            if isinstance(data, Mapping):
                self._shared.take(data)

    def close(self, error: BaseException | None = None) -> None:
        """Close what is open; of calls that were being executed when something was raised, say that they failed."""
        for block, _ in self._open.values():
            block.__exit__(None, None, None)
        self._open.clear()
        if error is not None:
            for call in self.pending():
                call.frontend = False
                call.fail(error)
        for step, _ in reversed(self._steps.values()):
            step.__exit__(None, None, None)
        self._steps.clear()
        self._lanes.close(error)

    def pending(self) -> list[ToolCall]:
        """The graph's own calls without a result."""
        return [call for call in self._lanes.pending_calls() if call.name not in self._page]

    # ---- tasks -----------------------------------------------------------------------------------------------------

    def _began(self, path: Path, task: Wire) -> Iterator[Awaitable[None]]:
        call = task["input"].get("tool_call") if isinstance(task["input"], Mapping) else None
        if isinstance(call, Mapping):  # a ToolNode that was sent one call
            self._executed[task["id"]] = self._calls.get(str(call["id"]), str(call["id"]))
        if self._with_steps:
            step, tasks = self._steps.get((path, task["name"])) or (self._lanes.at(path).step(task["name"]), set())
            if not tasks:
                step.__enter__()
                self._steps[path, task["name"]] = step, tasks
            tasks.add(task["id"])
        yield from ()

    def _ended(self, path: Path, task: Wire) -> Iterator[Awaitable[None]]:
        segment = f"{task['name']}:{task['id']}"
        self._close_messages("|".join((*path, segment)))
        for interrupt in task["interrupts"]:
            self.asked.setdefault(interrupt["id"], Origin(path, self._executed.get(task["id"])))  # the innermost first
        if not task["interrupts"]:  # else the subagent goes on in a later run
            yield from self._adopted(path, task["result"])
            self._lanes.end((*path, segment))
        step, tasks = self._steps.get((path, task["name"]), (None, set()))
        tasks.discard(task["id"])
        if step is not None and not tasks:
            del self._steps[path, task["name"]]
            step.__exit__(None, None, None)

    def _adopted(self, path: Path, result: Any) -> Iterator[Awaitable[None]]:
        """What a node gives on of its subagent's own conversation is said again, here: LangGraph streams an id once."""
        found = result.get(self._messages) if isinstance(result, Mapping) else None
        if isinstance(found, Mapping) and "$writes" in found:
            found = [each for write in found["$writes"] for each in (write if isinstance(write, list) else [write])]
        for message in found if isinstance(found, list) else [found]:
            if not isinstance(message, AIMessage):
                continue
            placed = self._placed.get(str(message.id), ())
            if len(placed) > len(path) and self._lanes.private(placed[: len(path) + 1]):
                self._placed[str(message.id)] = path
                yield from self._whole(path, message, f"{message.id}:{len(path)}")

    # ---- messages --------------------------------------------------------------------------------------------------

    def _message(self, path: Path, message: BaseMessage, about: Mapping[str, Any]) -> Iterator[Awaitable[None]]:
        if isinstance(message, AIMessageChunk):
            block = self._block(path, str(message.id), str(about.get("langgraph_checkpoint_ns", "")))
            yield from self._written(block, message)
            if message.chunk_position == "last":
                self._close_message(str(message.id))
        elif isinstance(message, AIMessage):
            if self._run._sink.message(str(message.id)) is None:
                yield from self._whole(path, message, str(message.id))
        elif isinstance(message, ToolMessage):
            yield from self._result(path, message)

    def _block(self, path: Path, id: str, task: str) -> MessageBlock:
        if id not in self._open:
            # An id that names a message already is a provider's that counts anew.
            free = self._run._sink.message(id) is None
            block = self._lanes.at(path).message(id=id if free else None)
            self._open[id] = block.__enter__(), task
            self._placed[id] = path
        return self._open[id][0]

    def _whole(self, path: Path, message: AIMessage, id: str) -> Iterator[Awaitable[None]]:
        self._placed.setdefault(str(message.id), path)
        with self._lanes.at(path).message(id=id, name=message.name) as block:
            yield from self._written(block, message)
        self._note_calls(block)

    def _written(self, block: MessageBlock, message: AIMessage) -> Iterator[Awaitable[None]]:
        if type(message.content) is str and not message.additional_kwargs:
            yield block.write(message.content)
        else:
            for part in message.content_blocks:
                if part["type"] == "reasoning":
                    yield block.reasoning(part.get("reasoning"))
                elif part["type"] == "text":
                    yield block.write(part["text"])
        if isinstance(message, AIMessageChunk):
            for piece in message.tool_call_chunks:
                # Some servers count nothing: an id begins a call, what has none continues the last.
                index = piece["index"] if piece.get("index") is not None else piece.get("id") or self._last_of(block)
                yield block.tool_call_delta(index, id=piece["id"], name=piece["name"], args=piece["args"])
            return
        for number, call in enumerate([*message.tool_calls, *message.invalid_tool_calls]):
            args = call["args"] if isinstance(call["args"], str) else encode(plain(call["args"]))
            yield block.tool_call_delta(number, id=call["id"], name=call["name"], args=args)

    def _last_of(self, block: MessageBlock) -> Any:
        return next(reversed(block._by_index), None)

    def _close_messages(self, task: str) -> None:
        for id in [id for id, (_, owner) in self._open.items() if owner == task]:
            self._close_message(id)

    def _close_message(self, id: str) -> None:
        block, _ = self._open.pop(id)
        block.__exit__(None, None, None)
        self._note_calls(block)

    def _note_calls(self, block: MessageBlock) -> None:
        for call in block._calls:
            if call.given and call.given != call.id:
                self._calls[call.given] = call.id

    def _result(self, path: Path, message: ToolMessage) -> Iterator[Awaitable[None]]:
        sink = self._run._sink
        call_id = self._calls.get(message.tool_call_id, message.tool_call_id)
        call = sink.call_of(call_id)
        if call is None or sink.result_of(call_id) is not None or call["function"]["name"] in self._page:
            return
        event: Wire = {"type": "TOOL_CALL_RESULT", "messageId": str(message.id), "toolCallId": call_id}
        event["content"] = parts_in(message)
        if message.status == "error":
            event["metadata"] = {"failed": True}
            if not self._show_errors:
                # It may hold an exception's text.
                self._run.log.warning("The tool %s failed: %s", call["function"]["name"], event["content"])
                event["content"] = FAILED
        yield self._lanes.at(path).emit(event)

    # ---- custom events ---------------------------------------------------------------------------------------------

    def _custom(self, path: Path, data: Any) -> Awaitable[None]:
        lane = self._lanes.at(path)
        if isinstance(data, BaseEvent):
            return lane.emit(data)
        if isinstance(data, Mapping) and data.keys() == {"name", "value"} and isinstance(data["name"], str):
            return lane.custom(data["name"], jsonable(data["value"]))
        return lane.custom(CUSTOM, jsonable(data))


def jsonable(value: Any) -> Any:
    """A value of a graph's state as plain JSON: models and dataclasses, too."""
    return plain(to_jsonable_python(value))
