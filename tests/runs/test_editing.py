"""Edits of the shared state from outside, as rows: versions, conflicts, refusals; and what the next run starts from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import override_settings
from typing_extensions import TypedDict

from agui_django.models import StateVersion, Thread
from agui_django.protocol.codec import encode
from agui_django.protocol.errors import (
    InvalidInput,
    NotFound,
    PatchConflict,
    StateRefused,
    StateTooLarge,
    VersionConflict,
)
from agui_django.runs.editing import MAX_OPS, Edited, edit_state
from agui_django.runs.ledger import state_digest
from agui_django.runs.requests import AgentPolicy
from agui_django.testing import override_agent
from tests.runs.given import Given, counted, says, user


class Plan(TypedDict, total=False):
    n: int
    items: list[str]


@pytest.fixture
def planner(given: Given) -> Iterator[AgentPolicy]:
    async def run(_: Any) -> None: ...

    with override_agent("echo", run, state_schema=Plan):
        yield AgentPolicy("echo", state_schema=Plan)


def edit(given: Given, **how: Any) -> Edited:
    return given.do(lambda: edit_state(given.thread, user=given.owner, **how))


def state(given: Given) -> Any:
    return json.loads(given.thread.state)


def numbers(given: Given) -> tuple[int, int | None]:
    return given.thread.state_version, given.thread.base_version


def versions(given: Given) -> list[tuple[int, str, Any]]:
    rows = StateVersion.objects.filter(thread=given.thread).order_by("version")
    return [(row.version, row.origin, json.loads(row.state)) for row in rows]


# ---- a thread at rest -----------------------------------------------------------------------------------------------


def test_an_edit_is_a_version_of_its_own(given: Given) -> None:
    given.stored(user("u1"), state={"a": 1, "b": {"x": 1}})
    edited = edit(given, patch=[{"op": "replace", "path": "/a", "value": 2}], if_version=1)
    row = edited.version
    assert (row.version, row.origin, row.user_id, row.run_id, row.edit) == (2, "staff", given.owner.pk, None, "")
    assert row.digest == state_digest({"a": 2, "b": {"x": 1}})
    assert edited.run is None
    assert (state(given), numbers(given)) == ({"a": 2, "b": {"x": 1}}, (2, 1))
    second = edit(given, merge={"b": {"x": None, "y": [1]}}, if_version=2, origin="client")
    assert (second.version.version, second.version.origin) == (3, "client")
    assert (state(given), numbers(given)) == ({"a": 2, "b": {"y": [1]}}, (3, 1))
    assert versions(given)[0] == (1, "agent", {"a": 1, "b": {"x": 1}})


def test_an_edit_that_changes_nothing_makes_no_version(given: Given) -> None:
    given.stored(user("u1"), state={"a": 1})
    edited = edit(given, patch=[{"op": "replace", "path": "/a", "value": 1.0}])
    assert (edited.changed, edited.version.version) == (False, 1)
    assert edit(given, merge={}).version.version == 1
    assert (numbers(given), len(versions(given))) == ((1, None), 1)


def test_a_thread_without_a_state_gets_its_first_version(given: Given) -> None:
    given.stored(user("u1"))
    assert edit(given, merge={}).version.version == 0
    assert edit(given, merge={"a": 1}, if_version=0).version.version == 1
    assert (state(given), numbers(given), versions(given)) == ({"a": 1}, (1, 0), [(1, "staff", {"a": 1})])


def test_a_version_that_nobody_stored_stays_known(given: Given) -> None:
    """A thread that was copied or imported has a state and no row of it."""
    Thread.objects.create(scope=given.scope, thread_id="t1", agent="echo", state='{"a":1}', state_version=4)
    edit(given, merge={"b": 2})
    assert versions(given) == [(4, "agent", {"a": 1}), (5, "staff", {"a": 1, "b": 2})]


def test_of_two_who_saw_the_same_version_one_is_refused(given: Given) -> None:
    given.stored(user("u1"), state={"a": 1})
    edit(given, merge={"a": 2}, if_version=1)
    with pytest.raises(VersionConflict) as refused:
        edit(given, merge={"a": 3}, if_version=1)
    assert (refused.value.status, refused.value.code, refused.value.extra) == (412, "version_conflict", {"version": 2})
    assert state(given) == {"a": 2}
    assert edit(given, merge={"a": 3}).version.version == 3  # who does not ask is not refused


def test_a_thread_that_is_gone(given: Given) -> None:
    given.stored(user("u1"))
    thread = given.thread
    Thread.objects.all().delete()
    with pytest.raises(NotFound):
        given.do(lambda: edit_state(thread, merge={"a": 1}))


# ---- what is refused ------------------------------------------------------------------------------------------------

MALFORMED: list[dict[str, Any]] = [
    {},
    {"patch": [], "merge": {}},
    {"patch": {"op": "add"}},
    {"patch": "x"},
    {"patch": ["x"]},
    {"patch": [{}]},
    {"patch": [{"op": []}]},
    {"patch": [{"op": "add", "path": "/x"}]},
    {"patch": [{"op": "remove", "path": 5}]},
    {"patch": [{"op": "remove", "path": "a"}]},
    {"patch": [{"op": "remove", "path": "/~2"}]},
    {"patch": [{"op": "move", "path": "/x"}]},
    {"patch": [{"op": "evil", "path": "/x", "value": 1}]},
    {"patch": [{"op": "add", "path": "/__proto__/x", "value": 1}]},
    {"patch": [{"op": "copy", "from": "/constructor/prototype", "path": "/x"}]},
    {"patch": [{"op": "add", "path": "/x", "value": float("nan")}]},
    {"patch": [{"op": "add", "path": "/x", "value": object()}]},
    {"patch": [{"op": "test", "path": "/a", "value": 1}] * (MAX_OPS + 1)},
    {"merge": [1]},
    {"merge": {"a": {1: 2}}},
]


@pytest.mark.parametrize("how", MALFORMED)
def test_malformed_patches(given: Given, how: dict[str, Any]) -> None:
    given.stored(user("u1"), state={"a": 1})
    with pytest.raises(InvalidInput) as refused:
        edit(given, **how)
    assert refused.value.status == 422
    assert (state(given), numbers(given)) == ({"a": 1}, (1, None))


CONFLICTS: list[list[dict[str, Any]]] = [
    [{"op": "test", "path": "/a", "value": True}],
    [{"op": "remove", "path": "/gone"}],
    [{"op": "add", "path": "/items/7", "value": 1}],
    [{"op": "replace", "path": "/items/01", "value": 1}],
    [{"op": "add", "path": "/a/b", "value": 1}],
    [{"op": "move", "from": "", "path": "/x"}],
]


@pytest.mark.parametrize("patch", CONFLICTS, ids=str)
def test_patches_that_do_not_apply(given: Given, patch: list[dict[str, Any]]) -> None:
    given.stored(user("u1"), state={"a": 1, "items": [1, 2]})
    good = {"op": "add", "path": "/b", "value": "secret"}
    with pytest.raises(PatchConflict) as refused:
        edit(given, patch=[good, *patch])
    assert (refused.value.status, refused.value.fields[0]["path"]) == (409, "/1")
    assert "secret" not in str(refused.value.fields)
    assert (state(given), numbers(given)) == ({"a": 1, "items": [1, 2]}, (1, None))


@pytest.mark.parametrize(
    "how",
    [
        {"patch": [{"op": "remove", "path": ""}]},
        {"patch": [{"op": "replace", "path": "", "value": [1]}]},
        {"merge": {"x": {"__proto__": {"admin": True}}}},
        {"patch": [{"op": "add", "path": "/x", "value": {"constructor": {"prototype": 1}}}]},
    ],
    ids=str,
)
def test_what_cannot_be_a_state(given: Given, how: dict[str, Any]) -> None:
    given.stored(user("u1"), state={"a": 1})
    with pytest.raises(StateRefused) as refused:
        edit(given, **how)
    assert (refused.value.status, refused.value.code) == (422, "state_invalid")
    assert numbers(given) == (1, None)


def test_the_agents_schema_holds(given: Given, planner: AgentPolicy) -> None:
    given.stored(user("u1"), state={"n": 1})
    with pytest.raises(StateRefused) as refused:
        edit(given, merge={"n": "secret"})
    assert [field["path"] for field in refused.value.fields] == ["/n"]
    assert "secret" not in str(refused.value.fields)
    assert (state(given), numbers(given)) == ({"n": 1}, (1, None))
    edit(given, merge={"n": 2})
    Thread.objects.update(agent="no longer there")
    assert edit(given, merge={"n": "text"}).version.version == 3


@override_settings(AGUI_DJANGO={"MAX_STATE": 1024})
def test_a_state_has_a_limit(given: Given) -> None:
    given.stored(user("u1"), state={"a": "x" * 900})
    with pytest.raises(StateTooLarge) as refused:
        edit(given, merge={"b": "é" * 60})  # 120 bytes
    assert (refused.value.status, refused.value.code) == (413, "state_too_large")
    edit(given, merge={"b": "y" * 60})
    # A bomb: each copy doubles the document.
    bomb = [{"op": "copy", "from": "", "path": f"/c{number}"} for number in range(60)]
    with pytest.raises(StateTooLarge):
        edit(given, patch=bomb)
    assert numbers(given) == (2, 1)
    edit(given, merge={"a": None})


# ---- what the next run starts from ----------------------------------------------------------------------------------


def test_an_edit_at_rest_and_the_clients_edit_are_merged(given: Given) -> None:
    given.stored(user("u1"), says("a1", "1"), state={"a": 1, "b": 1, "c": 1})
    edit(given, merge={"a": 2, "c": 2})
    opened = given.open(messages=[user("u2")], state={"a": 1, "b": 5, "c": 5})  # made on version 1
    assert opened.setup is not None
    assert opened.setup.state == opened.setup.input["state"] == {"a": 2, "b": 5, "c": 5}
    assert opened.setup.state_differs is True
    assert (state(given), numbers(given)) == ({"a": 2, "b": 5, "c": 5}, (3, None))
    version = StateVersion.objects.get(thread=given.thread, version=3)
    assert (version.origin, version.user_id, version.run_id) == ("client", given.owner.pk, opened.run.pk)  # type: ignore[union-attr]


@pytest.mark.parametrize("sent", [{}, {"state": None}, {"state": {}}, {"state": {"a": 1}}, {"state": {"a": 2}}])
def test_who_sends_no_edit_gets_what_others_made(given: Given, sent: dict[str, Any]) -> None:
    """Nothing, an old version, the version there is: each is told the state, as others who watch may not know it."""
    given.stored(user("u1"), state={"a": 1})
    edit(given, merge={"a": 2})
    opened = given.open(messages=[user("u2")], **sent)
    assert opened.setup is not None
    assert (opened.setup.state, opened.setup.state_differs) == ({"a": 2}, True)
    assert (numbers(given), len(versions(given))) == ((2, None), 2)


def test_what_the_last_run_left_is_the_base(given: Given) -> None:
    given.stored(user("u1"), state={"a": 1, "b": 1})
    edit(given, merge={"a": 2})
    assert given.finish(given.open(messages=[user("u2")]), state={"a": 3, "b": 1, "d": 1}, state_changed=True)
    assert numbers(given) == (3, None)
    edit(given, merge={"b": 4})
    opened = given.open(messages=[user("u3")], state={"a": 3, "b": 1})  # the client removed d
    assert opened.setup is not None
    assert opened.setup.state == {"a": 3, "b": 4}


def test_state_policy_server(given: Given) -> None:
    given.stored(user("u1"), state={"a": 1})
    edit(given, merge={"a": 2})
    opened = given.open(AgentPolicy("echo", state_policy="server"), messages=[user("u2")], state={"a": 1, "b": 1})
    assert opened.setup is not None
    assert (opened.setup.state, opened.setup.state_differs) == ({"a": 2}, True)


def test_a_merge_that_the_schema_does_not_allow_leaves_the_threads_state(given: Given) -> None:
    schema = {"type": "object", "maxProperties": 2}
    policy = AgentPolicy("echo", state_schema=schema)
    given.stored(user("u1"), state={"a": 1})
    edit(given, merge={"b": 1})
    opened = given.open(policy, messages=[user("u2")], state={"a": 1, "c": 1})
    assert opened.setup is not None
    assert (opened.setup.state, opened.setup.state_differs) == ({"a": 1, "b": 1}, True)
    assert any("dropped" in warning for warning in opened.warnings)
    given.finish(opened)
    with pytest.raises(InvalidInput):  # what is wrong in itself is refused
        given.open(policy, messages=[user("u3")], state={"a": 1, "c": 1, "d": 1})


@override_settings(AGUI_DJANGO={"MAX_STATE": 1024})
def test_a_client_sends_too_large_a_state(given: Given) -> None:
    for _ in range(2):
        with pytest.raises(StateTooLarge):
            given.open(state={"a": "x" * 1024})
        given.stored(user("u1")) if not Thread.objects.exists() else None
    given.finish(given.open(messages=[user("u2")], state={"a": "x" * 900}))
    edit(given, merge={"b": "y" * 60})
    opened = given.open(messages=[user("u3")], state={"a": "x" * 900, "c": "z" * 60})
    assert opened.setup is not None
    assert (opened.setup.state["b"], "c" in opened.setup.state) == ("y" * 60, False)


# ---- what it costs --------------------------------------------------------------------------------------------------


def test_a_run_pays_nothing_for_edits_that_nobody_made(given: Given) -> None:
    given.stored(user("u1"), state={"a": 1})
    with counted() as statements:
        opened = given.open(messages=[user("u2")])
    opening = len(statements)
    with counted() as statements:
        given.finish(opened, state={"a": 2}, state_changed=True)
    closing = len(statements)
    assert len(statements.of("agui_django_stateversion")) == 1  # the new version
    assert len(statements.of("agui_django_thread")) == 1
    edit(given, merge={"a": 3})
    with counted() as statements:
        opened = given.open(messages=[user("u3")])
    assert len(statements) == opening
    with counted() as statements:
        given.finish(opened, state={"a": 4}, state_changed=True)
    assert len(statements) == closing


def test_an_edit_takes_few_statements(given: Given) -> None:
    given.stored(user("u1"), state={"a": 1})
    with counted() as statements:
        edit(given, merge={"a": 2})
    assert len(statements) <= 7
    assert encode({"a": 2}) == given.thread.state
