"""What a regenerate or an edit took out of play: listed, brought back, shown to whoever follows; nothing is lost."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from agui_django.models import Interrupt, Message, Run, StateVersion
from agui_django.protocol.codec import decode, encode
from agui_django.protocol.errors import InterruptsOpen, InvalidInput, NotFound, ThreadBusy
from agui_django.runs import polling
from agui_django.runs.branches import Point, abranches, arestore, branches, restore
from agui_django.runs.database import get_pool
from agui_django.runs.feed import follow_thread
from agui_django.runs.requests import AgentPolicy
from agui_django.runs.start import astart_run
from agui_django.testing import override_agent
from tests.runs.given import Given, calls, says, tool, user
from tests.runs.test_feed import held, rest, stored, take, types

QUEUE = AgentPolicy("echo", busy="queue")


def regenerated(given: Given, *known: dict[str, Any], says: list[dict[str, Any]], **more: Any) -> Run:
    """A run that was asked for again, with the client's list up to the last user message."""
    return given.turn(*known, says=says, **more)


def edited(given: Given, after: str, new: dict[str, Any], says: list[dict[str, Any]]) -> Run:
    return given.turn(new, says=says, forwardedProps={"supersedeAfter": after})


def listed(given: Given) -> list[Point]:
    return given.do(branches, given.thread)


def shape(points: list[Point]) -> list[Any]:
    """Points as (message, within, [(run, count, first words)])."""
    return [
        (point.message_id, point.within, [(each.run, each.count, each.first_words) for each in point.alternatives])
        for point in points
    ]


def back(given: Given, branch: uuid.UUID) -> Run:
    return given.do(restore, given.thread, branch)


# ---- listing --------------------------------------------------------------------------------------------------------


def test_a_thread_without_branches_has_none(given: Given) -> None:
    given.turn(user("u1"), says=[says("a1", "x")])
    assert listed(given) == []


def test_a_regenerate_and_an_edit_are_listed_where_they_branch_off(given: Given) -> None:
    first = given.turn(user("u1"), says=[says("a1", "one")])
    given.turn(user("u2"), says=[says("a2", "two")])
    again = regenerated(given, user("u2"), says=[says("a3", "three")])
    changed = edited(given, "a1", user("u4", "other"), [says("a4", "four")])
    points = listed(given)
    assert shape(points) == [
        ("a1", None, [(changed.pk, 2, "hi"), (None, 2, "other")]),
        ("u2", changed.pk, [(again.pk, 1, "two"), (changed.pk, 1, "three")]),
    ]
    old, new = points[0].alternatives
    assert (old.in_play, new.in_play) == (False, True)
    rows = {row.message_id: row for row in Message.objects.all()}
    assert (old.made_by, old.created_at) == (rows["u2"].run_id, rows["u2"].created_at)
    assert (new.made_by, new.created_at) == (changed.pk, rows["u4"].created_at)
    assert first.pk not in (old.made_by, new.made_by)


def test_an_answer_that_never_came_is_no_alternative(given: Given) -> None:
    given.turn(user("u1"), says=[says("a1", "one")])
    failed = given.open(messages=[user("u1")])
    given.finish(failed, status="failed")
    assert failed.run is not None
    assert shape(listed(given)) == [("u1", None, [(failed.run.pk, 1, "one")])]


def test_an_alternative_tells_the_state_it_ended_with(given: Given) -> None:
    opened = given.open(messages=[user("u1")])
    given.finish(opened, messages=[says("a1", "one")], state={"n": 1}, state_changed=True)
    opened = given.open(messages=[user("u1")])
    given.finish(opened, messages=[says("a2", "two")], state={"n": 2}, state_changed=True)
    regenerated(given, user("u1"), says=[says("a3", "three")])
    (point,) = listed(given)
    assert [each.state_version for each in point.alternatives] == [1, 2, 2]
    assert StateVersion.objects.get(version=1).state == '{"n":1}'


