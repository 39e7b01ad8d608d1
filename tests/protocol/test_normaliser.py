"""The producer's side of the protocol: repairs, refusals, and the short way that must equal the long one."""

from __future__ import annotations

import random
from typing import Any

import pytest
from ag_ui.core import (
    CustomEvent,
    EventType,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    StateDeltaEvent,
    TextMessageContentEvent,
    TextMessageStartEvent,
    TokenUsage,
)
from ag_ui.core.types import Interrupt

from agui_django.protocol.codec import decode
from agui_django.protocol.consumer import Consumer
from agui_django.protocol.errors import NotJson, ProtocolViolation
from agui_django.protocol.models import read_model
from agui_django.protocol.normaliser import Normaliser
from agui_django.protocol.reducer import Reducer

Wire = dict[str, Any]
RUN = {"type": "RUN_STARTED", "threadId": "t", "runId": "r"}


def text(kind: str, **fields: Any) -> Wire:
    return {"type": f"TEXT_MESSAGE_{kind}", "messageId": "m", **fields}


class Producer:
    """A normaliser with its reducer and what came out of it."""

    def __init__(self, messages: list[Wire] | None = None, state: Any = None) -> None:
        self.warnings: list[str] = []
        self.reducer = Reducer(messages or [], {} if state is None else state)
        self.normaliser = Normaliser(
            thread_id="t", run_id="r", reducer=self.reducer, now=lambda: 1700, warn=self.warnings.append
        )
        self.out: list[Wire] = self.normaliser.aside(dict(RUN))

    def emit(self, *events: Any) -> list[Wire]:
        new: list[Wire] = []
        for event in events:
            short = self.normaliser.fast(event)
            new += [decode(short)] if short is not None else self.normaliser.accept(event)
        self.out += new
        return new

    def end(self) -> list[Wire]:
        self.out += self.normaliser.close_all()
        finished = {"type": "RUN_FINISHED", "threadId": "t", "runId": "r"}
        self.out.append(self.normaliser.terminal(finished))
        return self.out

    def types(self) -> list[str]:
        return [event["type"] for event in self.out]


def same_at_a_client(producer: Producer, messages: list[Wire] | None = None, state: Any = None) -> None:
    client = Consumer(messages or [], {} if state is None else state)
    for event in producer.out:
        client.feed(event)
    client.end()
    assert client.warnings == []
    assert client.messages == producer.reducer.messages
    assert client.state == producer.reducer.state


def test_timestamps_are_set_where_the_agent_set_none():
    producer = Producer()
    assert producer.emit({"type": "CUSTOM", "name": "n", "value": 1})[0]["timestamp"] == 1700
    assert producer.emit({"type": "CUSTOM", "name": "n", "value": 1, "timestamp": 5})[0]["timestamp"] == 5


def test_the_first_and_the_last_event_have_their_time():
    producer = Producer()
    assert producer.end() == [{**RUN, "timestamp": 1700}, {**RUN, "type": "RUN_FINISHED", "timestamp": 1700}]
    given = Producer().normaliser.aside({"type": "STATE_SNAPSHOT", "snapshot": {}, "timestamp": 5})
    assert given[0]["timestamp"] == 5


@pytest.mark.parametrize(
    "outcome",
    [
        {"type": "interrupt", "interrupts": [{"id": "i", "reason": "a"}, {"id": "i", "reason": "b"}]},
        {"type": "success", "pendingToolCallIds": ["c2"]},
        {"type": "success", "pendingToolCallIds": ["c1", "c2"]},
        {"type": "success", "pendingToolCallIds": []},
    ],
)
def test_an_end_that_does_not_tell_the_truth_is_refused(outcome: Wire):
    finished = {"type": "RUN_FINISHED", "threadId": "t", "runId": "r"}
    for told in (outcome, {"type": "success", "pendingToolCallIds": ["c1"]}):
        producer = Producer()
        for call in ("c1", "c2"):
            producer.emit(
                {"type": "TOOL_CALL_START", "toolCallId": call, "toolCallName": "f"},
                {"type": "TOOL_CALL_END", "toolCallId": call},
            )
        producer.emit({"type": "TOOL_CALL_RESULT", "messageId": "x", "toolCallId": "c2", "content": "done"})
        if told is outcome:
            with pytest.raises(ProtocolViolation):
                producer.emit({**finished, "outcome": told})
            assert producer.normaliser.own_terminal is None
        else:
            assert producer.emit({**finished, "outcome": told}) == []
            assert producer.normaliser.own_terminal == {**finished, "outcome": told}


