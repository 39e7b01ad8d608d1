"""Questions as rows: asked, shown, answered once, opened again, expired."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.utils import timezone

from agui_django.models import Interrupt, Run
from agui_django.protocol.errors import (
    InterruptExpired,
    InterruptsOpen,
    PermissionRefused,
    ResumeConflict,
    ResumeIncomplete,
    ResumeInvalid,
    ThreadBusy,
)
from agui_django.runs import resume
from agui_django.runs.expiring import expire
from agui_django.runs.requests import AgentPolicy
from tests.runs.given import Given, calls, cancelled, counted, resolved, says, tool, user


def expires(**delta: float) -> str:
    return (timezone.now() + timedelta(**delta)).isoformat()


def refused(given: Given, **body: Any) -> Any:
    opened = given.open(**body)
    assert opened.kind == "refused"
    assert opened.run is None
    return opened.error


# ---- asked and shown ------------------------------------------------------------------------------------------------


def test_a_question_is_a_row_and_shown_on_hydration(given: Given) -> None:  # case I03
    wire = {
        "id": "i1", "reason": "tool_call", "toolCallId": "c", "message": "ok?", "responseSchema": {"type": "object"},
        "metadata": {"m": 1}, "expiresAt": expires(hours=1),
    }  # fmt: skip
    opened = given.asked(wire, messages=[calls("a1", "c")])
    row = Interrupt.objects.get()
    assert (row.interrupt_id, row.key, row.reason, row.message, row.tool_call_id, row.status) == (
        "i1", "i1", "tool_call", "ok?", "c", "open",
    )  # fmt: skip
    assert row.expires_at is not None
    assert given.run(opened).open_interrupts == 1
    shown = given.open(messages=[])
    assert shown.kind == "hydration"
    assert shown.hydration is not None
    assert shown.hydration.interrupts == [wire]


def test_an_unreadable_expiry_never_expires(given: Given) -> None:
    given.asked({"id": "i1", "expiresAt": "when the cows come home"})
    assert Interrupt.objects.get().expires_at is None


# ---- a request without answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("messages", [[user("u2")], [tool("t1", "c")], [user("u1")]])
def test_any_other_request_is_refused_while_questions_are_open(given: Given, messages: list[Any]) -> None:
    given.asked({"id": "i1"}, {"id": "i2"}, messages=[calls("a1", "c")])
    error = refused(given, messages=messages)
    assert isinstance(error, InterruptsOpen)
    assert "i1" in str(error)
    assert "i2" in str(error)
    assert given.ids == ["u1", "a1"]
    assert Run.objects.count() == 1


def test_open_interrupts_cancel_drops_the_questions_and_tells_the_agent(given: Given) -> None:
    given.asked({"id": "i1"})
    opened = given.open(AgentPolicy("echo", open_interrupts="cancel"), messages=[user("u2")])
    assert opened.setup is not None
    assert given.open_ids == []
    assert [(key, answer.status) for key, answer in opened.setup.answers.items()] == [("i1", "cancelled")]
    assert opened.setup.resume == []
    assert opened.setup.turn != Run.objects.get(run_id="asking").turn


# ---- answers --------------------------------------------------------------------------------------------------------


def test_answers_reach_the_agent_and_continue_the_turn(given: Given) -> None:
    asking = given.asked({"id": "i1"}, {"id": "i2"})
    entries = [{**resolved("i1", {"approved": True}), "metadata": {"signed": "x"}}, cancelled("i2")]
    opened = given.open(runId="asking", messages=[user("u1")], resume=entries)
    assert opened.kind == "created"
    setup, run = opened.setup, opened.run
    assert setup is not None
    assert run is not None
    assert run.resumed_run == asking.run
    assert setup.turn == run.turn == asking.run.turn  # type: ignore[union-attr]
    assert setup.resume == setup.input["resume"] == entries
    first, second = setup.answers["i1"], setup.answers["i2"]
    assert (first.status, first.value, first.user, first.metadata) == (
        "resolved", {"approved": True}, given.owner, {"signed": "x"},
    )  # fmt: skip
    assert (second.status, second.value) == ("cancelled", None)
    assert given.ids == ["u1"]  # the list is no regenerate
    rows = Interrupt.objects.order_by("position")
    assert [(row.status, row.answered_run, row.answered_by) for row in rows] == [
        ("resolved", run, given.owner), ("cancelled", run, given.owner),
    ]  # fmt: skip


def test_a_resume_regenerates_nothing_whatever_its_list_ends_on(given: Given) -> None:
    given.asked({"id": "i"}, messages=[says("a1", "May I?")])
    opened = given.open(messages=[user("u1")], resume=[resolved("i")])
    assert opened.kind == "created"
    assert given.ids == ["u1", "a1"]


def test_a_partial_resume_changes_nothing(given: Given) -> None:  # case I01
    given.asked({"id": "i1"}, {"id": "i2"})
    error = refused(given, messages=[user("u2")], resume=[resolved("i1")])
    assert isinstance(error, ResumeIncomplete)
    assert "i2" in str(error)
    assert given.open_ids == ["i1", "i2"]
    assert given.ids == ["u1"]
    assert Run.objects.count() == 1


def test_a_resume_in_forwarded_props_answers_the_single_question(given: Given) -> None:  # case I09
    given.asked({"id": "i1"})
    opened = given.open(messages=[], forwardedProps={"command": {"resume": "yes"}})
    assert opened.setup is not None
    assert opened.setup.input["resume"] == [{"interruptId": "i1", "status": "resolved", "payload": "yes"}]
    assert opened.setup.input["forwardedProps"] == {"command": {"resume": "yes"}}


def test_where_nothing_is_open_it_is_passed_on(given: Given) -> None:
    # an agent that asks by a CUSTOM on_interrupt of its own finds the answer where its framework looks for it
    given.turn(user("u1"), says=[says("a1", "Which?")])
    opened = given.open(messages=[user("u1"), says("a1", "Which?")], forwardedProps={"command": {"resume": "yes"}})
    assert opened.kind == "created"
    assert opened.setup is not None
    assert "resume" not in opened.setup.input
    assert opened.setup.input["forwardedProps"] == {"command": {"resume": "yes"}}
    assert given.ids == ["u1", "a1"]


def test_an_answer_must_fit_its_schema(given: Given) -> None:
    given.asked({"id": "i1", "responseSchema": {"type": "object", "required": ["ok"]}})
    error = refused(given, resume=[resolved("i1", {})])
    assert isinstance(error, ResumeInvalid)
    assert error.fields[0]["path"].startswith("/resume/0/payload")
    assert given.open_ids == ["i1"]


def test_a_policy_may_forbid_an_answer(given: Given) -> None:
    given.asked({"id": "i1"})
    with pytest.raises(PermissionRefused):
        given.open(resume=[resolved("i1")], may_answer=lambda row: row.interrupt_id != "i1")
    assert given.open_ids == ["i1"]


def test_who_may_not_answer_a_question_may_give_it_up(given: Given) -> None:
    given.asked({"id": "i1"}, {"id": "i2"})
    may: dict[str, Any] = {"may_answer": lambda row: row.interrupt_id != "i2", "may_give_up": lambda row: True}
    with pytest.raises(PermissionRefused):
        given.open(resume=[resolved("i1"), resolved("i2")], **may)
    with pytest.raises(PermissionRefused):
        given.open(resume=[resolved("i1"), cancelled("i2")], **{**may, "may_give_up": lambda row: False})
    opened = given.open(resume=[resolved("i1"), cancelled("i2")], **may)
    assert opened.setup is not None
    assert [answer.status for answer in opened.setup.answers.values()] == ["resolved", "cancelled"]


def test_who_answered_may_be_somebody_else(given: Given) -> None:
    bob = get_user_model().objects.create_user("bob")
    given.asked({"id": "i1"})
    opened = given.open(resume=[resolved("i1")], actor=bob)
    assert opened.setup is not None
    assert opened.setup.answers["i1"].user == bob
    assert given.run(opened).actor == bob
    assert given.run(opened).user == given.owner


def test_an_unknown_id_is_ignored_with_a_warning(given: Given) -> None:
    given.asked({"id": "i1"})
    opened = given.open(resume=[resolved("i1"), resolved("nobody-asked")])
    assert opened.setup is not None
    assert [entry["interruptId"] for entry in opened.setup.resume] == ["i1"]
    assert any("nobody-asked" in warning for warning in opened.warnings)


def test_answers_to_unknown_ids_alone_are_no_answers(given: Given) -> None:
    given.turn(user("u1"), says=[says("a1", "x")])
    shown = given.open(messages=[], resume=[resolved("i9")])
    assert (shown.kind, shown.run) == ("hydration", None)
    active = given.open(messages=[user("u2")])
    joined = given.open(messages=[], resume=[resolved("i9")])
    assert (joined.kind, joined.run) == ("joined", active.run)


@pytest.mark.parametrize("policy", ["reject", "cancel"])
def test_answers_are_for_the_agent_that_asked(policy: str, given: Given) -> None:
    given.asked({"id": "i1"})
    other = AgentPolicy("plan", open_interrupts=policy)
    for body in ({"messages": []}, {"messages": [user("u2")]}):
        opened = given.open(other, **body, resume=[resolved("i1")])
        assert isinstance(opened.error, InterruptsOpen)
        assert "echo" in str(opened.error)
    command = given.open(other, messages=[], forwardedProps={"command": {"resume": "yes"}})
    assert isinstance(command.error, InterruptsOpen)
    assert given.open_ids == ["i1"]
    assert given.open(messages=[], resume=[resolved("i1")]).kind == "created"


def test_answers_on_a_thread_that_asked_nothing_make_an_ordinary_run(given: Given) -> None:
    given.turn(user("u1"), says=[says("a1", "x")])
    opened = given.open(messages=[user("u2")], resume=[resolved("i9")])
    assert opened.kind == "created"
    assert opened.setup is not None
    assert "resume" not in opened.setup.input
    assert opened.setup.turn == opened.run.uuid.hex  # type: ignore[union-attr]


# ---- repeats, races -------------------------------------------------------------------------------------------------


def test_a_repeat_attaches_to_the_run_it_started(given: Given) -> None:
    given.asked({"id": "i1"})
    body: dict[str, Any] = {"runId": "r2", "messages": [], "resume": [resolved("i1")]}
    first = given.open(**body)
    assert given.open(**body).run == first.run
    assert given.finish(first)
    assert given.open(**body).run == first.run
    # The same answers under another run id start nothing either.
    again = given.open(**{**body, "runId": "r3"})
    assert (again.kind, again.run) == ("attached", first.run)


def test_what_a_running_resume_has_answered_is_judged_before_the_thread_is_busy(given: Given) -> None:
    given.asked({"id": "i1"})
    first = given.open(runId="r2", messages=[], resume=[resolved("i1", "yes")])
    again = given.open(runId="r3", messages=[], resume=[resolved("i1", "yes")])
    assert (again.kind, again.run) == ("attached", first.run)
    assert isinstance(refused(given, messages=[], resume=[resolved("i1", "no")]), ResumeConflict)
    with pytest.raises(ThreadBusy):
        given.open(messages=[user("u2")], resume=[resolved("i1", "yes")])


def test_a_different_answer_to_a_closed_question_is_a_conflict(given: Given) -> None:
    given.asked({"id": "i1"})
    assert given.finish(given.open(resume=[resolved("i1", True)]))
    assert isinstance(refused(given, resume=[resolved("i1", False)]), ResumeConflict)
    assert isinstance(refused(given, resume=[cancelled("i1")]), ResumeConflict)


def test_of_two_racing_resumes_exactly_one_runs(given: Given) -> None:
    given.asked({"id": "i1"})
    barrier, kinds = threading.Barrier(2), []

    def answer(number: int) -> None:
        barrier.wait(10)
        try:
            kinds.append(given.open(runId=f"race{number}", messages=[], resume=[resolved("i1", number)]).kind)
        except Exception as error:
            kinds.append(type(error).__name__)

    threads = [threading.Thread(target=answer, args=[number]) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(kinds) == ["created", "refused"]
    assert Run.objects.exclude(resumed_run=None).count() == 1


# ---- opened again ---------------------------------------------------------------------------------------------------


def test_a_resume_that_failed_before_it_acted_leaves_the_questions_open(given: Given) -> None:
    given.asked({"id": "i1"})
    body: dict[str, Any] = {"runId": "r2", "messages": [], "resume": [resolved("i1")]}
    first = given.open(**body)
    assert given.finish(first, status="failed", spent=False)
    row = Interrupt.objects.get()
    assert (row.status, row.response) == ("open", "")
    assert (row.answered_run, row.answered_by, row.closed_at) == (None, None, None)
    second = given.open(**body)  # the very same request: not attached to the run that failed
    assert (second.kind, second.run == first.run) == ("created", False)
    assert given.finish(second, status="failed", spent=True)
    assert given.open_ids == []
    assert given.open(**body).run == second.run


@pytest.mark.parametrize(("reason", "left"), [("shutdown", ["i1"]), ("user", [])])
def test_a_resume_that_was_cancelled_is_over_unless_the_server_went_away(
    given: Given, reason: str, left: list[str]
) -> None:
    given.asked({"id": "i1"})
    opened = given.open(resume=[resolved("i1")])
    assert given.finish(opened, status="cancelled", spent=False, end_reason=reason)
    assert given.open_ids == left


# ---- expiry ---------------------------------------------------------------------------------------------------------


def test_an_expired_question_is_no_longer_shown_and_is_closed(given: Given) -> None:
    given.asked({"id": "i1", "expiresAt": expires(seconds=-1)}, {"id": "i2"})
    shown = given.open(messages=[])
    assert shown.hydration is not None
    assert [wire["id"] for wire in shown.hydration.interrupts] == ["i2"]
    assert given.open_ids == ["i1", "i2"]  # who only looks on changes nothing
    closed = given.do(expire, given.thread.pk).closed
    row = Interrupt.objects.get(interrupt_id="i1")
    assert (row.status, row.answered_run, closed) == ("expired", None, [row.pk])
    assert row.closed_at is not None
    assert given.do(expire, given.thread.pk).closed == []


def test_an_expired_question_can_be_cancelled_but_not_resolved(given: Given) -> None:
    given.asked({"id": "i1", "expiresAt": expires(seconds=-1)}, {"id": "i2"})
    assert isinstance(refused(given, resume=[resolved("i1"), resolved("i2")]), InterruptExpired)
    opened = given.open(resume=[cancelled("i1"), resolved("i2")])
    assert opened.setup is not None
    assert {key: answer.status for key, answer in opened.setup.answers.items()} == {"i1": "cancelled", "i2": "resolved"}


def test_an_expired_question_need_not_be_covered_and_holds_nobody_up(given: Given) -> None:
    given.asked({"id": "i1", "expiresAt": expires(seconds=-1)}, {"id": "i2"})
    opened = given.open(resume=[resolved("i2")])
    assert opened.setup is not None
    assert {key: answer.status for key, answer in opened.setup.answers.items()} == {"i1": "expired", "i2": "resolved"}


def test_an_expired_question_that_was_closed_may_be_given_up_and_the_agent_goes_on(given: Given) -> None:
    asking = given.asked({"id": "i1", "expiresAt": expires(seconds=-1)})
    given.do(expire, given.thread.pk)
    assert isinstance(refused(given, messages=[], resume=[resolved("i1")]), InterruptExpired)
    body: dict[str, Any] = {"messages": [], "resume": [cancelled("i1")]}
    opened = given.open(runId="r2", **body)
    assert opened.setup is not None
    assert opened.run is not None
    assert asking.run is not None
    assert (opened.run.resumed_run, opened.run.turn) == (asking.run, asking.run.turn)
    assert opened.setup.answers["i1"].status == "expired"
    assert opened.setup.resume == [cancelled("i1")]
    row = Interrupt.objects.get()
    assert (row.status, row.answered_run, opened.closed) == ("expired", opened.run, [])
    # Failed before it acted: nobody was told, so it may be given up again. It stays expired.
    assert given.finish(opened, status="failed", spent=False)
    row.refresh_from_db()
    assert (row.status, row.answered_run) == ("expired", None)
    second = given.open(runId="r3", **body)
    assert second.kind == "created"
    assert given.finish(second)
    # The agent was told: giving it up once more is a repeat of what it was told.
    assert given.open(runId="r4", **body).run == second.run


@pytest.mark.parametrize("closed_before", [False, True])
def test_a_new_turn_is_told_of_what_expired_once(closed_before: bool, given: Given) -> None:
    given.asked({"id": "i1", "expiresAt": expires(seconds=-1)})
    if closed_before:
        given.do(expire, given.thread.pk)
    opened = given.open(messages=[user("u2")])
    assert opened.setup is not None
    assert {key: answer.status for key, answer in opened.setup.answers.items()} == {"i1": "expired"}
    assert len(opened.closed) == (0 if closed_before else 1)
    assert given.finish(opened, status="failed", spent=False)
    later = given.open(messages=[user("u3")])
    assert later.setup is not None
    assert later.setup.answers == {}


def test_a_worker_tells_the_same(given: Given) -> None:
    given.asked({"id": "i1", "expiresAt": expires(seconds=-1)})
    opened = given.open(messages=[user("u2")], claim="")
    assert opened.run is not None
    claimed = given.do(given.store.claim, opened.run.pk, "worker")
    assert claimed is not None
    assert {key: answer.status for key, answer in claimed[1].answers.items()} == {"i1": "expired"}


def test_a_user_may_write_on_once_all_questions_have_expired(given: Given) -> None:
    given.asked({"id": "i1", "expiresAt": expires(seconds=-1)})
    opened = given.open(messages=[user("u2")])
    assert opened.kind == "created"
    assert opened.setup is not None
    assert opened.setup.answers["i1"].status == "expired"
    assert given.open_ids == []


# ---- over several passes --------------------------------------------------------------------------------------------


def test_the_answers_of_all_passes_of_a_turn_are_there(given: Given) -> None:
    given.asked({"id": "i1"})
    second = given.open(resume=[resolved("i1", "one")])
    assert given.finish(second, status="interrupted", interrupts=[{"id": "i2", "reason": "x"}])
    third = given.open(messages=[], resume=[resolved("i2", "two")])
    assert third.setup is not None
    assert {key: answer.value for key, answer in third.setup.answers.items()} == {"i1": "one", "i2": "two"}
    assert given.finish(third, messages=[calls("a1", "c")])
    fourth = given.open(messages=[tool("t1", "c")])  # the page's answer: still the same turn
    assert fourth.setup is not None
    assert {key: answer.value for key, answer in fourth.setup.answers.items()} == {"i1": "one", "i2": "two"}
    assert given.finish(fourth)
    fifth = given.open(messages=[user("u9")])
    assert fifth.setup is not None
    assert fifth.setup.answers == {}


def test_statements_of_a_resume(given: Given) -> None:
    given.asked({"id": "i1"}, {"id": "i2"})
    with counted() as statements:
        given.open(messages=[], resume=[resolved("i1"), resolved("i2")])
    assert len(statements) <= 9, statements.sql


def test_a_question_that_was_closed_meanwhile_is_not_answered(given: Given) -> None:
    given.asked({"id": "i1"}, {"id": "i2"})
    request = given.request(messages=[], resume=[resolved("i1"), resolved("i2")])
    thread, run, now = given.thread, Run.objects.get(), timezone.now()

    def late() -> None:
        judged = resume.plan("default", thread, request, open_runs=[run], now=now, warn=[].append)
        Interrupt.objects.filter(interrupt_id="i2").update(status="cancelled")
        with pytest.raises(ResumeConflict):
            resume.carry_out("default", judged, run, given.owner, now)

    given.do(late)
