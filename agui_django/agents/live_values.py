"""What may stand in a state document, and when two values are the same.

Law: what is assigned is copied as JSON; what a client could not repeat is refused with its path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

from agui_django.agents.live import MISSING, LiveDict, LiveList
from agui_django.protocol.codec import MAX_DEPTH, clean, clean_text
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
    check_names(plain, path, path.count("/"))
    return plain


def check_names(plain: Any, path: str = "", depth: int = 0) -> None:
    """Refuse names that clients refuse, and containers too deep inside each other.

    Raises:
        NotJson, StateInvalid: with the path.
    """
    if type(plain) is dict:
        for name, item in plain.items():
            _check_name(name, path)
            if type(item) is dict or type(item) is list:
                check_names(item, path + token_of(name), depth + 1)
    elif type(plain) is list:
        for at, item in enumerate(plain):
            if type(item) is dict or type(item) is list:
                check_names(item, f"{path}/{at}", depth + 1)
    else:
        return
    if depth >= MAX_DEPTH:
        raise _not_json(path, "nested too deeply")


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


def _check_name(name: str, path: str) -> None:
    if name == "__proto__" or (name == "prototype" and path.endswith("/constructor")):
        where, what = f"{path}/{name}", "clients refuse this name"
        raise StateInvalid(f"State refused at {where}: {what}.", fields=[{"path": where, "message": what}])


def _not_json(path: str, what: str) -> NotJson:
    return NotJson(f"Not JSON at {path or 'the root'}: {what}.", fields=[{"path": path, "message": what}])