def test_what_a_subagent_said_is_opened_again_as_its_own():
    producer = Producer()
    producer.emit({"type": "SUBAGENT_STARTED", "subagentRunId": "s", "name": "helper"})
    producer.emit(text("START", role="assistant", name="bot", subagentRunId="s"), text("CONTENT", delta="a"))
    producer.emit(text("END"))
    again = producer.emit(text("CONTENT", delta="b"))
    opening = text("START", role="assistant", name="bot", subagentRunId="s", timestamp=1700)
    assert again == [opening, text("CONTENT", delta="b", timestamp=1700)]


def test_the_agents_run_started_is_absorbed():
    producer = Producer()
    assert producer.emit(RUN) == []
    with pytest.raises(ProtocolViolation):
        producer.emit(RUN)


@pytest.mark.parametrize("name", ["threadId", "runId"])
def test_a_foreign_run_is_refused(name: str):
    with pytest.raises(ProtocolViolation, match=name):
        Producer().emit({**RUN, name: "other"})


def test_nulls_of_optional_fields_are_left_out_and_those_of_data_stay():
    producer = Producer()
    [event] = producer.emit({"type": "CUSTOM", "name": "n", "value": {"a": None}, "timestamp": None, "metadata": None})
    assert event == {"type": "CUSTOM", "name": "n", "value": {"a": None}, "timestamp": 1700}
    assert producer.emit({"type": "CUSTOM", "name": "n", "value": None})[0]["value"] is None
    [snapshot] = producer.emit({
        "type": "MESSAGES_SNAPSHOT",
        "messages": [{"id": "a", "role": "assistant", "content": None, "name": None, "toolCalls": None}],
    })  # fmt: skip
    assert snapshot["messages"] == [{"id": "a", "role": "assistant"}]


def test_nan_becomes_null_and_other_values_are_refused():
    producer = Producer()
    [event] = producer.emit({"type": "STATE_SNAPSHOT", "snapshot": {"x": float("nan"), "y": [float("-inf")]}})
    assert event["snapshot"] == {"x": None, "y": [None]}
    with pytest.raises(NotJson):
        producer.emit({"type": "CUSTOM", "name": "n", "value": object()})


def test_an_empty_delta_is_dropped_unless_it_carries_metadata():
    producer = Producer()
    producer.emit(text("START"))
    assert producer.emit(text("CONTENT", delta="")) == []
    assert len(producer.emit(text("CONTENT", delta="", metadata={"finish": "stop"}))) == 1
    with pytest.raises(ProtocolViolation):
        producer.emit({"type": "TEXT_MESSAGE_CONTENT", "messageId": "unknown", "delta": ""})


def test_an_identical_second_result_is_dropped_and_another_refused():
    producer = Producer()
    call = {"toolCallId": "c"}
    producer.emit({"type": "TOOL_CALL_START", **call, "toolCallName": "f"}, {"type": "TOOL_CALL_END", **call})
    result = {"type": "TOOL_CALL_RESULT", "messageId": "r1", **call, "content": "ok"}
    assert len(producer.emit(result)) == 1
    assert producer.emit({**result, "messageId": "r2"}) == []
    with pytest.raises(ProtocolViolation, match="another result"):
        producer.emit({**result, "content": "other"})


def test_a_continuation_after_end_is_opened_again():
    producer = Producer()
    producer.emit(text("START", role="assistant", name="Ada"), text("CONTENT", delta="A"), text("END"))
    reopened = producer.emit(text("CONTENT", delta="B"), text("CONTENT", delta="C"))
    assert [event["type"] for event in reopened] == [
        "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_CONTENT"
    ]  # fmt: skip
    assert reopened[0]["name"] == "Ada"
    assert producer.types()[-1] == "TEXT_MESSAGE_CONTENT"
    producer.end()
    assert producer.types()[-2:] == ["TEXT_MESSAGE_END", "RUN_FINISHED"]
    assert producer.reducer.messages == [{"id": "m", "role": "assistant", "name": "Ada", "content": "ABC"}]
    same_at_a_client(producer)


def test_the_agent_may_open_and_close_what_was_opened_again():
    producer = Producer()
    producer.emit(text("START"), text("CONTENT", delta="A"), text("END"), text("CONTENT", delta="B"))
    assert producer.emit(text("START")) == []
    producer.emit(text("CONTENT", delta="C"), text("END"))
    producer.end()
    assert producer.reducer.messages[0]["content"] == "ABC"
    same_at_a_client(producer)


def test_arguments_after_the_calls_end_open_it_again():
    producer = Producer()
    call = {"toolCallId": "c"}
    producer.emit(
        {"type": "TOOL_CALL_START", **call, "toolCallName": "f", "parentMessageId": "p"},
        {"type": "TOOL_CALL_ARGS", **call, "delta": "{"},
        {"type": "TOOL_CALL_END", **call},
        {"type": "TOOL_CALL_ARGS", **call, "delta": "}"},
    )
    producer.end()
    assert producer.types().count("TOOL_CALL_START") == 2
    assert producer.reducer.messages[0]["toolCalls"][0]["function"] == {"name": "f", "arguments": "{}"}
    same_at_a_client(producer)


