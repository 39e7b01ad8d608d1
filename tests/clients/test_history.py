"""Asking again, editing and coming back, by either official client: its list and ours are the same at every step."""

from __future__ import annotations

from typing import Any

from tests.clients.conftest import Story, user


def contents(step: dict[str, Any]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in step["messages"]]


def ids(step: dict[str, Any]) -> list[str]:
    return [message["id"] for message in step["messages"]]


def test_an_answer_is_asked_for_again(story: Story) -> None:
    asked = user("hello", "u1")
    first, again = story.run("echo", {"add": [asked]}, {"keep": "u1"})["steps"]
    assert first["error"] is None and again["error"] is None
    assert len(ids(again)) == 2
    assert ids(again)[0] == "u1" and ids(again)[1] != ids(first)[1]
    stored = story.assert_client_equals_store(again)
    assert [run["status"] for run in stored["runs"]] == ["finished", "finished"]
    # It brought nothing new.
    assert stored["runs"][1]["events"][0]["input"]["messages"] == []


def test_an_answer_in_the_middle_is_asked_for_again(story: Story) -> None:
    seen = story.run(
        "echo",
        {"add": [user("one", "u1")]}, {"add": [user("two", "u2")]}, {"add": [user("three", "u3")]}, {"keep": "u2"},
        {"add": [user("four", "u4")]},
    )["steps"]  # fmt: skip
    assert [step["error"] for step in seen] == [None] * 5
    assert [message["id"] for message in seen[3]["messages"] if message["role"] == "user"] == ["u1", "u2"]
    assert len(seen[3]["messages"]) == 4
    # The next turn goes on from there: nothing that went out of play comes back.
    assert [message["id"] for message in seen[4]["messages"] if message["role"] == "user"] == ["u1", "u2", "u4"]
    story.assert_client_equals_store(seen[4])


def test_a_message_is_edited_and_sent_again(story: Story) -> None:
    first, second, edited, later = story.run(
        "echo",
        {"add": [user("one", "u1")]},
        {"add": [user("two", "u2")]},
        {"before": "u2", "add": [user("better", "u3")], "edit": True},
        {"add": [user("more", "u4")]},
    )["steps"]
    assert [step["error"] for step in (first, second, edited, later)] == [None] * 4
    assert ids(edited)[:2] == ids(first)
    assert [message["id"] for message in edited["messages"] if message["role"] == "user"] == ["u1", "u3"]
    assert [message["id"] for message in later["messages"] if message["role"] == "user"] == ["u1", "u3", "u4"]
    story.assert_client_equals_store(later)


def test_an_edited_message_may_keep_its_id(story: Story) -> None:
    *_, edited, later = story.run(
        "echo",
        {"add": [user("one", "u1")]},
        {"add": [user("two", "u2")]},
        {"before": "u2", "add": [user("better", "u2")], "edit": True},
        {"add": [user("more", "u4")]},
    )["steps"]
    assert edited["error"] is None and later["error"] is None
    assert ("user", "better") in contents(later) and ("user", "two") not in contents(later)
    story.assert_client_equals_store(later)


def test_the_first_message_is_edited(story: Story) -> None:
    *_, edited, restored = story.run(
        "echo",
        {"add": [user("one", "u1")]},
        {"add": [user("two", "u2")]},
        {"before": "u1", "add": [user("anew", "u3")], "edit": True},
        {"fresh": True},
    )["steps"]
    assert edited["error"] is None
    assert [message["id"] for message in edited["messages"] if message["role"] == "user"] == ["u3"]
    assert len(edited["messages"]) == 2
    story.assert_client_equals_store(edited)
    # Another page is shown the same conversation.
    assert restored["messages"] == edited["messages"]


def test_without_saying_so_an_edit_is_another_message(story: Story) -> None:
    """A client that only changes its list has not asked for anything to go: nothing does."""
    *_, edited = story.run(
        "echo", {"add": [user("one", "u1")]}, {"before": "u1", "add": [user("better", "u3")]}
    )["steps"]  # fmt: skip
    assert edited["error"] is None
    stored = story.stored()
    assert [message["id"] for message in stored["messages"] if message["role"] == "user"] == ["u1", "u3"]


def test_an_edit_behind_an_unknown_message_is_refused(story: Story) -> None:
    _, refused = story.run(
        "echo",
        {"add": [user("one", "u1")]},
        {"add": [user("two", "u2")], "parameters": {"forwardedProps": {"supersedeAfter": "nowhere"}}},
    )["steps"]
    assert refused["error"]["status"] == 422
    assert [message["id"] for message in story.stored()["messages"] if message["role"] == "user"] == ["u1"]


def test_asking_again_after_a_reload(story: Story) -> None:
    story.run("echo", {"add": [user("one", "u1")]})
    restored, again = story.run("echo", {}, {"keep": "u1"})["steps"]
    assert len(restored["messages"]) == 2 and again["error"] is None
    assert ids(again)[0] == "u1" and ids(again)[1] != ids(restored)[1]
    story.assert_client_equals_store(again)
