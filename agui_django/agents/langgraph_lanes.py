"""Subgraphs as subagents: which of a graph's namespaces is which lane of the run.

Law: a namespace is a path of ``node:task id``; task ids are the same when a graph goes on with an answer, and so are
the subagents.
"""

from __future__ import annotations

from typing import Any, Literal

from langgraph.pregel import Pregel

from agui_django.agents.calls import ToolCall
from agui_django.agents.context import RunContext
from agui_django.agents.subagents import SubagentBlock

Path = tuple[str, ...]
How = Literal["subagents", "inline", "hidden"]


class Lanes:
    """The run contexts of a graph's namespaces.

    Args:
        run: the run; the graph's own namespace.
        graph: the graph.
        how: whether subgraphs are shown as subagents.
        messages: the key of the graph's state that holds the conversation, or None.
    """

    def __init__(self, run: RunContext[Any], graph: Pregel[Any, Any, Any, Any], how: How, messages: str | None) -> None:
        self._run = run
        self._graph = graph
        self._how = how
        self._messages = messages
        self._open: dict[Path, SubagentBlock[RunContext[Any]]] = {}
        self._closed: set[Path] = set()

    def at(self, path: Path) -> RunContext[Any]:
        """The context of a namespace; its subagent begins with the first that is asked for it."""
        if not path or self._how != "subagents":
            return self._run
        if path not in self._open:
            above, task, number = path[:-1], path[-1], ""
            if ":" not in task:  # a task's second call of a subgraph has its number behind the task
                above, task, number = path[:-2], path[-2], f":{path[-1]}"
            if path in self._closed:
                return self.at(above)
            name, _, task_id = task.partition(":")
            # A part of the id: they stand behind each other, and ids have a length.
            block = self.at(above).subagent(name, key=f"{name}:{task_id[:13]}{number}")
            block.__enter__()
            self._open[path] = block
        return self._open[path].context

    def end(self, task: Path) -> None:
        """A task is done, and so are its subagents, the innermost first."""
        for path in sorted((path for path in self._open if path[: len(task)] == task), key=len, reverse=True):
            self._close(path, None)

    def close(self, error: BaseException | None) -> None:
        """End all that are open."""
        for path in sorted(self._open, key=len, reverse=True):
            self._close(path, error)

    def _close(self, path: Path, error: BaseException | None) -> None:
        block = self._open.pop(path)
        self._closed.add(path)
        block.__exit__(None if error is None else type(error), error, None)

    def pending_calls(self) -> list[ToolCall]:
        """The calls without a result, of the run and of its open subagents."""
        contexts = [self._run, *(block.context for block in self._open.values())]
        return list({call.id: call for context in contexts for call in context.pending_calls}.values())

    # ---- whose messages are whose ----------------------------------------------------------------------------------

    def private(self, path: Path) -> bool:
        """Whether what is said there is no part of the graph's own conversation."""
        if self._how != "subagents":
            return False
        graph: Any = self._graph
        for segment in path:
            node = graph.nodes.get(segment.partition(":")[0])
            graph = getattr(node, "bound", None)
            if not isinstance(graph, Pregel) or self._messages not in graph.channels:
                return True  # called by a function, which gives on what it likes; or it shares no messages
        return False

    def private_message(self, message: dict[str, Any]) -> bool:
        """The same of a stored message."""
        owner = message.get("subagentRunId")
        if not owner or self._how != "subagents":
            return False
        turn, _, _ = owner.partition(":")
        keys = owner.rpartition(f"{turn}:")[2].removeprefix(self._run._sink.prefix)
        return self.private(tuple(keys.split("/")))
