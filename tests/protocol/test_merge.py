"""Three-way merge: examples whose results were worked out by hand, and what holds for every three values."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agui_django.protocol.json_patch import json_equal
from agui_django.protocol.merge import merge, merge_patch

# ---- examples -------------------------------------------------------------------------------------------------------

A, B, C = {"id": "a", "n": 1}, {"id": "b", "n": 1}, {"id": "c", "n": 1}
MERGES = [
    # objects: key by key, at any depth
    ({"a": 1, "b": 1}, {"a": 2, "b": 1}, {"a": 1, "b": 3}, {"a": 2, "b": 3}),
    ({"a": {"x": 1, "y": 1}}, {"a": {"x": 2, "y": 1}}, {"a": {"x": 1, "y": 2}}, {"a": {"x": 2, "y": 2}}),
    ({}, {"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
    ({"a": 1, "b": 2}, {"b": 2}, {"a": 1}, {}),
    ({}, {"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"x": 1, "y": 2}}),
    # conflicts: theirs wins, nothing else is touched
    ({"a": 1, "b": 1}, {"a": 2, "b": 5}, {"a": 3, "b": 1}, {"a": 3, "b": 5}),
    ({"a": 1}, {}, {"a": 2}, {"a": 2}),
    ({"a": 1}, {"a": 2}, {}, {}),
    ({"a": {"x": 1}}, {}, {"a": {"x": 2}}, {"a": {"x": 2}}),
    ({"a": {"x": 1}}, {"a": {"x": 2}}, {}, {}),
    ({"a": None}, {"a": {"x": 1}}, {"a": {"y": 2}}, {"a": {"y": 2}}),
    ({"a": 1}, {"a": [1]}, {"a": {"y": 2}}, {"a": {"y": 2}}),
    # values are JSON's: 1 is 1.0, true is not 1, null is a value
    ({"a": 1}, {"a": 1.0}, {"a": True}, {"a": True}),
    ({"a": 1}, {"a": 1.0}, {"a": 2}, {"a": 2}),
    ({"a": 1}, {"a": None}, {"a": 1}, {"a": None}),
    # arrays: element by element
    ([1, 2, 3], [1, 3], [1, 2, 4], [1, 4]),
    (["a", "b", "c"], ["a", "b", "c", "d"], ["a", "B", "c"], ["a", "B", "c", "d"]),
    ([A, B], [A, B, C], [{**A, "n": 2}, B], [{**A, "n": 2}, B, C]),
    ([A, B, C], [A, C], [A, B, {**C, "n": 2}], [A, {**C, "n": 2}]),
    ([A, B], [A], [A, {**B, "n": 2}], [A, {**B, "n": 2}]),
    ([{"n": 1}, 2], [{"n": 1, "x": 1}, 2], [{"n": 1, "y": 1}, 2], [{"n": 1, "x": 1, "y": 1}, 2]),
    ([], ["x"], ["y"], ["x", "y"]),
    ([], ["x"], ["x", "y"], ["x", "y"]),
    ([1], [1, "x"], [1, "x"], [1, "x"]),
    ([1, 1], [1], [1, 1, 2], [1, 2]),
    # what moved is found again, once
    ([A, B], [B, A], [{**A, "n": 5}, B], [B, {**A, "n": 5}]),
    ([A, B], [{**B, "n": 2}, A], [A, {**B, "m": 3}], [{**B, "n": 2, "m": 3}, A]),
    ([A, B, C], [B, C, A], [C, A, B], None),
    (["a", "b"], ["b", "a"], ["a"], ["a"]),
    ([A], [A, B], [{**B, "n": 7}, A], [{**B, "n": 7}, A]),
    # two with one id are no objects that could be told apart
    ([A, A], [A, A, B], [A, A], [A, A, B]),
    # the whole value
    ({"a": 1}, [1], {"a": 2}, {"a": 2}),
    (1, 2, 3, 3),
]  # fmt: skip


@pytest.mark.parametrize(("base", "ours", "theirs", "merged"), MERGES)
def test_examples(base: Any, ours: Any, theirs: Any, merged: Any) -> None:
    before = copy.deepcopy((base, ours, theirs))
    found = merge(base, ours, theirs)
    assert (base, ours, theirs) == before
    if merged is None:  # both moved everything: nothing is lost or doubled
        assert sorted(item["id"] for item in found) == ["a", "b", "c"]
    else:
        assert found == merged


def test_very_long_arrays_cost_no_more_than_allowed() -> None:
    base = [0] * 50_000
    ours, theirs = [1, *base[:-2], 2], [3, *base[:-2], 4]
    assert len(merge(base, ours, theirs)) >= 49_998
    keyed = [{"id": number, "n": 0} for number in range(20_000)]
    moved = [*keyed[10_000:], *keyed[:10_000]]
    edited = [{**item, "n": 1} if item["id"] == 5 else item for item in keyed]
    merged = merge(keyed, moved, edited)
    assert len(merged) == 20_000
    assert merged[10_005] == {"id": 5, "n": 1}


# ---- what always holds ----------------------------------------------------------------------------------------------

SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "b"]) | st.just(1.5)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["id", "a", "b", "c"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(VALUES, VALUES)
def test_one_side_that_did_nothing_leaves_the_other(base: Any, other: Any) -> None:
    assert json_equal(merge(base, base, other), other)
    assert json_equal(merge(base, other, base), other)
    assert json_equal(merge(base, other, other), other)


@given(VALUES, VALUES, VALUES)
def test_the_result_is_a_function_of_the_values(base: Any, ours: Any, theirs: Any) -> None:
    first = merge(base, ours, theirs)
    again = merge(copy.deepcopy(base), copy.deepcopy(ours), copy.deepcopy(theirs))
    assert json_equal(first, again)


@given(VALUES, VALUES, VALUES)
def test_a_merge_made_twice_is_made_once(base: Any, ours: Any, theirs: Any) -> None:
    """An edit that was taken in and is met again, as after a crash, changes nothing."""
    once = merge(base, ours, theirs)
    if not isinstance(once, list):
        assert json_equal(merge(base, once, theirs), once)


# Objects of leaves at paths: each leaf is edited by one side at most, or by both in the same way or differently.
PATHS = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(tuple)
SIDES = st.sampled_from(["nobody", "ours", "theirs", "both", "same"])
ACTIONS = st.sampled_from(["set", "remove"])


@st.composite
def edited_objects(draw: st.DrawFn) -> tuple[Any, Any, Any, Any]:
    """Three objects, and what their merge is by the rule."""
    leaves = draw(st.dictionaries(PATHS, st.tuples(SIDES, ACTIONS, ACTIONS, st.booleans()), max_size=8))
    # No leaf may stand inside another.
    leaves = {
        path: plan
        for path, plan in leaves.items()
        if not any(path != other and path[: len(other)] == other for other in leaves)
    }
    made: list[dict[tuple[str, ...], Any]] = [{}, {}, {}, {}]
    for path, (side, our_action, their_action, there) in leaves.items():
        base = [0] if there else []
        ours = base if side in ("nobody", "theirs") else ([1] if our_action == "set" else [])
        theirs = base if side in ("nobody", "ours") else ([2] if their_action == "set" else [])
        theirs = ours if side == "same" else theirs
        merged = theirs if theirs != base else ours
        for target, value in zip(made, (base, ours, theirs, merged), strict=True):
            if value:
                target[path] = value[0]
    frame = [path[:-1] for path in leaves]
    found = [nested(leaves_, frame) for leaves_ in made]
    return found[0], found[1], found[2], found[3]


def nested(leaves: dict[tuple[str, ...], Any], frame: list[tuple[str, ...]]) -> Any:
    root: dict[str, Any] = {}
    for path in frame:
        node = root
        for key in path:
            node = node.setdefault(key, {})
    for path, value in leaves.items():
        node = root
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = value
    return root


@given(edited_objects())
def test_no_edit_of_an_object_is_lost(values: tuple[Any, Any, Any, Any]) -> None:
    base, ours, theirs, merged = values
    assert merge(base, ours, theirs) == merged


@st.composite
def edited_arrays(draw: st.DrawFn) -> tuple[Any, Any, Any, Any]:
    """Arrays of different elements; each is edited by one side at most, and something may be added behind it."""
    keyed = draw(st.booleans())

    def element(name: str, value: int = 0) -> Any:
        return {"id": name, "n": value} if keyed else f"{name}{value or ''}"

    lists: list[list[Any]] = [[], [], [], []]
    plan = draw(st.lists(st.tuples(st.sampled_from(["keep", "ours", "theirs"]), ACTIONS, SIDES), max_size=8))
    for number, (side, action, adds) in enumerate(plan):
        name = f"e{number}."
        edited = [element(name, 1)] if action == "set" else []
        values = {"keep": [element(name)]}
        for target, who in zip(lists, ("keep", "ours", "theirs", "merged"), strict=True):
            target += edited if side != "keep" and who in (side, "merged") else values["keep"]
        # Additions only behind what nobody touches: beside a removal the order is nobody's edit.
        if side == "keep":
            ours = [element(f"o{number}.")] if adds in ("ours", "both") else []
            theirs = [element(f"t{number}.")] if adds in ("theirs", "both") else []
            both = [element(f"s{number}.")] if adds == "same" else []
            for target, added in zip(lists, ([], ours + both, theirs + both, ours + theirs + both), strict=True):
                target += added
    return lists[0], lists[1], lists[2], lists[3]


@given(edited_arrays())
def test_no_edit_of_an_array_is_lost(values: tuple[Any, Any, Any, Any]) -> None:
    base, ours, theirs, merged = values
    found = merge(base, ours, theirs)
    assert sorted(map(repr, found)) == sorted(map(repr, merged)), "something is lost or doubled"


# ---- RFC 7396 -------------------------------------------------------------------------------------------------------

#: Appendix A of the RFC.
RFC = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("target", "patch", "result"), RFC)
def test_merge_patch(target: Any, patch: Any, result: Any) -> None:
    before = copy.deepcopy(target)
    assert merge_patch(target, patch) == result
    assert target == before
