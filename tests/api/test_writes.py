"""What the API changes: threads, state, questions, branches, forks, feedback."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from agui_django.models import Feedback, Message, Run, Thread
from agui_django.testing import override_agent
from tests.api.conftest import Client, Rows
from tests.transports.asgi import Exchange, ask, error_of

pytestmark = pytest.mark.django_db(transaction=True)

PATCH, MERGE = "application/json-patch+json", "application/merge-patch+json"


# ---- threads --------------------------------------------------------------------------------------------------------


def test_rename_and_archive(api: Client, ada: Any) -> None:
    made = Rows(ada)
    made.message("m1", "hello there")
    path = f"threads/{made.thread.pk}"
    assert api.send("PATCH", path, {"title": " Order  7 "})["title"] == "Order 7"
    changed = api.send("PATCH", path, {"archived": True})
    assert (changed["title"], changed["archived"]) == ("Order 7", True)
    both = api.send("PATCH", path, {"archived": False, "title": ""})
    assert (both["title"], both["archived"]) == ("hello there", False)
    assert api.send("PATCH", path, {}) == both


@pytest.mark.parametrize(
    ("body", "place", "message"),
    [
        (b"[]", "", "must be an object"),
        (b"null", "", "must be an object"),
        ({"titel": "x"}, "", "takes only title, archived"),
        ({"title": 5}, "/title", "is malformed"),
        ({"title": None}, "/title", "must not be null"),
        ({"title": "x" * 256}, "/title", "is too long"),
        ({"title": "secret\0"}, "/title", "is malformed"),
        ({"archived": "true"}, "/archived", "is malformed"),
        ({"archived": 1}, "/archived", "is malformed"),
        ({"owner": 2}, "", "takes only title, archived"),
    ],
)
def test_malformed_changes(api: Client, ada: Any, body: Any, place: str, message: str) -> None:
    made = Rows(ada, title="before")
    exchange = api.ask("PATCH", f"threads/{made.thread.pk}", body)
    assert exchange.status == 422
    error = error_of(exchange)
    assert error["fields"] == [{"path": place, "message": message}]
    assert "secret" not in json.dumps(error)
    assert Thread.objects.get().title == "before"


def test_delete(api: Client, ada: Any) -> None:
    made = Rows(ada)
    made.run({"type": "RUN_STARTED"})
    made.run(status="queued")
    made.message("m1")
    assert api.send("DELETE", f"threads/{made.thread.pk}", status=204) is None
    assert not Thread.objects.exists()
    assert not Run.objects.exists()
    assert api.ask("DELETE", f"threads/{made.thread.pk}").status == 404


@pytest.mark.asyncio
async def test_delete_ends_what_runs(ada: Any, gate: Any) -> None:
    client = await asyncio.to_thread(closing, lambda: Client(ada))
    headers = {**client.headers, "Content-Type": "application/json"}
    async with Exchange("POST", "/agui/agents/gate", run_input(), headers) as run:
        await run.events(3)
        listed = await ask("GET", "/api/agui/threads", headers=client.headers)
        [thread] = json.loads(b"".join(listed.chunks))["results"]
        assert thread["activeRun"] in run.headers["content-location"]
        deleted = await ask("DELETE", f"/api/agui/threads/{thread['id']}", headers=client.headers)
        assert deleted.status == 204
        events = await run.events()
    assert events[-1][1]["type"] == "RUN_FINISHED"
    gone = await ask("GET", f"/api/agui/threads/{thread['id']}", headers=client.headers)
    assert gone.status == 404


def test_fork(api: Client, ada: Any) -> None:
    made = Rows(ada, title="Order 7")
    for number in range(3):
        made.message(f"m{number}", f"text {number}")
    exchange = api.ask("POST", f"threads/{made.thread.pk}/fork", {"messageId": "m1", "threadId": "mine"})
    fork = json.loads(b"".join(exchange.chunks))
    assert exchange.status == 201
    assert exchange.headers["location"] == f"/api/agui/threads/{fork['id']}"
    assert (fork["threadId"], fork["forkedFrom"], fork["title"], fork["owner"]) == (
        "mine", made.thread.pk, "Order 7", ada.pk,
    )  # fmt: skip
    messages = api.get(f"{exchange.headers['location']}/messages")["results"]
    assert [row["messageId"] for row in messages] == ["m0", "m1"]
    path = f"threads/{made.thread.pk}/fork"
    again = api.ask("POST", path, {"messageId": "m1", "threadId": "mine"})
    assert (again.status, error_of(again)["fields"][0]["path"]) == (422, "/threadId")
    assert api.ask("POST", path, {"messageId": "none"}).status == 404
    assert api.ask("POST", path, {}).status == 422
    assert Thread.objects.count() == 2


def test_branches_are_listed_and_come_back(api: Client, ada: Any) -> None:
    made = Rows(ada)
    first, second = made.run(), made.run()
    question = made.message("u1", "question", run=first)
    made.message("a1", "old answer", "assistant", run=first, superseded_by=second, behind=question.pk)
    made.message("a2", "new answer", "assistant", run=second)
    [point] = api.get(f"threads/{made.thread.pk}/branches")["results"]
    assert (point["messageId"], point["within"]) == ("u1", None)
    old, new = point["alternatives"]
    assert (old["run"], old["inPlay"], old["firstWords"], old["messages"]) == (str(second.pk), False, "old answer", 1)
    assert (new["run"], new["inPlay"], new["madeBy"]) == (None, True, str(second.pk))
    run = api.send("POST", f"threads/{made.thread.pk}/branches/{second.pk}/restore")
    assert (run["status"], run["threadId"]) == ("finished", "t1")
    messages = api.get(f"threads/{made.thread.pk}/messages")["results"]
    assert [row["messageId"] for row in messages] == ["u1", "a1"]
    assert Message.objects.get(message_id="a2").superseded_by_id is not None
    assert api.ask("POST", f"threads/{made.thread.pk}/branches/{second.pk}/restore").status == 404


# ---- state ----------------------------------------------------------------------------------------------------------


def test_patches_of_both_kinds(api: Client, ada: Any) -> None:
    path = f"threads/{Rows(ada).thread.pk}/state"
    exchange = api.ask("PATCH", path, [{"op": "add", "path": "/b", "value": 2**70}], media=PATCH, If_Match='"1"')
    assert (exchange.status, exchange.headers["etag"]) == (200, '"2"')
    assert b"".join(exchange.chunks) == b'{"a":1,"b":1180591620717411303424}'
    exchange = api.ask("PATCH", path, {"a": None, "c": {"d": []}}, media=MERGE)
    assert (exchange.status, exchange.headers["etag"]) == (200, '"3"')
    assert api.get(path) == {"b": 2**70, "c": {"d": []}}
    versions = api.get(f"{path}/versions")["results"]
    assert [(row["version"], row["origin"]) for row in versions] == [(3, "client"), (2, "client"), (1, "agent")]


def test_the_version_has_to_match(api: Client, ada: Any) -> None:
    path = f"threads/{Rows(ada).thread.pk}/state"
    assert api.ask("PATCH", path, {"a": 2}, media=MERGE, If_Match='"1"').status == 200
    for tag in ('"1"', '"7"', '"x"', 'W/"2"', "2", '"2", "1"'):
        exchange = api.ask("PATCH", path, {"a": 3}, media=MERGE, If_Match=tag)
        assert exchange.status == 412, tag
        error = error_of(exchange)
        assert (error["code"], error["version"]) == ("version_conflict", 2)
    assert api.ask("PATCH", path, {"a": 3}, media=MERGE, If_Match="*").status == 200
    assert api.get(path) == {"a": 3}


@pytest.mark.parametrize(
    ("body", "media", "status"),
    [
        ([{"op": "remove", "path": "/none"}], PATCH, 409),
        ([{"op": "test", "path": "/a", "value": 2}], PATCH, 409),
        ([{"op": "fly", "path": "/a"}], PATCH, 422),
        ([{"op": "add", "path": "a", "value": 1}], PATCH, 422),
        ([{"op": "add"}], PATCH, 422),
        ([1], PATCH, 422),
        ({"a": 1}, PATCH, 422),
        ([{"op": "replace", "path": "", "value": 5}], PATCH, 422),
        ([], MERGE, 422),
        (b"1", MERGE, 422),
        (b"{", MERGE, 400),
        (b'{"a": NaN}', MERGE, 400),
        (b"", MERGE, 400),
        (b'{"a":' * 200 + b"1" + b"}" * 200, MERGE, 400),
        ({"a": 2}, "application/json", 415),
        ({"a": 2}, "text/plain", 415),
        ({"a": "x" * 3_000_000}, MERGE, 413),
        ({"__proto__": {}}, MERGE, 422),
    ],
)
def test_patches_that_are_refused(api: Client, ada: Any, body: Any, media: str, status: int) -> None:
    path = f"threads/{Rows(ada).thread.pk}/state"
    exchange = api.ask("PATCH", path, body, media=media)
    assert exchange.status == status, exchange.chunks
    error_of(exchange)
    assert api.get(path) == {"a": 1}


def test_a_site_that_keeps_clients_from_the_state(api: Client, ada: Any, settings: Any, staff: Any) -> None:
    settings.AGUI_DJANGO = {**settings.AGUI_DJANGO, "STATE_POLICY": "server"}
    path = f"threads/{Rows(ada).thread.pk}/state"
    exchange = api.ask("PATCH", path, {"a": 2}, media=MERGE)
    assert (exchange.status, error_of(exchange)["code"]) == (403, "permission_denied")
    kim = Client(staff("view_stateversion", "change_thread"))
    assert kim.ask("PATCH", path, {"a": 2}, media=MERGE).status == 200
    assert api.get(f"{path}/versions")["results"][0]["origin"] == "staff"


# ---- questions ------------------------------------------------------------------------------------------------------


class Asks:
    """Asks two things, and says what it was told."""

    async def run(self, run: Any) -> None:
        first = run.ask("first", message="First?", response_schema={"type": "object", "required": ["yes"]})
        second = run.ask("second", message="Second?")
        await run.say(f"{first.answer()} {second.answer()}")


@pytest.mark.asyncio
async def test_the_last_answer_starts_the_run_on_the_server(ada: Any) -> None:
    client = await asyncio.to_thread(closing, lambda: Client(ada))
    headers = {**client.headers, "Content-Type": "application/json"}

    async def send(method: str, path: str, body: Any = None) -> Any:
        content = b"" if body is None else json.dumps(body).encode()
        exchange = await ask(method, f"/api/agui/{path}", content, headers)
        return exchange.status, json.loads(b"".join(exchange.chunks) or b"null")

    with override_agent("asks", Asks()):
        await ask("POST", "/agui/agents/asks", run_input(), headers)
        _, page = await send("GET", "interrupts?open=true&ordering=createdAt")
        first, second = sorted(page["results"], key=lambda row: row["message"])
        assert (first["message"], second["message"]) == ("First?", "Second?")
        status, error = await send("POST", f"interrupts/{first['id']}/answer", {"status": "resolved", "payload": {}})
        assert (status, error["error"]["code"]) == (422, "resume_invalid")
        assert error["error"]["fields"][0]["path"].startswith("/payload")
        status, told = await send("POST", f"interrupts/{first['id']}/answer", {"payload": {"yes": 2**70}})
        assert (status, told["complete"], told["run"], told["interrupt"]["status"]) == (200, False, None, "open")
        draft = told["interrupt"]["draft"]
        assert (draft["payload"], draft["by"], draft["at"][-1]) == ({"yes": 2**70}, ada.pk, "Z")
        status, told = await send(
            "POST", f"interrupts/{second['id']}/answer", {"payload": "sure", "metadata": {"by": "x"}}
        )
        assert (status, told["complete"], told["interrupt"]["status"]) == (200, True, "resolved")
        assert told["interrupt"]["answeredBy"] == ada.pk
        _, run = await send("GET", f"runs/{told['run']}")
        assert (run["actor"], run["user"], run["transport"]) == (ada.pk, ada.pk, "server")
        async with Exchange("GET", f"/agui/runs/{told['run']}/events", headers=headers) as exchange:
            events = await exchange.events()
        assert events[-1][1]["type"] == "RUN_FINISHED"
        said = "".join(event.get("delta", "") for _, event in events)
        assert said == f"{{'yes': {2**70}}} sure"
        status, again = await send("POST", f"interrupts/{second['id']}/answer", {"payload": "other"})
        assert (status, again["error"]["code"]) == (409, "resume_conflict")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400), (b"5", 422), ({"status": "maybe"}, 422), ({"stauts": "resolved"}, 422), ({"metadata": []}, 422),
        ({"status": None}, 422),
    ],
)  # fmt: skip
def test_malformed_answers(api: Client, ada: Any, body: Any, status: int) -> None:
    made = Rows(ada)
    asked = made.interrupt(made.run(status="interrupted"))
    exchange = api.ask("POST", f"interrupts/{asked.pk}/answer", body)
    assert exchange.status == status, exchange.chunks
    asked.refresh_from_db()
    assert (asked.status, asked.draft) == ("open", "")


def test_the_owner_cancels_what_they_may_not_answer(api: Client, ada: Any) -> None:
    made = Rows(ada)
    asked = made.interrupt(made.run(status="interrupted", agent="gone"), permission="auth.delete_group")
    api.send("POST", f"interrupts/{asked.pk}/answer", {"payload": 1}, status=403)
    assert api.send("POST", f"interrupts/{asked.pk}/answer", {"status": "cancelled"})["complete"]
    asked.refresh_from_db()
    assert (asked.status, asked.answered_by) == ("cancelled", ada)


def test_an_expired_question_can_be_cancelled_only(api: Client, ada: Any) -> None:
    made = Rows(ada)
    asked = made.interrupt(made.run(status="interrupted"), expires_at=timezone.now() - timedelta(seconds=1))
    exchange = api.ask("POST", f"interrupts/{asked.pk}/answer", {"payload": 1})
    assert (exchange.status, error_of(exchange)["code"]) == (409, "interrupt_expired")


def test_seen(api: Client, ada: Any) -> None:
    made = Rows(ada)
    asked = made.interrupt(made.run(status="interrupted"))
    assert api.send("POST", f"interrupts/{asked.pk}/seen", status=204) is None
    row = api.get(f"interrupts/{asked.pk}")
    assert (row["seenBy"], row["seenAt"] is not None) == (ada.pk, True)


# ---- feedback -------------------------------------------------------------------------------------------------------


def test_feedback(api: Client, ada: Any, bob: Any, staff: Any) -> None:
    made = Rows(ada)
    message = made.message("m1")
    path = f"messages/{message.pk}/feedback"
    given = api.send("PUT", path, {"rating": -1, "text": "wrong date"})
    assert (given["rating"], given["text"], given["user"], given["message"]) == (-1, "wrong date", ada.pk, message.pk)
    assert api.send("PUT", path, {"rating": 1})["rating"] == 1
    assert Feedback.objects.get().text == ""
    message.feedback.create(thread=made.thread, user=bob, rating=0, text="bob's")
    assert [row["user"] for row in api.get(path)["results"]] == [ada.pk]
    everybody = Client(staff("view_message", "view_feedback"))
    assert {row["user"] for row in everybody.get(path)["results"]} == {ada.pk, bob.pk}
    assert [row["rating"] for row in everybody.get("feedback?rating=1")["results"]] == [1]
    assert [row["rating"] for row in everybody.get(f"feedback?user={bob.pk}&thread={made.thread.pk}")["results"]] == [0]
    assert api.send("DELETE", path, status=204) is None
    assert api.send("DELETE", path, status=204) is None
    assert [row.user_id for row in Feedback.objects.all()] == [bob.pk]


@pytest.mark.parametrize(
    "body", [{}, {"rating": 2}, {"rating": "1"}, {"rating": True}, {"rating": 0}, {"rating": 1, "text": "x" * 4001},
             {"rating": 1, "text": 5}, {"rating": None}, {"rating": 1, "user": 2}]
)  # fmt: skip
def test_malformed_feedback(api: Client, ada: Any, body: Any) -> None:
    message = Rows(ada).message("m1")
    exchange = api.ask("PUT", f"messages/{message.pk}/feedback", body)
    assert exchange.status == 422, exchange.chunks
    assert b"run input" not in b"".join(exchange.chunks)  # there is none
    assert not Feedback.objects.exists()


# ---- parts ----------------------------------------------------------------------------------------------------------


def run_input() -> bytes:
    return json.dumps({
        "threadId": "t1", "runId": "r1", "tools": [], "context": [], "forwardedProps": {},
        "messages": [{"id": "u1", "role": "user", "content": "hello"}],
    }).encode()  # fmt: skip


def closing(make: Any) -> Any:
    from django.db import connections

    try:
        return make()
    finally:
        connections.close_all()
