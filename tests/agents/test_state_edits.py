"""Every edit is recorded as an exact JSON Patch operation, whatever method of dict or list made it."""

from __future__ import annotations

import datetime
import enum
import random

import jsonpatch
import pytest
from pydantic import BaseModel

from agui_django.agents.live import LiveDict, LiveList
from agui_django.agents.state import Snapshot, StateDocument
from agui_django.protocol.errors import NotJson, StateInvalid
from agui_django.protocol.json_patch import apply_patch, copy_json

PAD = {"pad": "x" * 2000}  # so that patches stay patches


def document(value: dict, **kwargs) -> StateDocument:
    return StateDocument({**value, **PAD}, **kwargs)


def without_pad(value: dict) -> dict:
    return {key: item for key, item in value.items() if key != "pad"}


@pytest.mark.parametrize(
    ("start", "edit", "ops"),
    [
        ({}, lambda s: s.__setitem__("a", 1), [{"op": "add", "path": "/a", "value": 1}]),
        ({"a": 1}, lambda s: s.__setitem__("a", 2), [{"op": "replace", "path": "/a", "value": 2}]),
        ({"a": 1}, lambda s: s.__setitem__("a", True), [{"op": "replace", "path": "/a", "value": True}]),
        ({"a": 1}, lambda s: s.__setitem__("a", 1.0), [{"op": "replace", "path": "/a", "value": 1.0}]),
        ({"a": 1}, lambda s: s.__setitem__("a", 1), None),
        ({"a": {"b": [1]}}, lambda s: s.__setitem__("a", {"b": [1]}), None),
        (
            {"a": {"b": [1]}},
            lambda s: s.__setitem__("a", {"b": [True]}),
            [{"op": "replace", "path": "/a", "value": {"b": [True]}}],
        ),
        ({"a": 1}, lambda s: s.__delitem__("a"), [{"op": "remove", "path": "/a"}]),
        ({"a": 1}, lambda s: s.pop("a"), [{"op": "remove", "path": "/a"}]),
        ({"a": 1}, lambda s: s.pop("b", None), None),
        (
            {},
            lambda s: s.setdefault("l", []).append(3),
            [
                {"op": "add", "path": "/l", "value": []},
                {"op": "add", "path": "/l/0", "value": 3},
            ],
        ),
        ({"a": 1}, lambda s: s.setdefault("a", 2), None),
        (
            {"a": 1},
            lambda s: s.update({"a": 2}, b=3),
            [
                {"op": "replace", "path": "/a", "value": 2},
                {"op": "add", "path": "/b", "value": 3},
            ],
        ),
        ({"d": {"a": 1}}, lambda s: s["d"].clear(), [{"op": "replace", "path": "/d", "value": {}}]),
        ({"d": {"a": 1, "b": 2}}, lambda s: s["d"].popitem(), [{"op": "remove", "path": "/d/b"}]),
        (
            {"a/b~c": {"": 1}},
            lambda s: s["a/b~c"].__setitem__("", 2),
            [
                {"op": "replace", "path": "/a~1b~0c/", "value": 2},
            ],
        ),
        ({"l": [1, 2]}, lambda s: s["l"].append(3), [{"op": "add", "path": "/l/2", "value": 3}]),
        ({"l": [1, 2]}, lambda s: s["l"].insert(-1, 3), [{"op": "add", "path": "/l/1", "value": 3}]),
        ({"l": [1, 2]}, lambda s: s["l"].insert(99, 3), [{"op": "add", "path": "/l/2", "value": 3}]),
        ({"l": [1, 2]}, lambda s: s["l"].insert(-99, 3), [{"op": "add", "path": "/l/0", "value": 3}]),
        (
            {"l": [1]},
            lambda s: s["l"].extend(x for x in (2, 3)),
            [
                {"op": "add", "path": "/l/1", "value": 2},
                {"op": "add", "path": "/l/2", "value": 3},
            ],
        ),
        ({"l": [1, 2, 3]}, lambda s: s["l"].pop(), [{"op": "remove", "path": "/l/2"}]),
        ({"l": [1, 2, 3]}, lambda s: s["l"].pop(-3), [{"op": "remove", "path": "/l/0"}]),
        ({"l": [1, 2, 1]}, lambda s: s["l"].remove(1), [{"op": "remove", "path": "/l/0"}]),
        ({"l": [1, 2]}, lambda s: s["l"].__delitem__(1), [{"op": "remove", "path": "/l/1"}]),
        ({"l": [1, 2]}, lambda s: s["l"].__setitem__(-1, "z"), [{"op": "replace", "path": "/l/1", "value": "z"}]),
        (
            {"l": [1, 2, 3]},
            lambda s: s["l"].__setitem__(slice(0, 2), [9]),
            [
                {"op": "replace", "path": "/l", "value": [9, 3]},
            ],
        ),
        (
            {"l": [1, 2, 3]},
            lambda s: s["l"].__delitem__(slice(None, None, 2)),
            [
                {"op": "replace", "path": "/l", "value": [2]},
            ],
        ),
        ({"l": [3, 1, 2]}, lambda s: s["l"].sort(), [{"op": "replace", "path": "/l", "value": [1, 2, 3]}]),
        ({"l": [1, 2]}, lambda s: s["l"].sort(), None),
        ({"l": [1, 2]}, lambda s: s["l"].reverse(), [{"op": "replace", "path": "/l", "value": [2, 1]}]),
        ({"l": [1, 2]}, lambda s: s["l"].clear(), [{"op": "replace", "path": "/l", "value": []}]),
        ({"l": []}, lambda s: s["l"].clear(), None),
    ],
)
def test_one_edit(start, edit, ops):
    doc = document(start)
    edit(doc.root)
    assert doc.take() == ops
    if ops:
        assert doc.plain() == apply_patch({**start, **PAD}, ops)
    assert doc.take() is None


