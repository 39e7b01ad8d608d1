"""CopilotKit's threads over real HTTP, on both transports: what is done with them, and whose they are."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from django.test import override_settings

from agui_django.access import AccessPolicy
from agui_django.models import Feedback, Message, Thread
from tests.copilotkit.conftest import Gate, Kit, said, silent, types
from tests.live import LiveServer

pytestmark = pytest.mark.django_db(transaction=True)

# ---- threads --------------------------------------------------------------------------------------------------------


def test_threads_are_listed_named_put_away_and_deleted(kit: Kit) -> None:
    for name in ("a", "b", "c/d e"):
        kit.stream("run", said(name, text=f"About {name}"))
    kit.stream("run", said("other"), "plan")
    first = kit.ask("GET", "/threads?agentId=default&includeArchived=true&limit=2").json()
    rest = kit.ask("GET", f"/threads?agentId=default&limit=2&cursor={first['nextCursor']}").json()
    assert [each["id"] for each in first["threads"] + rest["threads"]] == ["c/d e", "b", "a"]
    assert rest["nextCursor"] is None
    record = first["threads"][1]
    assert (record["agentId"], record["name"], record["archived"]) == ("default", "About b", False)
    assert record["createdById"] == str(Thread.objects.first().owner_id)  # type: ignore[union-attr]
    assert record["lastRunAt"] == record["updatedAt"] > record["createdAt"] > "2020-01-01T00:00:00.000000Z"
    assert record["updatedAt"][-8:-1].isdigit() is False

    renamed = kit.ask("PATCH", "/threads/b", {"agentId": "default", "name": "Beta"})
    assert (renamed.status_code, renamed.json()["name"]) == (200, "Beta")
    put_away = kit.ask("POST", "/threads/c%2Fd%20e/archive", {"agentId": "default"})
    assert put_away.json() == {"threadId": "c/d e", "archived": True}
    listed = kit.ask("GET", "/threads?agentId=echo").json()["threads"]
    assert [(each["id"], each["name"], each["agentId"]) for each in listed] == [
        ("b", "Beta", "echo"), ("a", "About a", "echo"),
    ]  # fmt: skip
    taken_out = kit.ask("PATCH", "/threads/c%2Fd%20e", {"agentId": "default", "archived": False})
    assert taken_out.json()["archived"] is False
    gone = kit.ask("DELETE", "/threads/b", {"agentId": "default"})
    assert gone.json() == {"threadId": "b", "deleted": True}
    assert sorted(Thread.objects.values_list("thread_id", flat=True)) == ["a", "c/d e", "other"]
    assert kit.ask("POST", "/threads/clear").status_code == 204
    assert not Thread.objects.exists()


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=x", "limit=-1", "cursor=x", "cursor=1", "cursor=1.%00", "cursor=9" * 40]
)
def test_malformed_pages(kit: Kit, query: str) -> None:
    assert kit.ask("GET", f"/threads?{query}").status_code == 400


def test_a_change_that_is_too_large(kit: Kit) -> None:
    kit.stream("run", said())
    assert kit.ask("PATCH", "/threads/t1", {"name": "A", "more": "x" * 200_000}).status_code == 413


@pytest.mark.parametrize("body", [{"name": 1}, {"archived": "yes"}, {"name": "x" * 300}, []])
def test_malformed_changes(kit: Kit, body: Any) -> None:
    kit.stream("run", said())
    assert kit.ask("PATCH", "/threads/t1", body).status_code == 400
    assert Thread.objects.get().title == "hello"


def test_the_inspector_is_shown_a_thread(kit: Kit) -> None:
    kit.stream("run", said(text="Plan a walk"), "plan")
    told = kit.ask("GET", "/threads/t1/messages").json()["messages"]
    assert told[0]["role"] == "user"
    assert told[0]["content"] == "Plan a walk"
    [call] = next(message for message in told if "toolCalls" in message)["toolCalls"]
    assert call["name"] == "estimate"
    assert json.loads(call["args"]) == {"task": "Prepare"}
    assert any(message.get("toolCallId") == call["id"] for message in told)
    events = kit.ask("GET", "/threads/t1/events").json()["events"]
    assert (events[0]["type"], events[-1]["type"]) == ("RUN_STARTED", "RUN_FINISHED")
    assert kit.ask("GET", "/threads/t1/state").json()["state"]["goal"] == "Plan a walk"


# ---- another's thread -----------------------------------------------------------------------------------------------

RESOURCES = [
    ("PATCH", "/threads/{}", {"agentId": "default", "name": "Mine"}),
    ("POST", "/threads/{}/archive", {"agentId": "default"}),
    ("DELETE", "/threads/{}", {"agentId": "default"}),
    ("GET", "/threads/{}/messages", None),
    ("GET", "/threads/{}/events", None),
    ("GET", "/threads/{}/state", None),
]


def test_anothers_thread_is_an_unknown_one(kit: Kit, bobs: Kit, held: Any, gate: Gate) -> None:
    for method, path, body in RESOURCES:
        foreign, unknown = (bobs.ask(method, path.format(name), body) for name in ("t1", "never-seen"))
        assert foreign.status_code == unknown.status_code == 404
        assert {**foreign.json(), "reference": ""} == {**unknown.json(), "reference": ""}
    note = {
        "type": "t",
        "clientEventId": "e",
        "payload": {"messageId": Message.objects.first().message_id, "rating": 1},
    }  # type: ignore[union-attr]
    foreign, unknown = (bobs.ask("POST", "/annotate", {**note, "threadId": name}) for name in ("t1", "never-seen"))
    assert foreign.status_code == unknown.status_code == 404
    assert bobs.stop("t1", None, "gate").json() == bobs.stop("never-seen", None, "gate").json()
    shown = bobs.stream("connect", silent(), "gate")
    assert (shown.status, shown.events) == (200, [])
    assert bobs.ask("GET", "/threads?agentId=gate").json() == {"threads": [], "nextCursor": None}
    assert bobs.ask("POST", "/threads/clear").status_code == 204
    assert types(bobs.stream("run", said(text="Hi")))[-1] == "RUN_FINISHED"
    assert Thread.objects.count() == 2
    gate.opened.set()
    assert types(held())[-1] == "RUN_FINISHED"
    assert Thread.objects.order_by("pk")[0].title == "hello"


def test_who_is_not_logged_in(server: LiveServer, transactional_db: None) -> None:
    with httpx.Client(base_url=server.url, headers={"Content-Type": "application/json"}) as http:
        calls = [
            http.get("/copilotkit/info"),
            http.post("/copilotkit", json={"method": "info"}),
            http.post("/copilotkit", json={"method": "nonsense"}),
            http.post("/copilotkit/agent/default/run", json=said()),
            http.post("/copilotkit/agent/default/run", json={}),
            http.post("/copilotkit/agent/default/connect", json=silent()),
            http.post("/copilotkit/agent/default/connect", json={}),
            http.post("/copilotkit/agent/default/suggest", json={}),
            http.post("/copilotkit/agent/default/stop/t1"),
            http.get("/copilotkit/threads?limit=x"),
            *(http.request(method, f"/copilotkit{path.format('t1')}", json=body) for method, path, body in RESOURCES),
            http.post("/copilotkit/threads/clear"),
            http.post("/copilotkit/annotate", json={}),
            http.get("/copilotkit/memories"),
            http.post("/copilotkit/transcribe"),
            http.get("/copilotkit/inspector-metadata"),
        ]
    assert {call.status_code for call in calls} == {401}
    assert {call.json()["error"] for call in calls} == {"not_authenticated"}


def test_a_session_needs_its_csrf_header(server: LiveServer, ada: Any, transport: str) -> None:
    kit = Kit(server, ada, transport)
    del kit.http.headers["X-CSRFToken"]
    assert kit.stream("run", said()).status == 403
    assert kit.ask("DELETE", "/threads/t1", {}).status_code == 403


@pytest.mark.parametrize("thread", ["%00", "..", "%2e%2e%2finfo", "x" * 300, "%F0%9F%90%99", "%ff", "a%0Ab", "archive"])
def test_hostile_ids_are_unknown_ones(kit: Kit, thread: str) -> None:
    for method, path, body in RESOURCES:
        got = kit.ask(method, path.format(thread), body)
        assert got.status_code in (404, 405), got.text
        assert got.headers["content-type"] == "application/json"
    if kit.transport == "rest" and thread != "..":
        assert kit.stop(thread).json()["stopped"] is False


def test_a_thread_that_the_policy_hides_is_an_unknown_one(kit: Kit) -> None:
    kit.stream("run", said())
    with override_settings(AGUI_DJANGO={"ACCESS_POLICY": f"{__name__}.Hides"}):
        for method, path, body in RESOURCES:
            assert kit.ask(method, path.format("t1"), body).status_code == 404
        assert kit.stream("connect", silent()).events == []
        assert kit.ask("GET", "/threads").json() == {"threads": [], "nextCursor": None}
        assert kit.ask("POST", "/threads/clear").status_code == 204
    assert Thread.objects.exists()


class Hides(AccessPolicy):
    """Shows no run to anybody."""

    def may_see(self, user: Any, run: Any) -> bool:
        return False


# ---- annotations, and what is not configured ------------------------------------------------------------------------


def test_annotations_of_messages_are_feedback(kit: Kit, ada: Any) -> None:
    kit.stream("run", said())
    answer = Message.objects.get(role="assistant")
    note = {"type": "user_action", "threadId": "t1", "clientEventId": "e1",
            "payload": {"messageId": answer.message_id, "rating": "up", "comment": "Good"}}  # fmt: skip
    first, second = kit.ask("POST", "/annotate", note), kit.ask("POST", "/annotate", note)
    kept = Feedback.objects.get()
    assert (kept.message_id, kept.user, kept.rating, kept.text) == (answer.pk, ada, 1, "Good")
    assert first.json() == {"id": str(kept.pk), "duplicate": False}
    assert second.json() == {"id": str(kept.pk), "duplicate": True}
    other = kit.ask("POST", "/annotate", {"type": "user_action", "threadId": "t1", "clientEventId": "e2"})
    assert other.status_code == 422
    wrong = {**note, "payload": {"messageId": answer.message_id, "rating": 5}}
    assert kit.ask("POST", "/annotate", wrong).status_code == 400


def test_what_is_not_configured(kit: Kit) -> None:
    for method, path in (
        ("GET", "/memories"), ("POST", "/memories"), ("PATCH", "/memories/m"), ("DELETE", "/memories/m"),
        ("POST", "/memories/recall"), ("POST", "/memories/subscribe"),
    ):  # fmt: skip
        assert kit.ask(method, path, None if method == "GET" else {}).status_code == 501
    assert kit.ask("POST", "/threads/subscribe", {}).status_code == 422
    if kit.transport == "rest":
        form = {"audio": ("a.webm", b"x", "audio/webm")}
        speech = kit.http.post(
            "/copilotkit/transcribe", files=form, headers={"Content-Type": "multipart/form-data; boundary=x"}
        )
        metadata = kit.http.get("/copilotkit/inspector-metadata")
    else:
        speech = kit.http.post("/copilotkit", json={"method": "transcribe", "body": {"audio": "eA=="}})
        metadata = kit.http.post("/copilotkit", json={"method": "inspector/metadata"})
    assert (speech.status_code, speech.json()["error"], speech.json()["retryable"]) == (
        503, "service_not_configured", False,
    )  # fmt: skip
    assert metadata.status_code == 204
