"""Changes that come from elsewhere: emitted patches and snapshots, staff's edits, assignment of a whole state."""

from __future__ import annotations

import random

import pytest

from agui_django.agents.live import LiveDict, LiveList
from agui_django.agents.state import Snapshot, StateDocument
from agui_django.protocol.errors import NotJson, StateInvalid
from agui_django.protocol.json_patch import apply_patch, copy_json
from tests.agents.test_state_edits import (
    KEYS,
    PAD,
    check_positions,
    containers,
    document,
    exact,
    random_edit,
    random_value,
    replay,
)

# ---- what a document starts from ----


@pytest.mark.parametrize("value", [None, {}])
def test_no_state_is_an_empty_dict(value):
    doc = StateDocument(value)
    assert doc.value == {}
    assert doc.root is doc.value
    assert type(doc.root) is LiveDict


@pytest.mark.parametrize("value", [[1, {"a": 2}], "text", 5, True, 1.5])
def test_arrays_and_scalars_are_kept(value):
    doc = StateDocument(value)
    assert doc.plain() == value
    with pytest.raises(TypeError, match="not an object"):
        _ = doc.root
    with pytest.raises(TypeError, match="not an object"), doc.edit():
        pass
    assert not doc.lock._is_owned()
    doc.assign({"a": 1})
    doc.root["b"] = 2
    assert doc.plain() == {"a": 1, "b": 2}


def test_a_document_does_not_start_from_what_clients_refuse():
    with pytest.raises(StateInvalid):
        StateDocument({"a": {"__proto__": {}}})
    with pytest.raises(NotJson):
        StateDocument({"a": float("nan")})


# ---- run.state = {...} ----


def test_assigning_records_the_difference_and_keeps_identity():
    doc = document({"a": 1, "items": [{"n": 1}, {"n": 2}, {"n": 3}], "gone": 1})
    root, held = doc.root, doc.root["items"][2]
    doc.assign({"a": 1, "items": [{"n": 1}, {"n": 3}], "new": {"x": 1}, **PAD})
    assert doc.take() == [
        {"op": "remove", "path": "/gone"},
        {"op": "remove", "path": "/items/1"},
        {"op": "add", "path": "/new", "value": {"x": 1}},
    ]
    assert doc.root is root
    held["n"] = 4
    assert doc.take() == [{"op": "replace", "path": "/items/1/n", "value": 4}]


def test_assigning_something_altogether_different():
    doc = document({"a": [1]})
    root = doc.root
    doc.assign({"b": {"c": 1}})
    assert doc.take() == Snapshot({"b": {"c": 1}})
    assert doc.root is root
    root["b"]["c"] = 2
    assert doc.plain() == {"b": {"c": 2}}
    doc.assign(None)
    assert doc.plain() == {}


def test_assigning_itself_or_an_equal_dict_is_no_edit():
    doc = document({"a": [1, {"b": 2}]})
    doc.assign(doc.root)
    doc.assign(doc.plain())
    assert doc.take() is None
    doc.assign({"me": doc.root})
    assert doc.plain() == {"me": {"a": [1, {"b": 2}], **PAD}}


def test_only_a_dict_can_be_assigned():
    doc = document({"a": 1})
    for value in ([1], "text", 5):
        with pytest.raises(TypeError):
            doc.assign(value)
    with pytest.raises(NotJson):
        doc.assign({"a": float("nan")})
    assert doc.plain() == {"a": 1, **PAD}


# ---- emitted patches and snapshots ----


def test_an_emitted_patch_is_applied_and_not_recorded():
    doc = document({"a": {"n": 1}, "l": [1, 2]})
    held = doc.root["a"]
    assert doc.apply_foreign(
        [
            {"op": "test", "path": "/l/0", "value": 1},
            {"op": "replace", "path": "/a", "value": {"n": 2, "m": 3}},
            {"op": "add", "path": "/l/-", "value": {"x": 1}},
            {"op": "copy", "from": "/a", "path": "/b"},
            {"op": "move", "from": "/l/0", "path": "/first"},
        ]
    )
    assert doc.plain() == {"a": {"n": 2, "m": 3}, "l": [2, {"x": 1}], "b": {"n": 2, "m": 3}, "first": 1, **PAD}
    assert doc.take() is None
    assert doc.root["a"] is held
    assert type(doc.root["b"]) is LiveDict
    doc.root["l"][1]["x"] = 2
    doc.root["b"]["n"] = 7
    assert [op["path"] for op in doc.take()] == ["/l/1/x", "/b/n"]


