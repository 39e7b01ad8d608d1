"""CopilotKit's run, connect and stop over real HTTP, on both transports."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.test import override_settings

from agui_django.models import Message, Run, Thread
from agui_django.runs import supervisor
from agui_django.testing import override_agent
from tests.copilotkit.conftest import SUGGEST, Gate, Kit, said, silent, types
from tests.live import Response

pytestmark = pytest.mark.django_db(transaction=True)

RESTATED = ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT", "RUN_FINISHED"]

# ---- run ------------------------------------------------------------------------------------------------------------


def test_run(kit: Kit) -> None:
    got = kit.stream("run", asked := said(text="Hi"))
    assert got.status == 200
    assert got.headers["content-type"] == "text/event-stream"
    assert b"\r" not in got.body
    first = got.events[0]
    assert (first["type"], first["threadId"], first["runId"]) == ("RUN_STARTED", "t1", asked["runId"])
    assert first["input"]["messages"] == asked["messages"]
    assert {"tools", "context"} <= set(first["input"])
    assert "".join(event.get("delta", "") for event in got.events) == "You said: Hi"
    # What clients from before 1.0 cannot read: an outcome of success with its calls.
    assert got.events[-1]["type"] == "RUN_FINISHED"
    assert "outcome" not in got.events[-1]
    run = Run.objects.get()
    assert (run.agent, run.transport, run.status) == ("echo", "copilotkit", "finished")


def test_a_client_that_knows_better_gets_the_shape_of_1_0(kit: Kit) -> None:
    events = [{"type": "SUBAGENT_STARTED", "subagentRunId": "s", "name": "helper"},
              {"type": "SUBAGENT_FINISHED", "subagentRunId": "s"}]  # fmt: skip
    text = json.dumps([{"type": "RUN_STARTED"}, *events])
    assert "SUBAGENT_STARTED" in types(kit.stream("run", said(text=text, protocolVersion="1.0"), "script"))
    assert types(kit.stream("run", said("t2", text=text), "script")) == ["RUN_STARTED", "RUN_FINISHED"]


def test_busy(kit: Kit, held: Any) -> None:
    got = kit.stream("run", said(text="again"), "gate")
    assert got.status == 409
    told = json.loads(got.text)
    assert (told["error"], told["code"]) == ("thread_busy", "thread_busy")
    assert isinstance(told["message"], str)


def test_regenerate(kit: Kit) -> None:
    first = said(text="Hi")
    kit.stream("run", first)
    kit.stream("run", said(messages=first["messages"]))
    assert Message.objects.filter(role="assistant").count() == 2
    assert Message.objects.in_play().filter(role="assistant").count() == 1


def test_a_large_attachment(kit: Kit) -> None:
    value = "QUJD" * (1024 * 1024)  # 3 MB
    part = {"type": "image", "source": {"type": "data", "value": value, "mimeType": "image/png"}}
    message = {"id": "u1", "role": "user", "content": [{"type": "text", "text": "Look"}, part]}
    got = kit.stream("run", said(messages=[message]))
    assert types(got)[-1] == "RUN_FINISHED"
    [held] = [each for each in json.loads(Message.objects.get(message_id="u1").wire)["content"] if "source" in each]
    assert held["source"]["value"].startswith("/copilotkit/attachments/")
    assert kit.http.get(held["source"]["value"]).content == b"ABC" * (1024 * 1024)


@pytest.mark.parametrize(("agent", "method"), [("nobody", "run"), ("nobody", "connect"), ("nobody", "suggest")])
def test_unknown_agents(kit: Kit, agent: str, method: str) -> None:
    got = kit.stream(method, {**said(), "tools": [SUGGEST]}, agent)
    assert got.status == 404
    assert json.loads(got.text)["error"] == "Not found"


@pytest.mark.parametrize("method", ["run", "connect", "suggest"])
@pytest.mark.parametrize("body", [{}, [], "x", {"threadId": 1}, {**said(), "messages": "x"}])
def test_malformed_inputs(kit: Kit, method: str, body: Any) -> None:
    got = kit.stream(method, body)
    assert got.status == 400
    assert json.loads(got.text)["error"] == "Invalid request body"
    assert not Thread.objects.exists()


def test_who_may_not_run_an_agent(kit: Kit) -> None:
    async def hidden(run: Any) -> None: ...

    with override_agent("hidden", hidden, permission="auth.no_such"):
        assert "hidden" not in kit.info().json()["agents"]
        for method in ("run", "connect", "suggest"):
            got = kit.stream(method, {**said(), "tools": [SUGGEST]}, "hidden")
            assert (got.status, json.loads(got.text)["error"]) == (403, "permission_denied")


def test_a_body_that_is_too_large(kit: Kit) -> None:
    with override_settings(AGUI_DJANGO={"MAX_BODY": 2_000}):
        got = kit.stream("run", said(text="x" * 3_000))
    assert (got.status, json.loads(got.text)["error"]) == (413, "body_too_large")


def test_a_process_that_goes_away_takes_no_runs(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "draining", lambda: True)
    for method in ("run", "connect", "suggest"):
        got = kit.stream(method, {**said(), "tools": [SUGGEST]})
        assert (got.status, json.loads(got.text)["error"]) == (503, "draining")


# ---- interrupts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reloaded", [False, True])
def test_an_interrupt_is_answered_under_a_known_run_id(kit: Kit, reloaded: bool) -> None:
    asked = said(text="Refund me")
    got = kit.stream("run", asked, "refund")
    [interrupt] = got.events[-1]["outcome"]["interrupts"]
    run_id = asked["runId"]
    if reloaded:
        again = silent()
        shown = kit.stream("connect", again, "refund")
        assert types(shown) == RESTATED
        assert shown.events[-1]["outcome"]["interrupts"] == [interrupt]
        run_id = again["runId"]  # CopilotKit pins the id of its connect
    answer = {"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True, "amount": 7}}
    done = kit.stream("run", said(runId=run_id, messages=asked["messages"], resume=[answer]), "refund")
    assert "Refunded 7 €" in "".join(event.get("delta", "") for event in done.events)
    assert types(done)[-1] == "RUN_FINISHED"
    assert [run.status for run in Run.objects.order_by("created_at")] == ["interrupted", "finished"]


def test_a_command_of_older_clients_answers_the_only_question(kit: Kit) -> None:
    asked = said(text="Refund me")
    kit.stream("run", asked, "refund")
    props = {"command": {"resume": {"approved": True, "amount": 3}, "interruptEvent": {}}}
    done = kit.stream("run", said(messages=asked["messages"], forwardedProps=props), "refund")
    assert "Refunded 3 €" in "".join(event.get("delta", "") for event in done.events)


def test_a_legacy_interrupt_is_shown_again_after_a_reload(kit: Kit) -> None:
    seen: list[Any] = []

    async def old(run: Any) -> Any:
        command = (run.input.forwarded_props or {}).get("command")
        if command is None:
            yield {"type": "CUSTOM", "name": "on_interrupt", "value": {"question": "Really?"}}
        else:
            seen.append(command["resume"])

    with override_agent("old", old):
        asked = said()
        assert "CUSTOM" in types(kit.stream("run", asked, "old"))
        shown = kit.stream("connect", silent(), "old")
        assert types(shown) == [*RESTATED[:3], "CUSTOM", "RUN_FINISHED"]
        assert shown.events[3]["value"] == {"question": "Really?"}
        command = {"command": {"resume": "yes", "interruptEvent": {"question": "Really?"}}}
        kit.stream("run", said(runId=asked["runId"], messages=asked["messages"], forwardedProps=command), "old")
        assert seen == ["yes"]
        assert types(kit.stream("connect", silent(), "old")) == RESTATED


def test_who_types_over_a_question_is_told_so(kit: Kit) -> None:
    kit.stream("run", said(text="Refund me"), "refund")
    got = kit.stream("run", said(text="Hello?"), "refund")
    assert [(event["type"], event["code"]) for event in got.events] == [("RUN_ERROR", "interrupts_open")]
    shown = kit.stream("connect", silent(), "refund")
    assert shown.events[-1]["outcome"]["type"] == "interrupt"


# ---- connect --------------------------------------------------------------------------------------------------------


def test_connect_restates_a_thread(kit: Kit) -> None:
    first = said(text="Hi")
    kit.stream("run", first)
    got = kit.stream("connect", silent())
    assert types(got) == RESTATED
    assert [message["role"] for message in got.events[1]["messages"]] == ["user", "assistant"]
    assert Run.objects.count() == 1


def test_connect_to_an_unknown_thread_is_an_empty_stream(kit: Kit) -> None:
    got = kit.stream("connect", silent("never-seen"))
    assert (got.status, got.events) == (200, [])
    assert got.headers["content-type"] == "text/event-stream"
    assert not Thread.objects.exists()


def test_connect_follows_what_runs_until_nothing_does(kit: Kit, held: Any, gate: Gate) -> None:
    found: list[Response] = []
    joined = threading.Event()

    def follow() -> None:
        # A first look that leaves in the middle, as a page that is being swapped does.
        kit.stream("connect", silent(), "gate", frames=4)
        joined.set()
        found.append(kit.stream("connect", silent(), "gate"))

    following = threading.Thread(target=follow)
    following.start()
    assert joined.wait(20)
    gate.opened.set()
    following.join(30)
    assert types(held())[-1] == "RUN_FINISHED"
    [got] = found
    snapshot = next(event for event in got.events if event["type"] == "MESSAGES_SNAPSHOT")
    told = snapshot["messages"][-1]["content"] + "".join(event.get("delta", "") for event in got.events)
    assert told == "before after"
    assert types(got)[-1] == "RUN_FINISHED"


def test_an_old_error_is_not_told_again(kit: Kit) -> None:
    async def fails(run: Any) -> None:
        raise ValueError("secret")

    with override_agent("fails", fails):
        assert types(kit.stream("run", said(), "fails"))[-1] == "RUN_ERROR"
        got = kit.stream("connect", silent(), "fails")
    assert types(got)[-1] == "RUN_FINISHED"
    assert "secret" not in got.text


# ---- stop -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [False, True])
def test_stop(kit: Kit, held: Callable[[], Response], named: bool) -> None:
    run = Run.objects.get()
    other = kit.stop("t1", {"runId": "another"}, "gate")
    assert other.json()["stopped"] is False
    got = kit.stop("t1", {"runId": run.run_id} if named else None, "gate")
    assert got.status_code == 200
    assert got.json() == {
        "stopped": True, "interrupt": {"type": "RUN_ERROR", "message": "Run stopped by user", "code": "STOPPED"},
    }  # fmt: skip
    last = held().events[-1]
    assert (last["type"], last["threadId"], last["runId"]) == ("RUN_FINISHED", "t1", run.run_id)
    assert "outcome" not in last
    assert kit.stop("t1", None, "gate").json()["stopped"] is False


def test_stop_where_nothing_runs(kit: Kit) -> None:
    assert kit.stop("never-seen").json() == {"stopped": False, "message": "No active run for this thread."}
    assert kit.stop("t1", {"runId": "r", "more": 1}).json()["error"] == "Invalid stop request"
    assert kit.stop("t1", {"runId": 1}).status_code == 400
    assert kit.stop("t1", {}, "nobody").status_code == 404
