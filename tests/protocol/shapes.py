"""Values made from the tables of events, for tests."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

from agui_django.protocol.events import (
    ANY,
    BOOL,
    COUNT,
    EVENT_TYPES,
    EVENTS,
    INT,
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

SAMPLES: dict[Leaf, Any] = {
    STR: "text", INT: 7, COUNT: 7, BOOL: True, ANY: {"any": None}, NOT_NULL: [1], OBJECT: {"k": None},
    POINTER: "/a/b",
}  # fmt: skip


def sample(shape: Shape) -> Any:
    """A value with every member a shape describes, and with every member of a union where a list has room."""
    match shape:
        case Leaf():
            return copy.deepcopy(SAMPLES[shape])
        case Const(value):
            return value
        case Choice(values):
            return min(values)
        case ListOf(item):
            return [sample(member) for member in item.members.values()] if isinstance(item, Tagged) else [sample(item)]
        case TextOr(parts):
            return sample(parts)
        case Obj():
            return {name: sample(inner) for name, inner in {**shape.required, **shape.optional}.items()}
        case Tagged():
            return sample(next(iter(shape.members.values())))
    raise AssertionError(shape)


def least(kind: str) -> dict[str, Any]:
    """An event of a type with the members it cannot be without."""
    return {name: sample(shape) for name, shape in EVENTS[kind].required.items()}


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 1.0, 1.5, 2**53, 10**30, "", "text", "/a~1b", "/a~2", "tool", "system", "success"]),
    st.sampled_from([[], {}, ["text"], [None], {"type": "hologram"}, {"role": "narrator"}, {"op": "increment"}]),
).map(copy.deepcopy)  # junk may be damaged in its turn


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a value."""
    if isinstance(value, dict):
        pairs: list[tuple[Any, Any]] = [(value, name) for name in value]
    elif isinstance(value, list):
        pairs = [(value, index) for index in range(len(value))]
    else:
        return []
    for container, key in list(pairs):
        pairs += places(container[key])
    return pairs


@st.composite
def damaged(draw: st.DrawFn, base: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    """A value with up to three members removed, replaced by junk, or added."""
    value = copy.deepcopy(draw(base))
    for _ in range(draw(st.integers(0, 3))):
        found = [place for place in places(value) if place[0] is not value or place[1] != "type"]
        if not found:
            break
        container, key = found[draw(st.integers(0, len(found) - 1))]
        match draw(st.sampled_from(["remove", "replace", "add"])):
            case "remove":
                del container[key]
            case "replace":
                container[key] = draw(JUNK)
            case "add" if isinstance(container, dict):
                container[draw(st.sampled_from(["futureProp", "toString", "a/b~c"]))] = draw(JUNK)
    return value


whole_events = st.sampled_from(EVENT_TYPES).map(lambda kind: sample(EVENTS[kind]))
least_events = st.sampled_from(EVENT_TYPES).map(least)