def test_what_an_agent_took_out_is_in_no_branch(given: Given) -> None:
    given.turn(user("u1"), says=[says("a1", "one")])
    regenerated(given, user("u1"), says=[says("a2", "two")])
    (point,) = listed(given)
    old = point.alternatives[0].run
    assert old is not None
    opened = given.open(messages=[user("u3")])
    given.finish(opened, messages=[says("sum", "What was said")], removed=["u1", "a2", "u3"])
    assert given.ids == ["sum"]
    assert listed(given) == []
    with pytest.raises(NotFound):
        back(given, old)
    with pytest.raises(NotFound):
        back(given, opened.run.pk)  # type: ignore[union-attr]
    assert given.ids == ["sum"]


# ---- bringing back --------------------------------------------------------------------------------------------------


def test_an_answer_comes_back_and_goes_again(given: Given) -> None:
    given.turn(user("u1"), says=[says("a1", "one")])
    again = regenerated(given, user("u1"), says=[says("a2", "two")])
    given.turn(user("u3"), says=[says("a3", "three")])
    assert given.ids == ["u1", "a2", "u3", "a3"]
    restored = back(given, again.pk)
    assert given.ids == ["u1", "a1"]
    assert (given.thread.last_words, given.thread.title) == ("one", "hi")
    assert shape(listed(given)) == [("u1", None, [(None, 1, "one"), (restored.pk, 3, "two")])]
    once_more = back(given, restored.pk)
    assert given.ids == ["u1", "a2", "u3", "a3"]
    assert given.thread.last_words == "three"
    assert shape(listed(given)) == [("u1", None, [(once_more.pk, 1, "one"), (None, 3, "two")])]


def test_a_restore_is_a_run_that_called_nobody(given: Given) -> None:
    given.turn(user("u1"), says=[says("a1", "one")])
    again = regenerated(given, user("u1"), says=[says("a2", "two")])
    run = given.do(lambda: restore(given.thread, again.pk, user=given.owner))
    run = Run.objects.get(pk=run.pk)
    assert (run.status, run.transport, run.user, run.agent, run.last_seq) == (
        "finished", "restore", given.owner, "echo", 2,
    )  # fmt: skip
    assert decode(run.input)["forwardedProps"] == {"restore": str(again.pk)}
    assert [event["type"] for event in given.log(run)] == ["RUN_STARTED", "RUN_FINISHED"]
    assert given.thread.updated_at == run.created_at


def test_a_branch_of_a_branch_brings_that_one_back_first(given: Given) -> None:
    given.turn(user("u1"), says=[says("a1", "one")])
    again = regenerated(given, user("u1"), says=[says("a2", "two")])
    changed = edited(given, "", user("u3"), [says("a3", "three")])
    assert given.ids == ["u3", "a3"]
    assert [(point.message_id, point.within) for point in listed(given)] == [("", None), ("u1", changed.pk)]
    back(given, again.pk)
    assert given.ids == ["u1", "a1"]
    ways = {point.message_id: [each.count for each in point.alternatives] for point in listed(given)}
    assert ways == {"": [2, 2], "u1": [1, 1]}


def test_a_branch_with_calls_and_results_comes_back_whole(given: Given) -> None:
    given.turn(user("u1"), says=[calls("a1", "c1")])
    given.turn(tool("t1", "c1"), says=[says("a2", "done")])
    changed = edited(given, "a1", tool("t2", "c1", "another"), [says("a3", "done otherwise")])
    assert given.ids == ["u1", "a1", "t2", "a3"]
    restored = back(given, changed.pk)
    assert given.ids == ["u1", "a1", "t1", "a2"]
    back(given, restored.pk)
    assert given.ids == ["u1", "a1", "t2", "a3"]


def test_the_same_id_on_both_sides(given: Given) -> None:
    given.turn(user("u1", "old"), user("u2"), says=[says("a", "one")])
    changed = edited(given, "", user("u1", "new"), [says("a", "two")])
    restored = back(given, changed.pk)
    assert [(wire["id"], wire["content"]) for wire in given.wires] == [("u1", "old"), ("u2", "hi"), ("a", "one")]
    back(given, restored.pk)
    assert [(wire["id"], wire["content"]) for wire in given.wires] == [("u1", "new"), ("a", "two")]


