"""What a case's ``expected`` means, one function per member."""

from __future__ import annotations

from typing import Any

from agui_django.models import Interrupt, Message, Run, Thread
from agui_django.protocol import codec
from agui_django.protocol.consumer import Consumer
from agui_django.protocol.reducer import Reducer


def subset(expected: Any, actual: Any) -> bool:
    """Whether ``actual`` has all that ``expected`` has; lists have the same length."""
    if isinstance(expected, dict):
        return isinstance(actual, dict) and all(k in actual and subset(v, actual[k]) for k, v in expected.items())
    if isinstance(expected, list):
        return isinstance(actual, list) and len(actual) == len(expected) and all(map(subset, expected, actual))
    return type(expected) is type(actual) and bool(expected == actual)


def null_keys(value: Any, keys: set[str]) -> list[str]:
    """Keys of ``keys`` that hold null anywhere in the event."""
    if isinstance(value, dict):
        found = [k for k, v in value.items() if v is None and k in keys]
        return found + [hit for v in value.values() for hit in null_keys(v, keys)]
    if isinstance(value, list):
        return [hit for v in value for hit in null_keys(v, keys)]
    return []


def client_after(events: list[dict[str, Any]], messages: list[dict[str, Any]], state: Any) -> Reducer:
    """A client that held ``messages`` and ``state`` and applied the stream."""
    client = Reducer(messages, state)
    for event in events:
        client.apply(event)
    return client


def check_stream(expected: dict[str, Any], case: dict[str, Any], response: Any) -> None:
    """Everything about the events and bytes of one response."""
    events = response.events
    types = [event["type"] for event in events]
    if "event_types" in expected:
        assert types == expected["event_types"]
    if "last_event" in expected:
        assert subset(expected["last_event"], events[-1]), events[-1]
    for wanted in expected.get("events_contain", []):
        assert any(subset(wanted, event) for event in events), wanted
    for refused in expected.get("events_never", []):
        pattern = {"type": refused} if isinstance(refused, str) else refused
        assert not any(subset(pattern, event) for event in events), refused
    if "order" in expected:
        places = [types.index(name) for name in expected["order"]]
        assert places == sorted(places)
    for name, number in expected.get("count", {}).items():
        assert types.count(name) == number, name
    if "deltas" in expected:
        assert [e["delta"] for e in events if e["type"] == "TEXT_MESSAGE_CONTENT"] == expected["deltas"]
    for text in expected.get("wire_never", []):
        assert text not in response.text
    for refused in expected.get("wire_never_bytes", []):
        assert bytes.fromhex(refused) not in response.body
    keys = set(expected.get("wire_never_keys_null", []))
    for event in events:
        assert not null_keys(event, keys)
    if "comment_frames_min" in expected:
        # the first comment opens the response; it is not a heartbeat
        assert response.comments - 1 >= expected["comment_frames_min"]
    if expected.get("verifier_clean"):
        consumer = Consumer()
        for event in events:
            consumer.feed(event)
        consumer.end()
        assert not consumer.warnings
    if "each_event" in expected:
        stamps = [event["timestamp"] for event in events]
        assert all(type(stamp) is int and stamp > 1_600_000_000_000 for stamp in stamps)
        assert stamps == sorted(stamps)
    body = case["input"].get("body", {})
    before = case["input"].get("client_messages_before", [])
    if "client_messages_after" in expected:
        assert subset(expected["client_messages_after"], client_after(events, before, {}).messages)
    if "client_message_ids_after_if_any_snapshot_was_sent" in expected and "MESSAGES_SNAPSHOT" in types:
        after = [m["id"] for m in client_after(events, before, {}).messages]
        assert after == expected["client_message_ids_after_if_any_snapshot_was_sent"]
    if expected.get("client_state_equals_db"):
        # a client that sends no state holds what the thread held
        held = body["state"] if "state" in body else case["input"].get("stored", {}).get("state", {})
        stored = codec.decode(Thread.objects.get(thread_id="t1").state)
        assert client_after(events, before, held).state == stored


def check_db(expected: dict[str, Any]) -> None:
    """What is stored afterwards."""
    stored = [codec.decode(m.wire) for m in Message.objects.in_play()]
    by_id = {message["id"]: message for message in stored}
    for key, value in expected.items():
        if key == "run.status":
            assert Run.objects.latest("created_at").status == value.replace("error", "failed")
        elif key == "messages":
            for message in value:
                assert subset(message, by_id[message["id"]]), by_id[message["id"]]
        elif key == "message_ids":
            assert [message["id"] for message in stored] == value
        elif key == "state":
            assert codec.decode(Thread.objects.get(thread_id="t1").state) == value
        elif key == "tool_messages":
            assert subset(value, [m for m in stored if m["role"] == "tool"])
        elif key == "pending_tool_calls":
            outcome = codec.decode(Run.objects.latest("created_at").outcome)
            assert outcome["pendingToolCallIds"] == value
        elif key == "open_interrupts":
            assert list(Interrupt.objects.open().order_by("position").values_list("interrupt_id", flat=True)) == value
        elif key == "runs" and isinstance(value, dict):
            found = dict(Run.objects.values_list("run_id", "status"))
            assert found == {name: status.replace("error", "failed") for name, status in value.items()}
        elif key in ("runs", "threads"):
            assert {"runs": Run, "threads": Thread}[key].objects.count() == value
        elif key == "messages_len":
            made = [m for m in stored if m["role"] == "assistant"]
            assert made
            assert {len(m["content"]) for m in made} == {value}
        elif key == "runs_not_terminal":
            assert Run.objects.exclude(status__in=Run.TERMINAL).count() == value
        elif key == "messages_with_content_x":
            assert sum(m.get("content") == "x" for m in stored if m["role"] == "assistant") == value
        else:
            raise AssertionError(f"unknown check {key}")


def check_agent_input(expected: dict[str, Any], run: Any) -> None:
    """What the agent was handed."""
    given = run.input.model_dump(by_alias=True, mode="json")
    messages = given["messages"]
    for key, value in expected.items():
        if key == "ids":
            assert [m["id"] for m in messages] == value
        elif key == "roles":
            assert [m["role"] for m in messages] == value
        elif key == "contents":
            assert [m["content"] for m in messages] == value
        elif key == "tool_call_ids":
            assert [m["toolCallId"] for m in messages if m["role"] == "tool"] == value
        elif key == "resume":
            assert subset(value, given["resume"])
        else:
            found: Any = given
            for step in key.split("."):
                found = found[int(step)] if step.isdigit() else found[step]
            assert found == value, key
