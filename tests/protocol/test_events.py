"""The tables of events against the JSON schema of 1.1 and the official Python models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from ag_ui.core import Event, EventType
from pydantic import TypeAdapter

from agui_django.protocol import events
from agui_django.protocol.events import (
    ANY,
    BOOL,
    CHUNKS,
    DELTAS,
    EVENT_TYPES,
    EVENTS,
    FAMILIES,
    MAX_INT,
    NOT_NULL,
    OBJECT,
    POINTER,
    STR,
    Choice,
    Const,
    Leaf,
    ListOf,
    Obj,
    Shape,
    Tagged,
    TextOr,
)
from tests.parts import CONFORMANCE, require
from tests.protocol.shapes import sample

ROOTS: dict[str, Shape] = {
    **{shape.name: shape for shape in EVENTS.values()},
    "RunAgentInput": events.RUN_INPUT,
    "Message": events.MESSAGES,
    "ContentPart": events.PARTS,
    "JsonPatch": events.PATCH,
}


@pytest.fixture(scope="module")
def definitions() -> dict[str, Any]:
    require("conformance")
    return json.loads((CONFORMANCE / "schema-1.1.json").read_text())["$defs"]


def inside(shape: Shape) -> Iterator[Shape]:
    """A shape and all shapes it is made of."""
    yield shape
    match shape:
        case ListOf(item):
            yield from inside(item)
        case TextOr(parts):
            yield from inside(parts)
        case Obj():
            for member in {**shape.required, **shape.optional}.values():
                yield from inside(member)
        case Tagged():
            for member in shape.members.values():
                yield from inside(member)


OBJECTS = {shape.name: shape for root in ROOTS.values() for shape in inside(root) if isinstance(shape, Obj)}
UNIONS = {shape.name: shape for root in ROOTS.values() for shape in inside(root) if isinstance(shape, Tagged)}


def flat(definition: dict[str, Any], definitions: dict[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """Properties and required names of a definition with everything it is composed of."""
    properties: dict[str, Any] = {}
    required: set[str] = set()
    for part in definition.get("allOf", ()):
        more, needed = flat(definitions[part["$ref"].removeprefix("#/$defs/")], definitions)
        properties |= more
        required |= needed
    return properties | definition.get("properties", {}), required | set(definition.get("required", ()))


def agree(shape: Shape, schema: dict[str, Any], definitions: dict[str, Any]) -> bool:
    """Whether a shape says what a schema says."""
    if "$ref" in schema and "not" not in schema:
        schema = definitions[schema["$ref"].removeprefix("#/$defs/")]
    # documentation, and the one annotation that validates nothing
    said = {
        key: value
        for key, value in schema.items()
        if key not in ("description", "$anchor", "default", "contentEncoding")
    }
    match shape:
        case Const(value):
            return said == {"const": value}
        case Choice(values):
            return said["type"] == "string" and set(said["enum"]) == values
        case ListOf(item, min_items):
            return (
                said["type"] == "array"
                and said.get("minItems", 0) == min_items
                and agree(item, said["items"], definitions)
            )
        case TextOr(parts):
            text, listed = said["oneOf"]
            return text == {"type": "string"} and agree(parts, listed, definitions)
        case Obj(name):
            return schema is definitions[name]
        case Tagged(name):
            return schema is definitions[name]
        case Leaf():
            return agree_leaf(shape, said)
    raise AssertionError(shape)


def agree_leaf(leaf: Leaf, said: dict[str, Any]) -> bool:
    if leaf == STR:
        return said == {"type": "string"}
    if leaf == POINTER:
        return said.keys() == {"type", "pattern"}
    if leaf == BOOL:
        return said == {"type": "boolean"}
    if leaf == OBJECT:
        return said == {"type": "object", "additionalProperties": True}
    if leaf == NOT_NULL:
        return said == {"not": {"type": "null"}} or said == {"not": {"type": "null"}, "$ref": "#/$defs/State"}
    if leaf == ANY:
        return said == {}
    low = 0 if leaf == events.COUNT else -MAX_INT
    return said == {"type": "integer", "minimum": low, "maximum": MAX_INT}


def test_all_event_types(definitions: dict[str, Any]) -> None:
    assert list(EVENT_TYPES) == definitions["EventType"]["enum"]
    assert len(EVENT_TYPES) == 31
    assert [ref["$ref"] for ref in definitions["Event"]["oneOf"]] == [f"#/$defs/{s.name}" for s in EVENTS.values()]


def test_official_models_know_the_same_types() -> None:
    assert set(EVENT_TYPES) == {member.value for member in EventType}


@pytest.mark.parametrize("name", sorted(OBJECTS))
def test_object_says_what_the_schema_says(name: str, definitions: dict[str, Any]) -> None:
    shape = OBJECTS[name]
    properties, required = flat(definitions[name], definitions)
    described = {**shape.required, **shape.optional}
    assert described.keys() == properties.keys()
    assert shape.required.keys() == required
    assert not shape.required.keys() & shape.optional.keys()
    for field, inner in described.items():
        assert agree(inner, properties[field], definitions), field
    assert shape.open == ("unevaluatedProperties" not in definitions[name])


@pytest.mark.parametrize("name", sorted(UNIONS))
def test_union_has_the_members_of_the_schema(name: str, definitions: dict[str, Any]) -> None:
    union = UNIONS[name]
    members = [ref["$ref"].removeprefix("#/$defs/") for ref in definitions[name]["oneOf"]]
    assert [member.name for member in union.members.values()] == members
    for value, member in union.members.items():
        assert member.required[union.tag] == Const(value)


def test_every_definition_of_the_schema_has_a_table(definitions: dict[str, Any]) -> None:
    # Capabilities describe an agent, not a run; the fragments only exist inside what they compose.
    elsewhere = {"BaseEvent", "Attributable", "BaseMessage", "SubagentInfo", "Event"}
    described = {
        name
        for name, definition in definitions.items()
        if ("properties" in definition or "oneOf" in definition)
        and not name.endswith("Capabilities")
        and name not in elsewhere
    }
    assert described == OBJECTS.keys() | UNIONS.keys()


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_official_models_take_a_full_event(kind: str) -> None:
    """Every member the tables describe is a field of the official model, under the same alias."""
    full = sample(EVENTS[kind])
    model = TypeAdapter(Event).validate_python(full)
    fields = {field.alias or name for name, field in type(model).model_fields.items()}
    # The 1.0.0 models were made from schema 1.0; 1.1 added this member.
    assert full.keys() - {"encryptedValueType"} <= fields


def test_families() -> None:
    opened = [f"{name}_START" for name in ("TEXT_MESSAGE", "TOOL_CALL", "REASONING", "REASONING_MESSAGE")]
    assert [FAMILIES[kind].opens for kind in ("text", "tool_call", "reasoning", "reasoning_message")] == opened
    for family in FAMILIES.values():
        for kind in filter(None, (family.opens, family.continues, family.closes)):
            assert EVENTS[kind].required[family.id_field] == STR
        if family.chunk:
            assert family.id_field in EVENTS[family.chunk].optional
    assert {*DELTAS} == {kind for kind, shape in EVENTS.items() if shape.required.get("delta") == STR}
    assert {*CHUNKS} == {kind for kind in EVENT_TYPES if kind.endswith("_CHUNK")}