def test_an_id_that_is_in_play_before_the_branch_refuses_it(given: Given) -> None:
    given.turn(user("u1"), says=[says("a1", "one")])
    again = regenerated(given, user("u1"), says=[says("a2", "two")])
    Message.objects.filter(message_id="u1").update(message_id="a1")  # nothing of ours does that
    with pytest.raises(InvalidInput):
        back(given, again.pk)
    assert given.ids == ["a1", "a2"]


def test_a_long_branch(given: Given) -> None:
    given.turn(user("u1"), says=[says(f"a{n}", "x") for n in range(1_203)])
    changed = edited(given, "u1", user("u2"), [])
    back(given, changed.pk)
    assert len(given.ids) == 1_204
    assert given.ids[-1] == "a1202"


def test_a_regenerate_that_waited_and_what_was_said_meanwhile(given: Given) -> None:
    active = given.open(messages=[user("u1")])
    assert given.open(QUEUE, messages=[user("u2")]).kind == "queued"
    assert given.open(QUEUE, messages=[user("u1")]).kind == "queued"
    given.finish(active, messages=[says("a1", "one")])
    for message in (says("a2", "two"), says("a3", "three")):
        opened = given.do(given.store.start_next, given.thread.pk, "me").opened
        assert opened is not None
        given.finish(opened, messages=[message])
    assert given.ids == ["u1", "u2", "a2", "a3"]
    (point,) = listed(given)
    assert [(each.count, each.first_words) for each in point.alternatives] == [(1, "one"), (3, "hi")]
    restored = back(given, point.alternatives[0].run)  # type: ignore[arg-type]
    assert given.ids == ["u1", "a1"]
    back(given, restored.pk)
    assert given.ids == ["u1", "u2", "a2", "a3"]


def test_an_edit_of_the_first_message_that_waited(given: Given) -> None:
    active = given.open(messages=[user("u1")])
    edit = {"messages": [user("u2")], "forwardedProps": {"supersedeAfter": ""}}
    assert given.open(QUEUE, **edit).kind == "queued"
    given.finish(active, messages=[says("a1", "one")])
    opened = given.do(given.store.start_next, given.thread.pk, "me").opened
    given.finish(opened, messages=[says("a2", "two")])
    assert given.ids == ["u2", "a2"]
    (point,) = listed(given)
    back(given, point.alternatives[0].run)  # type: ignore[arg-type]
    assert given.ids == ["u1", "a1"]


def test_a_list_that_is_taken_whole_branches_too(given: Given) -> None:
    client = AgentPolicy("echo", history="client")
    given.turn(user("u1"), says=[says("a1", "No.")])
    opened = given.open(client, messages=[user("u1"), says("a1", "Yes."), user("u2")])
    given.finish(opened, messages=[says("a2", "Fine.")])
    assert opened.run is not None
    back(given, opened.run.pk)
    assert [wire["content"] for wire in given.wires] == ["hi", "No."]


def test_an_unknown_branch_is_not_found(given: Given) -> None:
    run = given.turn(user("u1"), says=[says("a1", "x")])
    for branch in (uuid.uuid4(), run.pk):
        with pytest.raises(NotFound):
            back(given, branch)
    again = regenerated(given, user("u1"), says=[says("a2", "two")])
    back(given, again.pk)
    with pytest.raises(NotFound):  # it is in play already
        back(given, again.pk)
    assert given.ids == ["u1", "a1"]


def test_a_branch_of_another_thread_is_not_found(given: Given) -> None:
    given.turn(user("u1"), says=[says("a1", "x")], threadId="other")
    again = regenerated(given, user("u1"), says=[says("a2", "two")], threadId="other")
    given.turn(user("u1"), says=[says("a1", "x")])
    with pytest.raises(NotFound):
        back(given, again.pk)
    assert Message.objects.filter(superseded_by=again).count() == 1