def test_augmented_assignment():
    doc = document({"l": [1], "d": {"a": 1}, "n": 1, "m": [1]})
    state, held = doc.root, doc.root["l"]
    state["l"] += [2]
    state["d"] |= {"b": 2}
    state["n"] += 1
    state["m"] *= 2
    assert doc.take() == [
        {"op": "add", "path": "/l/1", "value": 2},
        {"op": "add", "path": "/d/b", "value": 2},
        {"op": "replace", "path": "/n", "value": 2},
        {"op": "replace", "path": "/m", "value": [1, 1]},
    ]
    assert state["l"] is held


@pytest.mark.parametrize(
    ("edit", "error"),
    [
        (lambda s: s["l"].__setitem__(5, 1), IndexError),
        (lambda s: s["l"].pop(5), IndexError),
        (lambda s: s["l"].remove(9), ValueError),
        (lambda s: s.__delitem__("nope"), KeyError),
        (lambda s: s.pop("nope"), KeyError),
        (lambda s: s["e"].pop(), IndexError),
        (lambda s: s["l"].__setitem__(slice(0, 2, 2), [1, 2, 3]), ValueError),
        (lambda s: s["l"].sort(key=lambda item: item.nope), AttributeError),
        (lambda s: s["l"].__setitem__("0", 1), TypeError),
    ],
)
def test_errors_are_those_of_dict_and_list(edit, error):
    doc = document({"l": [1, 2], "e": []})
    with pytest.raises(error):
        edit(doc.root)
    assert doc.take() is None
    assert doc.plain() == {"l": [1, 2], "e": [], **PAD}


def test_of_consecutive_replaces_of_a_path_the_last_remains():
    doc = document({"a": 1, "b": 1})
    for value in (2, 3, 4):
        doc.root["a"] = value
    doc.root["b"] = 5
    doc.root["a"] = 6
    assert doc.take() == [
        {"op": "replace", "path": "/a", "value": 4},
        {"op": "replace", "path": "/b", "value": 5},
        {"op": "replace", "path": "/a", "value": 6},
    ]


def test_a_recorded_value_is_not_changed_by_later_edits():
    doc = document({})
    doc.root["d"] = {"l": []}
    doc.root["d"]["l"].append(1)
    assert doc.take() == [{"op": "add", "path": "/d", "value": {"l": []}}, {"op": "add", "path": "/d/l/0", "value": 1}]


def test_what_is_assigned_is_copied():
    doc, mine = document({}), {"l": [1]}
    doc.root["mine"] = mine
    mine["l"].append(2)
    assert doc.root["mine"] == {"l": [1]}
    doc.root["again"] = doc.root["mine"]
    doc.root["again"]["l"].append(3)
    assert doc.root["mine"] == {"l": [1]}


