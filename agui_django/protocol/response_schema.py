"""Checks an answer against the JSON Schema its interrupt carries.

Law: the schema comes from an agent, the answer from a stranger; neither may cost more than a moment or a request to
another server. A schema that cannot be used accepts with a warning; an answer too large to check is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import orjson
from jsonschema import Draft202012Validator, ValidationError
from jsonschema.exceptions import SchemaError
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable

from agui_django.protocol.json_patch import escape

MAX_ERRORS = 20
#: Bytes of a schema, and of an answer that is checked against one.
MAX_SCHEMA = 65_536
MAX_ANSWER = 1_048_576
#: References followed for one answer: nested ones grow exponentially.
MAX_REFERENCES = 10_000
#: A pattern's work for one string: its length to the power of the pattern's unbounded parts.
MAX_PATTERN = 500
MAX_PATTERN_WORK = 5_000_000

TOO_LONG = "is too long"
OTHER_FORM = "does not have the expected form"

_WORDS = {
    "integer": "a whole number",
    "boolean": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
}


class _Unusable(Exception):
    """The schema cannot be used; the text says why."""


def _ignore(_text: str) -> None:
    pass


def check_response(
    schema: Mapping[str, Any], payload: Any, warn: Callable[[str], None] = _ignore
) -> list[dict[str, str]]:
    """What is wrong with an answer.

    Args:
        schema: the interrupt's ``responseSchema``.
        payload: the answer; None where the entry carried none.
        warn: told when the schema, or a part of it, cannot be used.

    Returns:
        ``{"path": JSON Pointer into the payload, "message": ...}`` entries, at most 20; empty where the answer fits.
        The answer's values are not repeated in the messages.
    """
    try:
        if len(orjson.dumps(schema)) > MAX_SCHEMA:
            raise _Unusable("it is too large")
        if _size(payload) > MAX_ANSWER:
            return [{"path": "", "message": "is too large"}]
        Draft202012Validator.check_schema(dict(schema))
        validator = _guarded(schema, warn)(dict(schema), registry=Registry())
        return [described(error) for error in islice(validator.iter_errors(payload), MAX_ERRORS)]
    except _Unusable as error:
        reason = str(error)
    except SchemaError:
        reason = "it is not a JSON Schema"
    except Unresolvable:
        reason = "it refers to something outside"
    except RecursionError:
        reason = "it is nested too deep"
    except (TypeError, ValueError, re.error):
        reason = "it cannot be read"
    warn(f"responseSchema is not used: {reason}")
    return []


def _size(payload: Any) -> int:
    try:
        return len(orjson.dumps(payload))
    except TypeError:  # an integer beyond 64 bits
        return len(repr(payload))


def _guarded(root: Mapping[str, Any], warn: Callable[[str], None]) -> Any:
    """A validator class for one check, with its budget of references and its guarded patterns."""
    followed = 0
    name_repeats = [_repeats(expression) for expression in _name_patterns(root)]

    def counted(keyword: str) -> Callable[..., Iterator[ValidationError]]:
        plain = Draft202012Validator.VALIDATORS[keyword]

        def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
            nonlocal followed
            followed += 1
            if followed > MAX_REFERENCES:
                raise _Unusable("it refers to itself too often")
            yield from plain(validator, value, instance, schema) or ()

        return check

    def pattern(_validator: Any, value: str, instance: Any, _schema: Any) -> Iterator[ValidationError]:
        if not isinstance(instance, str):
            return
        fits = _matches(value, instance, warn)
        if fits is None:
            yield ValidationError(TOO_LONG)
        elif not fits:
            yield ValidationError(OTHER_FORM)

    def pattern_properties(
        validator: Any, value: Mapping[str, Any], instance: Any, _schema: Any
    ) -> Iterator[ValidationError]:
        if not isinstance(instance, dict):
            return
        for expression, subschema in value.items():
            for name, item in instance.items():
                if _matches(expression, name, warn):
                    yield from validator.descend(item, subschema, path=name, schema_path=expression)

    def refused_beside_patterns(keyword: str) -> Callable[..., Iterator[ValidationError]]:
        plain = Draft202012Validator.VALIDATORS[keyword]

        def check(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
            # The library matches the names against the patterns beside this keyword itself, without our guard.
            if None in name_repeats:
                return
            worst = max((repeats for repeats in name_repeats if repeats is not None), default=0)
            if isinstance(instance, dict) and any(len(name) ** worst > MAX_PATTERN_WORK for name in instance):
                yield ValidationError("has a name that is too long")
                return
            yield from plain(validator, value, instance, schema) or ()

        return check

    guarded: Any = extend(  # type: ignore[no-untyped-call,unused-ignore]
        Draft202012Validator,
        {
            "$ref": counted("$ref"),
            "$dynamicRef": counted("$dynamicRef"),
            "pattern": pattern,
            "patternProperties": pattern_properties,
            "additionalProperties": refused_beside_patterns("additionalProperties"),
            "unevaluatedProperties": refused_beside_patterns("unevaluatedProperties"),
        },
    )
    return guarded


def _name_patterns(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        patterns = schema.get("patternProperties")
        yield from patterns if isinstance(patterns, Mapping) else ()
        schema = schema.values()
    elif not isinstance(schema, list):
        return
    for item in schema:
        yield from _name_patterns(item)


def _matches(expression: str, text: str, warn: Callable[[str], None]) -> bool | None:
    """Whether a text matches; None where it is too long to find out. An unusable pattern matches everything."""
    repeats = _repeats(expression)
    if repeats is None:
        warn("responseSchema: a pattern is not used, it could take too long")
        return True
    if max(len(text), 1) ** repeats > MAX_PATTERN_WORK:
        return None
    return re.search(expression, text) is not None


def _repeats(expression: str) -> int | None:
    """One more than the unbounded parts of a pattern; None where it may backtrack exponentially.

    Exponential are repeated groups with a repetition or a choice inside, and whatever is not plain enough to tell.
    """
    if len(expression) > MAX_PATTERN:
        return None
    repeats, position = 1, 0
    groups: list[bool] = [False]  # is there a repetition or a choice inside?
    closed: bool | None = None  # what the group that just ended had inside
    while position < len(expression):
        char = expression[position]
        just_closed, closed = closed, None
        if char == "\\":
            position += 1
            if expression[position : position + 1].isdigit():
                return None
        elif char == "[":
            position = _class_end(expression, position)
        elif char == "(":
            if expression.startswith("(?", position):
                if not expression.startswith("(?:", position):
                    return None
                position += 2
            groups.append(False)
        elif char == ")" and len(groups) > 1:
            closed = groups.pop()
            groups[-1] = groups[-1] or closed
        elif char == "|":
            groups[-1] = True
        elif char in "*+{":
            if just_closed:
                return None
            repeats += 1
            groups[-1] = True
        elif char == "?":
            groups[-1] = True
        position += 1
    return repeats


def _class_end(expression: str, position: int) -> int:
    position += 1
    if expression[position : position + 1] == "^":
        position += 1
    if expression[position : position + 1] == "]":
        position += 1
    while position < len(expression) and expression[position] != "]":
        position += 2 if expression[position] == "\\" else 1
    return position


def described(error: ValidationError) -> dict[str, str]:
    """An error as a field: where it is and what was expected, never what was there."""
    path = "".join(f"/{escape(str(step))}" for step in error.absolute_path)
    expected: Any = error.validator_value
    match error.validator:
        case "type":
            names = expected if isinstance(expected, list) else [expected]
            message = "must be " + " or ".join(_WORDS.get(str(name), f"a {name}") for name in names)
        case "enum" | "const":
            message = "must be one of the values offered"
        case "required":
            held = error.instance if isinstance(error.instance, dict) else {}
            message = "lacks " + ", ".join(str(name) for name in expected if name not in held)
        case "additionalProperties" | "unevaluatedProperties" if error.message != "has a name that is too long":
            message = "has members that are not expected"
        case "minimum" | "exclusiveMinimum" | "maximum" | "exclusiveMaximum" | "multipleOf":
            message = f"must satisfy {error.validator} {expected}"
        case "minLength" | "maxLength" | "minItems" | "maxItems":
            message = f"must satisfy {error.validator} {expected}"
        case "pattern":
            message = error.message if error.message == TOO_LONG else OTHER_FORM
        case _:
            message = f"does not satisfy {error.validator}"
    return {"path": path, "message": message}
