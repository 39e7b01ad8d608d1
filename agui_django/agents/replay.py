"""Turning a live document into another one, in place: by difference, or by the operations of a patch.

Law: containers that stay keep their identity, moved ones too; every step goes through the journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agui_django.agents.journal import Journal
from agui_django.agents.live import LIVE, MISSING, LiveDict
from agui_django.agents.live_values import token_of
from agui_django.protocol.json_patch import copy_json, make_patch


class Replayer(Journal):
    """A journal that can follow patches."""

    def _become(self, plain: Any) -> None:
        if type(plain) in (dict, list) and isinstance(self._value, type(plain)):
            self._replay(make_patch(copy_json(self._value), plain), "")
        else:
            self._swap(plain)

    def _swap(self, plain: Any) -> None:
        old = self._value
        self._fit("", plain, old)
        if self._undo is not None:
            self._undo.append((self._set_value, old))
        self._set_value(self._build(plain, None, None))
        self._left(old)
        self._record("replace", "", plain, old)

    def _set_value(self, value: Any) -> None:
        if isinstance(value, LIVE):
            value._key = None
        self._value = value

    def _replay(self, ops: Iterable[Mapping[str, Any]], at: str | None) -> None:
        """Do operations that are known to apply, in place.

        Args:
            ops: plain and ours.
            at: the path whose container a replace fills anew; elsewhere one becomes another by difference.
        """
        for op in ops:
            kind, path = op["op"], op["path"]
            if kind == "test" or (kind == "move" and op["from"] == path):
                continue
            if path == at:
                self._refill(path, op["value"])
                continue
            value, live = op.get("value"), None
            if kind in ("move", "copy"):
                parent, where, key = self._find(op["from"])
                value = copy_json(parent[key])
                if kind == "move":
                    live = parent[key] if isinstance(parent[key], LIVE) else None
                    self._drop(parent, where, key)
            parent, where, key = self._find(path, adding=kind != "replace" and kind != "remove")
            if kind == "remove":
                self._drop(parent, where, key)
            elif kind == "replace":
                self._supplant(parent, where, key, value)
            elif isinstance(parent, LiveDict):
                self.put_plain(parent, where, key, value, dict.get(parent, key, MISSING), live)
            else:
                self.insert_plain(parent, where, key, value, live)

    def _supplant(self, parent: Any, where: str, key: Any, value: Any) -> None:
        old = parent[key]
        if type(value) in (dict, list) and isinstance(old, type(value)):
            here = where + (token_of(key) if isinstance(parent, LiveDict) else f"/{key}")
            inner = make_patch(copy_json(old), value)
            self._replay([{**op, "path": here + op["path"]} for op in inner], here)
        elif isinstance(parent, LiveDict):
            self.put_plain(parent, where, key, value, old)
        else:
            self.set_item_plain(parent, where, key, value)

    def _refill(self, path: str, value: Any) -> None:
        node = self._walk(path)
        if isinstance(node, LiveDict):
            self.refill_dict(node, path, value)
        else:
            self.refill(node, path, value)

    def _drop(self, parent: Any, where: str, key: Any) -> None:
        if isinstance(parent, LiveDict):
            self.discard(parent, where, key)
        else:
            self.remove_item(parent, where, key)

    def _find(self, pointer: str, *, adding: bool = False) -> tuple[Any, str, Any]:
        """The container a pointer ends in, its path, and the key or index there."""
        where, _, last = pointer.rpartition("/")
        node = self._walk(where)
        if isinstance(node, dict):
            return node, where, _key(last)
        return node, where, len(node) if adding and last == "-" else int(last)

    def _walk(self, pointer: str) -> Any:
        node = self._value
        for token in pointer.split("/")[1:]:
            node = node[_key(token) if isinstance(node, dict) else int(token)]
        return node


def _key(token: str) -> str:
    return token.replace("~1", "/").replace("~0", "~")
