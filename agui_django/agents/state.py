"""The state document of a run: the value that `run.state` shows, and the exact patches that its edits become.

Law: replaying what `take` and `external` gave, in order, on what a client had gives what the document is. A block
(`edit`) is one delta or nothing. Nobody waits while a block is open.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import inf
from types import TracebackType
from typing import Any

from agui_django.agents.journal import MANY_OPS, Mark, Op
from agui_django.agents.live import LiveDict
from agui_django.agents.live_values import check_names
from agui_django.agents.replay import Replayer
from agui_django.agents.state_schema import StateSchema
from agui_django.protocol.codec import clean
from agui_django.protocol.errors import StateTooLarge
from agui_django.protocol.json_patch import PatchError, PatchTooLarge, apply_patch, copy_json

_AWAITED = "There was an await (or a yield) inside `with run.edit_state()`: its edits were rolled back."


@dataclass(frozen=True)
class Snapshot:
    """The whole state, where it is smaller than the patch that leads to it."""

    value: Any


class StateDocument(Replayer):
    """A live JSON document.

    Safe in threads: every edit holds `lock`; so does a block from its beginning to its end. Whoever must let nothing
    happen between two calls (taking the edits, then applying a foreign patch) holds `lock` too.

    Args:
        value: what it starts from, copied; None is ``{}``.
        on_edit: called after the first edit since the last `take`, in the editing thread.
        schema: a TypedDict, pydantic model, JSON Schema or `StateSchema` that every edit must fit. What the document
            starts from is not checked: see `check`.
        default: what becomes of values that `codec.clean` does not know.
        most: bytes of its JSON text; an edit that leads beyond changes nothing and raises StateTooLarge.

    Raises:
        NotJson, StateInvalid: `value` cannot be a state.
    """

    def __init__(
        self,
        value: Any = None,
        *,
        on_edit: Callable[[], None] | None = None,
        schema: Any = None,
        default: Callable[[Any], Any] | None = None,
        most: int | None = None,
    ) -> None:
        super().__init__(default, most)
        self._on_edit = on_edit
        self._schema = schema if schema is None or isinstance(schema, StateSchema) else StateSchema(schema)
        self._value = self._build(self.copy({} if value is None else value, ""), None, None)
        self._blocks: list[_Block] = []
        self._broken: list[_Block] = []
        self.unannounced = on_edit is not None
        self._rest()

    # ---- reading ----

    @property
    def value(self) -> Any:
        """What the document is now: the object itself, never a copy."""
        return self._value

    @property
    def root(self) -> LiveDict:
        """The state as the dict that agents edit.

        Raises:
            TypeError: the state is an array or a scalar.
        """
        if type(self._value) is LiveDict:
            return self._value
        kind = "an array" if isinstance(self._value, list) else "a scalar"
        raise TypeError(
            f"The state is {kind}, not an object: replace it with a StateSnapshotEvent or `run.state = {{}}`."
        )

    @property
    def pending(self) -> bool:
        """Whether `take` has something to give."""
        return bool(self._ops or self._collapsed) and not self._blocks

    @property
    def in_block(self) -> bool:
        """Whether a block is open: its edits cannot be taken yet."""
        return bool(self._blocks)

    def plain(self) -> Any:
        """A deep copy, as plain data."""
        with self.lock:
            return copy_json(self._value)

    def check(self) -> None:
        """Check what the document is now.

        Raises:
            StateInvalid: it does not fit the schema.
        """
        if self._schema is not None:
            self._schema.check(self._value)

    # ---- the engine's side ----

    def take(self) -> list[Op] | Snapshot | None:
        """The patch since the last call, and forget it; None where nothing changed, or while a block is open."""
        with self.lock:
            self._let_nobody_else_in()
            if self._blocks or not (self._ops or self._collapsed):
                return None
            ops, collapsed = self._ops, self._collapsed
            self._ops, self._collapsed, self._limit = [], False, MANY_OPS
            self.unannounced = self._on_edit is not None
            if collapsed or self._larger_than_value(ops):
                return Snapshot(copy_json(self._value))
            return ops

    def assign(self, value: Any) -> None:
        """Make the document another dict (``run.state = {...}``): the difference is recorded, as one edit.

        Raises:
            TypeError: not a dict.
            NotJson, StateInvalid: refused; nothing has changed.
        """
        if value is self._value:
            return
        plain = self.copy({} if value is None else value, "")
        if type(plain) is not dict:
            raise TypeError("Only a dict can be assigned to the state; emit a StateSnapshotEvent for other values.")
        with self.lock:
            if self._watched:
                self._begin_watched()
            self._become(plain)
            self.finish()
        self.announce()

    def apply_foreign(self, ops: Iterable[Mapping[str, Any]]) -> bool:
        """Apply a patch that was emitted as it is; it is not recorded. False, and nothing changed: does not apply.

        Raises:
            StateInvalid: what it leads to does not fit the schema.
            RuntimeError: edits wait to be taken, or a block is open.
        """
        return self._apply(ops) is not None

    def external(self, ops: Iterable[Mapping[str, Any]]) -> list[Op] | None:
        """Apply somebody else's edits in place, not recorded: give what really changed, exactly; None: do not apply.

        Raises:
            StateInvalid, RuntimeError: as `apply_foreign`.
        """
        return self._apply(ops)

    def replace_foreign(self, value: Any) -> None:
        """Become a value that was emitted as a snapshot; not recorded. Containers that stay keep their identity.

        Raises:
            StateInvalid, RuntimeError: as `apply_foreign`.
        """
        plain = self.copy({} if value is None else value, "", nan="null")
        with self.lock:
            self._foreign(lambda: self._become(plain))

    def edit(self) -> AbstractContextManager[LiveDict]:
        """A block whose edits are one delta; rolled back on an exception, checked at its end.

        Raises:
            StateInvalid: at its end, where the state does not fit; rolled back.
            RuntimeError: at its end, where it was left to another task meanwhile; rolled back.
        """
        return _Block(self)

    def check_no_block_open(self) -> None:
        """Called where an agent has let go (a yield, an await): nothing may be open in this thread now.

        Raises:
            RuntimeError: a block was open; it is rolled back.
        """
        for block in self._blocks[:1]:
            if block.thread == threading.get_ident():
                with self.lock:
                    self._break()
                raise RuntimeError(_AWAITED)

    # ---- around each edit ----

    def _begin_watched(self) -> None:
        self._let_nobody_else_in()
        if self._broken:
            here = threading.get_ident(), _current_task()
            if any((block.thread, block.task) == here for block in self._broken):
                raise RuntimeError(_AWAITED)
        if self.checked:
            self._undo, self._ordered = [], set()
            self._mark = self._set_mark()

    def finish(self) -> None:
        """Check the edit against the schema; undo it where it does not fit.

        Raises:
            StateInvalid: it does not fit.
        """
        if not self.checked:
            return
        try:
            if self._undo:
                self.check()
        except BaseException:
            self._roll_back(self._mark)
            raise
        finally:
            self._undo = None
        if len(self._ops) > self._limit:
            self._collapse()

    def announce(self) -> None:
        """Call `on_edit` if there are edits nobody knows of."""
        if self.unannounced and self.pending and self._on_edit is not None:
            self.unannounced = False
            self._on_edit()

    def _rest(self) -> None:
        """What each edit has to look at while no block is open."""
        self._undo = None
        self.checked = self._schema is not None
        self._watched = self.checked or bool(self._broken)

    # ---- foreign changes ----

    def _apply(self, ops: Iterable[Mapping[str, Any]]) -> list[Op] | None:
        ops = clean(list(ops), default=self._default)
        with self.lock:
            try:
                result = apply_patch(self._value, ops, most=None if self._most == inf else int(self._most))
            except PatchTooLarge:
                raise StateTooLarge from None
            except PatchError:
                return None
            check_names(result)

            def write() -> None:
                if any(op["path"] == "" or op.get("from") == "" for op in ops):
                    self._become(result)
                else:
                    self._replay(ops, None)

            return self._foreign(write)

    def _foreign(self, write: Callable[[], None]) -> list[Op]:
        """Write without recording; give what changed."""
        self._let_nobody_else_in()
        if self._blocks:
            raise RuntimeError("A STATE_DELTA or STATE_SNAPSHOT cannot be emitted inside `with run.edit_state()`.")
        if self._ops or self._collapsed:
            raise RuntimeError("take() the edits before a foreign change.")
        self._undo, self._ordered = [], set()
        mark = self._set_mark()
        try:
            write()
            if self._undo:
                self.check()
        except BaseException:
            self._roll_back(mark)
            raise
        else:
            return self._ops
        finally:
            self._ops = []
            self._undo = None

    # ---- blocks ----

    def _open(self, block: _Block) -> LiveDict:
        root = self.root
        self.lock.acquire()
        try:
            self._let_nobody_else_in()
            block.thread, block.task = threading.get_ident(), _current_task()
            if any((other.thread, other.task) == (block.thread, block.task) for other in self._broken):
                raise RuntimeError(_AWAITED)
            if not self._blocks:
                self._undo = []
                self._serial += 1
                self.checked, self._watched = False, True
                if block.task is not None:
                    block.guard = block.task.get_loop().call_soon(self._leaked, block)
            block.mark, block.ordered, self._ordered = self._set_mark(), self._ordered, set()
            self._blocks.append(block)
        except BaseException:
            self.lock.release()
            raise
        return root

    def _close(self, block: _Block, error: type[BaseException] | None) -> None:
        if block.broken:
            with self.lock:
                self._broken.remove(block)
                if not self._blocks:
                    self._rest()
            self.announce()
            if error is None:
                raise RuntimeError(_AWAITED)
            return
        if self._blocks[-1] is not block:
            with self.lock:
                self._break()
            self._close(block, error)
            return
        outermost = len(self._blocks) == 1
        try:
            if error is not None:
                self._roll_back(block.mark)
            elif outermost and self._undo:
                self.check()
        except BaseException:
            self._roll_back(block.mark)
            raise
        finally:
            self._blocks.pop()
            self._ordered = block.ordered
            if outermost:
                if block.guard is not None:
                    block.guard.cancel()
                self._rest()
            self.lock.release()
        self.announce()

    def _let_nobody_else_in(self) -> None:
        """Roll back a block that another task of this thread finds open: there was an await inside it."""
        if self._blocks and self._blocks[0].task is not None and self._blocks[0].task is not _current_task():
            self._break()

    def _leaked(self, block: _Block) -> None:
        with self.lock:
            if block in self._blocks:
                self._break()

    def _break(self) -> None:
        self._roll_back(self._blocks[0].mark)
        blocks, self._blocks = self._blocks, []
        for block in blocks:
            block.broken = True
            if block.guard is not None:
                block.guard.cancel()
            self.lock.release()
        self._broken += blocks
        self._rest()


class _Block:
    __slots__ = ("broken", "document", "guard", "mark", "ordered", "task", "thread")

    def __init__(self, document: StateDocument) -> None:
        self.document = document
        self.broken = False
        self.guard: asyncio.Handle | None = None
        self.mark: Mark = (0, 0, None, 0)
        self.ordered: set[int] = set()
        self.task: asyncio.Task[Any] | None = None
        self.thread = 0

    def __enter__(self) -> LiveDict:
        return self.document._open(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.document._close(self, kind)


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread without a loop
        return None
