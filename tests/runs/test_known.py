"""Tabs that do not follow their thread: a state is merged from what its sender was shown, not from what it was not."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from agui_django.models import Run, Thread
from agui_django.runs.claims import process_name
from agui_django.runs.editing import edit_state
from agui_django.runs.requests import AgentPolicy
from agui_django.runs.setup import Wire
from agui_django.runs.store import ThreadStore
from agui_django.testing import override_agent
from tests.runs.given import Given, counted, says, user

_fresh = itertools.count(1)


@dataclass
class Tab:
    """A page: what it was shown. It is told only of the runs that it starts."""

    messages: list[Wire] = field(default_factory=list)
    state: dict[str, Any] = field(default_factory=dict)

    def copy(self) -> Tab:
        return Tab(list(self.messages), dict(self.state))


def turn(
    given: Given,
    tab: Tab,
    edit: dict[str, Any],
    agent: dict[str, Any] | None = None,
    *,
    again: bool = False,
    **body: Any,
) -> dict[str, Any]:
    """A run that a tab starts; returns the state that the agent met."""
    if again:
        while tab.messages[-1]["role"] != "user":
            tab.messages.pop()
    else:
        tab.messages.append(user(f"u{next(_fresh)}"))
    opened = given.open(messages=tab.messages, state=changed(tab.state, edit), **body)
    assert opened.kind == "created" and opened.setup is not None
    met = dict(opened.setup.state)
    answer = says(f"a{next(_fresh)}", "done")
    left = changed(met, agent or {})
    assert given.finish(opened, messages=[answer], state=left, state_changed=left != met)
    tab.messages.append(answer)
    tab.state = left
    return met


def changed(state: dict[str, Any], edit: dict[str, Any]) -> dict[str, Any]:
    """A state with some keys set, or removed where the value is None."""
    return {key: value for key, value in {**state, **edit}.items() if value is not None}


def test_a_tab_that_was_shown_nothing_takes_nothing_back(given: Given) -> None:
    one = Tab()
    turn(given, one, {"a": 1, "b": 1})
    two = one.copy()
    turn(given, one, {"a": 2}, {"c": 1})
    assert turn(given, two, {"b": 5}) == {"a": 2, "b": 5, "c": 1}
    # And the first one, which knows nothing of that, removes a key that it was shown.
    assert turn(given, one, {"c": None, "d": 1}) == {"a": 2, "b": 5, "d": 1}


def test_where_both_changed_the_same_the_client_wins(given: Given) -> None:
    one = Tab()
    turn(given, one, {"a": 1})
    two = one.copy()
    turn(given, one, {"a": 2})
    assert turn(given, two, {"a": 3}) == {"a": 3}


def test_a_tab_that_is_up_to_date_may_put_back_what_was(given: Given) -> None:
    one = Tab()
    turn(given, one, {"done": False, "n": 1})
    turn(given, one, {"n": 2}, {"done": True})
    assert turn(given, one, {"done": False, "n": 3}) == {"done": False, "n": 3}
    # Also what a run did that said nothing: its user's message is there.
    one.messages.append(user("silent"))
    opened = given.open(messages=one.messages, state=one.state)
    assert given.finish(opened, state={"done": True, "n": 3}, state_changed=True)
    one.state["done"] = True
    assert turn(given, one, {"done": False, "n": 4}) == {"done": False, "n": 4}


def test_a_page_that_was_cut_off_in_a_run_has_not_seen_its_end(given: Given) -> None:
    one = Tab()
    turn(given, one, {"a": 1, "b": 1})
    cut = Tab([*one.messages, user("cut")], dict(one.state))
    opened = given.open(messages=cut.messages, state=one.state)
    assert given.finish(opened, messages=[says("unseen", "x")], state={"a": 2, "b": 1}, state_changed=True)
    assert turn(given, cut, {"b": 2}) == {"a": 2, "b": 2}


def test_a_tab_whose_answer_was_asked_for_again_elsewhere(given: Given) -> None:
    one = Tab()
    turn(given, one, {"a": 1, "b": 1})
    two = one.copy()
    turn(given, one, {"a": 2}, {"c": 1}, again=True)
    assert turn(given, two, {"b": 5}) == {"a": 2, "b": 5, "c": 1}


def test_a_list_that_holds_only_what_is_new_is_taken_for_up_to_date(given: Given) -> None:
    one = Tab()
    turn(given, one, {"a": 1})
    turn(given, one, {"b": 1})
    assert turn(given, Tab([], {"a": 1, "b": 1}), {"c": 1, "b": None}) == {"a": 1, "c": 1}


def test_runs_of_earlier_versions_of_the_app_do_not_say(given: Given) -> None:
    one = Tab()
    turn(given, one, {"a": 1, "b": 1})
    two = one.copy()
    turn(given, one, {"a": 2})
    Run.objects.update(base_version=None)
    assert turn(given, two, {"b": 5}) == {"a": 1, "b": 5}


def test_what_a_queued_run_does_not_know_of_the_active_one(given: Given) -> None:
    policy = AgentPolicy("echo", busy="queue")
    one = Tab()
    turn(given, one, {"a": 1, "b": 1})
    active = given.open(policy, messages=[*one.messages, user("now")], state=one.state)
    for message, edit in (("next", {"b": 2}), ("last", {"b": 2, "d": 1})):
        sent = [*one.messages, user("now"), user(message)]
        assert given.open(policy, messages=sent, state=changed(one.state, edit)).kind == "queued"
    assert given.finish(active, messages=[says("x", "x")], state={"a": 2, "b": 1, "c": 1}, state_changed=True)
    met = []
    with override_agent("echo", _nothing, busy="queue"):
        for _ in range(2):
            begun = given.do(ThreadStore().start_next, given.thread.pk, process_name()).opened
            assert begun is not None and begun.setup is not None
            met.append(begun.setup.state)
            assert given.finish(begun)
    assert met == [{"a": 2, "b": 2, "c": 1}, {"a": 2, "b": 2, "c": 1, "d": 1}]


async def _nothing(_: Any) -> None: ...


def test_it_costs_no_statement_where_the_client_was_shown_all(given: Given) -> None:
    one = Tab()
    turn(given, one, {"a": 1})
    two = one.copy()
    with counted() as statements:
        opened = given.open(messages=[*one.messages, user("x")], state={"a": 2})
    shown = len(statements)
    assert given.finish(opened, messages=[says("y", "y")])
    one = Tab([*one.messages, user("x"), says("y", "y")], {"a": 2})
    with counted() as statements:
        opened = given.open(messages=[*two.messages, user("z")], state={"a": 1, "b": 1})
    assert len(statements) == shown + 2
    assert not [sql for sql in statements.sql if "MIN(" in sql and "agui_django_message" not in sql]
    assert given.finish(opened, messages=[says("w", "w")])


# ---- whatever they do -----------------------------------------------------------------------------------------------

KEYS = st.sampled_from("abcd")
EDITS = st.dictionaries(KEYS, st.booleans(), max_size=3)  # whether the key is set or removed
STEPS = st.tuples(st.sampled_from(["turn", "turn", "turn", "again", "staff"]), st.integers(0, 2), EDITS, EDITS)


@pytest.mark.usefixtures("given")
@hypothesis.settings(
    max_examples=25, deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
@hypothesis.given(steps=st.lists(STEPS, min_size=2, max_size=8))
def test_an_edit_is_lost_only_where_the_same_was_edited(given: Given, steps: list[Any]) -> None:
    Thread.objects.all().delete()
    tabs = [Tab()]
    turn(given, tabs[0], {"own": next(_fresh), "a": next(_fresh), "b": next(_fresh)})
    tabs += [tabs[0].copy(), tabs[0].copy()]
    latest = tabs[0]
    for kind, number, mine, agents in steps:
        # Every edit sets something to what was never there: an equal version is no edit, by another rule.
        before = json.loads(given.thread.state)
        tab = latest if kind == "again" else tabs[number]
        edit = _edit(mine, before if kind == "staff" else tab.state)
        after = _edit(agents, changed(before, edit))
        if kind == "staff":
            given.do(lambda merge: edit_state(given.thread, merge=merge), edit)
            assert json.loads(given.thread.state) == changed(before, edit)
            continue
        assert turn(given, tab, edit, after, again=kind == "again") == changed(before, edit)
        latest = tab


def _edit(keys: dict[str, bool], state: dict[str, Any]) -> dict[str, Any]:
    made = {key: next(_fresh) if is_set else None for key, is_set in keys.items() if is_set or key in state}
    return {"own": next(_fresh), **made}
