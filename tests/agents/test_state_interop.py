"""A live state passes for the dict it is: json, orjson, pydantic, match, copies, pickles."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import ItemsView, Mapping, MutableMapping, MutableSequence

import jsonschema
import orjson
import pytest
from pydantic import BaseModel, ConfigDict, TypeAdapter

from agui_django.agents.live import LiveDict, LiveList
from agui_django.agents.state import StateDocument
from agui_django.protocol.codec import clean, decode, encode

PLAIN = {"a": {"b": [1, {"c": "é"}]}, "n": None, "f": 1.5}


@pytest.fixture
def doc() -> StateDocument:
    return StateDocument(PLAIN)


def all_plain(value) -> bool:
    if isinstance(value, dict):
        return type(value) is dict and all(map(all_plain, value.values()))
    if isinstance(value, list):
        return type(value) is list and all(map(all_plain, value))
    return True


def test_it_is_a_dict(doc):
    state = doc.root
    assert state == PLAIN
    assert isinstance(state, dict)
    assert isinstance(state, MutableMapping)
    assert isinstance(state["a"]["b"], list)
    assert isinstance(state["a"]["b"], MutableSequence)
    assert repr(state) == repr(PLAIN)
    assert state.get("zz") is None
    assert "a" in state
    assert len(state) == 3
    assert bool(state)
    assert state["a"]["b"].index(1) == 0
    assert state["a"]["b"].count(1) == 1


def test_json(doc):
    for options in ({}, {"indent": 1}, {"sort_keys": True}):
        assert json.dumps(doc.root, **options) == json.dumps(PLAIN, **options)


def test_orjson_and_the_codec(doc):
    assert orjson.dumps(doc.root) == orjson.dumps(PLAIN)
    assert encode(doc.root) == encode(PLAIN)
    assert decode(encode(doc.root)) == PLAIN
    assert all_plain(clean(doc.root))
    doc.root["big"] = 10**30
    assert decode(encode(doc.root))["big"] == 10**30


def test_pydantic(doc):
    class Inner(BaseModel):
        b: list[int | dict[str, str]]

    class Outer(BaseModel):
        model_config = ConfigDict(strict=True)
        a: Inner
        n: None
        f: float

    assert Outer.model_validate(doc.root).a.b == [1, {"c": "é"}]
    assert TypeAdapter(dict[str, object]).validate_python(doc.root, strict=True) == PLAIN
    assert TypeAdapter(dict[str, object]).dump_json(doc.root) == orjson.dumps(PLAIN)


def test_jsonschema(doc):
    jsonschema.validate(doc.root, {"type": "object", "properties": {"a": {"properties": {"b": {"type": "array"}}}}})


def test_match(doc):
    match doc.root:
        case {"a": {"b": [first, {"c": text}]}, **rest}:
            assert (first, text) == (1, "é")
            assert rest == {"n": None, "f": 1.5}
        case _:
            pytest.fail("not matched")


def test_deep_copies_are_plain(doc):
    for made in (
        copy.deepcopy(doc.root),
        copy.deepcopy({"in": doc.root})["in"],
        pickle.loads(pickle.dumps(doc.root)),
        doc.plain(),
    ):
        assert made == PLAIN
        assert all_plain(made)
        made["a"]["b"].append(object())
    assert all_plain(copy.deepcopy(doc.root["a"]["b"]))
    assert doc.root == PLAIN
    assert not doc.pending


def test_shallow_copies_are_ordinary_dicts_and_lists(doc):
    state, items = doc.root, doc.root["a"]["b"]
    nothing: list = []
    for made in (state.copy(), copy.copy(state), dict(state), {**state}, state | {}, {} | state, type(state)(state)):
        assert type(made) is dict
        assert made == PLAIN
        assert made["a"] is state["a"]
        made["x"] = object()
    for made in (
        items.copy(),
        copy.copy(items),
        list(items),
        [*items],
        items + nothing,
        items * 1,
        items[:],
        type(items)(items),
    ):
        assert type(made) is list
        assert made == [1, {"c": "é"}]
        made.append(object())
    assert not doc.pending
    assert LiveDict.fromkeys("ab", 1) == {"a": 1, "b": 1}
    assert LiveList([1]) == [1]


def test_views(doc):
    state = doc.root
    assert list(state) == list(state.keys()) == ["a", "n", "f"]
    assert list(reversed(state)) == list(reversed(state.keys())) == ["f", "n", "a"]
    assert list(state.items()) == list(PLAIN.items())
    assert list(reversed(state.items())) == list(reversed(PLAIN.items()))
    assert list(state.values()) == list(PLAIN.values())
    assert list(reversed(state.values())) == list(reversed(PLAIN.values()))
    assert state.keys() & {"a", "q"} == {"a"}
    assert state.keys() == PLAIN.keys()
    assert ("f", 1.5) in state.items()
    assert len(state.values()) == 3
    assert isinstance(state.items(), ItemsView)
    keys = state.keys()
    state["later"] = 1
    assert "later" in keys
    assert isinstance(state, Mapping)
