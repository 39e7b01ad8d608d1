"""Shapes compiled into yes/no checks: valid material passes without a copy and without a path being built.

Law: a check says only whether a value is exactly what its shape describes; `enforcement` says what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from agui_django.protocol.events import MAX_INT, Choice, Const, Leaf, ListOf, Obj, Shape, Tagged, TextOr

Check = Callable[[Any], bool]

_BAD_TILDE: Final = re.compile("~(?![01])")


# ---- leaves --------------------------------------------------------------------------------------------------------


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _is_integer(value: Any) -> bool:
    # JSON knows no integers: 1.0 is one. true is not a number.
    kind = type(value)
    if kind is not int and kind is not float:
        return isinstance(value, int) and kind is not bool and -MAX_INT <= value <= MAX_INT
    return -MAX_INT <= value <= MAX_INT and (kind is int or value == int(value))


def _is_count(value: Any) -> bool:
    return _is_integer(value) and value >= 0


def _is_boolean(value: Any) -> bool:
    return isinstance(value, bool)


def _is_any(value: Any) -> bool:
    return True


def _is_not_null(value: Any) -> bool:
    return value is not None


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_pointer(value: Any) -> bool:
    return isinstance(value, str) and (not value or (value[0] == "/" and not _BAD_TILDE.search(value)))


#: leaf name -> its check, and what is said when it fails.
LEAVES: Final[Mapping[str, tuple[Check, str]]] = {
    "string": (_is_string, "expected a string"),
    "integer": (_is_integer, "expected an integer"),
    "count": (_is_count, "expected an integer of at least 0"),
    "boolean": (_is_boolean, "expected true or false"),
    "any": (_is_any, ""),
    "not-null": (_is_not_null, "must be absent rather than null"),
    "object": (_is_object, "expected an object"),
    "pointer": (_is_pointer, "expected a JSON Pointer"),
}


# ---- shapes ----------------------------------------------------------------------------------------------------------


def compile_check(shape: Shape) -> Check:
    """The check of a shape."""
    match shape:
        case Leaf(name):
            return LEAVES[name][0]
        case Const(expected):
            return lambda value: isinstance(value, str) and value == expected
        case Choice(values):
            return lambda value: isinstance(value, str) and value in values
        case ListOf(item, min_items):
            return _check_list(compile_check(item), min_items)
        case TextOr(parts):
            listed = compile_check(parts)
            return lambda value: isinstance(value, str) or listed(value)
        case Obj():
            return _check_object(shape)
        case Tagged(_, tag, members):
            return _check_tagged(tag, {key: compile_check(member) for key, member in members.items()})


def _check_list(item: Check, min_items: int) -> Check:
    def check(value: Any) -> bool:
        return isinstance(value, list) and len(value) >= min_items and all(map(item, value))

    return check


def _check_object(shape: Obj) -> Check:
    members = {name: compile_check(inner) for name, inner in {**shape.required, **shape.optional}.items()}
    find = members.get
    needed = frozenset(shape.required)
    unknown = _is_any if shape.open else None

    def check(value: Any) -> bool:
        if not isinstance(value, dict):
            return False
        for name, item in value.items():
            inner = find(name, unknown)
            if inner is None or not inner(item):
                return False
        return needed <= value.keys()

    return check


def _check_tagged(tag: str, members: Mapping[str, Check]) -> Check:
    def check(value: Any) -> bool:
        if not isinstance(value, dict):
            return False
        key = value.get(tag)
        inner = members.get(key) if isinstance(key, str) else None
        return inner is not None and inner(value)

    return check