def test_chunks_are_expanded_before_they_are_recorded():
    producer = Producer()
    producer.emit({"type": "TEXT_MESSAGE_CHUNK", "messageId": "m", "delta": "a"})
    producer.emit({"type": "RAW", "event": 1}, {"type": "TEXT_MESSAGE_CHUNK", "delta": "b"})
    producer.emit({"type": "CUSTOM", "name": "n", "value": 1})
    assert producer.types()[1:] == [
        "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "RAW", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "CUSTOM"
    ]  # fmt: skip
    same_at_a_client_after_end(producer)


def same_at_a_client_after_end(producer: Producer) -> None:
    producer.end()
    same_at_a_client(producer)


def test_a_character_cut_in_two_is_joined():
    producer = Producer()
    producer.emit(text("START"), text("CONTENT", delta="a"), text("CONTENT", delta="b\ud83d"))
    producer.emit(text("CONTENT", delta="\ude00c"), text("CONTENT", delta="d"), text("END"))
    assert producer.reducer.messages[0]["content"] == "ab\U0001f600cd"
    same_at_a_client_after_end(producer)


def test_half_a_character_at_the_end_is_replaced():
    producer = Producer()
    producer.emit(text("START"), text("CONTENT", delta="a\ud83d"), text("END"))
    assert producer.reducer.messages[0]["content"] == "a\ufffd"
    same_at_a_client_after_end(producer)


def test_nul_and_lone_surrogates_are_replaced_on_both_ways():
    producer = Producer()
    producer.emit(text("START"), text("CONTENT", delta="a"), text("CONTENT", delta="b\0"))
    producer.emit(text("CONTENT", delta="\udc00x"), {"type": "CUSTOM", "name": "n", "value": {"k\0": "v\ud800"}})
    assert producer.out[-1]["value"] == {"k\ufffd": "v\ufffd"}
    producer.emit(text("END"))
    assert producer.reducer.messages[0]["content"] == "ab\ufffd\ufffdx"
    same_at_a_client_after_end(producer)


def test_a_patch_that_does_not_apply_becomes_the_truth():
    producer = Producer(state={"a": 1})
    [event] = producer.emit({"type": "STATE_DELTA", "delta": [{"op": "replace", "path": "/b", "value": 1}]})
    assert event == {"type": "STATE_SNAPSHOT", "snapshot": {"a": 1}, "timestamp": 1700}
    assert any("STATE_DELTA" in warning for warning in producer.warnings)
    same_at_a_client_after_end_with(producer, {"a": 1})


def same_at_a_client_after_end_with(producer: Producer, state: Any) -> None:
    producer.end()
    same_at_a_client(producer, state=state)


def test_a_patch_that_applies_is_sent_as_it_is():
    producer = Producer(state={"user/name": "x", "a~b": 1})
    ops = [{"op": "replace", "path": "/user~1name", "value": "y"}, {"op": "replace", "path": "/a~0b", "value": 2}]
    [event] = producer.emit({"type": "STATE_DELTA", "delta": ops})
    assert event["delta"] == ops
    assert producer.reducer.state == {"user/name": "y", "a~b": 2}


def test_an_activity_patch_that_does_not_apply_becomes_the_truth():
    producer = Producer()
    head = {"messageId": "a", "activityType": "search"}
    producer.emit({"type": "ACTIVITY_SNAPSHOT", **head, "content": {"n": 1}})
    delta = {"type": "ACTIVITY_DELTA", **head, "patch": [{"op": "remove", "path": "/x"}]}
    [event] = producer.emit(delta)
    assert event == {"type": "ACTIVITY_SNAPSHOT", **head, "content": {"n": 1}, "timestamp": 1700}
    assert producer.emit({**delta, "messageId": "unknown"}) == []
    same_at_a_client_after_end(producer)


def test_unknown_types_are_dropped_and_unknown_fields_stripped_with_a_warning():
    producer = Producer()
    assert producer.emit({"type": "SOMETHING_NEW"}) == []
    [event] = producer.emit({"type": "CUSTOM", "name": "n", "value": 1, "extra": 1})
    assert "extra" not in event
    assert len(producer.warnings) == 2


def test_events_behind_the_agents_own_end_are_dropped():
    producer = Producer()
    producer.emit({"type": "RUN_FINISHED", "threadId": "t", "runId": "r"})
    assert producer.emit({"type": "CUSTOM", "name": "n", "value": 1}, {"type": "RUN_ERROR", "message": "x"}) == []
    assert len(producer.warnings) == 2
    assert producer.normaliser.own_terminal is not None


