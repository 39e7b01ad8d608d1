"""The 0.x shape of every event, judged by the schemas that client 0.0.59 itself parses with."""

from __future__ import annotations

import copy
import json
import subprocess
from typing import Any

import pytest

from agui_django.protocol.downgrade import downgrade, needs_downgrade
from agui_django.protocol.enforcement import enforce
from agui_django.protocol.events import EVENT_TYPES
from tests.parts import ROOT, require

Event = dict[str, Any]

FILE = {"type": "file", "value": "file-1", "provider": "openai"}
URL = {"type": "url", "value": "https://x/y.png"}
MESSAGES: list[Event] = [
    {"id": "d", "role": "developer", "content": "x", "name": "n"},
    {"id": "s", "role": "system", "content": "x", "metadata": {"k": None}},
    {
        "id": "u",
        "role": "user",
        "content": [
            {"type": "text", "text": "see"},
            {"type": "image", "source": FILE},
            {"type": "image", "source": URL},
        ],
    },
    {
        "id": "a",
        "role": "assistant",
        "subagentRunId": "sub",
        "toolCalls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}],
    },
    {
        "id": "t",
        "role": "tool",
        "toolCallId": "c",
        "content": [{"type": "text", "text": "a"}, {"type": "image", "source": URL}, {"type": "text", "text": "b"}],
    },
    {"id": "r", "role": "reasoning", "content": "x", "encryptedValue": "e", "encryptedValueType": "sig"},
    {"id": "p", "role": "activity", "activityType": "PLAN", "content": {"n": None}, "subagentRunId": "sub"},
]
OLD_MESSAGES: list[Event] = [
    MESSAGES[0],
    MESSAGES[1],
    {"id": "u", "role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image", "source": URL}]},
    {"id": "a", "role": "assistant", "toolCalls": MESSAGES[3]["toolCalls"]},
    {"id": "t", "role": "tool", "toolCallId": "c", "content": "ab"},
    MESSAGES[5],
    {"id": "p", "role": "activity", "activityType": "PLAN", "content": {"n": None}},
]
SUB = {"subagentRunId": "sub"}
FINISHED = {"type": "RUN_FINISHED", "threadId": "t", "runId": "r"}
INPUT = {"threadId": "t", "runId": "r", "protocolVersion": "1.1", "forwardedProps": {"x": None}}
USAGE = [{"provider": "p", "model": "m", "inputTokens": 1, "cacheWriteInputTokens": 2}]
INTERRUPT = {
    "id": "i",
    "reason": "input_required",
    "message": "ok?",
    "responseSchema": {"type": "boolean"},
    "expiresAt": "2026-01-01T00:00:00Z",
    "metadata": {},
}