@pytest.mark.parametrize("status", ["running", "pending", "queued"])
def test_a_thread_in_which_something_happens_is_left_alone(given: Given, status: str) -> None:
    given.turn(user("u1"), says=[says("a1", "one")])
    again = regenerated(given, user("u1"), says=[says("a2", "two")])
    active = given.open(messages=[user("u2")], claim="" if status == "pending" else "elsewhere.1.2.3")
    if status == "queued":
        given.open(QUEUE, messages=[user("u3")])
        given.finish(active)
    with pytest.raises(ThreadBusy):
        back(given, again.pk)
    assert given.ids[:2] == ["u1", "a2"]
    assert Message.objects.get(message_id="a1").superseded_by_id == again.pk


def test_a_run_that_was_lost_does_not_hold_its_thread(given: Given) -> None:
    given.turn(user("u1"), says=[says("a1", "one")])
    again = regenerated(given, user("u1"), says=[says("a2", "two")])
    lost = given.open(messages=[user("u2")])
    Run.objects.filter(pk=lost.run.pk).update(heartbeat="2020-01-01T00:00:00Z")  # type: ignore[union-attr]
    back(given, again.pk)
    assert given.ids == ["u1", "a1"]
    assert given.run(lost).error_code == "abandoned"


def test_open_questions_belong_to_what_is_in_play(given: Given) -> None:
    given.turn(user("u1"), says=[says("a1", "one")])
    again = regenerated(given, user("u1"), says=[says("a2", "two")])
    asking = given.open(messages=[user("u2")])
    given.finish(asking, status="interrupted", interrupts=[{"id": "i1", "reason": "confirmation"}])
    with pytest.raises(InterruptsOpen, match="i1"):
        back(given, again.pk)
    Interrupt.objects.update(expires_at="2020-01-01T00:00:00Z")
    back(given, again.pk)
    assert given.ids == ["u1", "a1"]


# ---- the next request -----------------------------------------------------------------------------------------------


def test_a_client_that_holds_the_other_branch_writes_on(given: Given) -> None:
    given.turn(user("u1"), says=[says("a1", "one")])
    changed = edited(given, "a1", user("u2"), [says("a2", "two")])
    changed = edited(given, "a1", user("u3"), [says("a3", "three")])
    back(given, changed.pk)
    assert given.ids == ["u1", "a1", "u2", "a2"]
    theirs = [user("u1"), says("a1", "one"), user("u3"), says("a3", "three"), user("u4")]
    opened = given.open(messages=theirs)
    assert given.ids == ["u1", "a1", "u2", "a2", "u4"]
    assert any("out of play" in warning for warning in opened.warnings)
    given.finish(opened, messages=[says("a4", "four")])
    # What was left behind is still there, and what was said now is part of the branch that was brought back.
    (point,) = listed(given)
    assert [each.count for each in point.alternatives] == [4, 2]


def test_a_client_that_holds_the_other_branch_cannot_edit_what_it_does_not_see(given: Given) -> None:
    given.turn(user("u1"), says=[says("a1", "one")])
    again = regenerated(given, user("u1"), says=[says("a2", "two")])
    back(given, again.pk)
    with pytest.raises(InvalidInput):
        given.open(messages=[user("u2")], forwardedProps={"supersedeAfter": "a2"})
    assert given.ids == ["u1", "a1"]


def test_a_restored_thread_goes_on_and_branches_again(given: Given) -> None:
    given.turn(user("u1"), says=[says("a1", "one")])
    again = regenerated(given, user("u1"), says=[says("a2", "two")])
    back(given, again.pk)
    third = regenerated(given, user("u1"), says=[says("a3", "three")])
    assert given.ids == ["u1", "a3"]
    (point,) = listed(given)
    assert [each.first_words for each in point.alternatives] == ["one", "two", "three"]
    assert point.alternatives[0].run == third.pk


def test_the_state_stays_as_it_is(given: Given) -> None:
    opened = given.open(messages=[user("u1")])
    given.finish(opened, messages=[says("a1", "one")], state={"n": 1}, state_changed=True)
    opened = given.open(messages=[user("u1")])
    given.finish(opened, messages=[says("a2", "two")], state={"n": 2}, state_changed=True)
    back(given, opened.run.pk)  # type: ignore[union-attr]
    assert (given.thread.state, given.thread.state_version) == ('{"n":2}', 2)