def test_a_held_value_writes_to_where_it_stands_now():
    doc = document({"items": [{"n": 0}, {"n": 1}, {"n": 2, "deep": [{}]}]})
    state = doc.root
    held, deep = state["items"][2], state["items"][2]["deep"][0]
    state["items"].insert(0, {"n": -1})
    held["n"] = "x"
    del state["items"][1]
    state["items"].insert(1, 7)
    state["items"].insert(1, 8)
    deep["z"] = 1
    state["items"].reverse()
    held["n"] = "y"
    paths = [op["path"] for op in doc.take()]
    assert paths == [
        "/items/0", "/items/3/n", "/items/1", "/items/1", "/items/1", "/items/4/deep/0/z", "/items", "/items/0/n",
    ]  # fmt: skip
    assert state["items"][0] is held


def test_filtering_a_list_keeps_the_identity_of_what_stays():
    doc = document({"items": [{"n": n, "done": n % 2 == 0} for n in range(4)]})
    items = doc.root["items"]
    held, gone = items[3], items[0]
    items[:] = [item for item in items if not item["done"]]
    assert items[1] is held
    doc.take()
    held["n"] = 30
    gone["n"] = 40
    assert doc.take() == [{"op": "replace", "path": "/items/1/n", "value": 30}]


def test_the_same_value_twice_in_a_slice_is_copied_once():
    doc = document({"items": [{"n": 0}]})
    items = doc.root["items"]
    items[:] = [items[0], items[0]]
    items[1]["n"] = 5
    assert doc.plain()["items"] == [{"n": 0}, {"n": 5}]


def test_what_has_left_the_state_is_ordinary():
    doc = document({"a": {"in": {"n": 1}}, "l": [[1]]})
    popped, inner, listed = doc.root.pop("a"), None, doc.root["l"].pop()
    inner = popped["in"]
    doc.take()
    when, mine = datetime.date(2024, 1, 2), {"x": 1}
    popped["when"] = when
    popped["mine"] = mine
    inner[3] = float("nan")
    inner.update(a=1)
    inner.setdefault("b", when)
    inner.pop("n")
    listed += [when]
    listed.insert(0, mine)
    listed.sort(key=str)
    listed[:] = listed[1:]
    assert doc.take() is None
    assert popped["when"] is when
    assert popped["mine"] is mine  # nothing is copied either
    assert inner["b"] is when
    assert inner["a"] == 1
    assert len(listed) == 2
    doc.root["back"] = {"d": popped["mine"]}
    assert doc.take() == [{"op": "add", "path": "/back", "value": {"d": {"x": 1}}}]


def test_an_ordinary_dict_holding_a_live_one_does_not_steal_it():
    doc = document({"gone": {}, "gonelist": [{}], "stays": {"n": 1}})
    gone, gonelist = doc.root.pop("gone"), doc.root.pop("gonelist")
    inner = gonelist[0]
    stays = doc.root["stays"]
    gone["ref"] = stays
    gonelist.insert(0, stays)
    inner["edited"] = True  # finds its index in the ordinary list
    gone.pop("ref")
    gone.clear()
    doc.take()
    stays["n"] = 2
    assert doc.take() == [{"op": "replace", "path": "/stays/n", "value": 2}]


def test_iteration_walks_what_was_there_when_the_loop_began():
    doc = document({"l": [1, 2, 3], "d": {"a": 1, "b": 2}})
    seen = []
    for item in doc.root["l"]:
        seen.append(item)
        doc.root["l"].remove(item)
    for item in reversed(doc.root["l"]):
        seen.append(item)
    for key, value in doc.root["d"].items():
        seen.append((key, value))
        doc.root["d"].pop("b", None)
        doc.root["d"][key + "x"] = 1
    for key in doc.root["d"]:
        del doc.root["d"][key]
    assert seen == [1, 2, 3, ("a", 1), ("b", 2)]
    assert without_pad(doc.plain()) == {"l": [], "d": {}}


class Color(enum.Enum):
    RED = "red"


class Name(enum.StrEnum):
    KEY = "key"


class Point(BaseModel):
    x: int


def test_values_are_json_afterwards():
    doc = document({})
    doc.root["v"] = [datetime.date(2024, 1, 2), (1, 2), Color.RED, Point(x=1), Name.KEY, "a\0b", "\ud800"]
    doc.root[Name.KEY] = Name.KEY
    assert doc.root["v"] == ["2024-01-02", [1, 2], "red", {"x": 1}, "key", "a\ufffdb", "\ufffd"]
    assert type(doc.root["v"][1]) is LiveList
    assert [type(key) for key in doc.root] == [str] * 3
    assert type(doc.root["key"]) is str
    assert [op["path"] for op in doc.take()] == ["/v", "/key"]


def test_the_callers_default_knows_more_types():
    doc = StateDocument({}, default=lambda value: "set:" + ",".join(sorted(value)))
    doc.root["s"] = {"b", "a"}
    assert doc.root == {"s": "set:a,b"}


