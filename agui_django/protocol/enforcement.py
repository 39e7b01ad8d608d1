"""Unknown material is dropped or stripped with a warning; a malformed known value is fatal; nothing is coerced.

The law is basic/processing.mdx. What passes its compiled check (`checks`) is returned as it is; only what does not is
walked, to find out what to remove and what to refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from agui_django.protocol.checks import LEAVES, compile_check
from agui_django.protocol.errors import InvalidInput, ProtocolViolation
from agui_django.protocol.events import (
    ANY,
    DELTAS,
    EVENTS,
    MAX_INT,
    MESSAGES,
    NOT_NULL,
    RUN_INPUT,
    Choice,
    Const,
    Leaf,
    ListOf,
    Obj,
    Shape,
    Tagged,
    TextOr,
)

Warn = Callable[[str], None]
#: At most so many errors are told, and so many warnings given, about one document.
MAX_FINDINGS: Final = 50

_DROP: Final = object()


def ignore(text: str) -> None:
    """The default listener for warnings."""


# ---- the walk: what is unknown, what is wrong ------------------------------------------------------------------------


class _Findings:
    """What a walk found: paths to warn about, and (path, message) of malformed values."""

    __slots__ = ("errors", "removed")

    def __init__(self) -> None:
        self.removed: list[str] = []
        self.errors: list[tuple[str, str]] = []

    def mark(self) -> tuple[int, int]:
        return len(self.removed), len(self.errors)

    def forget(self, mark: tuple[int, int]) -> None:
        # The container goes as a whole: what was found inside no longer matters.
        del self.removed[mark[0] :]
        del self.errors[mark[1] :]


def _walk(value: Any, shape: Shape, path: str, found: _Findings) -> Any:
    """The value without its unknown parts, or `_DROP` when it is unrecognisable as a whole."""
    match shape:
        case Leaf(name):
            test, complaint = LEAVES[name]
            if not test(value):
                found.errors.append((path, complaint))
        case Const(expected):
            if value != expected:
                found.errors.append((path, f'expected "{expected}"'))
        case Choice(values, strips):
            if not isinstance(value, str):
                found.errors.append((path, "expected a string"))
            elif value not in values:
                if strips:
                    return _DROP
                found.errors.append((path, f"expected one of {', '.join(sorted(values))}"))
        case ListOf():
            return _walk_list(value, shape, path, found)
        case TextOr(parts):
            if isinstance(value, list):
                return _walk_list(value, parts, path, found)
            if not isinstance(value, str):
                found.errors.append((path, "expected a string or an array"))
        case Obj():
            return _walk_object(value, shape, path, found)
        case Tagged(_, tag, members):
            return _walk_tagged(value, tag, members, path, found)
    return value


def _walk_list(value: Any, shape: ListOf, path: str, found: _Findings) -> Any:
    if not isinstance(value, list):
        found.errors.append((path, "expected an array"))
        return value
    kept = []
    changed = False
    for index, item in enumerate(value):
        mark = found.mark()
        inner = _walk(item, shape.item, f"{path}/{index}", found)
        if inner is _DROP:
            found.forget(mark)
            found.removed.append(f"{path}/{index}")
            changed = True
            continue
        changed = changed or inner is not item
        kept.append(inner)
    if len(kept) < shape.min_items:
        found.errors.append((path, f"expected at least {shape.min_items} element"))
    return kept if changed else value


def _walk_object(value: Any, shape: Obj, path: str, found: _Findings) -> Any:
    if not isinstance(value, dict):
        found.errors.append((path, "expected an object"))
        return value
    out = value
    for name, item in value.items():
        below = f"{path}/{_token(name)}"
        needed = name in shape.required
        inner_shape = shape.required[name] if needed else shape.optional.get(name, ANY if shape.open else None)
        mark = found.mark()
        inner = _DROP if inner_shape is None else _walk(item, inner_shape, below, found)
        if inner is item:
            continue
        if inner is _DROP and needed:
            return _DROP
        if out is value:
            out = dict(value)
        if inner is _DROP:
            found.forget(mark)
            found.removed.append(below)
            del out[name]
        else:
            out[name] = inner
    found.errors.extend((f"{path}/{name}", "is required") for name in shape.required if name not in value)
    return out


def _walk_tagged(value: Any, tag: str, members: Mapping[str, Obj], path: str, found: _Findings) -> Any:
    if not isinstance(value, dict):
        found.errors.append((path, "expected an object"))
        return value
    key = value.get(tag)
    if not isinstance(key, str):
        # Not a newer member of the union, but a member without its name: malformed.
        found.errors.append((f"{path}/{tag}", "expected a string" if tag in value else "is required"))
        return value
    member = members.get(key)
    return _DROP if member is None else _walk_object(value, member, path, found)


def _token(name: Any) -> str:
    text = str(name)
    text = text if len(text) <= 80 else text[:80] + "..."
    return text.replace("~", "~0").replace("/", "~1")


# ---- the public side -----------------------------------------------------------------------------------------------

_EVENT_CHECKS: Final = {kind: compile_check(shape) for kind, shape in EVENTS.items()}
_MESSAGE_CHECK: Final = compile_check(MESSAGES)
_INPUT_CHECK: Final = compile_check(RUN_INPUT)


def enforce(event: Mapping[str, Any], warn: Warn = ignore) -> dict[str, Any] | None:
    """The event with nothing in it that AG-UI 1.1 does not describe (basic/processing.mdx).

    Returns:
        The very same dict when nothing had to go, a changed copy when something had, None for an event that is
        unrecognisable as a whole.

    Raises:
        ProtocolViolation: a described field holds a malformed value; `path` says which.
    """
    if type(event) is not dict and not isinstance(event, dict):
        raise ProtocolViolation("An event must be an object.")
    kind = event.get("type")
    id_field = DELTAS.get(kind) if type(kind) is str else None
    if id_field is not None and type(event.get(id_field)) is str and type(event.get("delta")) is str:
        # The deltas' fast path: by hand, as these are nearly all events of a run.
        size = len(event)
        if size == 3:
            return event
        if type(event.get("subagentRunId")) is str:
            size -= 1
        stamp = event.get("timestamp")
        if type(stamp) is int and -MAX_INT <= stamp <= MAX_INT:
            size -= 1
        if size == 3:
            return event
    if not isinstance(kind, str):
        raise ProtocolViolation("An event must have a type.", path="/type")
    check = _EVENT_CHECKS.get(kind)
    if check is None:
        warn(f"{kind[:80]}: an event of an unknown type was dropped.")
        return None
    if check(event):
        return event
    return _enforce_slowly(event, EVENTS[kind], kind, warn)


def enforce_message(message: Any, warn: Warn = ignore) -> dict[str, Any] | None:
    """As `enforce`, for one message of a conversation; None for a role that is not known."""
    if _MESSAGE_CHECK(message):
        return message  # type: ignore[no-any-return]  # the check admits dicts only
    return _enforce_slowly(message, MESSAGES, "message", warn)


def enforce_input(body: Any, warn: Warn = ignore, *, nulls: bool = True) -> dict[str, Any]:
    """As `enforce`, for a RunAgentInput.

    Nulls that requests have always been allowed to hold count as absent (see `_without_nulls`); with ``nulls=False``
    it is known that there are none.

    Raises:
        InvalidInput: malformed fields, every one listed with its path (at most `MAX_FINDINGS`), no value repeated.
    """
    if nulls:
        body = _without_nulls(body)
    if _INPUT_CHECK(body):
        return body  # type: ignore[no-any-return]  # the check admits dicts only
    found = _Findings()
    value = _walk(body, RUN_INPUT, "", found)
    if found.errors:
        fields = [{"path": path, "message": message} for path, message in found.errors[:MAX_FINDINGS]]
        raise InvalidInput(fields=fields)
    _tell(found.removed, "RunAgentInput", warn)
    return value  # type: ignore[no-any-return]  # not dropped: only unions are


def _enforce_slowly(value: Any, shape: Shape, name: str, warn: Warn) -> dict[str, Any] | None:
    found = _Findings()
    kept = _walk(value, shape, "", found)
    if kept is _DROP:
        warn(f"{name}: dropped, since a part it cannot be without is not known here.")
        return None
    if found.errors:
        path, complaint = found.errors[0]
        raise ProtocolViolation(
            f"{name}: malformed value at {path or 'the root'}: {complaint}.",
            event_type=name if name in EVENTS else "",
            path=path,
        )
    _tell(found.removed, name, warn)
    return kept  # type: ignore[no-any-return]  # anything but a dict is an error


def _tell(removed: list[str], name: str, warn: Warn) -> None:
    for path in removed[:MAX_FINDINGS]:
        warn(f"{name}: unknown material at {path} was removed.")
    if len(removed) > MAX_FINDINGS:
        warn(f"{name}: unknown material at {len(removed) - MAX_FINDINGS} more places was removed.")


# ---- nulls ---------------------------------------------------------------------------------------------------------


def omit_nulls(event: dict[str, Any]) -> dict[str, Any]:
    """The event without nulls where AG-UI describes an optional field; data (state, insides of metadata) stays.

    For producers that spell "unset" as null. The same dict is returned when there is nothing to leave out.
    """
    shape = EVENTS.get(event["type"]) if isinstance(event.get("type"), str) else None
    return event if shape is None else _omit(event, shape)


def _omit(value: Any, shape: Shape, only_json: bool = False) -> Any:
    match shape:
        case Obj() if isinstance(value, dict):
            out = value
            for name, item in value.items():
                inner_shape = shape.optional.get(name) or shape.required.get(name)
                if inner_shape is None or isinstance(inner_shape, Leaf | Const | Choice):
                    inner = item
                else:
                    inner = _omit(item, inner_shape, only_json)
                unset = item is None and name in shape.optional and (not only_json or inner_shape == NOT_NULL)
                if unset or inner is not item:
                    out = dict(value) if out is value else out
                    if unset:
                        del out[name]
                    else:
                        out[name] = inner
            return out
        case ListOf(item_shape) if isinstance(value, list) and not isinstance(item_shape, Leaf):
            items = [_omit(item, item_shape, only_json) for item in value]
            return items if any(a is not b for a, b in zip(items, value, strict=True)) else value
        case TextOr(parts):
            return _omit(value, parts, only_json)
        case Tagged(_, tag, members) if isinstance(value, dict) and isinstance(value.get(tag), str):
            member = members.get(value[tag])
            return value if member is None else _omit(value, member, only_json)
    return value


def _without_nulls(body: Any) -> Any:
    """A request body without the nulls that count as absent.

    A 0.x client (it declares no protocolVersion) may spell every unset field as null, as its models do. Since 1.0 that
    is malformed, but for fields whose value is arbitrary JSON: there the official client, too, reads null as absent.
    """
    old = isinstance(body, dict) and body.get("protocolVersion") is None
    return _omit(body, RUN_INPUT, not old)