def test_a_thread_with_branches_can_be_deleted_by_anyone(given: Given) -> None:
    given.turn(user("u1"), says=[says("a", "one")])
    regenerated(given, user("u1"), says=[says("a", "two")])  # the same id: once in play, once not
    given.thread.delete()
    assert Message.objects.count() == 0


# ---- those who follow -----------------------------------------------------------------------------------------------


class Answers:
    """Says the next of some answers at each run."""

    def __init__(self) -> None:
        self.left = iter(["one", "two", "three"])

    async def run(self, run: Any) -> None:
        await run.say(next(self.left))


@pytest_asyncio.fixture
async def two(agui_runtime: None, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Run]]:
    """A thread with an answer that was asked for again."""
    monkeypatch.setattr(polling, "INTERVAL", 0.02)
    with override_agent("answers", Answers()):
        yield [await astart_run("answers", "t", [user("u")], scope="s") for _ in range(2)]


@pytest.mark.asyncio
@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_an_open_page_is_shown_the_restored_thread(two: list[Run], where: str) -> None:
    run = two[-1]
    feed = follow_thread(run.thread_id)
    told = await take(feed, 4)
    assert [message["content"] for message in held(told).messages] == ["hi", "two"]
    if where == "here":
        await arestore(run.thread, run.pk)
    else:  # another process restores: only the rows tell
        await get_pool().run(restore, run.thread, run.pk)
    told += await take(feed, 4)
    assert types(told)[4:] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT", "RUN_FINISHED"]
    client = held(told)
    assert [message["content"] for message in client.messages] == ["hi", "one"]
    assert client.messages == (await stored(run))[0]
    # A page that comes back with a cursor from before sees the same; one that knows it all sees nothing.
    late = held(await rest(follow_thread(run.thread_id, told[3][0], until_idle=True)), held(told[:4]))
    assert late.messages == client.messages
    assert await rest(follow_thread(run.thread_id, told[-1][0], until_idle=True)) == []
    # And a run that follows is told as ever.
    third = await astart_run("answers", "t", [user("u2")], scope="s")
    told += await take(feed, 5)
    assert types(told)[-1] == "RUN_FINISHED"
    assert [m["content"] for m in held(told).messages] == ["hi", "one", "hi", "three"]
    assert third.thread_id == run.thread_id


@pytest.mark.asyncio
async def test_a_branch_that_is_brought_back_in_place_of_nothing_is_shown(
    agui_runtime: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No message goes out of play then: the restore alone has to be seen."""
    monkeypatch.setattr(polling, "INTERVAL", 0.02)
    with override_agent("answers", Answers()):
        await astart_run("answers", "t", [user("u")], scope="s")
    with override_agent("answers", lambda run: 1 / 0):
        run = await astart_run("answers", "t", [user("u")], scope="s")
    feed = follow_thread(run.thread_id)
    told = await take(feed, 4)
    assert held(told).messages == [user("u")]
    await arestore(run.thread, run.pk)
    told += await take(feed, 4)
    assert [message["content"] for message in held(told).messages] == ["hi", "one"]
    assert len(await abranches(run.thread)) == 0


@pytest.mark.asyncio
async def test_two_restores_at_once_do_both_or_one(two: list[Run]) -> None:
    import asyncio

    run = two[-1]
    done = await asyncio.gather(*(arestore(run.thread, run.pk) for _ in range(5)), return_exceptions=True)
    assert sorted(type(each).__name__ for each in done) == ["NotFound"] * 4 + ["Run"]
    assert [message["content"] for message in (await stored(run))[0]] == ["hi", "one"]


def test_encoded_events_are_legal(given: Given) -> None:
    """A restore's log is what any other's is: one start, one end, with times."""
    given.turn(user("u1"), says=[says("a1", "one")])
    again = regenerated(given, user("u1"), says=[says("a2", "two")])
    begins, ends = given.log(back(given, again.pk))
    assert begins["protocolVersion"] == "1.1"
    assert {"threadId": "t1", "runId": ends["runId"]}.items() <= begins.items()
    assert isinstance(begins["timestamp"], int) and encode(begins)