@pytest.mark.parametrize(
    ("edit", "error", "path"),
    [
        (lambda s: s["l"][0].__setitem__("x", float("nan")), NotJson, "/l/0/x"),
        (lambda s: s["l"].append({"a": [float("inf")]}), NotJson, "/l/1/a/0"),
        (lambda s: s["l"].extend([1, float("-inf")]), NotJson, "/l/2"),
        (lambda s: s["l"].__setitem__(slice(0, 0), [1, object()]), NotJson, "/l/1"),
        (lambda s: s["l"][0].__setitem__(1, 1), NotJson, "/l/0"),
        (lambda s: s["l"].__setitem__(0, {"k/": {2: 1}}), NotJson, "/l/0/k~1"),
        (lambda s: s.update({"fine": 1, "bad": object()}), NotJson, "/bad"),
        (lambda s: s.update({"fine": 1, 2: 2}), NotJson, ""),
        (lambda s: s.setdefault(None, 1), NotJson, ""),
        (lambda s: s["l"][0].__setitem__("__proto__", {}), StateInvalid, "/l/0/__proto__"),
        (lambda s: s.__setitem__("n", [{"__proto__": 1}]), StateInvalid, "/n/0/__proto__"),
        (lambda s: s.__setitem__("constructor", {"prototype": 1}), StateInvalid, "/constructor/prototype"),
    ],
)
def test_what_is_refused_names_its_path_and_changes_nothing(edit, error, path):
    doc = document({"l": [{}]})
    with pytest.raises(error) as caught:
        edit(doc.root)
    assert caught.value.fields[0]["path"] == path
    assert path in str(caught.value)
    assert doc.take() is None
    assert doc.plain() == {"l": [{}], **PAD}


def test_depth_counts_from_the_root():
    doc = StateDocument({})
    node = doc.root
    for _ in range(99):
        node["d"] = {}
        node = node["d"]
    with pytest.raises(NotJson):
        node["d"] = {}
    node["d"] = 1


def test_a_patch_larger_than_the_state_is_a_snapshot():
    doc = StateDocument({"a": "x"})
    doc.root["a"] = "y"
    taken = doc.take()
    assert taken == Snapshot({"a": "y"})
    assert type(taken.value) is dict
    doc.root["pad"] = "x" * 200
    doc.take()
    doc.root["a"] = "z"
    assert doc.take() == [{"op": "replace", "path": "/a", "value": "z"}]
    del doc.root["pad"]
    doc.root["a"] = "w"
    assert doc.take() == Snapshot({"a": "w"})


def test_a_removed_long_name_makes_the_state_smaller():
    doc = StateDocument({"k" * 300: 1, "a": "x" * 200})
    doc.root["a"] = "y" * 200
    assert not isinstance(doc.take(), Snapshot)
    doc.root.pop("k" * 300)
    assert doc.take() == Snapshot({"a": "y" * 200})  # the patch names what it removes


def test_the_boundary_between_patch_and_snapshot_is_exact():
    rng = random.Random(5)
    for _ in range(300):
        doc = StateDocument({"t": "x" * rng.randrange(60), "u": "é" * rng.randrange(9)})
        doc.take()
        for _ in range(rng.randrange(1, 4)):
            doc.root[rng.choice("tuv")] = rng.choice(["é" * rng.randrange(40), 10**30, 1.5, None, [1, {"a": "\n"}]])
            if rng.random() < 0.3:
                doc.root.pop("u", None)
        recorded = [dict(op) for op in doc._ops]
        taken = doc.take()
        if recorded:
            from agui_django.protocol.codec import encode

            larger = len(encode(recorded)) > len(encode(doc.value))
            assert isinstance(taken, Snapshot) == larger


def test_edits_that_nobody_takes_do_not_pile_up():
    doc = StateDocument({"n": 0, "m": 0})
    for n in range(20_000):
        doc.root["n"] = n
        doc.root["m"] = n
    assert len(doc._ops) <= 4096
    assert doc.pending
    assert doc.take() == Snapshot({"n": 19_999, "m": 19_999})
    assert not doc.pending


def test_on_edit_comes_once_between_takes_and_without_the_lock():
    calls = []
    doc = document({}, on_edit=lambda: calls.append(doc.lock._is_owned()))
    doc.root["a"] = 1
    doc.root["a"] = 2
    doc.root["l"] = [2, 1]
    assert calls == [False]
    doc.take()
    doc.root["l"].sort()
    doc.root.setdefault("z", 1)
    assert calls == [False, False]
    doc.take()
    doc.root["a"] = 2  # equal: no edit
    with doc.edit():
        pass
    assert len(calls) == 2
    with doc.edit() as state:
        state["a"] = 5
        assert len(calls) == 2
    assert calls == [False] * 3


