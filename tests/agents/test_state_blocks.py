"""A block is one delta or nothing: roll-backs, nesting, threads, tasks and schemas."""

from __future__ import annotations

import asyncio
import copy
import datetime
import random
import threading

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from agui_django.agents.state import Snapshot, StateDocument
from agui_django.agents.state_schema import StateSchema
from agui_django.protocol.errors import NotJson, StateInvalid
from agui_django.protocol.json_patch import apply_patch
from tests.agents.test_state_edits import (
    PAD,
    check_positions,
    containers,
    document,
    exact,
    random_edit,
    random_value,
    replay,
)


class Boom(Exception):
    pass


def picture(doc: StateDocument) -> tuple:
    """Everything a roll-back must bring back: values, the order of keys, the very objects, what is to be sent."""
    return repr(doc.plain()), [id(node) for node in containers(doc.value, [])], [dict(op) for op in doc._ops]


def test_a_block_is_one_delta_and_holds_everything_back():
    calls = []
    doc = document({"n": 0, "l": []}, on_edit=lambda: calls.append(1))
    doc.take()
    with doc.edit() as state:
        assert state is doc.root
        state["n"] = 1
        state["l"].append(1)
        assert doc.take() is None
        assert not doc.pending
    assert calls == [1]
    assert doc.take() == [{"op": "replace", "path": "/n", "value": 1}, {"op": "add", "path": "/l/0", "value": 1}]


@pytest.mark.parametrize("error", [Boom, asyncio.CancelledError, GeneratorExit, KeyboardInterrupt])
def test_a_block_left_by_an_exception_never_was(error):
    doc = document({"a": 1, "b": {"x": [1, {"y": 2}]}, "c": 3})
    doc.root["a"] = 2  # waits to be sent
    held, deep = doc.root["b"], doc.root["b"]["x"][1]
    before = picture(doc)
    with pytest.raises(error), doc.edit() as state:
        state["a"] = 3
        del state["b"]
        held["x"].append(5)  # out of the state, inside the block
        deep["y"] = 6
        held.clear()
        state["new"] = {}
        state["b"] = 7
        raise error
    assert picture(doc) == before
    assert list(doc.root) == ["a", "b", "c", "pad"]
    deep["y"] = 3
    assert doc.take() == [
        {"op": "replace", "path": "/a", "value": 2},
        {"op": "replace", "path": "/b/x/1/y", "value": 3},
    ]


def test_what_left_the_state_before_the_block_is_not_rolled_back():
    doc = document({"a": {}, "b": {}})
    gone = doc.root.pop("a")
    with pytest.raises(Boom), doc.edit() as state:
        gone["x"] = 1
        also_gone = state.pop("b")
        also_gone["x"] = 1
        raise Boom
    assert gone == {"x": 1}
    assert doc.root["b"] == {}


def test_what_was_put_in_by_a_rolled_back_block_is_ordinary():
    doc = document({})
    with pytest.raises(Boom), doc.edit() as state:
        state["a"] = {"b": []}
        made = state["a"]
        raise Boom
    when = datetime.date(2024, 1, 1)
    made["b"].append(when)
    made["when"] = when
    assert made == {"b": [when], "when": when}
    assert not doc.pending


def test_blocks_nest():
    doc = document({"n": 0})
    with doc.edit() as state:
        state["n"] = 1
        with pytest.raises(Boom), doc.edit() as inner:
            inner["n"] = 2
            inner["m"] = 1
            raise Boom
        assert state == {"n": 1, **PAD}
        with doc.edit() as inner:
            inner["k"] = 1
        assert doc.take() is None
    assert doc.take() == [{"op": "replace", "path": "/n", "value": 1}, {"op": "add", "path": "/k", "value": 1}]


def test_an_inner_block_that_succeeded_is_rolled_back_with_the_outer():
    doc = document({"a": 1, "b": 2, "c": 3})
    before = picture(doc)
    with pytest.raises(Boom), doc.edit() as state:
        with doc.edit():
            del state["a"]
        del state["b"]
        state["a"] = 9
        raise Boom
    assert picture(doc) == before


def test_assignment_is_one_edit_of_a_block():
    doc = document({"n": 0})
    before = picture(doc)
    with pytest.raises(Boom), doc.edit():
        doc.assign({"all": "new"})
        raise Boom
    assert picture(doc) == before


def edit_one(rng: random.Random, node) -> None:
    random_edit(rng, node, copy.copy(node))


