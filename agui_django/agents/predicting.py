"""Predictive state: a key of the shared state follows the arguments of a tool call while a model streams them.

Law: JSON decides. What is shown on the way is a prefix of what the arguments will say; once they are complete JSON it
is that, and if they never are, the state is what it was.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, Final

from pydantic_core import from_json

from agui_django.agents.live import MISSING
from agui_django.agents.sink import RunSink
from agui_django.protocol.codec import decode
from agui_django.protocol.errors import AgUiError, InvalidJson
from agui_django.protocol.json_patch import copy_json, json_equal

_ESCAPE: Final = re.compile(r"\\.", re.DOTALL)
#: What a number may end with whose next character has not come yet.
_NUMERIC: Final = "0123456789+-.eE"

#: Seconds until another look whether a thread has left its block.
RETRY: Final = 0.01
#: Half a value need not fit a schema; the state may be no object; its block may have been broken by an await.
_REFUSED: Final = (AgUiError, TypeError, RuntimeError)


class Predicts:
    """`predict_state` of both run contexts."""

    _sink: RunSink

    def predict_state(self, key: str, *, tool: str, argument: str | None = None, every: float = 0.2) -> None:
        """Have ``run.state[key]`` follow a tool's arguments while they are streamed, whoever emits the call.

        It holds for calls that begin later in this run. What the arguments say in the end stays; where they never
        become JSON, fit no schema or the run ends before they do, the state is put back to what it was. Of edits by
        others meanwhile each holds until the next piece comes, and is what is put back.

        Args:
            key: the key of the state.
            tool: the tool's name.
            argument: which of its arguments; default: all of them, as an object.
            every: seconds between two updates, at least.
        """
        self._sink.call(self._sink.follow_calls, Prediction(self._sink, key, tool, argument, every))


class Prediction:
    """One key of the state, and the calls that it follows."""

    def __init__(self, sink: RunSink, key: str, tool: str, argument: str | None, every: float) -> None:
        self.key = key
        self.tool = tool
        self._sink = sink
        self._argument = argument
        self._every = every
        self._due: dict[str, float] = {}  # call -> when it may be shown again
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._written: Any = MISSING  # what we have put there
        self._before: Any = MISSING  # what was there
        self._wrote = False

    def began(self, call_id: str) -> None:
        """A call of the tool was started."""
        if not self._due:
            self._written = MISSING
            self._before = self._found()
        self._due.setdefault(call_id, 0.0)

    def grew(self, call_id: str) -> None:
        """A piece of its arguments has come."""
        due = self._due.get(call_id)
        if due is None or call_id in self._timers:
            return
        loop = asyncio.get_running_loop()
        if loop.time() >= due:
            self._unlocked(self._show, call_id)
        else:
            self._timers[call_id] = loop.call_at(due, self._unlocked, self._show, call_id)

    def ended(self, call_id: str) -> None:
        """There will be no more."""
        if call_id in self._due:
            self._stop_timer(call_id)
            self._unlocked(self._conclude, call_id)

    def finish(self) -> bool:
        """The run ends. Gives whether anything was written to the state."""
        with self._sink.document.lock:
            for call_id in list(self._due):
                self._stop_timer(call_id)
                self._conclude(call_id)
        return self._wrote

    def _stop_timer(self, call_id: str) -> None:
        timer = self._timers.pop(call_id, None)
        if timer is not None:
            timer.cancel()

    def _unlocked(self, step: Callable[[str], None], call_id: str) -> None:
        """Take a step when no thread is inside of a block: it may be waiting for the loop."""
        self._timers.pop(call_id, None)
        lock = self._sink.document.lock
        if not lock.acquire(blocking=False):
            self._timers[call_id] = asyncio.get_running_loop().call_later(RETRY, self._unlocked, step, call_id)
            return
        try:
            step(call_id)
        finally:
            lock.release()

    def _show(self, call_id: str) -> None:
        # Also where there is nothing to show: each look reads all of the arguments.
        self._due[call_id] = asyncio.get_running_loop().time() + self._every
        value = self._part(partial_json(self._text(call_id)))
        if value is not MISSING:
            self._write(value)

    def _conclude(self, call_id: str) -> None:
        del self._due[call_id]
        try:
            value = self._part(decode(self._text(call_id)))
        except InvalidJson:
            value = MISSING
        if value is not MISSING:
            if self._write(value):
                self._before = self._found()
                return
            self._sink.hint("the arguments of a call of %s are nothing that state[%r] can be.", self.tool, self.key)
        self._put_back()

    def _text(self, call_id: str) -> str:
        call = self._sink.call_of(call_id)
        return "" if call is None else str(call["function"]["arguments"])

    def _part(self, arguments: Any) -> Any:
        if self._argument is None:
            return arguments
        return arguments.get(self._argument, MISSING) if isinstance(arguments, dict) else MISSING

    # ---- the state ----

    def _found(self) -> Any:
        state = self._sink.document.value
        return copy_json(state[self.key]) if isinstance(state, dict) and self.key in state else MISSING

    def _is_ours(self) -> bool:
        found = self._found()
        if found is MISSING or self._written is MISSING:
            return found is self._written
        return json_equal(found, self._written)

    def _write(self, value: Any) -> bool:
        """Show a value; False where the state does not take it."""
        if not self._is_ours():
            self._before = self._found()
        try:
            self._sink.document.root[self.key] = value
        except _REFUSED:
            return False
        self._written = self._found()
        self._wrote = True
        return True

    def _put_back(self) -> None:
        """Undo what was shown, unless somebody has put something else there."""
        if self._written is MISSING or not self._is_ours():
            return
        try:
            if self._before is MISSING:
                self._sink.document.root.pop(self.key, None)
            else:
                self._sink.document.root[self.key] = self._before
        except _REFUSED:
            self._sink.logger.exception("The state's %r could not be put back", self.key)
            return
        self._written = MISSING


def partial_json(text: str) -> Any:
    """What the beginning of a JSON text says for sure; MISSING where that is nothing.

    A string may be cut anywhere; a number counts once something follows it.
    """
    if text[-1:] in _NUMERIC and _ESCAPE.sub("", text).count('"') % 2 == 0:
        text = text.rstrip(_NUMERIC)
    try:
        return from_json(text, allow_inf_nan=False, allow_partial="trailing-strings")
    except ValueError:
        return MISSING
