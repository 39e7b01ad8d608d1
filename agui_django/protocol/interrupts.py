"""Resume rules (basic/patterns/interrupt-resume): what a list of answers does to the open interrupts of a thread.

Law: a resume is taken whole or refused whole, and it is judged without a clock or a store: both are handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from agui_django.protocol.codec import encode
from agui_django.protocol.errors import InterruptExpired, ResumeConflict, ResumeIncomplete, ResumeInvalid
from agui_django.protocol.json_patch import escape, json_equal
from agui_django.protocol.response_schema import check_response

__all__ = [
    "OpenInterrupt",
    "Resolution",
    "Resolved",
    "check_repeat",
    "check_response",
    "flat_schema",
    "plan_resume",
    "resume_of",
    "validate_answer",
]

T = TypeVar("T")
Warn = Callable[[str], None]


def _ignore(_text: str) -> None:
    pass


@dataclass(frozen=True)
class OpenInterrupt:
    """An interrupt that waits for its answer."""

    id: str
    response_schema: dict[str, Any] | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True)
class Resolution:
    """How an interrupt was closed: status ``resolved``, ``cancelled`` or ``expired``, and the answer."""

    status: str
    response: Any = None


@dataclass(frozen=True)
class Resolved:
    """One answer to take: status ``resolved`` or ``cancelled``."""

    id: str
    status: str
    payload: Any = None
    metadata: dict[str, Any] | None = None


def plan_resume(
    open: Sequence[OpenInterrupt],
    known: Mapping[str, Resolution],
    resume: Sequence[Mapping[str, Any]],
    *,
    now: datetime,
    warn: Warn = _ignore,
) -> list[Resolved]:
    """Decide what a resume does.

    Args:
        open: the interrupts that wait, in their order.
        known: the interrupts of the thread that are closed already.
        resume: the request's entries, as checked wire dicts.
        now: the time that expiry is judged by.
        warn: told which entries were ignored.

    Returns:
        One answer for each open interrupt, in the order of `open`. Empty where nothing was open and every entry
        only repeated what was answered.

    Raises:
        ResumeConflict: two entries for one interrupt differ, or it was already answered otherwise.
        ResumeIncomplete: an open interrupt has no entry.
        InterruptExpired: an entry resolves an expired interrupt (cancelling it is allowed).
        ResumeInvalid: a payload does not fit its schema; `fields` point into the request.
    """
    entries: dict[str, tuple[int, Mapping[str, Any]]] = {}
    for number, entry in enumerate(resume):
        interrupt_id = entry["interruptId"]
        if interrupt_id not in entries:
            entries[interrupt_id] = number, entry
        elif json_equal(dict(entry), dict(entries[interrupt_id][1])):
            warn(f"/resume/{number} repeats the answer to {interrupt_id!r}")
        else:
            raise ResumeConflict(f"Two different answers to the interrupt {interrupt_id!r}.")
    waiting = {interrupt.id: interrupt for interrupt in open}
    for interrupt_id, (number, entry) in entries.items():
        if interrupt_id in waiting:
            continue
        if interrupt_id in known:
            check_repeat(interrupt_id, entry, known[interrupt_id])
            warn(f"/resume/{number}: the interrupt {interrupt_id!r} is closed already; the entry is ignored")
        else:
            warn(f"/resume/{number}: there is no interrupt {interrupt_id!r}; the entry is ignored")
    missing = [interrupt_id for interrupt_id in waiting if interrupt_id not in entries]
    if missing:
        raise ResumeIncomplete(f"Open interrupts are without an answer: {', '.join(missing)}")
    expired = [
        interrupt.id
        for interrupt in open
        if entries[interrupt.id][1]["status"] == "resolved"
        and interrupt.expires_at is not None
        and interrupt.expires_at <= now
    ]
    if expired:
        raise InterruptExpired(f"Expired, can be cancelled but not answered: {', '.join(expired)}")
    fields = [
        {"path": f"/resume/{entries[interrupt.id][0]}/payload{field['path']}", "message": field["message"]}
        for interrupt in open
        if interrupt.response_schema is not None and entries[interrupt.id][1]["status"] == "resolved"
        for field in check_response(interrupt.response_schema, entries[interrupt.id][1].get("payload"), warn)
    ]
    if fields:
        raise ResumeInvalid(fields=fields)
    return [_resolved(entries[interrupt.id][1]) for interrupt in open]


def _resolved(entry: Mapping[str, Any]) -> Resolved:
    answered = entry["status"] == "resolved"
    return Resolved(
        entry["interruptId"], entry["status"], entry.get("payload") if answered else None, entry.get("metadata")
    )


def check_repeat(interrupt_id: str, entry: Mapping[str, Any], known: Resolution) -> None:
    """Let an answer to a closed interrupt pass that only says again how it was closed.

    Raises:
        InterruptExpired: it expired, and the entry resolves it.
        ResumeConflict: it was answered otherwise.
    """
    status = entry["status"]
    if known.status == "expired":
        if status == "resolved":
            raise InterruptExpired(f"Expired, can be cancelled but not answered: {interrupt_id}")
    elif status != known.status or (status == "resolved" and not json_equal(entry.get("payload"), known.response)):
        raise ResumeConflict(f"The interrupt {interrupt_id!r} was already answered otherwise.")


def resume_of(data: Mapping[str, Any], open: Sequence[OpenInterrupt]) -> list[dict[str, Any]] | None:
    """The answers a request carries; None where it carries none.

    Older clients answer the single open interrupt by ``forwardedProps.command.resume``.
    """
    resume = data.get("resume")
    if resume:
        return list(resume)
    props = data.get("forwardedProps")
    command = props.get("command") if isinstance(props, Mapping) else None
    if not isinstance(command, Mapping) or "resume" not in command or len(open) != 1:
        return None
    entry = {"interruptId": open[0].id, "status": "resolved"}
    if command["resume"] is not None:
        entry["payload"] = command["resume"]
    return [entry]


# ---- typed answers --------------------------------------------------------------------------------------------------


def flat_schema(type: Any) -> dict[str, Any]:
    """The JSON Schema of a Python type in a form that form builders read: no ``$ref``, no title, no null branch.

    A dict is a schema already and is returned as it is. A type that contains itself ends in ``{}`` there.
    """
    if isinstance(type, dict):
        return type
    schema = TypeAdapter(type).json_schema()
    flat: dict[str, Any] = _flat(schema, schema.get("$defs", {}), ())
    return flat


def _flat(schema: Any, defs: Mapping[str, Any], inside: tuple[str, ...]) -> Any:
    if isinstance(schema, list):
        return [_flat(item, defs, inside) for item in schema]
    if not isinstance(schema, dict):
        return schema
    flat: dict[str, Any] = {}
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    if name in defs and name not in inside:
        flat.update(_flat(defs[name], defs, (*inside, name)))
    for key, value in schema.items():
        if key in ("$ref", "$defs", "title", "discriminator") or (key == "default" and value is None):
            continue
        if key == "properties":
            flat[key] = {prop: _flat(item, defs, inside) for prop, item in value.items()}
        elif key in ("anyOf", "oneOf", "allOf"):
            branches = [_flat(item, defs, inside) for item in value]
            branches = [item for item in branches if item != {"type": "null"}] or branches
            if len(branches) == 1:
                flat.update(branches[0])
            else:
                flat[key] = branches
        elif key in ("items", "prefixItems", "additionalProperties", "contains", "propertyNames"):
            flat[key] = _flat(value, defs, inside)
        else:
            flat[key] = value
    return flat


def validate_answer(type: type[T] | dict[str, Any], value: Any) -> T:
    """An answer as a value of its type, strictly: ``"1"`` is no integer and ``1`` no boolean.

    Strict as for JSON, which has no dates, enums or tuples: their JSON forms are read. For a schema given as a dict
    the value itself is returned.

    Raises:
        ResumeInvalid: the answer does not fit; `fields` point into it.
    """
    if isinstance(type, dict):
        fields = check_response(type, value)
        if fields:
            raise ResumeInvalid(fields=fields)
        answer: T = value
        return answer
    try:
        answer = TypeAdapter(type).validate_json(encode(value), strict=True)
    except ValidationError as error:
        raise ResumeInvalid(fields=list(_told(error))) from None
    return answer


def _told(error: ValidationError) -> Iterator[dict[str, str]]:
    for item in error.errors(include_url=False, include_input=False, include_context=False):
        path = "".join(f"/{escape(str(step))}" for step in item["loc"])
        yield {"path": path, "message": item["msg"]}