def test_random_roll_backs_are_exact():
    for seed in range(2000):
        rng = random.Random(seed)
        doc = StateDocument({key: random_value(rng) for key in "abcd"})
        client = doc.plain()
        held = []
        for _ in range(4):
            before = picture(doc)
            fail = rng.random() < 0.6
            try:
                with doc.edit():
                    for _ in range(rng.randrange(6)):
                        nodes = containers(doc.value, []) + held
                        node = rng.choice(nodes)
                        held += [node] * (rng.random() < 0.3)
                        edit_one(rng, node)
                        if rng.random() < 0.2:
                            inner_before = repr(doc.plain())
                            with pytest.raises(Boom), doc.edit() as inner:
                                edit_one(rng, inner)
                                edit_one(rng, rng.choice(nodes))
                                raise Boom
                            assert repr(doc.plain()) == inner_before, seed
                    if fail:
                        raise Boom
            except Boom:
                assert picture(doc) == before, seed
            held = [node for node in held if doc.begin(node) is not None]
            check_positions(doc)
            if rng.random() < 0.5:
                client = replay(client, doc, seed)
        assert exact(replay(client, doc, seed)) == exact(doc.value), seed


# ---- threads and tasks ----


def test_two_threads_lose_nothing():
    doc = document({"n": 0, "log": []})
    patches: list = []

    def work(name: str) -> None:
        for n in range(400):
            with doc.edit() as state:
                state["n"] += 1
                state["log"].append(f"{name}{n}")
            doc.root[name] = n
            with doc.lock:
                patches.append(doc.take())

    client = doc.plain()
    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert doc.root["n"] == 800
    assert len(doc.root["log"]) == 800
    for taken in patches:
        if taken is not None:
            client = taken.value if isinstance(taken, Snapshot) else apply_patch(client, taken)
    assert client == doc.plain()


def test_a_block_keeps_other_threads_out():
    doc = document({"n": 0})
    inside, order = threading.Event(), []

    def other() -> None:
        inside.wait(10)
        order.append("tries")
        doc.root["n"] = 2
        order.append("edited")

    thread = threading.Thread(target=other)
    thread.start()
    with doc.edit() as state:
        inside.set()
        while not order:
            pass
        state["n"] = 1
        order.append("leaves")
    thread.join(10)
    assert order == ["tries", "leaves", "edited"]
    assert doc.take() == [{"op": "replace", "path": "/n", "value": 2}]


@pytest.mark.asyncio
async def test_an_await_inside_a_block_is_rolled_back():
    doc = document({"n": 0})
    with pytest.raises(RuntimeError, match="await"), doc.edit() as state:
        state["n"] = 1
        await asyncio.sleep(0)
        assert doc.root["n"] == 0  # already
    assert doc.take() is None
    doc.root["n"] = 2
    assert doc.take() == [{"op": "replace", "path": "/n", "value": 2}]
    assert not doc.lock._is_owned()


@pytest.mark.asyncio
async def test_after_the_await_the_block_cannot_edit_but_others_can():
    doc = document({"n": 0, "m": 0})
    go = asyncio.Event()

    async def sloppy() -> None:
        with doc.edit() as state:
            state["n"] = 1
            with doc.edit():
                await go.wait()
                with pytest.raises(RuntimeError, match="await"):
                    state["n"] = 2
                with pytest.raises(RuntimeError, match="await"), doc.edit():
                    pass

    async def proper() -> None:  # its turn comes before anything else could have noticed
        doc.root["m"] = 1
        await asyncio.sleep(0)
        assert doc.root["m"] == 1
        with doc.edit() as state:
            state["m"] = 2
        go.set()

    task = asyncio.create_task(sloppy())
    _, error = await asyncio.gather(task, proper(), return_exceptions=True)
    assert error is None
    assert isinstance(task.exception(), RuntimeError)
    assert doc.take() == [{"op": "replace", "path": "/m", "value": 2}]
    doc.root["n"] = 5  # nothing stays broken
    assert doc.take() == [{"op": "replace", "path": "/n", "value": 5}]
    assert not doc._broken


@pytest.mark.asyncio
async def test_another_task_never_sees_half_a_block():
    doc = document({"n": 0})
    started = asyncio.Event()

    async def sloppy() -> None:
        with doc.edit() as state:
            state["n"] = 1
            started.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(sloppy())
    await started.wait()
    assert doc.external([{"op": "test", "path": "/n", "value": 0}, {"op": "add", "path": "/m", "value": 1}]) == [
        {"op": "add", "path": "/m", "value": 1}
    ]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):  # what ended it, not our complaint
        await task
    assert doc.plain() == {"n": 0, "m": 1, **PAD}


@pytest.mark.asyncio
async def test_a_thread_gets_in_after_a_broken_block():
    doc = document({"n": 0})
    with pytest.raises(RuntimeError, match="await"), doc.edit() as state:
        state["n"] = 1
        await asyncio.to_thread(doc.root.__setitem__, "n", 5)
    assert doc.plain()["n"] == 5