@pytest.mark.parametrize(
    "ops",
    [
        [{"op": "replace", "path": "/steps", "value": [1]}],  # case S01
        [{"op": "replace", "path": "/a", "value": 5}, {"op": "remove", "path": "/nope"}],
        [{"op": "replace", "path": "/a", "value": 5}, {"op": "test", "path": "/l/0", "value": True}],
        [{"op": "add", "path": "/l/01", "value": 5}],
        [{"op": "add", "path": "/__proto__/x", "value": 5}],
        [{"op": "add", "path": "/a/b", "value": 5}],
        [{"op": "move", "from": "/d", "path": "/d/x"}],
        [{"op": "add", "path": "/x"}],
        [{"path": "/x"}],
        [5],
    ],
)
def test_a_patch_that_does_not_apply_changes_nothing(ops):
    doc = document({"a": 1, "l": [1], "d": {}})
    assert doc.apply_foreign(ops) is False
    assert doc.external(ops) is None
    assert doc.plain() == {"a": 1, "l": [1], "d": {}, **PAD}
    assert not doc.pending


def test_names_that_clients_refuse_are_refused_in_values():
    doc = document({"a": 1, "constructor": {}})
    with pytest.raises(StateInvalid, match="/b/__proto__"):
        doc.apply_foreign(
            [{"op": "replace", "path": "/a", "value": 2}, {"op": "add", "path": "/b", "value": {"__proto__": 1}}]
        )
    assert doc.plain() == {"a": 1, "constructor": {}, **PAD}


def test_nan_of_an_emitted_event_is_null():
    doc = document({})
    assert doc.apply_foreign([{"op": "add", "path": "/x", "value": [float("nan")]}])
    assert doc.root["x"] == [None]
    doc.replace_foreign({"x": float("inf")})
    assert doc.root == {"x": None}


def test_a_snapshot_keeps_the_identity_of_what_stays():
    doc = document({"a": {"n": 1}, "l": [{"k": 1}, {"k": 2}]})
    root, held, item = doc.root, doc.root["a"], doc.root["l"][1]
    doc.replace_foreign({"a": {"n": 1, "m": 2}, "l": [{"k": 2}], **PAD})
    assert doc.take() is None
    assert doc.root is root
    assert doc.root["a"] is held
    held["n"] = 5
    item["k"] = 6
    assert doc.take() == [
        {"op": "replace", "path": "/a/n", "value": 5},
        {"op": "replace", "path": "/l/0/k", "value": 6},
    ]


def test_a_snapshot_may_be_anything():
    doc = document({"a": {"n": 1}})
    root, held = doc.root, doc.root["a"]
    for value in ([1, {"x": [2]}], "text", None, [{"y": 1}], {"b": {}}):
        doc.replace_foreign(value)
        assert doc.plain() == ({} if value is None else value)
        assert not doc.pending
    held["n"] = 2
    root["z"] = 1
    assert not doc.pending
    assert doc.plain() == {"b": {}}
    doc.replace_foreign([{"y": ["z" * 90]}])
    assert type(doc.value) is LiveList
    doc.value[0]["y"].append(2)
    assert doc.take() == [{"op": "add", "path": "/0/y/1", "value": 2}]
    assert doc.apply_foreign([{"op": "replace", "path": "", "value": {"c": 1}}])
    assert doc.root == {"c": 1}


