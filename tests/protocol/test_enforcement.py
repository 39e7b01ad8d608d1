"""What survives and what is fatal (basic/processing.mdx)."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from agui_django.protocol.enforcement import MAX_FINDINGS, enforce, enforce_input, enforce_message, omit_nulls
from agui_django.protocol.errors import InvalidInput, ProtocolViolation
from agui_django.protocol.events import EVENT_TYPES, EVENTS, RUN_INPUT
from tests.parts import CONFORMANCE, require
from tests.protocol.shapes import damaged, least, least_events, sample, whole_events

INPUT = {"threadId": "t", "runId": "r", "messages": [], "protocolVersion": "1.1"}


def schema(anchor: str) -> Draft202012Validator:
    require("conformance")
    document = json.loads((CONFORMANCE / "schema-1.1.json").read_text())
    return Draft202012Validator({"$ref": f"#/$defs/{anchor}", "$defs": document["$defs"]})


@pytest.fixture(scope="module")
def event_schema() -> Draft202012Validator:
    return schema("Event")


@pytest.fixture(scope="module")
def input_schema() -> Draft202012Validator:
    return schema("RunAgentInput")


# ---- what is known passes as it is ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EVENT_TYPES)
@pytest.mark.parametrize("make", [least, lambda kind: sample(EVENTS[kind])], ids=["least", "whole"])
def test_known_events_pass_unchanged(kind: str, make: Any, event_schema: Draft202012Validator) -> None:
    event = make(kind)
    assert event_schema.is_valid(event)
    warnings: list[str] = []
    assert enforce(event, warnings.append) is event
    assert warnings == []


@settings(max_examples=200, deadline=None)
@given(event=damaged(whole_events | least_events))
def test_verdict_is_the_schemas(event: dict[str, Any], event_schema: Draft202012Validator) -> None:
    """What the schema accepts passes untouched; what passes changed is valid; what is refused is not."""
    before = copy.deepcopy(event)
    warnings: list[str] = []
    try:
        result = enforce(event, warnings.append)
    except ProtocolViolation as violation:
        assert not event_schema.is_valid(event)
        assert violation.event_type == event["type"]
        assert violation.path
    else:
        valid = event_schema.is_valid(event)
        assert (result is event) == valid
        assert (warnings == []) == valid
        assert result is None or event_schema.is_valid(result)
    assert json.dumps(event) == json.dumps(before), "the caller's event was changed"


@settings(max_examples=100, deadline=None)
@given(body=damaged(st.just({**sample(RUN_INPUT), "protocolVersion": "1.1"})))
def test_input_verdict_is_the_schemas(body: dict[str, Any], input_schema: Draft202012Validator) -> None:
    before = copy.deepcopy(body)
    try:
        result = enforce_input(body)
    except InvalidInput as error:
        assert not input_schema.is_valid(body)
        assert error.fields
    else:
        assert (result is body) == input_schema.is_valid(body)
        assert input_schema.is_valid(result)
    assert json.dumps(body) == json.dumps(before)


@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from(["TEXT_MESSAGE_CONTENT", "TOOL_CALL_ARGS", "REASONING_MESSAGE_CONTENT"]),
    more=st.dictionaries(
        st.sampled_from(["timestamp", "subagentRunId", "metadata", "rawEvent", "messageId", "delta", "futureProp"]),
        st.sampled_from(["s", "", 1, 1.5, None, True, {}, [], 2**60]),
        max_size=4,
    ),
)
def test_delta_fast_path_judges_alike(kind: str, more: dict[str, Any], event_schema: Draft202012Validator) -> None:
    event = {**least(kind), **more}
    try:
        result = enforce(event)
    except ProtocolViolation:
        assert not event_schema.is_valid(event)
    else:
        assert (result is event) == event_schema.is_valid(event)


# ---- what is unknown goes, with a warning --------------------------------------------------------------------------


def media(source: dict[str, Any]) -> dict[str, Any]:
    return {"type": "image", "source": source}


USER = {"id": "m", "role": "user", "content": "hi"}
STRIPPED: list[tuple[str, dict[str, Any], dict[str, Any] | None, list[str]]] = [
    ("unknown type", {"type": "FUTURE_EVENT", "x": 1}, None, ["FUTURE_EVENT"]),
    ("unknown property", {"type": "CUSTOM", "name": "n", "value": 1, "toString": 2},
     {"type": "CUSTOM", "name": "n", "value": 1}, ["/toString"]),
    ("optional position: the field goes",
     {"type": "RUN_FINISHED", "threadId": "t", "runId": "r", "outcome": {"type": "paused", "x": 1}},
     {"type": "RUN_FINISHED", "threadId": "t", "runId": "r"}, ["/outcome"]),
    ("required position: what contains it goes",
     {"type": "MESSAGES_SNAPSHOT", "messages": [{**USER, "content": [media({"type": "psychic"}), media(
         {"type": "url", "value": "u", "size": 1})]}]},
     {"type": "MESSAGES_SNAPSHOT", "messages": [{**USER, "content": [media({"type": "url", "value": "u"})]}]},
     ["/messages/0/content/0", "/messages/0/content/1/source/size"]),
    ("list: the element goes", {"type": "MESSAGES_SNAPSHOT", "messages": [{"role": "narrator"}, USER]},
     {"type": "MESSAGES_SNAPSHOT", "messages": [USER]}, ["/messages/0"]),
    ("patch operation", {"type": "STATE_DELTA", "delta": [{"op": "increment"}, {"op": "remove", "path": "", "x": 1}]},
     {"type": "STATE_DELTA", "delta": [{"op": "remove", "path": "", "x": 1}]}, ["/delta/0"]),
    ("what goes as a whole is not looked into",
     {"type": "STATE_DELTA", "delta": [{"op": "increment", "path": 7}]}, {"type": "STATE_DELTA", "delta": []},
     ["/delta/0"]),
    # events/reasoning.mdx names this one: a subtype the schema does not know removes the event
    ("unknown subtype: the event goes",
     {"type": "REASONING_ENCRYPTED_VALUE", "subtype": "span", "entityId": "e", "encryptedValue": "v"}, None,
     ["REASONING_ENCRYPTED_VALUE"]),
]  # fmt: skip


@pytest.mark.parametrize(("event", "left", "named"), [row[1:] for row in STRIPPED], ids=[row[0] for row in STRIPPED])
def test_unknown_material_goes(event: dict[str, Any], left: dict[str, Any] | None, named: list[str]) -> None:
    warnings: list[str] = []
    assert enforce(event, warnings.append) == left
    assert len(warnings) == len(named)
    for warning, name in zip(warnings, named, strict=True):
        assert name in warning


def test_open_objects_keep_what_they_do_not_describe() -> None:
    event = {"type": "CUSTOM", "name": "n", "value": {"future": None}, "metadata": {"acme/x": None, "deep": {"y": 1}}}
    assert enforce(event, pytest.fail) is event


def test_warnings_about_one_event_are_bounded() -> None:
    warnings: list[str] = []
    event = {**least("RAW"), **{f"unknown{number}": 1 for number in range(1000)}}
    assert enforce(event, warnings.append) == least("RAW")
    assert len(warnings) == MAX_FINDINGS + 1
    assert "950" in warnings[-1]


# ---- what is malformed is fatal ------------------------------------------------------------------------------------

FATAL = [
    ({"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": 42}, "/delta"),
    ({"type": "TEXT_MESSAGE_CONTENT", "messageId": 1, "delta": "x"}, "/messageId"),
    ({"type": "TEXT_MESSAGE_CONTENT", "messageId": "m"}, "/delta"),
    ({"type": "TEXT_MESSAGE_START", "messageId": "m", "role": "narrator"}, "/role"),
    ({"type": "TEXT_MESSAGE_END", "messageId": "m", "subagentRunId": None}, "/subagentRunId"),
    ({"type": "REASONING_MESSAGE_START", "messageId": "m", "role": "assistant"}, "/role"),
    ({"type": "REASONING_ENCRYPTED_VALUE", "subtype": 1, "entityId": "e", "encryptedValue": "v"}, "/subtype"),
    ({"type": "RUN_STARTED", "threadId": "t", "runId": "r", "timestamp": True}, "/timestamp"),
    ({"type": "RUN_STARTED", "threadId": "t", "runId": "r", "timestamp": 1.5}, "/timestamp"),
    ({"type": "RUN_STARTED", "threadId": "t", "runId": "r", "timestamp": float("nan")}, "/timestamp"),
    ({"type": "RUN_STARTED", "threadId": "t", "runId": "r", "timestamp": 2**53}, "/timestamp"),
    ({"type": "RUN_FINISHED", "threadId": "t", "runId": "r", "outcome": []}, "/outcome"),
    ({"type": "RUN_FINISHED", "threadId": "t", "runId": "r", "outcome": {}}, "/outcome/type"),
    ({"type": "RUN_FINISHED", "threadId": "t", "runId": "r", "outcome": {"type": "interrupt", "interrupts": []}},
     "/outcome/interrupts"),
    ({"type": "RUN_ERROR", "message": "x", "usage": [{"inputTokens": -1}]}, "/usage/0/inputTokens"),
    ({"type": "STATE_DELTA", "delta": [{"op": "add", "path": "a", "value": 1}]}, "/delta/0/path"),
    ({"type": "STATE_DELTA", "delta": [{"op": "add", "path": "/a"}]}, "/delta/0/value"),
    ({"type": "ACTIVITY_SNAPSHOT", "messageId": "m", "activityType": "a", "content": "x"}, "/content"),
    ({"type": "SUBAGENT_STARTED", "subagentRunId": "s"}, "/name"),
    ({"type": "CUSTOM", "name": "n"}, "/value"),
    # the index is the one in the event that was sent, though an element before it goes
    ({"type": "MESSAGES_SNAPSHOT", "messages": [{"role": "narrator"}, {**USER, "content": 1}]}, "/messages/1/content"),
    ({"messageId": "m"}, "/type"),
    ({"type": 7}, "/type"),
]  # fmt: skip


@pytest.mark.parametrize(("event", "path"), FATAL, ids=[row[1] + "-" + str(n) for n, row in enumerate(FATAL)])
def test_malformed_values_are_fatal(event: dict[str, Any], path: str) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        enforce(event)
    assert caught.value.path == path
    assert caught.value.event_type == (event.get("type") if isinstance(event.get("type"), str) else "")


@pytest.mark.parametrize("event", [None, [], "RUN_STARTED", 7])
def test_an_event_is_an_object(event: Any) -> None:
    with pytest.raises(ProtocolViolation):
        enforce(event)


# ---- messages and run input ----------------------------------------------------------------------------------------


def test_messages() -> None:
    warnings: list[str] = []
    assert enforce_message(USER, warnings.append) is USER
    assert enforce_message({"id": "m", "role": "narrator"}, warnings.append) is None
    assert enforce_message({**USER, "mood": 1}, warnings.append) == USER
    assert "/mood" in warnings[1]
    with pytest.raises(ProtocolViolation) as caught:
        enforce_message({"id": "m", "role": "tool", "content": ""})
    assert caught.value.path == "/toolCallId"


def test_input_tells_every_malformed_field_and_no_value() -> None:
    body = {
        "threadId": 1,
        "messages": [{"id": "m", "role": "user", "content": {"secret": "hunter2"}}, {"role": 7}],
        "tools": "hunter2",
        "future": 1,
        "protocolVersion": "1.1",
    }
    with pytest.raises(InvalidInput) as caught:
        enforce_input(body)
    assert {field["path"] for field in caught.value.fields} == {
        "/threadId", "/runId", "/messages/0/content", "/messages/1/role", "/tools",
    }  # fmt: skip
    assert "hunter2" not in json.dumps(caught.value.fields)
    assert caught.value.status == 422


def test_input_errors_are_bounded() -> None:
    with pytest.raises(InvalidInput) as caught:
        enforce_input({**INPUT, "messages": [{"role": "user"}] * 1000})
    assert len(caught.value.fields) == MAX_FINDINGS


@pytest.mark.parametrize("body", [None, [], "x", 7])
def test_input_is_an_object(body: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        enforce_input(body)
    assert caught.value.fields == [{"path": "", "message": "expected an object"}]


def test_input_loses_what_is_unknown() -> None:
    warnings: list[str] = []
    body = {**INPUT, "future": 1, "messages": [{"role": "narrator"}, {**USER, "content": [{"type": "hologram"}]}]}
    assert enforce_input(body, warnings.append) == {**INPUT, "messages": [{**USER, "content": []}]}
    for path in ("/messages/0", "/messages/1/content/0", "/future"):
        assert any(f"{path} was" in warning for warning in warnings), path
    assert len(warnings) == 3


@pytest.mark.parametrize("name", ["state", "forwardedProps"])
def test_null_is_no_value_where_any_json_may_stand(name: str) -> None:
    assert enforce_input({**INPUT, name: None}, pytest.fail) == INPUT


@pytest.mark.parametrize("name", ["parentRunId", "tools", "context", "resume"])
def test_null_elsewhere_is_malformed_for_a_client_of_today(name: str) -> None:
    with pytest.raises(InvalidInput):
        enforce_input({**INPUT, name: None})


def test_a_client_from_before_1_0_may_spell_unset_as_null() -> None:
    old = {name: value for name, value in INPUT.items() if name != "protocolVersion"}
    message = {**USER, "name": None, "encryptedValue": None, "metadata": {"kept": None}}
    body = {**old, "parentRunId": None, "tools": None, "resume": None, "messages": [message], "state": {"kept": None}}
    assert enforce_input(body, pytest.fail) == {
        **old,
        "messages": [{**USER, "metadata": {"kept": None}}],
        "state": {"kept": None},
    }
    with pytest.raises(InvalidInput):
        enforce_input({**old, "threadId": None})


def test_omit_nulls_leaves_data_alone() -> None:
    event = {
        "type": "RUN_FINISHED", "threadId": "t", "runId": "r", "timestamp": None, "result": None,
        "outcome": {"type": "interrupt", "interrupts": [{"id": "i", "reason": "x", "message": None}]},
        "metadata": {"a": None},
    }  # fmt: skip
    before = copy.deepcopy(event)
    slim = omit_nulls(event)
    assert slim == {
        "type": "RUN_FINISHED", "threadId": "t", "runId": "r", "metadata": {"a": None},
        "outcome": {"type": "interrupt", "interrupts": [{"id": "i", "reason": "x"}]},
    }  # fmt: skip
    assert event == before
    for untouched in (
        {"type": "CUSTOM", "name": "n", "value": None},
        {"type": "STATE_SNAPSHOT", "snapshot": None},
        {"type": "STATE_DELTA", "delta": [{"op": "add", "path": "/a", "value": None}]},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": None, "delta": "x"},
        {"type": "FUTURE", "x": None},
    ):
        assert omit_nulls(untouched) is untouched
