"""RFC 6902 patches through the jsonpatch library: atomic, on a copy, as strict as the clients that will repeat them.

Law: whatever is accepted here gives the same document in every client; what clients disagree about is refused. So
``true`` is not ``1``, ``/items/01`` is no index, and ``__proto__`` is never walked through.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import jsonpatch
import jsonpointer

from agui_django.protocol.codec import encode

_BAD_ESCAPE = re.compile("~(?![01])")
_MEMBERS: Mapping[str, set[str]] = {
    "add": {"path", "value"},
    "replace": {"path", "value"},
    "test": {"path", "value"},
    "remove": {"path"},
    "move": {"from", "path"},
    "copy": {"from", "path"},
}
_INDEX = re.compile("0|[1-9][0-9]{0,15}", re.ASCII)


class PatchError(ValueError):
    """The patch does not apply to this document.

    Attributes:
        at: which operation is to blame, counted from 0.
    """

    at = 0


class PatchTooLarge(PatchError):
    """The patch makes the document larger than it may be."""


def apply_patch(document: Any, ops: Iterable[Mapping[str, Any]], *, most: int | None = None) -> Any:
    """Apply a patch to a copy of a document.

    Args:
        document: any JSON value; it is never changed.
        ops: the operations in order; members beyond those of RFC 6902 are ignored.
        most: characters of wire text that the document may never grow far beyond, not even on the way: a few copies of
            copies would fill the memory. What it is in the end is not looked at.

    Returns:
        The new document. It shares no container with `document` or `ops`.

    Raises:
        PatchError: an operation does not apply; nothing is applied then.
    """
    result = copy_json(document)
    size = 0 if most is None else len(encode(result))
    for number, op in enumerate(ops):
        try:
            checked = _checked(result, op)
            if most is not None and checked is not None and "value" in checked:
                size += (more := len(encode(checked["value"])))
                # Measured anew only where it may be twice too large: that is as rare as it is slow.
                if size > 2 * most and (size := len(encode(result)) + more) > 2 * most:
                    raise PatchTooLarge("the document grows too large")
            if checked is not None:
                result = jsonpatch.JsonPatch([checked]).apply(result, in_place=True)
        except PatchTooLarge:
            raise
        except (PatchError, jsonpatch.JsonPatchException, jsonpointer.JsonPointerException) as error:
            raise _failed(number, str(error)) from None
        except (KeyError, TypeError):
            raise _failed(number, "malformed") from None
    return result


def check_patch(ops: Iterable[Any]) -> None:
    """Check the form of a patch, whatever the document.

    Raises:
        PatchError: an operation is malformed, or one that is refused whatever the document.
    """
    for number, op in enumerate(ops):
        name = op.get("op") if isinstance(op, Mapping) else None
        needed = _MEMBERS.get(name) if isinstance(name, str) else None
        if needed is None or any(name not in op for name in needed):
            raise _failed(number, "malformed")
        try:
            for pointer in needed & {"path", "from"}:
                _tokens(op[pointer])
        except PatchError as error:
            raise _failed(number, str(error)) from None


def _failed(number: int, why: str) -> PatchError:
    error = PatchError(f"operation {number}: {why}")
    error.at = number
    return error


def make_patch(old: Any, new: Any) -> list[dict[str, Any]]:
    """The operations that turn `old` into exactly `new`: ``1``, ``1.0`` and ``true`` are three values.

    Returns:
        Add, remove and replace operations; empty where nothing changed. Values are shared with `new`.
    """
    ops: list[dict[str, Any]] = []
    _diff(old, new, "", "", ops)
    return ops


def json_equal(a: Any, b: Any) -> bool:
    """Equality of JSON values: ``true`` differs from ``1``, the numbers ``1`` and ``1.0`` are equal."""
    if isinstance(a, dict):
        return isinstance(b, dict) and len(a) == len(b) and all(key in b and json_equal(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(json_equal, a, b))
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    return bool(a == b)


def copy_json(value: Any) -> Any:
    """A deep copy of a plain JSON value (strings and numbers are shared)."""
    if isinstance(value, dict):
        return {key: copy_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copy_json(item) for item in value]
    return value


def escape(token: str) -> str:
    """One member name as a JSON Pointer token."""
    return token.replace("~", "~0").replace("/", "~1")


# ---- what clients are stricter about than the library ----------------------------------------------------------------


def _tokens(pointer: Any) -> list[str]:
    if not isinstance(pointer, str) or (pointer and pointer[0] != "/") or _BAD_ESCAPE.search(pointer):
        raise PatchError("not a JSON Pointer")
    tokens = [token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:]]
    previous = ""
    for name in tokens:
        # JavaScript clients refuse to walk into the prototype of an object.
        if name == "__proto__" or (name == "prototype" and previous == "constructor"):
            raise PatchError(f"{pointer} is refused")
        previous = name
    return tokens


def _resolve(document: Any, tokens: list[str]) -> Any:
    """The value at a pointer, by RFC 6901's letter: ``01`` and ``-`` name no element of an array."""
    for token in tokens:
        if isinstance(document, dict) and token in document:
            document = document[token]
        elif isinstance(document, list) and _INDEX.fullmatch(token) and int(token) < len(document):
            document = document[int(token)]
        else:
            raise PatchError(f"there is no {token!r}")
    return document