def test_after_an_illegal_event_every_other_is_refused_but_closings_pass():
    producer = Producer()
    producer.emit(text("START"), text("CONTENT", delta="a"))
    with pytest.raises(ProtocolViolation):
        producer.emit(text("START"))
    for event in (text("CONTENT", delta="b"), {"type": "CUSTOM", "name": "n", "value": 1}):
        with pytest.raises(ProtocolViolation):
            producer.emit(event)
    producer.out += producer.normaliser.close_item(text("END"))
    assert producer.types()[-1] == "TEXT_MESSAGE_END"


def test_official_models_are_read_by_their_fields():
    interrupt = Interrupt(id="i", reason="r", response_schema={"type": "string"})
    finished = RunFinishedEvent(
        thread_id="t",
        run_id="r",
        outcome=RunFinishedInterruptOutcome(type="interrupt", interrupts=[interrupt]),
        usage=[TokenUsage(model="m", input_tokens=1)],
    )
    models = [
        TextMessageStartEvent(message_id="m", role="assistant"),
        TextMessageContentEvent(message_id="m", delta="x", raw_event={"a": None}, timestamp=3),
        CustomEvent(name="n", value=None),
        CustomEvent(name="n", value=1, extra_field={"b": [1]}),
        StateDeltaEvent(delta=[{"op": "add", "path": "/a", "value": None}]),
        finished,
    ]
    for model in models:
        assert read_model(model) == model.model_dump(mode="json", by_alias=True)


def test_a_type_may_be_the_official_enum():
    assert Producer().emit({"type": EventType.CUSTOM, "name": "n", "value": 1})[0]["type"] == "CUSTOM"


def test_the_short_way_takes_plain_deltas_of_open_items_only():
    producer = Producer()
    fast = producer.normaliser.fast
    producer.emit(text("START"), text("CONTENT", delta="first"))
    assert fast(text("CONTENT", delta="more \u00fc")) == (
        '{"type":"TEXT_MESSAGE_CONTENT","messageId":"m","delta":"more \u00fc","timestamp":1700}'
    )
    for event in (
        text("CONTENT", delta=""), text("CONTENT", delta=7), text("CONTENT", delta="\0"),
        text("CONTENT", delta="\ud800"),
        text("CONTENT"), {**text("CONTENT", delta="x"), "messageId": "other"}, {**text("CONTENT"), "messageId": []},
        text("CONTENT", delta="x", metadata={}), text("END"), {"type": []}, 7, None,
    ):  # fmt: skip
        assert fast(event) is None
    producer.emit(text("END"))
    assert fast(text("CONTENT", delta="x")) is None


def test_the_short_way_ends_with_its_item():
    producer = Producer()
    producer.emit(text("START", role="assistant"), text("CONTENT", delta="a"))
    held = producer.normaliser.delta_of("TEXT_MESSAGE_CONTENT", "m")
    assert held is not None
    assert producer.normaliser.piece(held, "b") is not None
    producer.emit(text("END"))
    assert producer.normaliser.piece(held, "c") is None
    assert producer.reducer.messages[0]["content"] == "ab"


@pytest.mark.parametrize("seed", range(30))
def test_the_short_way_equals_the_long_one(seed: int):
    random_ = random.Random(seed)
    pieces = ["a", "\u00e9", "\U0001f600", "\ud83d", "\ude00", "\0", "", " ", '"', "\\", "\n", "\u2028"]
    events: list[Wire] = []
    for _ in range(200):
        item = random_.choice("xyz")
        kind = random_.choice(["START", "CONTENT", "CONTENT", "CONTENT", "CONTENT", "END"])
        prefix, field = random_.choice([("TEXT_MESSAGE", "messageId"), ("TOOL_CALL", "toolCallId")])
        event: Wire = {"type": f"{prefix}_{kind}", field: f"{prefix}{item}"}
        if prefix == "TOOL_CALL":
            event["type"] = event["type"].replace("CONTENT", "ARGS")
            if kind == "START":
                event["toolCallName"] = "f"
        if kind == "CONTENT":
            event["delta"] = "".join(random_.choices(pieces, k=random_.randint(0, 3)))
        events.append(event)
    short, long = Producer(), Producer()
    for event in events:
        try:
            expected = long.normaliser.accept(dict(event))
        except ProtocolViolation:
            long.normaliser.violation = short.normaliser.violation = None
            with pytest.raises(ProtocolViolation):
                short.emit(dict(event))
            long.normaliser.violation = short.normaliser.violation = None
            short.normaliser._short.blocked = long.normaliser._short.blocked
            continue
        long.out += expected
        assert short.emit(dict(event)) == expected
    assert short.reducer.messages == long.reducer.messages
    same_at_a_client_after_end(short)