def random_value(rng: random.Random, depth: int = 0):
    roll = rng.random()
    if depth < 3 and roll < 0.25:
        return {rng.choice(KEYS): random_value(rng, depth + 1) for _ in range(rng.randrange(4))}
    if depth < 3 and roll < 0.5:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(5))]
    return rng.choice([None, True, False, 0, 1, 1.0, -2.5, 10**25, "", "é~/", "text", "a" * 30])


KEYS = ["a", "b", "c/d", "e~f", "", "0", "-"]


def containers(value, out: list):
    out.append(value)
    for item in list(value.values()) if isinstance(value, dict) else list(value):
        if isinstance(item, dict | list):
            containers(item, out)
    return out


def random_edit(rng: random.Random, node, twin) -> None:
    """The same edit on a live container and on an ordinary twin."""
    if isinstance(node, dict):
        key, value = rng.choice(KEYS), random_value(rng)
        edit = rng.choice(
            [
                lambda d: d.__setitem__(key, value),
                lambda d: d.__setitem__(key, value),
                lambda d: d.pop(key, None),
                lambda d: d.update({key: value, "b": 1}),
                lambda d: d.setdefault(key, value),
                lambda d: d.popitem() if d else None,
                lambda d: d.clear(),
                lambda d: d.__ior__([(key, value)]),
            ]
        )
    else:
        value, more = random_value(rng), [random_value(rng) for _ in range(rng.randrange(3))]
        at, to, step = rng.randrange(-6, 7), rng.randrange(-6, 7), rng.choice([None, 1, 2, -1])
        edit = rng.choice(
            [
                lambda x: x.append(value),
                lambda x: x.insert(at, value),
                lambda x: x.extend(more),
                lambda x: x.pop(at) if -len(x) <= at < len(x) else None,
                lambda x: x.__setitem__(at, value) if -len(x) <= at < len(x) else None,
                lambda x: x.__delitem__(slice(at, to, step)),
                lambda x: x.__setitem__(slice(at, to), more),
                lambda x: x.__setitem__(slice(at, to), x[to:at]),
                lambda x: x.sort(key=repr, reverse=at > 0),
                lambda x: x.reverse(),
                lambda x: x.__iadd__(more),
                lambda x: x.__imul__(at % 3),
                lambda x: x.remove(x[0]) if x else None,
                lambda x: x.clear(),
            ]
        )
    edit(node)
    edit(twin)


def exact(value) -> str:
    """Text that tells 1, 1.0 and true apart, but not orders of keys."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key!r}:{exact(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(exact, value)) + "]"
    return repr(value)


def check_positions(doc: StateDocument) -> None:
    """Every container in the document knows its way up."""
    for node in containers(doc.value, []):
        assert type(node) in (LiveDict, LiveList)
        path = doc.begin(node)
        assert path is not None
        assert doc._walk(path) is node


def test_4000_random_sequences_replay_to_the_state():
    for seed in range(4000):
        rng = random.Random(seed)
        start = {rng.choice(KEYS): random_value(rng) for _ in range(4)}
        doc, twin, client = StateDocument(start), StateDocument(start).plain(), StateDocument(start).plain()
        for _ in range(rng.randrange(1, 8)):
            live = containers(doc.value, [])
            plain = containers(twin, [])
            at = rng.randrange(len(live))
            random_edit(rng, live[at], plain[at])
            twin = copy_json(twin)  # an ordinary list may hold one value twice
            assert exact(doc.value) == exact(twin), seed
            if rng.random() < 0.4:
                client = replay(client, doc, seed)
        client = replay(client, doc, seed)
        assert exact(client) == exact(doc.value), seed
        check_positions(doc)


def replay(client, doc: StateDocument, seed: int):
    recorded = [dict(op) for op in doc._ops]
    taken = doc.take()
    if taken is None:
        return client
    patched = apply_patch(client, recorded)
    assert exact(patched) == exact(doc.value), seed
    if seed % 8 == 0:  # and with a library that is not ours
        assert exact(jsonpatch.apply_patch(client, recorded)) == exact(doc.value), seed
    if isinstance(taken, Snapshot):
        return taken.value
    assert taken == recorded
    return patched