def test_a_yield_inside_a_block_is_found_by_the_driver():
    doc = document({"n": 0})

    def agent():
        with doc.edit() as state:
            state["n"] = 1
            yield "text"

    generator = agent()
    next(generator)
    with pytest.raises(RuntimeError, match="yield"):
        doc.check_no_block_open()
    assert doc.root["n"] == 0
    with pytest.raises(RuntimeError, match="yield"):
        next(generator)
    doc.check_no_block_open()
    doc.root["n"] = 2
    assert doc.take() == [{"op": "replace", "path": "/n", "value": 2}]


def test_a_block_of_another_thread_is_none_of_the_drivers_business():
    doc = document({})
    opened, leave = threading.Event(), threading.Event()

    def other() -> None:
        with doc.edit() as state:
            opened.set()
            leave.wait(10)
            state["n"] = 1

    thread = threading.Thread(target=other)
    thread.start()
    opened.wait(10)
    doc.check_no_block_open()
    leave.set()
    thread.join(10)
    assert doc.root["n"] == 1


# ---- schemas ----


class Item(TypedDict):
    title: str
    done: bool


class Plan(TypedDict, total=False):
    items: list[Item]
    progress: int
    due: datetime.date


class PlanModel(BaseModel):
    items: list[Item] = []
    progress: int = 0
    due: datetime.date | None = None


PLAN = {
    "type": "object",
    "properties": {
        "items": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["title", "done"],
                "properties": {"title": {"type": "string"}, "done": {"type": "boolean"}},
            },
        },
        "progress": {"type": "integer"},
    },
}


@pytest.mark.parametrize("schema", [Plan, PlanModel, PLAN, StateSchema(Plan)], ids=["typed", "model", "json", "made"])
def test_outside_blocks_each_edit_is_checked(schema):
    calls = []
    doc = document({"items": [{"title": "boil", "done": False}]}, schema=schema, on_edit=lambda: calls.append(1))
    doc.check()
    item = doc.root["items"][0]
    item["done"] = True
    before = picture(doc)
    for edit in (
        lambda: item.__setitem__("title", 5),
        lambda: item.__setitem__("done", 1),
        lambda: item.pop("title"),
        lambda: doc.root["items"].append({}),
        lambda: doc.root["items"].__setitem__(slice(0, 0), ["x"]),
        lambda: doc.root.update(progress="half", note="n"),
        lambda: doc.assign({"progress": "x"}),
    ):
        with pytest.raises(StateInvalid) as caught:
            edit()
        assert caught.value.fields[0]["path"].startswith("/")
        assert picture(doc) == before
    assert calls == [1]
    assert doc.take() == [{"op": "replace", "path": "/items/0/done", "value": True}]


def test_the_path_of_what_does_not_fit():
    doc = document({"items": [{"title": "a", "done": True}]}, schema=Plan)
    with pytest.raises(StateInvalid, match="/items/0/title"):
        doc.root["items"][0]["title"] = 1


def test_a_block_is_checked_at_its_end_only():
    doc = document({"items": []}, schema=Plan)
    with doc.edit() as state:
        state["items"].append({})
        with doc.edit():
            state["items"][0]["title"] = "t"
        state["items"][0]["done"] = False
    assert len(doc.take()) == 3
    before = picture(doc)
    with pytest.raises(StateInvalid), doc.edit() as state:
        state["progress"] = "x"
    assert picture(doc) == before
    with pytest.raises(StateInvalid):  # blocks over: edits are checked again
        doc.root["progress"] = "x"


def test_dates_are_judged_as_their_text():
    doc = document({}, schema=Plan)
    doc.root["due"] = datetime.date(2024, 1, 2)
    assert doc.root["due"] == "2024-01-02"
    with pytest.raises(StateInvalid):
        doc.root["due"] = "soon"


def test_foreign_changes_are_checked_too():
    doc = document({"progress": 1}, schema=Plan)
    before = picture(doc)
    for change in (doc.apply_foreign, doc.external):
        with pytest.raises(StateInvalid):
            change([{"op": "add", "path": "/progress", "value": "x"}])
        assert picture(doc) == before
    with pytest.raises(StateInvalid):
        doc.replace_foreign([1])
    assert picture(doc) == before


def test_what_cannot_be_a_schema():
    with pytest.raises(TypeError):
        StateSchema({"type": "nonsense"})
    with pytest.raises(TypeError):
        StateSchema(object())


def test_nothing_is_checked_while_nothing_changes():
    doc = document({"progress": "wrong from the start"}, schema=Plan)
    with doc.edit() as state:
        state["progress"] = "wrong from the start"
    doc.root.pop("nothing", None)
    with pytest.raises(StateInvalid):
        doc.check()
    with pytest.raises(NotJson):
        doc.root["note"] = float("nan")