def test_staffs_edits_move_under_what_the_agent_holds():
    doc = document({"items": [{"title": "a"}, {"title": "b"}, {"title": "c"}], "archive": {}})
    held, moved = doc.root["items"][2], doc.root["items"][1]
    assert doc.external([{"op": "remove", "path": "/items/0"}]) == [{"op": "remove", "path": "/items/0"}]
    assert doc.external([{"op": "move", "from": "/items/0", "path": "/archive/b"}]) == [
        {"op": "remove", "path": "/items/0"},
        {"op": "add", "path": "/archive/b", "value": {"title": "b"}},
    ]
    assert not doc.pending
    held["title"] = "C"
    moved["title"] = "B"
    assert doc.take() == [
        {"op": "replace", "path": "/items/0/title", "value": "C"},
        {"op": "replace", "path": "/archive/b/title", "value": "B"},
    ]


def test_staffs_edits_without_effect():
    doc = document({"a": 1})
    assert doc.external([{"op": "replace", "path": "/a", "value": 1}, {"op": "test", "path": "/a", "value": 1}]) == []


def test_foreign_changes_wait_for_nothing():
    doc = document({"a": 1})
    doc.root["a"] = 2
    with pytest.raises(RuntimeError, match="take"):
        doc.apply_foreign([{"op": "remove", "path": "/a"}])
    with pytest.raises(RuntimeError, match="take"):
        doc.replace_foreign({})
    doc.take()
    with pytest.raises(RuntimeError, match="inside"), doc.edit():
        doc.external([{"op": "remove", "path": "/a"}])
    assert doc.plain() == {"a": 2, **PAD}
    assert doc.apply_foreign([{"op": "remove", "path": "/a"}])


# ---- at random ----


def random_patch(rng: random.Random, value) -> list[dict]:
    """Operations that apply to a value, each made for what the ones before left."""
    ops: list[dict] = []
    value = copy_json(value)
    for _ in range(rng.randrange(1, 6)):
        places = pointers(value, "", [])
        path, old = rng.choice(places)
        if isinstance(old, dict):
            path += "/" + rng.choice(KEYS).replace("~", "~0").replace("/", "~1")
        elif isinstance(old, list):
            path += "/" + rng.choice(["-", str(len(old)), "0"])
        source = rng.choice(places)[0]
        op = rng.choice(
            [
                {"op": "add", "path": path, "value": random_value(rng)},
                {"op": "replace", "path": rng.choice(places)[0], "value": random_value(rng)},
                {"op": "remove", "path": rng.choice(places[1:] or places)[0]},
                {"op": "move", "from": source, "path": path},
                {"op": "copy", "from": source, "path": path},
            ]
        )
        try:
            value = apply_patch(value, [op])
        except ValueError:
            continue
        ops.append(op)
    return ops


def pointers(value, path: str, out: list) -> list:
    out.append((path, value))
    if isinstance(value, dict):
        for key, item in value.items():
            pointers(item, path + "/" + key.replace("~", "~0").replace("/", "~1"), out)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            pointers(item, f"{path}/{index}", out)
    return out


def test_4000_random_mixtures_of_agent_and_others():
    changed = 0
    for seed in range(4000):
        rng = random.Random(seed)
        doc = StateDocument({rng.choice(KEYS): random_value(rng) for _ in range(4)})
        client = doc.plain()
        for _ in range(rng.randrange(1, 6)):
            if nodes := containers(doc.value, []) if isinstance(doc.value, dict | list) else []:
                node = rng.choice(nodes)
                random_edit(rng, node, copy_json(node))
            client = replay(client, doc, seed)
            ops, before = random_patch(rng, doc.value), doc.plain()
            expected = apply_patch(before, ops)
            kind = rng.randrange(4)
            if kind == 0:
                applied = doc.external(ops)
                client = apply_patch(client, applied)
                changed += bool(applied)
            elif kind == 1:
                assert doc.apply_foreign(ops)
                client = expected
            elif kind == 2:
                doc.replace_foreign(expected)
                client = expected
            elif isinstance(expected, dict):
                doc.assign(expected)
                client = replay(client, doc, seed)
            else:
                continue
            expected = {} if expected is None and kind == 2 else expected
            client = {} if client is None and kind == 2 else client
            assert exact(doc.value) == exact(expected), seed
            assert exact(client) == exact(expected), seed
            assert not doc.pending
            if isinstance(doc.value, dict | list):
                check_positions(doc)
    assert changed > 1000