# An event and its 0.x shape: None where it is not sent, SAME where it is sent as it is.
SAME: Any = object()
ROWS: list[tuple[Event, Any]] = [
    ({"type": "TEXT_MESSAGE_START", "messageId": "m", "role": "assistant", "timestamp": 1, "metadata": {}}, SAME),
    (
        {"type": "TEXT_MESSAGE_START", "messageId": "m", "name": "n", **SUB},
        {"type": "TEXT_MESSAGE_START", "messageId": "m", "name": "n"},
    ),
    ({"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": ""}, SAME),
    (
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "x", **SUB},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "x"},
    ),
    ({"type": "TEXT_MESSAGE_END", "messageId": "m", "rawEvent": {"x": None}}, SAME),
    ({"type": "TEXT_MESSAGE_CHUNK", "messageId": "m", "role": "assistant", "delta": "x"}, SAME),
    ({"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "f", "parentMessageId": "m"}, SAME),
    ({"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": "{"}, SAME),
    ({"type": "TOOL_CALL_END", "toolCallId": "c"}, SAME),
    ({"type": "TOOL_CALL_CHUNK", "toolCallId": "c", "toolCallName": "f", "delta": "{"}, SAME),
    ({"type": "TOOL_CALL_RESULT", "messageId": "t", "toolCallId": "c", "content": "x", "role": "tool"}, SAME),
    (
        {"type": "TOOL_CALL_RESULT", "messageId": "t", "toolCallId": "c", "content": MESSAGES[4]["content"]},
        {"type": "TOOL_CALL_RESULT", "messageId": "t", "toolCallId": "c", "content": "ab"},
    ),
    (
        {
            "type": "TOOL_CALL_RESULT",
            "messageId": "t",
            "toolCallId": "c",
            "content": [{"type": "image", "source": URL}],
        },
        {"type": "TOOL_CALL_RESULT", "messageId": "t", "toolCallId": "c", "content": ""},
    ),
    ({"type": "STATE_SNAPSHOT", "snapshot": None}, SAME),
    ({"type": "STATE_DELTA", "delta": [{"op": "add", "path": "/a", "value": None}]}, SAME),
    ({"type": "MESSAGES_SNAPSHOT", "messages": MESSAGES[:2]}, SAME),
    (
        {"type": "MESSAGES_SNAPSHOT", "messages": MESSAGES},
        {"type": "MESSAGES_SNAPSHOT", "messages": OLD_MESSAGES},
    ),
    ({"type": "ACTIVITY_SNAPSHOT", "messageId": "p", "activityType": "PLAN", "content": {}, "replace": False}, SAME),
    ({"type": "ACTIVITY_DELTA", "messageId": "p", "activityType": "PLAN", "patch": []}, SAME),
    ({"type": "RAW", "event": None, "source": "x"}, SAME),
    ({"type": "CUSTOM", "name": "n", "value": None}, SAME),
    ({"type": "RUN_STARTED", "threadId": "t", "runId": "r", "protocolVersion": "1.1", "parentRunId": "p"}, SAME),
    (
        {
            "type": "RUN_STARTED",
            "threadId": "t",
            "runId": "r",
            "input": {**INPUT, "messages": MESSAGES[:2], "tools": [{"name": "f", "description": "d"}], "context": []},
        },
        SAME,
    ),
    (
        {"type": "RUN_STARTED", "threadId": "t", "runId": "r", "input": {**INPUT, "messages": MESSAGES}},
        {
            "type": "RUN_STARTED",
            "threadId": "t",
            "runId": "r",
            "input": {**INPUT, "messages": OLD_MESSAGES, "tools": [], "context": []},
        },
    ),
    ({**FINISHED, "result": {"x": None}, "usage": USAGE}, SAME),
    ({**FINISHED, "outcome": {"type": "success"}}, SAME),
    ({**FINISHED, "outcome": {"type": "success", "pendingToolCallIds": ["c"]}}, FINISHED),
    ({**FINISHED, "outcome": {"type": "cancelled"}, "usage": USAGE}, {**FINISHED, "usage": USAGE}),
    ({**FINISHED, "outcome": {"type": "interrupt", "interrupts": [INTERRUPT]}}, SAME),
    (
        {**FINISHED, "outcome": {"type": "interrupt", "interrupts": [{**INTERRUPT, **SUB}]}},
        {**FINISHED, "outcome": {"type": "interrupt", "interrupts": [INTERRUPT]}},
    ),
    ({"type": "RUN_ERROR", "message": "x", "code": "c", "usage": USAGE}, SAME),
    ({"type": "STEP_STARTED", "stepName": "x"}, SAME),
    ({"type": "STEP_STARTED", "stepName": "x", **SUB}, None),
    ({"type": "STEP_FINISHED", "stepName": "x"}, SAME),
    ({"type": "STEP_FINISHED", "stepName": "x", **SUB}, None),
    ({"type": "REASONING_START", "messageId": "r"}, SAME),
    ({"type": "REASONING_MESSAGE_START", "messageId": "r", "role": "reasoning"}, SAME),
    ({"type": "REASONING_MESSAGE_CONTENT", "messageId": "r", "delta": "x"}, SAME),
    ({"type": "REASONING_MESSAGE_END", "messageId": "r"}, SAME),
    ({"type": "REASONING_MESSAGE_CHUNK", "messageId": "r", "delta": "x"}, SAME),
    ({"type": "REASONING_END", "messageId": "r"}, SAME),
    (
        {
            "type": "REASONING_ENCRYPTED_VALUE",
            "subtype": "message",
            "entityId": "r",
            "encryptedValue": "e",
            "encryptedValueType": "sig",
        },
        SAME,
    ),
    ({"type": "SUBAGENT_STARTED", "name": "n", **SUB}, None),
    ({"type": "SUBAGENT_FINISHED", "outcome": {"type": "suspended", "interruptIds": ["i"]}, **SUB}, None),
    ({"type": "SUBAGENT_ERROR", "message": "x", **SUB}, None),
]


def test_every_type_has_a_row_and_every_row_is_legal() -> None:
    assert {event["type"] for event, _ in ROWS} == set(EVENT_TYPES)
    for event, _ in ROWS:
        warnings: list[str] = []
        assert enforce(event, warnings.append) is event
        assert warnings == []


@pytest.mark.parametrize(("event", "expected"), ROWS, ids=[f"{n}-{row[0]['type']}" for n, row in enumerate(ROWS)])
def test_the_older_shape(event: Event, expected: Any) -> None:
    before = copy.deepcopy(event)
    shaped = downgrade(event)
    if expected is SAME:
        assert shaped is event
        assert not needs_downgrade(event)
    else:
        assert shaped == expected
        assert needs_downgrade(event)
        if shaped is not None:
            assert not needs_downgrade(shaped)
    assert event == before


def test_unknown_types_are_not_sent() -> None:
    event = {"type": "FROM_1_2"}
    assert needs_downgrade(event)
    assert downgrade(event) is None


def test_what_is_lost_is_named() -> None:
    told: list[str] = []
    for event, _ in ROWS:
        downgrade(event, told.append)
    for lost in ("SUBAGENT_STARTED", "STEP_STARTED", "cancelled", "image part of a tool result", "provider's file"):
        assert any(lost in text for text in told), lost


def test_client_0_0_59_parses_what_it_is_sent_and_would_not_have_parsed_the_rest() -> None:
    require("clients")
    refused_as_they_are = [
        event
        for event, _ in ROWS
        if (event.get("outcome") or {}).get("type") == "cancelled"
        or "pendingToolCallIds" in (event.get("outcome") or {})
        or (event["type"] == "TOOL_CALL_RESULT" and not isinstance(event["content"], str))
        or event.get("messages") is MESSAGES
        or (event.get("input") or {}).get("messages") is MESSAGES
    ]
    assert len(refused_as_they_are) == 6
    sent = [shaped for event, _ in ROWS if (shaped := downgrade(event)) is not None]
    verdicts = parse_with_0_0_59([*sent, *refused_as_they_are])
    assert verdicts[: len(sent)] == [None] * len(sent)
    assert None not in verdicts[len(sent) :]


def parse_with_0_0_59(events: list[Event]) -> list[str | None]:
    done = subprocess.run(
        ["node", "legacy_schemas.mjs"],
        cwd=ROOT / "tests" / "clients",
        input=json.dumps(events),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    verdicts: list[str | None] = json.loads(done.stdout)
    return verdicts
