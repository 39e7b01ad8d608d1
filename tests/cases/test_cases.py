"""Every case of cases.json that this part of the project covers, through real HTTP."""

from __future__ import annotations

import json
import logging
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings

from agui_django.models import Message, Run, Thread
from agui_django.testing import override_agent
from tests.cases import checks
from tests.cases.scope import PARTLY
from tests.cases.script import ScriptAgent
from tests.cases.seed import make_run, store
from tests.cases.sockets import Socket
from tests.live import Caller, LiveServer, Response, read, wait_until

CASES = {case["id"]: case for case in json.loads((Path(__file__).parent / "cases.json").read_text())}
#: Cases whose sequence no table can say; each has a test of its own below.
OWN_TEST = {"C15", "D20", "B15", "W01", "W10", "W13"}  # W: test_sockets.py
RUNNING = sorted(set(CASES) - OWN_TEST)
NAME = "case"

pytestmark = pytest.mark.django_db(transaction=True)


def settings_of(case: dict[str, Any]) -> Any:
    """The settings a case asks for."""
    from django.conf import settings

    ours = dict(settings.AGUI_DJANGO)
    theirs = {}
    for key, value in case["input"].get("settings", {}).items():
        if key == "DEBUG":
            theirs[key] = value
        else:
            ours[key.removeprefix("AGUI_DJANGO.")] = value
    return override_settings(AGUI_DJANGO=ours, **theirs)


def test_every_case_is_placed() -> None:
    assert {case for case, _ in PARTLY} <= set(CASES)
    for reason in PARTLY.values():
        assert reason[0] in "BCDEF"
        assert reason[1] == ":"


@pytest.mark.parametrize("name", RUNNING)
def test_case(name: str, server: LiveServer, ada: Any, caplog: pytest.LogCaptureFixture) -> None:
    case = CASES[name]
    given, expected = case["input"], dict(case["expected"])
    for member in [m for c, m in PARTLY if c == name]:
        expected.pop(member, None)
    agent = ScriptAgent(given.get("agent", []), reads=given.get("agent_reads", ""))
    caplog.set_level(logging.WARNING)
    caller = Caller(server, ada, NAME)
    with settings_of(case), override_agent(NAME, agent):
        if "stored" in given:
            store(given["stored"], ada, agent=NAME)
        responses = send(case, caller)
        check(case, expected, responses, agent, caplog)
        check_rest(expected, caller)
        if "hydrate" in expected:
            again = caller.run(caller.body({"messages": []}))
            after = checks.client_after(again.events, [], {})
            if "message_ids" in expected["hydrate"]:
                assert [m["id"] for m in after.messages] == expected["hydrate"]["message_ids"]
            if "state" in expected["hydrate"]:
                assert after.state == expected["hydrate"]["state"]


def check_rest(expected: dict[str, Any], caller: Caller) -> None:
    """What the REST API shows of the thread afterwards."""
    if "rest_messages" in expected:
        key = Thread.objects.get(thread_id="t1").pk
        got = caller.http.get(f"/api/agui/threads/{key}/messages")
        assert got.status_code == expected["rest_messages"], got.text
        assert [row["message"] for row in got.json()["results"]] == [
            json.loads(message.wire) for message in Message.objects.in_play()
        ]
    if "rest_open_interrupts" in expected:
        got = caller.http.get("/api/agui/interrupts?open=true&threadId=t1&ordering=createdAt")
        assert [row["interruptId"] for row in got.json()["results"]] == expected["rest_open_interrupts"]


def send(case: dict[str, Any], caller: Caller) -> list[Response]:
    """The request or requests of a case."""
    given = case["input"]
    if "body_bytes" in given:
        return [caller.run(b'{"threadId":"' + b"x" * given["body_bytes"] + b'"}')]
    if "raw_body" in given:
        return [caller.run(json.dumps(given["raw_body"]).encode())]
    members = dict(given.get("body", {}))
    if given.get("action") == "copilotkit connect":
        return [connected(given, caller)]
    if given.get("action") == "hydrate":
        members["messages"] = []
    count = given.get("parallel", 1)
    bodies = [caller.body(members, n) for n in range(count)]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda body: caller.run(body, given.get("headers")), bodies))


def connected(given: dict[str, Any], caller: Caller) -> Response:
    """What CopilotKit's connect to a thread is answered."""
    content = caller.body({"threadId": given["threadId"], "messages": []})
    with caller.http.stream("POST", f"/copilotkit/agent/{caller.agent}/connect", content=content) as response:
        return read(response)


def check(
    case: dict[str, Any], expected: dict[str, Any], responses: list[Response], agent: ScriptAgent, caplog: Any
) -> None:
    """All that a case expects of its responses, of the agent, of the log and of the database."""
    statuses = [response.status for response in responses]
    if "status" in expected:
        assert set(statuses) == {expected["status"]}, responses[0].text
    if "status_in" in expected:
        assert set(statuses) <= set(expected["status_in"])
    if "statuses" in expected:
        assert set(statuses) == set(expected["statuses"])
    kind = responses[0].headers["content-type"]
    if "content_type" in expected:
        assert kind == expected["content_type"]
    assert kind.startswith(expected.get("content_type_prefix", ""))
    for text in expected.get("body_contains", []):
        assert text in responses[0].text
    if case["input"].get("parallel", 1) > 1 and "count" in expected:
        types = [event["type"] for response in responses for event in response.events]
        for name, number in expected["count"].items():
            assert types.count(name) == number
    elif responses[0].events or "event_types" in expected:
        checks.check_stream(expected, case, responses[0])
    if "agent_called" in expected:
        assert bool(agent.runs) is expected["agent_called"]
    if "agent_calls" in expected:
        assert len(agent.runs) == expected["agent_calls"]
    if "agent_input" in expected:
        checks.check_agent_input(expected["agent_input"], agent.runs[-1])
    checks.check_db(expected.get("db", {}))
    logged = "\n".join(
        record.getMessage() + str(record.exc_text or "") + str(record.exc_info or "") for record in caplog.records
    )
    for text in expected.get("log_contains", []):
        assert text in logged
    for text in expected.get("log_never", []):
        assert text not in logged


