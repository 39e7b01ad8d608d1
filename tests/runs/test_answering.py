"""Questions answered by the site's own code: the rules, drafts, the run that goes on, and who sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import AnonymousUser, Permission
from django.utils import timezone, translation

from agui_django import RunContext
from agui_django.access import AccessPolicy
from agui_django.agents.registry import get_agent
from agui_django.models import Interrupt, Run, Thread
from agui_django.protocol.codec import decode, encode
from agui_django.protocol.errors import (
    Declined,
    Draining,
    InterruptExpired,
    InvalidInput,
    NotFound,
    PermissionRefused,
    ResumeConflict,
    ResumeIncomplete,
    ResumeInvalid,
)
from agui_django.runs import answering, supervisor
from agui_django.runs.answering import Answered, aanswer, ainterrupts_cancel, aseen, open_interrupts
from agui_django.runs.database import get_pool
from agui_django.runs.drafts import draft_of
from agui_django.runs.engine import get_engine
from agui_django.runs.feed import follow_thread
from agui_django.runs.runners import Runner
from agui_django.runs.start import astart_run
from agui_django.runs.stream import follow
from agui_django.testing import override_agent
from tests.runs.given import Given, resolved, user

PAYMENT = {
    "type": "object",
    "required": ["amount"],
    "properties": {"amount": {"type": "integer", "maximum": 40}},
}


class Asks:
    """An agent that asks what it is told to, and keeps what each pass was about."""

    def __init__(self) -> None:
        self.questions: dict[str, dict[str, Any]] = {"sure": {}}
        self.passes: list[dict[str, Any]] = []
        self.fails = 0

    async def run(self, run: RunContext) -> None:
        self.passes.append({
            "answers": {key: (each.status, each.value, each.metadata) for key, each in run.answers.items()},
            "who": {key: getattr(each.user, "username", None) for key, each in run.answers.items()},
            "user": getattr(run.user, "username", None), "extra": run.extra, "tools": [each.name for each in run.tools],
            "context": [each.value for each in run.context], "props": run.forwarded_props, "state": dict(run.state),
            "language": translation.get_language(), "zone": timezone.get_current_timezone_name(),
            "resumed": run.resumed,
        })  # fmt: skip
        if run.resumed and self.fails:
            self.fails -= 1
            raise OSError("before it acted")
        asked = [run.ask(key, **about) for key, about in self.questions.items()]
        told = []
        for question in asked:
            try:
                told.append(str(question.answer()))
            except Declined:
                told.append("declined")
        await run.say("Told: " + ", ".join(told))


@pytest.fixture
def asks(agui_runtime: None) -> Iterator[Asks]:
    agent = Asks()
    with override_agent("asks", agent):
        yield agent


async def rows(**where: Any) -> list[Interrupt]:
    return await get_pool().run(
        lambda: list(Interrupt.objects.filter(**where).select_related("answered_by").order_by("position"))
    )


async def asked(ada: Any, thread: str = "t", **options: Any) -> list[Interrupt]:
    run = await astart_run("asks", thread, "hi", ada, **options)
    assert run.status == "interrupted", run.error_text
    return await rows(run=run)


async def ended(answered: Answered) -> Run:
    """The run that an answer started, at its end."""
    assert answered.run is not None
    return await over(answered.run)


async def over(run: UUID) -> Run:
    async for _ in follow(run):
        pass
    await supervisor.settle()
    return await Run.objects.select_related("user", "actor", "resumed_run").aget(pk=run)


async def said(thread: str = "t") -> list[str]:
    found = await Thread.objects.aget(thread_id=thread)
    wires = await get_pool().run(lambda: list(found.messages.in_play().values_list("wire", flat=True)))
    return [decode(wire)["content"] for wire in wires]


async def staff(django_user_model: Any, *permissions: str) -> Any:
    def make() -> Any:
        found = django_user_model.objects.create_user("kim", is_staff=True)
        found.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        return found

    return await get_pool().run(make)


# ---- one question ---------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_an_answer_starts_the_run_that_carries_it(asks: Asks, ada: Any, django_user_model: Any) -> None:
    kim = await staff(django_user_model, "answer_interrupt")
    (question,) = await asked(ada, state={"n": 1}, extra={"tenant": 7})
    answered = await aanswer(question, user=kim, payload="yes", metadata={"seen": "twice"})
    run = await ended(answered)
    assert (answered.complete, answered.interrupt.status) == (True, "resolved")
    assert (run.status, run.user, run.actor, run.transport) == ("finished", ada, kim, "server")
    assert run.resumed_run is not None
    assert (run.resumed_run_id, run.turn) == (question.run_id, run.resumed_run.turn)
    (row,) = await rows()
    assert (row.status, row.answered_by, row.answered_run_id, row.draft) == ("resolved", kim, run.pk, "")
    assert decode(row.response) == {
        "interruptId": row.interrupt_id, "status": "resolved", "payload": "yes", "metadata": {"seen": "twice"},
    }  # fmt: skip
    assert row.closed_at is not None
    last = asks.passes[-1]
    assert last["answers"] == {"sure": ("resolved", "yes", {"seen": "twice"})}
    assert (last["who"], last["user"], last["extra"], last["state"]) == (
        {"sure": "kim"},
        "ada",
        {"tenant": 7},
        {"n": 1},
    )
    assert await said() == ["hi", "Told: yes"]
    assert get_engine().slots.held == 0


@pytest.mark.asyncio
async def test_the_run_goes_on_with_what_the_asking_one_was_given(asks: Asks, ada: Any) -> None:
    given = await get_pool().run(Given, ada)
    tools = [{"name": "paint", "description": "d", "parameters": {"type": "object"}}]
    context = [{"description": "d", "value": "v"}]
    request = given.request(
        messages=[user("u1"), user("u2")], tools=tools, context=context, protocolVersion="1.1", claim="",
        forwardedProps={"theme": "dark", "supersedeAfter": "u1", "command": {"resume": 1}},
    )  # fmt: skip
    request.language, request.time_zone, request.agent = "de", "Europe/Berlin", get_agent("asks")
    await get_engine().begin(given.request(get_agent("echo"), messages=[user("u1")])).opened()
    await supervisor.settle()
    opened = await get_engine().begin(request).opened()
    assert opened.run is not None
    assert (await over(opened.run.pk)).status == "interrupted"
    (question,) = await rows()
    run = await ended(await aanswer(question, user=ada, payload=1))
    assert (run.language, run.time_zone, run.protocol_version) == ("de", "Europe/Berlin", "1.1")
    first, second = asks.passes
    assert (second["tools"], second["context"], second["language"], second["zone"]) == (
        ["paint"], ["v"], "de", "Europe/Berlin",
    )  # fmt: skip
    # What was about that one request does not happen again.
    assert first["props"]["supersedeAfter"] == "u1"
    assert second["props"] == {"theme": "dark"}
    assert (await said("t1"))[-1] == "Told: 1"


@pytest.mark.asyncio
async def test_the_state_is_the_threads_present_one(asks: Asks, ada: Any) -> None:
    (question,) = await asked(ada, state={"n": 1})
    await Thread.objects.filter(thread_id="t").aupdate(state=encode({"n": 2}), state_version=2)
    run = await ended(await aanswer(question, user=ada, payload=1))
    assert asks.passes[-1]["state"] == {"n": 2}
    events = [decode(text) async for batch in follow(run.pk) for _, text, _ in batch]
    assert events[1]["snapshot"] == {"n": 2}


@pytest.mark.asyncio
async def test_giving_a_question_up(asks: Asks, ada: Any) -> None:
    (question,) = await asked(ada)
    answered = await aanswer(question, user=ada, status="cancelled", payload="is not kept")
    run = await ended(answered)
    assert (answered.interrupt.status, run.status) == ("cancelled", "finished")
    assert asks.passes[-1]["answers"] == {"sure": ("cancelled", None, {})}
    assert await said() == ["hi", "Told: declined"]


@pytest.mark.asyncio
async def test_the_site_itself_may_answer(asks: Asks, ada: Any) -> None:
    (question,) = await asked(ada)
    run = await ended(await aanswer(question, user=None, payload="by rule"))
    (row,) = await rows()
    assert (row.answered_by, run.actor, run.user) == (None, None, ada)


def test_from_synchronous_code(asks: Asks, ada: Any) -> None:
    from agui_django.runs.start import start_run

    run = start_run("asks", "t", "hi", ada)
    found = answering.answer(Interrupt.objects.get(run=run), user=ada, payload="yes", wait=True)
    assert found.complete
    assert Run.objects.get(pk=found.run).status == "finished"
    run = start_run("asks", "other", "hi", ada)
    cancelled = answering.interrupts_cancel(run, user=ada, wait=True)
    assert Run.objects.get(pk=cancelled).status == "finished"


# ---- refused --------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_an_answer_has_to_fit(asks: Asks, ada: Any) -> None:
    asks.questions = {"pay": {"response_schema": PAYMENT}}
    (question,) = await asked(ada)
    for payload, path in ((None, "/payload"), ({}, "/payload"), ({"amount": 41}, "/payload/amount")):
        with pytest.raises(ResumeInvalid) as invalid:
            await aanswer(question, user=ada, payload=payload)
        assert [field["path"] for field in invalid.value.fields] == [path]
        assert invalid.value.code == "resume_invalid"
    for arguments, path in (
        ({"status": "perhaps"}, "/status"),
        ({"payload": float("nan")}, "/payload"), ({"payload": object()}, "/payload"),
        ({"metadata": ["x"]}, "/metadata"), ({"metadata": {"x": {1: 2}}}, "/metadata"),
    ):  # fmt: skip
        with pytest.raises(InvalidInput) as wrong:
            await aanswer(question, user=ada, **arguments)
        assert [field["path"] for field in wrong.value.fields] == [path]
    (row,) = await rows()
    assert (row.status, row.draft, await Run.objects.acount()) == ("open", "", 1)
    await ended(await aanswer(question, user=ada, payload={"amount": 40}))


@pytest.mark.asyncio
async def test_who_may_not_answer(asks: Asks, ada: Any, bob: Any, django_user_model: Any) -> None:
    kim = await staff(django_user_model, "view_interrupt")
    asks.questions = {"one": {}, "two": {"permission": "auth.delete_group"}}
    one, two = await asked(ada)
    for person in (bob, kim, AnonymousUser()):
        with pytest.raises(PermissionRefused):
            await aanswer(one, user=person, payload=1)
    # The thread's owner may answer one of them.
    assert not (await aanswer(one, user=ada, payload=1)).complete
    with pytest.raises(PermissionRefused):
        await aanswer(two, user=ada, payload=1)
    for person in (bob, kim, AnonymousUser()):
        with pytest.raises(PermissionRefused):
            await ainterrupts_cancel(one.run_id, user=person)
    assert [(row.status, bool(row.draft)) for row in await rows()] == [("open", True), ("open", False)]
    await get_pool().run(lambda: ada.user_permissions.set(Permission.objects.filter(codename="delete_group")))
    ada = await django_user_model.objects.aget(pk=ada.pk)
    await ended(await aanswer(two, user=ada, payload=1))


@pytest.mark.asyncio
async def test_the_owner_may_always_give_a_question_up(asks: Asks, ada: Any) -> None:
    asks.questions = {"one": {}, "two": {"permission": "auth.delete_group"}}
    one, two = await asked(ada)
    assert not (await aanswer(one, user=ada, payload=1)).complete
    with pytest.raises(PermissionRefused):
        await aanswer(two, user=ada, payload=1)
    await ended(await aanswer(two, user=ada, status="cancelled"))
    assert [row.status for row in await rows()] == ["resolved", "cancelled"]
    again, _ = await asked(ada)
    await ainterrupts_cancel(again.run_id, user=ada, wait=True)
    assert {row.status for row in await rows() if row.run_id == again.run_id} == {"cancelled"}


@pytest.mark.asyncio
async def test_the_sites_policy_decides(asks: Asks, ada: Any, bob: Any, settings: Any) -> None:
    settings.AGUI_DJANGO = {"ACCESS_POLICY": f"{__name__}.OnlyBob"}
    (question,) = await asked(ada)
    with pytest.raises(PermissionRefused):
        await aanswer(question, user=ada, payload=1)
    await ended(await aanswer(question, user=bob, payload=1))


class OnlyBob(AccessPolicy):
    def may_answer(self, user: Any, interrupt: Interrupt) -> bool:
        assert interrupt.thread.thread_id == "t"
        assert interrupt.run.agent == "asks"
        return bool(user.username == "bob")


@pytest.mark.asyncio
async def test_what_is_gone(asks: Asks, ada: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (question,) = await asked(ada)
    monkeypatch.setattr(supervisor._here(), "draining", True)
    with pytest.raises(Draining):
        await aanswer(question, user=ada, payload=1)
    monkeypatch.undo()
    await Interrupt.objects.all().adelete()
    with pytest.raises(NotFound):
        await aanswer(question, user=ada, payload=1)
    await Thread.objects.all().adelete()
    with pytest.raises(NotFound):
        await aanswer(question, user=ada, payload=1)


@pytest.mark.asyncio
async def test_questions_of_an_agent_that_is_gone_can_be_cancelled(agui_runtime: None, ada: Any) -> None:
    agent = Asks()
    agent.questions = {"one": {}, "two": {}}
    with override_agent("asks", agent):
        one, two = await asked(ada)
    assert not (await aanswer(one, user=ada, payload=1)).complete
    with pytest.raises(NotFound):
        await aanswer(two, user=ada, payload=1)
    assert await ainterrupts_cancel(one.run_id, user=ada) is None
    found = await rows()
    assert [(row.status, row.answered_by, row.answered_run_id, row.draft) for row in found] == [
        ("cancelled", ada, None, ""), ("cancelled", ada, None, ""),
    ]  # fmt: skip
    assert (await astart_run("echo", "t", "next", ada)).status == "finished"


# ---- several questions ----------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_drafts_are_kept_until_complete(asks: Asks, ada: Any, django_user_model: Any) -> None:
    kim = await staff(django_user_model, "answer_interrupt")
    asks.questions = {"one": {}, "two": {}, "three": {}}
    one, two, three = await asked(ada)
    before = timezone.now()
    first = await aanswer(two, user=kim, payload=2, metadata={"by": "hand"})
    assert (first.complete, first.run, first.interrupt.status) == (False, None, "open")
    draft = draft_of(first.interrupt)
    assert draft is not None
    assert draft.entry == {
        "interruptId": two.interrupt_id, "status": "resolved", "payload": 2, "metadata": {"by": "hand"},
    }  # fmt: skip
    assert (draft.by, before <= draft.at <= timezone.now()) == (str(kim.pk), True)
    # While it is a draft it can be replaced, by somebody else and by another kind of answer.
    assert not (await aanswer(two, user=ada, status="cancelled")).complete
    assert not (await aanswer(two, user=kim, payload=22)).complete
    assert not (await aanswer(one, user=ada, payload=1)).complete
    assert await Run.objects.acount() == 1
    run = await ended(await aanswer(three, user=ada, status="cancelled"))
    assert (run.actor, run.user) == (ada, ada)
    assert [(row.status, row.answered_by, row.draft) for row in await rows()] == [
        ("resolved", ada, ""), ("resolved", kim, ""), ("cancelled", ada, ""),
    ]  # fmt: skip
    assert asks.passes[-1]["who"] == {"one": "ada", "two": "kim", "three": "ada"}
    assert await said() == ["hi", "Told: 1, 22, declined"]


@pytest.mark.asyncio
async def test_a_client_may_overtake_drafts(asks: Asks, ada: Any) -> None:
    asks.questions = {"one": {}, "two": {}}
    one, two = await asked(ada)
    await aanswer(one, user=ada, payload="draft")
    given = await get_pool().run(Given, ada)
    incomplete = given.request(get_agent("asks"), threadId="t", messages=[], resume=[resolved(two.interrupt_id, 2)])
    opened = await get_engine().begin(incomplete).opened()
    assert isinstance(opened.error, ResumeIncomplete)  # its own answers count, not the drafts
    entries = [resolved(one.interrupt_id, "client"), resolved(two.interrupt_id, 2)]
    opened = (
        await get_engine().begin(given.request(get_agent("asks"), threadId="t", messages=[], resume=entries)).opened()
    )
    assert opened.run is not None
    await over(opened.run.pk)
    assert await said() == ["hi", "Told: client, 2"]
    assert [row.draft for row in await rows()] == ["", ""]
    with pytest.raises(ResumeConflict):
        await aanswer(one, user=ada, payload="draft")


@pytest.mark.asyncio
async def test_all_open_questions_of_a_run_are_given_up(asks: Asks, ada: Any) -> None:
    asks.questions = {"one": {}, "two": {}}
    one, _ = await asked(ada)
    await aanswer(one, user=ada, payload=1)
    run = await ainterrupts_cancel(one.run_id, user=ada, metadata={"reason": "too late"})
    assert run is not None
    await over(run)
    assert await said() == ["hi", "Told: declined, declined"]
    assert asks.passes[-1]["answers"]["one"] == ("cancelled", None, {"reason": "too late"})
    assert await ainterrupts_cancel(one.run_id, user=ada) is None
    assert await Run.objects.acount() == 2


# ---- repeats and conflicts ------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_repeat_is_the_run_there_is_and_another_answer_a_conflict(asks: Asks, ada: Any, bob: Any) -> None:
    (question,) = await asked(ada)
    first = await aanswer(question, user=ada, payload={"a": 1})
    again = await aanswer(question, user=ada, payload={"a": 1})  # while it runs
    assert (again.complete, again.run) == (True, first.run)
    await ended(first)
    assert (await aanswer(question, user=ada, payload={"a": 1})).run == first.run
    for arguments in ({"payload": {"a": 2}}, {"status": "cancelled"}):
        with pytest.raises(ResumeConflict):
            await aanswer(question, user=ada, **arguments)
    with pytest.raises(PermissionRefused):  # who may not answer is not told how it was answered
        await aanswer(question, user=bob, payload={"a": 1})
    assert await Run.objects.acount() == 2


@pytest.mark.asyncio
async def test_answers_at_the_same_moment(asks: Asks, ada: Any) -> None:
    (question,) = await asked(ada)
    told = await asyncio.gather(
        *(aanswer(question, user=ada, payload=number % 2) for number in range(8)), return_exceptions=True
    )
    won = [each for each in told if isinstance(each, Answered)]
    assert len(won) == 4
    assert all(isinstance(each, ResumeConflict) for each in told if not isinstance(each, Answered))
    assert len({each.run for each in won}) == 1
    await ended(won[0])
    (row,) = await rows()
    assert decode(row.response)["payload"] == next(number % 2 for number, each in enumerate(told) if each in won)
    assert await Run.objects.acount() == 2


# ---- it failed before it acted --------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_answers_of_a_run_that_failed_before_it_acted_are_drafts_again(asks: Asks, ada: Any, bob: Any) -> None:
    asks.questions, asks.fails = {"one": {}, "two": {}}, 2
    one, two = await asked(ada)
    await aanswer(one, user=None, payload=1, metadata={"m": 1})
    run = await ended(await aanswer(two, user=ada, payload=2))
    assert run.status == "failed"
    found = await rows()
    assert [(row.status, row.response, row.answered_by, row.answered_run, row.closed_at) for row in found] == [
        ("open", "", None, None, None), ("open", "", None, None, None),
    ]  # fmt: skip
    drafts = [draft_of(row) for row in found]
    assert [draft and (draft.entry.get("payload"), draft.by) for draft in drafts] == [(1, None), (2, str(ada.pk))]
    # Either answer, given anew, tries again with both.
    assert (await ended(await aanswer(two, user=ada, payload=2))).status == "failed"
    assert (await ended(await aanswer(one, user=ada, payload=3))).status == "finished"
    assert await said() == ["hi", "Told: 3, 2"]
    assert asks.passes[-1]["answers"]["one"] == ("resolved", 3, {})


# ---- who sees it ----------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_a_feed_of_the_thread_at_rest_sees_it_go_on(asks: Asks, ada: Any) -> None:
    (question,) = await asked(ada)
    thread = await Thread.objects.aget(thread_id="t")
    feed = follow_thread(thread.pk)
    restated = [decode(text) for _, text, _ in await anext(feed)]
    assert restated[-1]["outcome"]["interrupts"][0]["id"] == question.interrupt_id
    waiting = asyncio.ensure_future(anext(feed))
    await asyncio.sleep(0)
    answered = await aanswer(question, user=ada, payload="yes")
    async with asyncio.timeout(20):
        events = [decode(text) for _, text, _ in await waiting]
        while events[-1]["type"] != "RUN_FINISHED":
            events += [decode(text) for _, text, _ in await anext(feed)]
    feed.close()
    assert events[0]["type"] == "RUN_STARTED"
    assert [event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT"] == ["Told: yes"]
    assert events[0]["runId"] == (await ended(answered)).run_id


class Keeps(Runner):
    """A runner that only keeps what it is handed."""

    handed: list[str] = []  # noqa: RUF012 - the test empties it

    def submit(self, run_uuid: str) -> None:
        Keeps.handed.append(run_uuid)


@pytest.mark.asyncio
async def test_a_runner_executes_it(asks: Asks, ada: Any, settings: Any) -> None:
    (question,) = await asked(ada)
    Keeps.handed.clear()
    settings.AGUI_DJANGO = {"RUNNER": f"{__name__}.Keeps"}
    answered = await aanswer(question, user=ada, payload="yes")
    await supervisor.settle()
    assert answered.run is not None
    assert Keeps.handed == [str(answered.run)]
    run = await Run.objects.aget(pk=answered.run)
    assert (run.status, run.claim) == ("pending", "")
    assert (await aanswer(question, user=ada, payload="yes")).run == answered.run
    assert await get_engine().execute(answered.run)
    assert asks.passes[-1]["answers"] == {"sure": ("resolved", "yes", {})}
    assert asks.passes[-1]["resumed"] is True


@pytest.mark.asyncio
@pytest.mark.parametrize("history", ["client", "server"])
async def test_whatever_history_counts_nothing_is_lost(history: str, asks: Asks, ada: Any, settings: Any) -> None:
    settings.AGUI_DJANGO = {"HISTORY": history}
    (question,) = await asked(ada)
    await ended(await aanswer(question, user=ada, payload="yes"))
    assert await said() == ["hi", "Told: yes"]
    await astart_run("echo", "t", "more", ada)
    assert await said() == ["hi", "Told: yes", "more", "You said: more"]


# ---- time -----------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_an_expired_question_can_only_be_given_up(asks: Asks, ada: Any) -> None:
    asks.questions = {"one": {"expires": timedelta(hours=1)}, "two": {}}
    one, two = await asked(ada)
    assert not (await aanswer(one, user=ada, payload=1)).complete
    await Interrupt.objects.filter(pk=one.pk).aupdate(expires_at=timezone.now() - timedelta(seconds=1))
    with pytest.raises(InterruptExpired):
        await aanswer(one, user=ada, payload=1)
    # Its draft came in time and yet too late: nothing was sent before it expired.
    run = await ended(await aanswer(two, user=ada, payload=2))
    assert run.status == "finished"
    assert await said() == ["hi", "Told: declined, 2"]
    assert [(row.status, row.draft) for row in await rows()] == [("expired", ""), ("resolved", "")]
    with pytest.raises(InterruptExpired):
        await aanswer(one, user=ada, payload=1)
    assert (await aanswer(one, user=ada, status="cancelled")).run == run.pk


@pytest.mark.asyncio
async def test_listing_and_looking(asks: Asks, ada: Any) -> None:
    asks.questions = {"later": {"expires": timedelta(hours=2)}, "never": {}, "soon": {"expires": timedelta(hours=1)}}
    later, _, _ = await asked(ada)
    await aseen(later, ada)
    now = timezone.now()
    found = await get_pool().run(lambda: list(open_interrupts(now)))
    assert [row.key for row in found] == ["soon", "later", "never"]
    assert found[0].left == found[0].expires_at - now
    assert found[2].left is None
    assert found[0].age == now - found[0].created_at
    assert (found[1].seen_by, found[0].seen_by, found[1].thread.thread_id) == (ada, None, "t")
    assert found[1].seen_at is not None
    at = now + timedelta(minutes=90)
    assert [row.key for row in await get_pool().run(lambda: list(open_interrupts(at)))] == ["later", "never"]
    run = await ainterrupts_cancel(later.run_id, user=ada)
    assert run is not None
    await over(run)
    assert await get_pool().run(lambda: list(open_interrupts())) == []
    seen = found[1].seen_at
    await aseen(later, ada)
    assert (await Interrupt.objects.aget(pk=later.pk)).seen_at == seen
