"""The only place that changes live containers: each change, its exact JSON Patch operation and its way back.

Law: a value is copied and checked before anything changes, so a refused edit leaves nothing behind; a path is found
by walking up from the container, never by searching the document; the way back is kept only while somebody may need it
(a block, a schema, a foreign patch).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Final, Literal

from agui_django.agents.live import LIVE, MISSING, Live, LiveDict, LiveList
from agui_django.agents.live_values import SCALARS, copy_of, key_of, same, token_of
from agui_django.agents.undo import attach, reinstate, renumber, restore, uninsert, unput, unremove, unset
from agui_django.protocol.codec import clean_text, encode
from agui_django.protocol.errors import StateTooLarge

Op = dict[str, Any]
Mark = tuple[int, int, Op | None, int]

#: So many unsent operations, and it is looked whether a snapshot has become smaller.
MANY_OPS: Final = 4096


class Journal:
    """The edits of one document. `StateDocument` is what others use."""

    def __init__(self, default: Callable[[Any], Any] | None, most: int | None = None) -> None:
        self.lock = threading.RLock()
        #: Edits outside blocks are checked one by one (there is a schema).
        self.checked = False
        #: The next edit must be announced.
        self.unannounced = False
        #: Told of every dict and list that was copied into the document; in the editing thread.
        self.copied: Callable[[Any], None] | None = None
        self._default = default
        self._value: Any = None
        self._ops: list[Op] = []
        self._collapsed = False  # the operations were more than a snapshot and are forgotten
        self._limit = MANY_OPS
        #: Bytes of JSON text that the value may have; it has at most so many, measured at the first edit.
        self._most = inf if most is None else most
        self._ceiling = self._most
        self._floor = 0  # the JSON text of the value is at least so long
        self._undo: list[tuple[Any, ...]] | None = None
        self._ordered: set[int] = set()  # dicts whose order of keys the way back knows
        self._watched = False  # begin() has more to do: a block, a schema
        self._serial = 0  # of the open or last block
        self._mark: Mark = (0, 0, None, 0)

    # ---- around each edit; StateDocument says what a watched edit and a finished one are ----

    def begin(self, node: Live) -> str | None:
        """The path of a container that is about to change; None where it has left the state."""
        if self._watched:
            self._begin_watched()
        path = ""
        top: Any = node
        parent: Any = node._parent
        while parent is not None:
            key = top._key
            if type(key) is int:
                if key >= len(parent) or list.__getitem__(parent, key) is not top:
                    key = renumber(parent, top)
                path = f"/{key}{path}"
            else:
                path = key + path
            top = parent
            parent = top._parent
        if top is self._value:
            return path
        if self._undo is not None and top._key == self._serial:
            # Taken out inside the open block: a roll-back puts it back as it was.
            self._undo.append((restore, node, dict.copy(node) if isinstance(node, dict) else list.copy(node)))
        return None

    def _begin_watched(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """Check the edit, where edits are checked one by one."""
        raise NotImplementedError

    def announce(self) -> None:
        """Tell the owner that there are edits; called without the lock."""
        raise NotImplementedError

    # ---- dicts ----

    def put(self, node: LiveDict, path: str, key: Any, value: Any) -> None:
        """Set a key to a copy of a value."""
        old = dict.get(node, key, MISSING)
        if old is value:
            return
        if old is MISSING:
            key = key_of(path, key)
            old = dict.get(node, key, MISSING)
        kind = type(value)
        if kind is str:
            value = clean_text(value)
        elif kind not in SCALARS:
            self.put_plain(node, path, key, self.copy(value, path + token_of(key)), old)
            return
        if type(old) is kind and old == value:
            return
        more = 6 * len(value) if kind is str else value.bit_length() // 3 if kind is int else 24
        ceiling = self._ceiling + more + 6 * len(key) + 8
        if ceiling > self._most:
            self._fit(path, {key: value}, old)
        else:
            self._ceiling = ceiling
        # What put_plain does, for the commonest edit.
        if self._undo is not None:
            self._undo.append((unput, node, key, old, None))
        dict.__setitem__(node, key, value)
        if type(old) in LIVE:
            self._left(old)
        self._record("add" if old is MISSING else "replace", path + token_of(key), value, old)

    def put_plain(self, node: LiveDict, path: str, key: str, plain: Any, old: Any, live: Any = None) -> None:
        """Set a key to a plain value that is ours; `live` is its container where there is one already."""
        if old is not MISSING and same(old, plain):
            return
        token = token_of(key)
        self._fit(path, {key: plain}, old)
        new = plain
        if type(plain) is dict or type(plain) is list:
            new = self._build(plain, node, token) if live is None else attach(live, node, token)
        if self._undo is not None:
            self._undo.append((unput, node, key, old, None))
        dict.__setitem__(node, key, new)
        self._left(old)
        self._record("add" if old is MISSING else "replace", path + token, plain, old)

    def put_many(self, node: LiveDict, path: str, pairs: Mapping[Any, Any]) -> None:
        """Set many keys; nothing is set where one is refused."""
        plain = []
        for name, value in pairs.items():
            key = key_of(path, name)
            if dict.get(node, key, MISSING) is not value:
                plain.append((key, self.copy(value, path + token_of(key))))
        self._fit(path, dict(plain), [dict.get(node, key) for key, _ in plain])
        for key, value in plain:
            self.put_plain(node, path, key, value, dict.get(node, key, MISSING))

    def discard(self, node: LiveDict, path: str, key: str) -> None:
        """Remove a key."""
        if self._undo is not None:
            order = None
            if id(node) not in self._ordered:
                self._ordered.add(id(node))
                order = [*dict.__iter__(node)]
            self._undo.append((unput, node, key, dict.__getitem__(node, key), order))
        old = dict.pop(node, key)
        self._left(old)
        self._record("remove", path + token_of(key), MISSING, old)

    def refill_dict(self, node: LiveDict, path: str, plain: dict[str, Any]) -> None:
        """Give a dict other keys and values, which are ours: one replace. It keeps its identity."""
        old = dict.copy(node)
        self._fit(path, plain, old)
        if self._undo is not None:
            self._undo.append((reinstate, node, old))
        for value in old.values():
            self._left(value)
        dict.clear(node)
        for key, value in plain.items():
            dict.__setitem__(node, key, self._build(value, node, token_of(key)))
        self._record("replace", path, plain, old)

    # ---- lists ----

    def set_item(self, node: LiveList, path: str, index: int, value: Any) -> None:
        """Replace an item by a copy of a value."""
        old = list.__getitem__(node, index)
        if old is not value:
            self.set_item_plain(node, path, index, self.copy(value, f"{path}/{index}"))

    def set_item_plain(self, node: LiveList, path: str, index: int, plain: Any) -> None:
        """Replace an item by a plain value that is ours."""
        old = list.__getitem__(node, index)
        if same(old, plain):
            return
        self._fit(path, plain, old)
        if self._undo is not None:
            self._undo.append((unset, node, index, old))
        list.__setitem__(node, index, self._build(plain, node, index))
        self._left(old)
        self._record("replace", f"{path}/{index}", plain, old)

    def insert(self, node: LiveList, path: str, index: int, value: Any) -> None:
        """Insert a copy of a value."""
        self.insert_plain(node, path, index, self.copy(value, f"{path}/{index}"))

    def insert_plain(self, node: LiveList, path: str, index: int, plain: Any, live: Any = None) -> None:
        """Insert a plain value that is ours; `live` is its container where there is one already."""
        self._fit(path, plain, MISSING)
        new = self._build(plain, node, index) if live is None else attach(live, node, index)
        if self._undo is not None:
            self._undo.append((uninsert, node, index))
        list.insert(node, index, new)
        self._record("add", f"{path}/{index}", plain, MISSING)

    def append_many(self, node: LiveList, path: str, values: list[Any]) -> None:
        """Append copies of values; nothing is appended where one is refused."""
        size = len(node)
        plain = [self.copy(value, f"{path}/{size + at}") for at, value in enumerate(values)]
        self._fit(path, plain, MISSING)
        for at, value in enumerate(plain):
            self.insert_plain(node, path, size + at, value)

    def remove_item(self, node: LiveList, path: str, index: int) -> None:
        """Remove an item."""
        old = list.pop(node, index)
        if self._undo is not None:
            self._undo.append((unremove, node, index, old))
        self._left(old)
        self._record("remove", f"{path}/{index}", MISSING, old)

    def refill(self, node: LiveList, path: str, values: list[Any]) -> None:
        """Give a list other items: one replace. Items that were in it before keep their identity."""
        old = list.copy(node)
        mine = {id(item) for item in old if isinstance(item, LIVE)}
        plain: list[Any] = []
        items: list[Any] = []
        for at, value in enumerate(values):
            copied = self.copy(value, f"{path}/{at}")
            plain.append(copied)
            if id(value) in mine:
                mine.discard(id(value))
                items.append(value)
            else:
                items.append(MISSING)
        if same(node, plain):
            return
        self._fit(path, plain, old)
        if self._undo is not None:
            self._undo.append((reinstate, node, old))
        for item in old:
            self._left(item)
        for at, item in enumerate(items):
            items[at] = self._build(plain[at], node, at) if item is MISSING else attach(item, node, at)
        list.__setitem__(node, slice(None), items)
        self._record("replace", path, plain, old)

    # ---- values ----

    def key_of(self, path: str, key: Any) -> str:
        """A key as it is stored; see `values.key_of`."""
        return key_of(path, key)

    def copy(self, value: Any, path: str, *, nan: Literal["null", "refuse"] = "refuse") -> Any:
        """A plain copy that may stand at a path; see `values.copy_of`."""
        kind = type(value)
        if kind in SCALARS or (kind is float and value - value == 0.0):
            return value
        if kind is str:
            return clean_text(value)
        plain = copy_of(value, path, nan=nan, default=self._default)
        if self.copied is not None and (kind is dict or kind is list):
            self.copied(value)
        return plain

    def _build(self, plain: Any, parent: Live | None, key: str | int | None) -> Any:
        node: Any
        if type(plain) is dict:
            node = dict.__new__(LiveDict)
            node._doc, node._parent, node._key = self, parent, key
            for name, item in plain.items():
                if type(item) is dict or type(item) is list:
                    item = self._build(item, node, token_of(name))
                dict.__setitem__(node, name, item)
            return node
        if type(plain) is list:
            node = list.__new__(LiveList)
            node._doc, node._parent, node._key = self, parent, key
            for at, item in enumerate(plain):
                list.append(node, self._build(item, node, at) if type(item) in (dict, list) else item)
            return node
        return plain

    def _left(self, old: Any) -> None:
        if type(old) is LiveDict or type(old) is LiveList:
            old._parent = None
            # Inside a block it may come back by a roll-back, so what is done to it meanwhile is noted.
            old._key = self._serial if self._undo is not None else None

    # ---- what is recorded ----

    def _record(self, op: str, path: str, value: Any, old: Any) -> None:
        if old is not MISSING:
            kind = type(old)
            if kind is int:
                self._floor -= old.bit_length() // 3 + 4
            else:
                self._floor -= 26 if kind in SCALARS or kind is float else len(encode(old)) + 2
            if op == "remove":
                self._floor -= 6 * len(path) + 4  # at most its name and the signs around it
        if type(value) is str:
            self._floor += len(value)
        if self._collapsed:
            return
        ops = self._ops
        if op == "remove":
            ops.append({"op": op, "path": path})
        elif op == "replace" and ops and ops[-1]["path"] == path and ops[-1]["op"] == "replace":
            ops[-1] = {"op": op, "path": path, "value": value}
        else:
            ops.append({"op": op, "path": path, "value": value})
        if len(ops) > self._limit and self._undo is None:
            self._collapse()

    def _collapse(self) -> None:
        # Bounds what an agent that never lets go can pile up: beyond the document's own size nothing is kept.
        if self._larger_than_value(self._ops):
            self._collapsed = True
            self._ops = []
        self._limit = max(MANY_OPS, 2 * len(self._ops))

    def _larger_than_value(self, ops: list[Op]) -> bool:
        size = len(encode(ops))
        if size <= self._floor:
            return False
        self._floor = len(encode(self._value))
        return size > self._floor

    # ---- how large it may be ----

    def _fit(self, path: str, value: Any, old: Any) -> None:
        """Refuse what makes the document too large; called before anything changes.

        Raises:
            StateTooLarge: it would be.
        """
        if self._most == inf:
            return
        more = _size(value) + 1
        if (ceiling := self._ceiling + more) > self._most:
            now = _size(self._value)
            ceiling = now + more
            if ceiling > self._most:
                less = 0 if old is MISSING else _size(old)
                if more > less and ceiling - less > self._most:
                    raise StateTooLarge(
                        f"The state would be larger than {self._most} bytes by an edit of {path or '/'}."
                    )
        self._ceiling = ceiling

    # ---- the way back ----

    def _set_mark(self) -> Mark:
        ops = self._ops
        return len(self._undo or ()), len(ops), ops[-1] if ops else None, self._floor

    def _roll_back(self, mark: Mark) -> None:
        undone, recorded, last, self._floor = mark
        undo = self._undo
        assert undo is not None  # noqa: S101 - callers hold a mark
        while len(undo) > undone:
            step, *args = undo.pop()
            step(*args)
        del self._ops[recorded:]
        if last is not None:
            self._ops[-1] = last


def _size(value: Any) -> int:
    """Bytes of its JSON text."""
    text = encode(value)
    return len(text) if text.isascii() else len(text.encode())
