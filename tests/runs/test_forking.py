"""A fork has rows of its own for everything, and owes its source nothing."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser
from django.core.files.base import ContentFile

from agui_django.access import AccessPolicy
from agui_django.models import Attachment, Message, Run, StateVersion, Thread
from agui_django.protocol.codec import encode
from agui_django.protocol.errors import InvalidInput, NotFound
from agui_django.runs.attachments import attachment_bytes, storage
from agui_django.runs.database import get_pool
from agui_django.runs.forking import afork, fork
from agui_django.runs.keeping import adelete
from tests.runs.given import Given, calls, says, tool, user


class Team(AccessPolicy):
    """Everybody is in one team."""

    def scope_for(self, user: Any) -> str:
        return "team"


def forked(given: Given, message_id: str, **more: Any) -> Thread:
    return given.do(lambda: fork(given.thread, message_id, **more))


def ids(thread: Thread) -> list[str]:
    return list(Message.objects.filter(thread=thread).in_play().values_list("message_id", flat=True))


def two_turns(given: Given) -> None:
    for number in (1, 2):
        opened = given.open(messages=[user(f"u{number}", f"question {number}")])
        answer = [says(f"a{number}", f"answer {number}")]
        given.finish(opened, messages=answer, state={"n": number}, state_changed=True)


def test_a_fork_begins_with_what_was_said_up_to_a_message(given: Given) -> None:
    two_turns(given)
    Thread.objects.update(metadata='{"project":3}')
    made = forked(given, "a1")
    made.refresh_from_db()
    assert ids(made) == ["u1", "a1"]
    assert (made.scope, made.owner, made.agent, made.title, made.metadata, made.forked_from) == (
        given.scope, given.owner, "echo", "question 1", '{"project":3}', given.thread,
    )  # fmt: skip
    assert (made.last_words, made.archived, made.input_tokens) == ("answer 1", False, 0)
    assert made.thread_id not in ("", "t1") and not made.runs.exists()
    rows = list(Message.objects.filter(thread=made))
    assert [(row.role, row.search_text, row.run) for row in rows] == [
        ("user", "question 1", None), ("assistant", "answer 1", None),
    ]  # fmt: skip
    source = {row.message_id: row for row in Message.objects.filter(thread=given.thread)}
    assert all((row.created_at, row.wire) == (source[row.message_id].created_at, source[row.message_id].wire)
               for row in rows)  # fmt: skip
    assert given.ids == ["u1", "a1", "u2", "a2"]


@pytest.mark.parametrize(("message_id", "state"), [("u1", {}), ("a1", {"n": 1}), ("u2", {"n": 1}), ("a2", {"n": 2})])
def test_the_state_is_that_of_the_moment(given: Given, message_id: str, state: Any) -> None:
    two_turns(given)
    made = forked(given, message_id)
    versions = list(StateVersion.objects.filter(thread=made).values_list("version", "state", "origin"))
    if state:
        assert (made.state, made.state_version, versions) == (encode(state), 1, [(1, encode(state), "agent")])
    else:
        assert (made.state, made.state_version, versions) == ("{}", 0, [])


def test_a_state_that_the_client_brought_with_its_message_is_there(given: Given) -> None:
    given.turn(user("u1"), says=[says("a1", "x")])
    opened = given.open(messages=[user("u2")], state={"mine": 1})
    given.finish(opened, messages=[says("a2", "y")], state={"mine": 1, "n": 2}, state_changed=True)
    assert [forked(given, key).state for key in ("a1", "u2", "a2")] == ["{}", '{"mine":1}', '{"mine":1,"n":2}']


def test_a_fork_goes_on_by_itself(given: Given) -> None:
    two_turns(given)
    made = forked(given, "a1", thread_id="t2")
    opened = given.open(threadId="t2", messages=[user("u1"), says("a1", "forged"), user("u9")], state={"n": 1})
    assert [m["content"] for m in opened.setup.messages] == ["question 1", "answer 1", "hi"]  # type: ignore[union-attr]
    assert opened.setup.state == {"n": 1}  # type: ignore[union-attr]
    given.finish(opened, messages=[says("a9", "end")])
    assert ids(made) == ["u1", "a1", "u9", "a9"]
    assert given.ids == ["u1", "a1", "u2", "a2"]


def test_results_come_with_their_calls(given: Given) -> None:
    given.turn(user("u1"), says=[calls("a1", "c1", "c2")])
    given.turn(tool("t1", "c1"), tool("t2", "c2"), says=[calls("a2", "c3")])
    assert ids(forked(given, "a1")) == ["u1", "a1", "t1", "t2"]
    assert ids(forked(given, "t1")) == ["u1", "a1", "t1"]
    # What nobody has answered yet gets a stand-in when the user moves on, as anywhere.
    made = forked(given, "a2", thread_id="t2")
    opened = given.open(threadId="t2", messages=[user("u9")])
    roles = [message["role"] for message in opened.setup.messages]  # type: ignore[union-attr]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "tool", "user"]
    assert len(ids(made)) == 7


def test_only_what_is_in_play_is_taken_over(given: Given) -> None:
    given.turn(user("u1"), says=[says("a1", "one")])
    given.turn(user("u1"), says=[says("a2", "two")])
    assert ids(forked(given, "a2")) == ["u1", "a2"]
    for unknown in ("a1", "nowhere", ""):
        with pytest.raises(NotFound):
            forked(given, unknown)
    assert Thread.objects.count() == 2


def test_a_thread_may_be_forked_while_it_runs(given: Given) -> None:
    given.turn(user("u1"), says=[says("a1", "one")])
    active = given.open(messages=[user("u2")])
    made = forked(given, "u2")
    assert ids(made) == ["u1", "a1", "u2"]
    assert given.finish(active, messages=[says("a2", "two")])
    assert (given.ids, ids(made)) == (["u1", "a1", "u2", "a2"], ["u1", "a1", "u2"])


def test_an_id_of_ones_own(given: Given) -> None:
    given.turn(user("u1"), says=[says("a1", "one")])
    assert forked(given, "a1", thread_id="mine").thread_id == "mine"
    for wrong in ("mine", "t1", "x" * 256, "a\0b"):
        with pytest.raises(InvalidInput) as caught:
            forked(given, "a1", thread_id=wrong)
        assert caught.value.fields[0]["path"] == "/threadId"
    assert Thread.objects.count() == 2


def test_whose_a_fork_is(given: Given, settings: Any) -> None:
    given.turn(user("u1"), says=[says("a1", "one")])
    staff = get_user_model().objects.create_user("staff", is_staff=True)
    owners = [forked(given, "a1", user=each).owner for each in (None, given.owner, staff, AnonymousUser())]
    assert owners == [given.owner] * 4
    # In a scope that several share it is theirs who made it.
    settings.AGUI_DJANGO = {"ACCESS_POLICY": "tests.runs.test_forking.Team"}
    Thread.objects.filter(thread_id="t1").update(scope="team")
    thread = Thread.objects.get(thread_id="t1")
    assert given.do(lambda: fork(thread, "a1", user=staff)).owner == staff


def test_a_thread_that_is_gone_is_not_forked(given: Given) -> None:
    given.turn(user("u1"))
    thread = given.thread
    Thread.objects.all().delete()
    with pytest.raises(NotFound):
        given.do(fork, thread, "u1")


@pytest.mark.asyncio
async def test_files_outlive_the_thread_they_came_with(given: Given, settings: Any, tmp_path: Any) -> None:
    settings.MEDIA_ROOT = str(tmp_path)
    do = get_pool().run

    def with_file() -> tuple[Thread, Attachment]:
        given.turn(user("u1"), says=[says("a1", "one")])
        name = storage().save("agui_attachments/x", ContentFile(b"bytes"))
        row = Attachment.objects.create(
            thread=given.thread, name=name, media_type="image/png", size=5, digest="d", user=given.owner
        )
        part = {"type": "image", "source": {"type": "url", "value": f"/agui/attachments/{row.pk}"}}
        wire = encode({"id": "u1", "role": "user", "content": [part]})
        Message.objects.filter(message_id="u1").update(wire=wire)
        return given.thread, row

    source, row = await do(with_file)
    made = await afork(source, "a1")
    copy = await do(Attachment.objects.get, thread=made)
    assert (copy.name, copy.pk == row.pk) == (row.name, False)
    wire = await do(lambda: Message.objects.get(thread=made, message_id="u1").wire)
    assert str(copy.pk) in wire and str(row.pk) not in wire
    await adelete(source)
    made = await do(Thread.objects.get, pk=made.pk)
    assert made.forked_from_id is None
    assert await do(attachment_bytes, copy) == b"bytes"
    await adelete(made)
    assert not await do(storage().exists, copy.name)
    assert await do(Run.objects.count) == 0
