"""The independent validator ag-ui-validate has no finding on the demo agents' real streams."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import httpx
import pytest
from ag_ui_validate.pytest_plugin import validate_agui

from tests.clients.conftest import TOKEN, user
from tests.servers import ServerProcess

RUN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
SAID = {
    "echo": "tokens:50 delay_ms:0 size:24",
    "plan": "make tea",
    "orders": "Blue teapot",
    "refund": "refund order 7",
    "slow": "hello",
    "script": json.dumps([{"type": "TEXT_MESSAGE_CHUNK", "messageId": "m1", "role": "assistant", "delta": "hi"}]),
    "blocks": "go",
    "paint": "go",
    "trip": "go",
    "archive_desk": "go",
    "team": "go",
}


def stream(
    server: ServerProcess, agent: str, thread_id: str, *, stop_after: int | None = None, **members: Any
) -> list[dict[str, Any]]:
    """Run an agent and return the events that came over the wire; ``stop_after`` that many, cancel the run."""
    body = {
        "threadId": thread_id, "runId": str(uuid.uuid4()), "messages": [], "tools": [], "context": [], "state": {},
        "forwardedProps": {}, "protocolVersion": "1.1", **members,
    }  # fmt: skip
    url = f"{server.base_url}/agui/agents/{agent}"
    events: list[dict[str, Any]] = []
    with httpx.stream("POST", url, json=body, headers=TOKEN, timeout=60) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if not line.startswith("data:"):
                continue
            events.append(json.loads(line.removeprefix("data:")))
            if len(events) == stop_after:
                run = RUN.search(response.headers["Content-Location"])
                assert run is not None
                httpx.post(f"{server.base_url}/agui/runs/{run[0]}/cancel", headers=TOKEN, timeout=20).raise_for_status()
    return events


def findings(events: list[dict[str, Any]]) -> list[str]:
    """Return what the validator says of a stream, whatever its severity."""
    made = {event["toolCallId"] for event in events if event["type"] == "TOOL_CALL_START"}
    return [
        str(diagnostic)
        for diagnostic in validate_agui(events).diagnostics
        # It counts messages that a TEXT_MESSAGE_START makes. A call without a parent makes one, too, of its own id,
        # which is where clients put the calls that name it.
        if not (diagnostic.rule == "AGUI208" and any(f"'{call}'" in diagnostic.message for call in made))
    ]


@pytest.mark.parametrize("agent", sorted(SAID))
def test_no_finding(server: ServerProcess, agent: str) -> None:
    thread_id = str(uuid.uuid4())
    # The slow one takes its time; being stopped is what it is there for.
    events = stream(server, agent, thread_id, messages=[user(SAID[agent])], stop_after=6 if agent == "slow" else None)
    assert events[-1]["type"] == "RUN_FINISHED", events
    assert findings(events) == []
    # And what a reload is shown.
    restored = stream(server, agent, thread_id)
    assert [event["type"] for event in restored][-1] == "RUN_FINISHED"
    assert findings(restored) == []


def test_no_finding_on_a_resume(server: ServerProcess) -> None:
    thread_id = str(uuid.uuid4())
    asked = stream(server, "refund", thread_id, messages=[user(SAID["refund"])])[-1]["outcome"]["interrupts"]
    answers = [
        {"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}} for interrupt in asked
    ]
    events = stream(server, "refund", thread_id, resume=answers)
    assert events[-1]["type"] == "RUN_FINISHED"
    assert findings(events) == []


def test_the_validator_finds_what_is_wrong() -> None:
    content = {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m1", "delta": "never opened"}
    assert findings([{"type": "RUN_STARTED", "threadId": "t", "runId": "r"}, content]) != []
