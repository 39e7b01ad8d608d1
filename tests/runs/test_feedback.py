"""One opinion per user and message: given, replaced, taken back, listed."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser

from agui_django.models import Feedback, Message
from agui_django.protocol.errors import InvalidInput, NotAuthenticated, NotFound
from agui_django.runs.database import get_pool
from agui_django.runs.feedback import agive_feedback, atake_back, feedback_on, give_feedback, take_back
from tests.runs.given import Given, says, user
from tests.runs.test_races import at_once


def answer(given: Given) -> Message:
    given.turn(user("u1"), says=[says("a1", "one")])
    return Message.objects.get(message_id="a1")


def test_a_thumb_and_a_text(given: Given) -> None:
    message = answer(given)
    made = given.do(give_feedback, message, given.owner, 1, " Just  right\0 ")
    stored = Feedback.objects.get()
    assert stored == made
    assert (stored.thread, stored.message, stored.user, stored.rating, stored.text) == (
        given.thread, message, given.owner, 1, "Just  right\ufffd",
    )  # fmt: skip


def test_a_new_opinion_replaces_the_old_one(given: Given) -> None:
    message = answer(given)
    first = given.do(give_feedback, message, given.owner, 1, "good")
    second = given.do(give_feedback, message, given.owner, -1)
    stored = Feedback.objects.get()
    assert (stored.pk, stored.rating, stored.text) == (first.pk, -1, "")
    assert stored.created_at == first.created_at and stored.updated_at == second.updated_at > first.updated_at


@pytest.mark.parametrize(
    ("rating", "text", "path"),
    [(2, "", "/rating"), (None, "", "/rating"), (True, "", "/rating"), ("1", "", "/rating"), (0, " ", "/rating"),
     (1, "x" * 4_001, "/text"), (1, 7, "/text")],
)  # fmt: skip
def test_what_is_no_opinion(given: Given, rating: Any, text: Any, path: str) -> None:
    message = answer(given)
    with pytest.raises(InvalidInput) as caught:
        given.do(give_feedback, message, given.owner, rating, text)
    assert [field["path"] for field in caught.value.fields] == [path]
    assert Feedback.objects.count() == 0


def test_a_text_alone_is_enough_and_may_be_long(given: Given) -> None:
    message = answer(given)
    given.do(give_feedback, message, given.owner, 0, "x" * 4_000)
    assert Feedback.objects.get().rating == 0


def test_taken_back(given: Given) -> None:
    message, bob = answer(given), get_user_model().objects.create_user("bob")
    given.do(give_feedback, message, given.owner, 1)
    assert given.do(take_back, message, bob) is False
    assert given.do(take_back, message, AnonymousUser()) is False
    assert given.do(take_back, message, given.owner) is True
    assert given.do(take_back, message, given.owner) is False
    assert Feedback.objects.count() == 0


def test_nobody_has_no_opinion(given: Given) -> None:
    message = answer(given)
    for nobody in (None, AnonymousUser()):
        with pytest.raises(NotAuthenticated):
            given.do(give_feedback, message, nobody, 1)


def test_an_orphan_s_opinion_is_not_taken_back_by_nobody(given: Given) -> None:
    message = answer(given)
    Feedback.objects.create(thread=given.thread, message=message, rating=1)
    assert given.do(take_back, message, None) is False
    assert Feedback.objects.count() == 1


def test_a_message_that_is_gone(given: Given) -> None:
    message = answer(given)
    given.thread.delete()
    with pytest.raises(NotFound):
        given.do(give_feedback, message, given.owner, 1)


def test_a_list_in_the_order_of_the_messages(given: Given) -> None:
    given.turn(user("u1"), says=[says("a1", "one"), says("a2", "two")])
    bob = get_user_model().objects.create_user("bob")
    rows = {row.message_id: row for row in Message.objects.all()}
    for message_id, who, rating in (("a2", bob, 1), ("a1", bob, -1), ("a2", given.owner, 1)):
        given.do(give_feedback, rows[message_id], who, rating)
    given.turn(user("u1"), says=[says("a3", "three")])  # what went out of play keeps what was thought of it
    found = [(each.message.message_id, each.user, each.rating) for each in feedback_on(given.thread)]
    assert found == [("a1", bob, -1), ("a2", bob, 1), ("a2", given.owner, 1)]


def test_twenty_at_once_are_one(given: Given) -> None:
    message = answer(given)
    results = at_once(20, lambda n: give_feedback(message, given.owner, 1, str(n)))
    assert not [result for result in results if isinstance(result, Exception)]
    assert Feedback.objects.get().text in {str(n) for n in range(20)}


@pytest.mark.asyncio
async def test_twins(given: Given) -> None:
    message = await get_pool().run(answer, given)
    assert (await agive_feedback(message, given.owner, -1, "no")).rating == -1
    assert await atake_back(message, given.owner) is True
