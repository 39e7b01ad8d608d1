"""The ways back: each undoes one change of a live container, exactly, the order of keys included.

Law: called in reverse order of the changes, and never on anything else; what comes back is the same object.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agui_django.agents.live import MISSING, Live, LiveDict, LiveList
from agui_django.agents.live_values import token_of


def attach(node: Any, parent: Live, key: str | int) -> Any:
    """Tell a container where it stands now; other values are passed on."""
    if type(node) is LiveDict or type(node) is LiveList:
        node._parent, node._key = parent, key
    return node


def detach(node: Any) -> None:
    """Make a container an ordinary one."""
    if type(node) is LiveDict or type(node) is LiveList:
        node._parent = node._key = None


def renumber(parent: Any, node: Live) -> Any:
    """Tell every container of a list its index; gives the one of `node`."""
    for index, item in enumerate(list.__iter__(parent)):
        if (type(item) is LiveDict or type(item) is LiveList) and item._parent is parent:
            item._key = index
    return node._key


def unput(node: LiveDict, key: str, old: Any, order: Iterable[str] | None) -> None:
    """Undo a key that was set or removed."""
    detach(dict.get(node, key))
    if old is MISSING:
        dict.pop(node, key)
        return
    dict.__setitem__(node, key, attach(old, node, token_of(key)))
    if order is not None:
        items = {name: dict.__getitem__(node, name) for name in order}
        dict.clear(node)
        dict.update(node, items)


def unset(node: LiveList, index: int, old: Any) -> None:
    """Undo a replaced item."""
    detach(list.__getitem__(node, index))
    list.__setitem__(node, index, attach(old, node, index))


def uninsert(node: LiveList, index: int) -> None:
    """Undo an inserted item."""
    detach(list.pop(node, index))


def unremove(node: LiveList, index: int, old: Any) -> None:
    """Undo a removed item."""
    list.insert(node, index, attach(old, node, index))


def reinstate(node: Any, old: Any) -> None:
    """Undo a container that was emptied or filled anew."""
    if type(node) is LiveDict:
        for item in dict.values(node):
            detach(item)
        for key, item in old.items():
            attach(item, node, token_of(key))
    else:
        for item in list.__iter__(node):
            detach(item)
        for index, item in enumerate(old):
            attach(item, node, index)
    restore(node, old)


def restore(node: Any, old: Any) -> None:
    """Undo what was done to a container after it had left the state; what it holds may stand elsewhere by now."""
    if type(node) is LiveDict:
        dict.clear(node)
        dict.update(node, old)
    else:
        list.__setitem__(node, slice(None), old)
