"""JSON Patch: the examples of RFC 6902, the guards, and the jsonpatch library as a second opinion."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agui_django.protocol.json_patch import PatchError, apply_patch, copy_json, json_equal, make_patch

Ops = list[dict[str, Any]]

# RFC 6902, appendix A: document, patch, result (None: refused).
APPENDIX_A: list[tuple[str, Any, Ops, Any]] = [
    ("A.1", {"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"baz": "qux", "foo": "bar"}),
    (
        "A.2",
        {"foo": ["bar", "baz"]},
        [{"op": "add", "path": "/foo/1", "value": "qux"}],
        {"foo": ["bar", "qux", "baz"]},
    ),
    ("A.3", {"baz": "qux", "foo": "bar"}, [{"op": "remove", "path": "/baz"}], {"foo": "bar"}),
    ("A.4", {"foo": ["bar", "qux", "baz"]}, [{"op": "remove", "path": "/foo/1"}], {"foo": ["bar", "baz"]}),
    (
        "A.5",
        {"baz": "qux", "foo": "bar"},
        [{"op": "replace", "path": "/baz", "value": "boo"}],
        {"baz": "boo", "foo": "bar"},
    ),
    (
        "A.6",
        {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
        [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
        {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
    ),
    (
        "A.7",
        {"foo": ["all", "grass", "cows", "eat"]},
        [{"op": "move", "from": "/foo/1", "path": "/foo/3"}],
        {"foo": ["all", "cows", "eat", "grass"]},
    ),
    (
        "A.8",
        {"baz": "qux", "foo": ["a", 2, "c"]},
        [{"op": "test", "path": "/baz", "value": "qux"}, {"op": "test", "path": "/foo/1", "value": 2}],
        {"baz": "qux", "foo": ["a", 2, "c"]},
    ),
    ("A.9", {"baz": "qux"}, [{"op": "test", "path": "/baz", "value": "bar"}], None),
    (
        "A.10",
        {"foo": "bar"},
        [{"op": "add", "path": "/child", "value": {"grandchild": {}}}],
        {"foo": "bar", "child": {"grandchild": {}}},
    ),
    (
        "A.11",
        {"foo": "bar"},
        [{"op": "add", "path": "/baz", "value": "qux", "xyz": 123}],
        {"foo": "bar", "baz": "qux"},
    ),
    ("A.12", {"foo": "bar"}, [{"op": "add", "path": "/baz/bat", "value": "qux"}], None),
    ("A.14", {"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": 10}], {"/": 9, "~1": 10}),
    ("A.15", {"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": "10"}], None),
    (
        "A.16",
        {"foo": ["bar"]},
        [{"op": "add", "path": "/foo/-", "value": ["abc", "def"]}],
        {"foo": ["bar", ["abc", "def"]]},
    ),
]


@pytest.mark.parametrize(("name", "document", "patch", "result"), APPENDIX_A, ids=[row[0] for row in APPENDIX_A])
def test_the_examples_of_rfc_6902(name: str, document: Any, patch: Ops, result: Any) -> None:
    before = copy.deepcopy(document)
    if result is None:
        with pytest.raises(PatchError):
            apply_patch(document, patch)
    else:
        assert apply_patch(document, patch) == result
    assert document == before


@pytest.mark.parametrize(
    ("document", "op"),
    [
        ({"a": 1}, {"op": "test", "path": "/a", "value": True}),
        ({"a": True}, {"op": "test", "path": "/a", "value": 1}),
        ({"a": [0]}, {"op": "test", "path": "/a", "value": [False]}),
        ({"items": [1, 2, 3]}, {"op": "replace", "path": "/items/01", "value": 9}),
        ({"items": [1, 2, 3]}, {"op": "add", "path": "/items/01", "value": 9}),
        ({"items": [1, 2, 3]}, {"op": "test", "path": "/items/01", "value": 2}),
        ({"items": [1, 2, 3]}, {"op": "copy", "from": "/items/01", "path": "/x"}),
        ({"items": [1, 2, 3]}, {"op": "move", "from": "/items/01", "path": "/x"}),
        ({"items": [1, 2, 3]}, {"op": "remove", "path": "/items/01"}),
        ({"items": [[1], [2]]}, {"op": "add", "path": "/items/01/0", "value": 9}),
        ({"items": [1, 2, 3]}, {"op": "remove", "path": "/items/-1"}),
        ({"items": [1, 2, 3]}, {"op": "remove", "path": "/items/-"}),
        ({"items": [1, 2, 3]}, {"op": "remove", "path": "/items/1e0"}),
        ({"items": [1, 2, 3]}, {"op": "remove", "path": "/items/\u0661"}),
        ({"items": [1, 2, 3]}, {"op": "add", "path": "/items/4", "value": 9}),
        ({"items": [1, 2, 3]}, {"op": "move", "from": "/items/0", "path": "/items/3"}),
        ({"a": {}}, {"op": "add", "path": "/__proto__/polluted", "value": 1}),
        ({"a": {}}, {"op": "add", "path": "/a/__proto__", "value": 1}),
        ({"a": {}}, {"op": "add", "path": "/constructor/prototype/x", "value": 1}),
        ({"__proto__": 1}, {"op": "copy", "from": "/__proto__", "path": "/b"}),
        ({"a": {"b": {}}}, {"op": "move", "from": "/a", "path": "/a/b/c"}),
        ({"a": [[1], [2]]}, {"op": "move", "from": "/a/0", "path": "/a/0/0"}),
        ({"a": "text"}, {"op": "replace", "path": "/a/0", "value": "T"}),
        ({"a": "text"}, {"op": "add", "path": "/a/b", "value": 1}),
        ({"a": None}, {"op": "add", "path": "/a/b", "value": 1}),
        ({"a": 1}, {"op": "replace", "path": "/b", "value": 1}),
        ({"a": 1}, {"op": "remove", "path": "/b"}),
        ({"a": 1}, {"op": "add", "path": "b", "value": 1}),
        ({"a": 1}, {"op": "add", "path": "/~2", "value": 1}),
        ({"a": 1}, {"op": "add", "path": "/b"}),
        ({"a": 1}, {"op": "merge", "path": "/b", "value": 1}),
        (None, {"op": "add", "path": "/b", "value": 1}),
    ],
)
def test_refused(document: Any, op: dict[str, Any]) -> None:
    with pytest.raises(PatchError):
        apply_patch(document, [op])


def test_all_or_nothing() -> None:
    document = {"a": [1, {"b": 2}]}
    with pytest.raises(PatchError, match="operation 2"):
        apply_patch(
            document,
            [
                {"op": "add", "path": "/a/1/c", "value": 3},
                {"op": "remove", "path": "/a/0"},
                {"op": "test", "path": "/a", "value": []},
            ],
        )
    assert document == {"a": [1, {"b": 2}]}


def test_nothing_is_shared_with_the_patch_or_the_document() -> None:
    value: dict[str, Any] = {"list": []}
    document: dict[str, Any] = {"kept": {"n": 1}}
    ops = [
        {"op": "add", "path": "/a", "value": value},
        {"op": "copy", "from": "/a", "path": "/b"},
        {"op": "add", "path": "/b/list/-", "value": 1},
    ]
    result = apply_patch(document, ops)
    assert result == {"kept": {"n": 1}, "a": {"list": []}, "b": {"list": [1]}}
    assert value == {"list": []}
    result["kept"]["n"] = 2
    assert document == {"kept": {"n": 1}}


@pytest.mark.parametrize(
    ("op", "result"),
    [
        ({"op": "replace", "path": "", "value": [1]}, [1]),
        ({"op": "add", "path": "", "value": None}, None),
        ({"op": "remove", "path": ""}, None),
        ({"op": "move", "from": "/a", "path": ""}, {"b": 1}),
        ({"op": "copy", "from": "/a", "path": ""}, {"b": 1}),
        ({"op": "move", "from": "/a", "path": "/a"}, {"a": {"b": 1}}),
        ({"op": "test", "path": "", "value": {"a": {"b": 1.0}}}, {"a": {"b": 1}}),
    ],
)
def test_the_whole_document(op: dict[str, Any], result: Any) -> None:
    assert apply_patch({"a": {"b": 1}}, [op]) == result


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        ([1], [True], False),
        ({"a": 0}, {"a": False}, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": 1, "b": None}, False),
        ([], {}, False),
        ("1", 1, False),
        (None, False, False),
        (10**30, 10**30, True),
    ],
)
def test_json_equality(a: Any, b: Any, equal: bool) -> None:
    assert json_equal(a, b) is equal
    assert json_equal(b, a) is equal


KEYS = st.sampled_from(["a", "b", "", "/", "~", "~1", "01", "-", "__proto__", "constructor", "prototype"])
SCALARS = st.sampled_from([None, True, False, 0, 1, 1.0, 0.0, 2, "", "x", "1", 2**70])
JSON = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)


@given(JSON, JSON)
def test_a_patch_between_two_values_is_exact(old: Any, new: Any) -> None:
    before = json.dumps([old, new])
    patch = make_patch(old, new)
    # dumps tells 1, 1.0 and true apart, as == does not.
    assert json.dumps(apply_patch(old, patch), sort_keys=True) == json.dumps(new, sort_keys=True)
    assert json.dumps([old, new]) == before
    assert make_patch(new, copy_json(new)) == []


POINTERS = st.lists(st.sampled_from(["a", "b", "0", "1", "2", "-", "~0", "~1", ""]), max_size=3).map(
    lambda parts: "".join(f"/{part}" for part in parts)
)
OPS = st.one_of(
    st.builds(lambda p, v: {"op": "add", "path": p, "value": v}, POINTERS, SCALARS),
    st.builds(lambda p, v: {"op": "replace", "path": p, "value": v}, POINTERS, SCALARS),
    st.builds(lambda p: {"op": "remove", "path": p}, POINTERS.filter(bool)),
    st.builds(lambda p, f: {"op": "move", "path": p, "from": f}, POINTERS, POINTERS),
    st.builds(lambda p, f: {"op": "copy", "path": p, "from": f}, POINTERS, POINTERS),
)


@given(JSON, st.lists(OPS, min_size=1, max_size=4))
def test_agrees_with_the_jsonpatch_library(document: Any, ops: Ops) -> None:
    try:
        expected = jsonpatch.apply_patch(copy.deepcopy(document), copy.deepcopy(ops))
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, TypeError):
        with pytest.raises(PatchError):
            apply_patch(document, ops)
    else:
        assert apply_patch(document, ops) == expected
