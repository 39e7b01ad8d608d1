"""What may stand in a state document, and when two values are the same.

Law: what is assigned is copied as JSON; what a client could not repeat is refused with its path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

from agui_django.agents.live import MISSING, LiveDict, LiveList
from agui_django.protocol.codec import MAX_DEPTH, clean, clean_text, encode
from agui_django.protocol.errors import NotJson, StateInvalid
from agui_django.protocol.json_patch import escape

#: Types whose every value is JSON as it is.
SCALARS: Final = frozenset({int, bool, type(None)})


def token_of(key: str) -> str:
    """A key as the piece of JSON Pointer that leads to it."""
    return "/" + escape(key) if "~" in key or "/" in key else "/" + key


def key_of(path: str, key: Any) -> str:
    """A key of the object at a path, as it is stored.

    Raises:
        NotJson: it is not a string.
        StateInvalid: JavaScript clients refuse paths through it.
    """
    if not isinstance(key, str):
        raise _not_json(path, "a key is not a string")
    name = clean_text(str.__str__(key))
    _check_name(name, path)
    return name


def copy_of(
    value: Any, path: str, *, nan: Literal["null", "refuse"], default: Callable[[Any], Any] | None = None
) -> Any:
    """A plain JSON copy of a value that is to stand at a path.

    Raises:
        NotJson, StateInvalid: with the path of what is refused.
    """
    try:
        plain = clean(value, nan=nan, default=default)
    except NotJson as error:
        field = error.fields[0]
        raise _not_json(path + field["path"], field["message"]) from None
    if type(plain) is dict or type(plain) is list:
        _check(plain, path, path.count("/"))
    return plain


def same(live: Any, plain: Any) -> bool:
    """Whether a value of the state is exactly a plain one: ``1``, ``1.0`` and ``true`` are three values."""
    kind = type(plain)
    if kind is dict:
        if type(live) is not LiveDict or len(live) != len(plain):
            return False
        return all(same(dict.get(live, key, MISSING), item) for key, item in plain.items())
    if kind is list:
        if type(live) is not LiveList or len(live) != len(plain):
            return False
        return all(map(same, list.__iter__(live), plain))
    return type(live) is kind and bool(live == plain)


def size_at_most(value: Any) -> int:
    """A length that the JSON text of a value does not exceed; exact for texts and containers."""
    kind = type(value)
    if kind is int:
        return int(value.bit_length()) // 3 + 2
    return 24 if kind is float or kind in SCALARS else len(encode(value))


def _check(plain: Any, path: str, depth: int) -> None:
    if depth >= MAX_DEPTH:
        raise _not_json(path, "nested too deeply")
    if type(plain) is list:
        for at, item in enumerate(plain):
            if type(item) is dict or type(item) is list:
                _check(item, f"{path}/{at}", depth + 1)
        return
    for name, item in plain.items():
        _check_name(name, path)
        if type(item) is dict or type(item) is list:
            _check(item, path + token_of(name), depth + 1)


def _check_name(name: str, path: str) -> None:
    if name == "__proto__" or (name == "prototype" and path.endswith("/constructor")):
        where, what = f"{path}/{name}", "clients refuse this name"
        raise StateInvalid(f"State refused at {where}: {what}.", fields=[{"path": where, "message": what}])


def _not_json(path: str, what: str) -> NotJson:
    return NotJson(f"Not JSON at {path or 'the root'}: {what}.", fields=[{"path": path, "message": what}])