def _checked(document: Any, op: Mapping[str, Any]) -> dict[str, Any] | None:
    """An operation for the library with a value of its own; None where there is nothing left to do."""
    name, tokens = op["op"], _tokens(op["path"])
    if name == "test":
        if not json_equal(_resolve(document, tokens), op["value"]):
            raise PatchError("test failed")
        return None
    if name in ("move", "copy"):
        source = _tokens(op["from"])
        value = _resolve(document, source)
        if name == "move":
            if source == tokens:
                return None
            if tokens[: len(source)] == source:  # RFC 6902 section 4.4
                raise PatchError("a value cannot move into itself")
        if not tokens:
            return {"op": "replace", "path": "", "value": value}
        if name == "copy":
            return _target(document, tokens, {"op": "add", "path": op["path"], "value": copy_json(value)})
        return {"op": "move", "from": op["from"], "path": op["path"]}
    if name == "remove":
        _resolve(document, tokens)
        return {"op": "remove", "path": op["path"]} if tokens else {"op": "replace", "path": "", "value": None}
    checked = {"op": name, "path": op["path"], "value": copy_json(op["value"])}
    if name == "replace":
        _resolve(document, tokens)
        return checked
    return _target(document, tokens, checked)


def _target(document: Any, tokens: list[str], op: dict[str, Any]) -> dict[str, Any]:
    """An add, once its place is known to be one."""
    if tokens:
        parent, last = _resolve(document, tokens[:-1]), tokens[-1]
        if isinstance(parent, list):
            if last != "-" and not (_INDEX.fullmatch(last) and int(last) <= len(parent)):
                raise PatchError(f"there is no place {last!r} in an array of {len(parent)}")
        elif not isinstance(parent, dict):
            raise PatchError(f"there is no {last!r} inside a plain value")
    return op


# ---- differences ----------------------------------------------------------------------------------------------------


def _identical(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return len(a) == len(b) and all(key in b and _identical(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_identical, a, b))
    return bool(a == b)


def _diff(old: Any, new: Any, path: str, name: str, ops: list[dict[str, Any]]) -> None:
    if old is new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        _diff_members(old, new, path, name, ops)
    elif isinstance(old, list) and isinstance(new, list):
        _diff_items(old, new, path, ops)
    elif not _identical(old, new):
        ops.append({"op": "replace", "path": path, "value": new})


def _diff_members(old: dict[str, Any], new: dict[str, Any], path: str, name: str, ops: list[dict[str, Any]]) -> None:
    for banned in ("__proto__", "prototype" if name == "constructor" else "__proto__"):
        # No pointer may lead through these names, but a value may hold them.
        if (banned in old or banned in new) and not (
            banned in old and banned in new and _identical(old[banned], new[banned])
        ):
            ops.append({"op": "replace", "path": path, "value": new})
            return
    if old and new and not (old.keys() & new.keys()):
        ops.append({"op": "replace", "path": path, "value": new})
        return
    for key in old:
        if key not in new:
            ops.append({"op": "remove", "path": f"{path}/{escape(key)}"})
    for key, value in new.items():
        if key in old:
            _diff(old[key], value, f"{path}/{escape(key)}", key, ops)
        else:
            ops.append({"op": "add", "path": f"{path}/{escape(key)}", "value": value})


def _diff_items(old: list[Any], new: list[Any], path: str, ops: list[dict[str, Any]]) -> None:
    start, old_end, new_end = 0, len(old), len(new)
    while start < old_end and start < new_end and _identical(old[start], new[start]):
        start += 1
    while old_end > start and new_end > start and _identical(old[old_end - 1], new[new_end - 1]):
        old_end, new_end = old_end - 1, new_end - 1
    both = min(old_end, new_end)
    for position in range(start, both):
        _diff(old[position], new[position], f"{path}/{position}", "", ops)
    for position in range(old_end - 1, both - 1, -1):
        ops.append({"op": "remove", "path": f"{path}/{position}"})
    for position in range(both, new_end):
        ops.append({"op": "add", "path": f"{path}/{position}", "value": new[position]})