def test_accept_header_also_gets_json_errors(server: LiveServer, ada: Any) -> None:
    # D14's second request
    also = CASES["D14"]["expected"]["also"]
    request = CASES["D14"]["input"]["also"]
    with override_agent(NAME, ScriptAgent([])):
        got = Caller(server, ada, NAME).run(request["raw_body"].encode(), request["headers"])
    assert got.status == also["status"]
    assert got.headers["content-type"] == also["content_type"]


def test_c15_another_users_thread(server: LiveServer, ada: Any, bob: Any) -> None:
    case = CASES["C15"]
    agent = ScriptAgent([{"type": "RUN_STARTED"}])
    with override_agent(NAME, agent):
        thread = store({"messages": [{"id": "u1", "role": "user", "content": "ada's secret"}]}, ada, agent=NAME)
        run = make_run(thread, NAME, run_id="r1", status="running", claim="elsewhere")
        caller = Caller(server, bob, NAME)
        with Socket(server, bob) as socket:
            # the status that a close code stands for
            socket.send({"type": "follow", "run": str(run.uuid)})
            foreign = [socket.event(), socket.closed() - 4000]
        with Socket(server, bob) as socket:
            socket.send({"type": "follow", "threadId": "t1"})
            assert [socket.event(), socket.closed() - 4000] == foreign
        assert [foreign[-1]] == case["expected"]["each_status_in"]
        assert "secret" not in str(foreign)
        routes = {
            "stop": lambda: caller.http.post(f"/agui/runs/{run.uuid}/cancel", content=b"{}"),
            "run_events": lambda: caller.http.get(f"/agui/runs/{run.uuid}/events"),
            "rest_detail": lambda: caller.http.get(f"/api/agui/threads/{thread.pk}"),
            "rest_messages": lambda: caller.http.get(f"/api/agui/threads/{thread.pk}/messages"),
            "rest_delete": lambda: caller.http.delete(f"/api/agui/threads/{thread.pk}"),
        }
        later = {member for name, member in PARTLY if name == "C15"}
        assert set(case["input"]["routes"]) == set(routes) | later | {"ws_follow"}
        unknown = caller.http.get(f"/agui/runs/{uuid.uuid4()}/events")
        for call in routes.values():
            got = call()
            assert [got.status_code] == case["expected"]["each_status_in"]
            assert "secret" not in got.text
            # a foreign id behaves exactly like an unknown one; only the reference differs
            mine, theirs = got.json()["error"], unknown.json()["error"]
            assert {**mine, "reference": ""} == {**theirs, "reference": ""}
        hydrated = caller.run(caller.body({"messages": []}))
        ran = caller.run(caller.body({}))
        assert (hydrated.status, ran.status) == (200, 200)
        assert "secret" not in hydrated.text + ran.text
    assert Thread.objects.for_scope(f"user:{bob.pk}").get().thread_id == "t1"
    untouched = Thread.objects.for_scope(f"user:{ada.pk}").get()
    assert [m.message_id for m in untouched.messages.all()] == ["u1"]
    assert untouched.runs.get().status == "running"


def test_b15_csrf(server: LiveServer, ada: Any) -> None:
    from rest_framework.authtoken.models import Token

    case = CASES["B15"]
    token = Token.objects.create(user=ada)
    with override_agent(NAME, ScriptAgent(case["input"]["agent"])):
        for variant, status, kind in zip(
            case["input"]["variants"],
            case["expected"]["status_each"],
            case["expected"]["content_type_each"],
            strict=True,
        ):
            caller = Caller(server, ada, NAME)
            if not variant["csrf"]:
                del caller.http.headers["X-CSRFToken"]
            if variant["auth"] == "bearer":
                caller.http.cookies.clear()
                caller.http.headers["Authorization"] = f"Token {token.key}"
            got = caller.run(caller.body({"threadId": uuid.uuid4().hex}))
            assert got.status == status, got.text
            assert got.headers["content-type"].startswith(kind)


def test_d20_clients_that_leave(server: LiveServer, ada: Any, caplog: pytest.LogCaptureFixture) -> None:
    case = CASES["D20"]
    agent = ScriptAgent(case["input"]["agent"])
    caller = Caller(server, ada, NAME)
    with settings_of(case), override_agent(NAME, agent):
        threads = threading.active_count()
        with ThreadPoolExecutor(10) as pool:
            got = list(
                pool.map(
                    lambda n: caller.run(caller.body(case["input"]["body"], n), frames=3),
                    range(case["input"]["repeat"]),
                )
            )
        assert {response.status for response in got} == {200}
        wait_until(lambda: not Run.objects.exclude(status__in=Run.TERMINAL).exists())
        checks.check_db(case["expected"]["db"])
        wait_until(lambda: threading.active_count() <= threads + 12)  # the client's own ten, and the store's
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
                assert cursor.fetchone()[0] <= 12
    for text in case["expected"]["log_never"]:
        assert text not in caplog.text
