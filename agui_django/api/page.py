"""The OpenAPI document as a page to read: no script, nothing from another host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

METHODS = ("get", "post", "put", "patch", "delete")
#: Refers to a component on the page.
ANCHOR = "type-"


@dataclass
class Line:
    """A parameter, a property, a body or an answer."""

    name: str
    kind: str
    text: str = ""
    link: str = ""
    required: bool = False


@dataclass
class Operation:
    """A method of an address."""

    method: str
    path: str
    name: str
    text: str
    parameters: list[Line] = field(default_factory=list)
    bodies: list[Line] = field(default_factory=list)
    answers: list[Line] = field(default_factory=list)


@dataclass
class Component:
    """A shape."""

    name: str
    text: str
    members: list[Line]


def groups(document: dict[str, Any]) -> dict[str, list[Operation]]:
    """The operations by what they are about."""
    found: dict[str, list[Operation]] = {}
    for path, methods in document["paths"].items():
        for method in METHODS:
            if (told := methods.get(method)) is not None:
                found.setdefault((told.get("tags") or ["other"])[0], []).append(_operation(path, method, told))
    return dict(sorted(found.items()))


def components(document: dict[str, Any]) -> list[Component]:
    """The shapes, by name."""
    schemas = document["components"].get("schemas", {})
    return [
        Component(name, schema.get("description", ""), list(_members(schema)))
        for name, schema in sorted(schemas.items())
    ]


def _operation(path: str, method: str, told: dict[str, Any]) -> Operation:
    parameters = [
        Line(each["name"], _kind(each["schema"]), each.get("description", ""), "", each.get("required", False))
        for each in told.get("parameters", [])
    ]
    answers = [
        line
        for status, each in told.get("responses", {}).items()
        for line in _contents(each.get("content", {}), str(status), each.get("description", ""))
    ]
    body = told.get("requestBody", {}).get("content")
    bodies = list(_contents(body, "", "")) if body else []
    return Operation(
        method.upper(), path, told["operationId"], told.get("description", ""), parameters, bodies, answers
    )


def _contents(content: dict[str, Any], status: str, text: str) -> Iterator[Line]:
    for media, each in content.items():
        schema = each.get("schema", {})
        yield Line(f"{status} {media}".strip(), _kind(schema), text, _link(schema))
    if not content:
        yield Line(status, "no body", text)


def _members(schema: dict[str, Any]) -> Iterator[Line]:
    required = schema.get("required", [])
    for name, each in schema.get("properties", {}).items():
        yield Line(name, _kind(each), each.get("description", ""), _link(each), name in required)
    if not schema.get("properties"):
        yield Line("", _kind(schema), "", _link(schema))


def _link(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return f"{ANCHOR}{schema['$ref'].rpartition('/')[2]}"
    inner = [*schema.get("allOf", []), *([schema["items"]] if "items" in schema else [])]
    return _link(inner[0]) if len(inner) == 1 else ""


def _kind(schema: dict[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "enum" in schema:
        return " | ".join(str(each) for each in schema["enum"])
    for key in ("oneOf", "anyOf", "allOf"):
        if key in schema:
            return " | ".join(dict.fromkeys(_kind(each) for each in schema[key]))
    kind = schema.get("type", "any JSON")
    if kind == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    words = " | ".join(kind) if isinstance(kind, list) else str(kind)
    return f"{words} ({schema['format']})" if "format" in schema else words
