"""The live containers: what `run.state` is, and every dict and list inside it.

Law: a live container never changes itself. It asks its document (`agents/journal.py`), which copies what it is given
and records the exact patch. A container that has left the state is an ordinary one: it keeps its values, records
nothing and copies nothing. Copies (`copy`, `deepcopy`, slices, pickles, `type(x)(...)`) are plain data.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, ValuesView
from typing import TYPE_CHECKING, Any, SupportsIndex

from agui_django.protocol.json_patch import copy_json

if TYPE_CHECKING:
    from agui_django.agents.journal import Journal

#: Stands for "there was none".
MISSING: Any = object()


class _Keys(KeysView[str]):
    _mapping: LiveDict

    def __iter__(self) -> Iterator[str]:
        return iter(self._mapping)

    def __reversed__(self) -> Iterator[str]:
        return reversed(list(self._mapping))


class _Items(ItemsView[str, Any]):
    _mapping: LiveDict

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter([*dict.items(self._mapping)])

    def __reversed__(self) -> Iterator[tuple[str, Any]]:
        return reversed([*dict.items(self._mapping)])


class _Values(ValuesView[Any]):
    _mapping: LiveDict

    def __iter__(self) -> Iterator[Any]:
        return iter([*dict.values(self._mapping)])

    def __reversed__(self) -> Iterator[Any]:
        return reversed([*dict.values(self._mapping)])


class LiveDict(dict[str, Any]):
    """A dict of the state: every change is recorded as a JSON Patch operation.

    Iterating walks what was there when the loop began.
    """

    # _key: "/name" inside a dict, the index (a hint) inside a list, the block's number once taken out inside a block.
    __slots__ = ("_doc", "_key", "_parent")
    _doc: Journal
    _parent: LiveDict | LiveList | None
    _key: str | int | None

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Only documents make live containers: ``type(state)(...)`` gives plain data."""
        return dict(*args, **kwargs)

    # ---- reading ----

    def __iter__(self) -> Iterator[str]:
        return iter([*dict.__iter__(self)])

    def __reversed__(self) -> Iterator[str]:
        return iter([*dict.__reversed__(self)])

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        """A view of the keys."""
        return _Keys(self)

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        """A view of the values."""
        return _Values(self)

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        """A view of the pairs."""
        return _Items(self)

    def __copy__(self) -> dict[str, Any]:
        return dict.copy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy_json(self)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return dict, (copy_json(self),)

    # ---- editing ----

    def __setitem__(self, key: str, value: Any) -> None:
        doc = self._doc
        with doc.lock:
            path = doc.begin(self)
            if path is None:
                dict.__setitem__(self, key, value)
                return
            doc.put(self, path, key, value)
            if doc.checked:
                doc.finish()
        if doc.unannounced:
            doc.announce()

    def __delitem__(self, key: str) -> None:
        self.pop(key)

    def pop(self, key: str, *default: Any) -> Any:
        """Remove a key and give its value, which is ordinary data from now on."""
        doc = self._doc
        with doc.lock:
            path = doc.begin(self)
            if path is None or key not in self:
                return dict.pop(self, key, *default)
            value = dict.__getitem__(self, key)
            doc.discard(self, path, key)
            doc.finish()
        doc.announce()
        return value

    def popitem(self) -> tuple[str, Any]:
        """Remove the last pair and give it."""
        doc = self._doc
        with doc.lock:
            path = doc.begin(self)
            if path is None or not self:
                return dict.popitem(self)
            key = next(dict.__reversed__(self))
            value = dict.__getitem__(self, key)
            doc.discard(self, path, key)
            doc.finish()
        doc.announce()
        return key, value

    def clear(self) -> None:
        """Remove everything."""
        doc = self._doc
        with doc.lock:
            path = doc.begin(self)
            if path is None or not self:
                dict.clear(self)
                return
            doc.refill_dict(self, path, {})
            doc.finish()
        doc.announce()

    def setdefault(self, key: str, default: Any = None) -> Any:
        """The value of a key, after setting it where it was missing."""
        doc = self._doc
        with doc.lock:
            path = doc.begin(self)
            if path is None or key in self:
                return dict.setdefault(self, key, default)
            key = doc.key_of(path, key)
            doc.put(self, path, key, default)
            doc.finish()
            value = dict.__getitem__(self, key)
        doc.announce()
        return value

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Set many keys: one edit, all or nothing."""
        pairs = dict(*args, **kwargs)
        doc = self._doc
        with doc.lock:
            path = doc.begin(self)
            if path is None:
                dict.update(self, pairs)
                return
            doc.put_many(self, path, pairs)
            doc.finish()
        doc.announce()

    def __ior__(self, other: Any) -> LiveDict:  # type: ignore[override,misc]
        self.update(other)
        return self


class LiveList(list[Any]):
    """A list of the state: every change is recorded as a JSON Patch operation.

    Single items are recorded one by one; slices, sorting and reversing as one replace of the list. Iterating walks
    what was there when the loop began.
    """

    __slots__ = ("_doc", "_key", "_parent")
    _doc: Journal
    _parent: LiveDict | LiveList | None
    _key: str | int | None

    def __new__(cls, *args: Any) -> Any:
        """Only documents make live containers: ``type(items)(...)`` gives plain data."""
        return list(*args)

    # ---- reading ----

    def __iter__(self) -> Iterator[Any]:
        return iter([*list.__iter__(self)])

    def __reversed__(self) -> Iterator[Any]:
        return iter([*list.__reversed__(self)])

    def __copy__(self) -> list[Any]:
        return list.copy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy_json(self)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return list, (copy_json(self),)

    # ---- editing ----

    def __setitem__(self, index: Any, value: Any) -> None:
        doc = self._doc
        if isinstance(index, slice):
            self._change(lambda items: items.__setitem__(index, value))
            return
        with doc.lock:
            path = doc.begin(self)
            if path is None:
                list.__setitem__(self, index, value)
                return
            doc.set_item(self, path, self._position(index), value)
            if doc.checked:
                doc.finish()
        if doc.unannounced:
            doc.announce()

    def __delitem__(self, index: Any) -> None:
        if isinstance(index, slice):
            self._change(lambda items: items.__delitem__(index))
        else:
            self.pop(index)

    def append(self, value: Any) -> None:
        """Add an item at the end."""
        doc = self._doc
        with doc.lock:
            path = doc.begin(self)
            if path is None:
                list.append(self, value)
                return
            doc.insert(self, path, len(self), value)
            if doc.checked:
                doc.finish()
        if doc.unannounced:
            doc.announce()

    def insert(self, index: SupportsIndex, value: Any) -> None:
        """Add an item before an index."""
        doc = self._doc
        with doc.lock:
            path = doc.begin(self)
            if path is None:
                list.insert(self, index, value)
                return
            at, size = operator.index(index), len(self)
            doc.insert(self, path, max(0, at + size) if at < 0 else min(at, size), value)
            doc.finish()
        doc.announce()

    def extend(self, values: Iterable[Any]) -> None:
        """Add items at the end: one edit, all or nothing."""
        items = list(values)
        doc = self._doc
        with doc.lock:
            path = doc.begin(self)
            if path is None:
                list.extend(self, items)
                return
            doc.append_many(self, path, items)
            doc.finish()
        doc.announce()

    def pop(self, index: SupportsIndex = -1) -> Any:
        """Remove an item and give it; it is ordinary data from now on."""
        doc = self._doc
        with doc.lock:
            path = doc.begin(self)
            if path is None or not self:
                return list.pop(self, index)
            at = self._position(index)
            value = list.__getitem__(self, at)
            doc.remove_item(self, path, at)
            doc.finish()
        doc.announce()
        return value

    def remove(self, value: Any) -> None:
        """Remove the first item that equals a value."""
        doc = self._doc
        with doc.lock:
            at = list.index(self, value)
            path = doc.begin(self)
            if path is None:
                list.pop(self, at)
                return
            doc.remove_item(self, path, at)
            doc.finish()
        doc.announce()

    def clear(self) -> None:
        """Remove everything."""
        self._change(list.clear)

    def reverse(self) -> None:
        """Turn the order round."""
        self._change(list.reverse)

    def sort(self, *, key: Any = None, reverse: bool = False) -> None:
        """Order the items as `list.sort` does."""
        self._change(lambda items: items.sort(key=key, reverse=reverse))

    def __iadd__(self, values: Iterable[Any]) -> LiveList:  # type: ignore[misc]
        self.extend(values)
        return self

    def __imul__(self, count: SupportsIndex) -> LiveList:
        self._change(lambda items: items.__imul__(count))
        return self

    # ---- helpers ----

    def _change(self, edit: Callable[[list[Any]], Any]) -> None:
        doc = self._doc
        with doc.lock:
            path = doc.begin(self)
            items = list.copy(self)
            edit(items)
            if path is None:
                list.__setitem__(self, slice(None), items)
                return
            doc.refill(self, path, items)
            doc.finish()
        doc.announce()

    def _position(self, index: SupportsIndex) -> int:
        at, size = operator.index(index), len(self)
        position = at + size if at < 0 else at
        if not 0 <= position < size:
            raise IndexError("list index out of range")
        return position


Live = LiveDict | LiveList
LIVE = (LiveDict, LiveList)
