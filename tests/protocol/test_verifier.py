"""The order of events: the specification's sequence rules, one row each, and two machines.

Verdicts of rows marked TS are those of the official TypeScript verifier where the specification leaves them open.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agui_django.protocol.enforcement import enforce
from agui_django.protocol.errors import ProtocolViolation
from agui_django.protocol.events import CHUNKS, EVENT_TYPES, FAMILIES
from agui_django.protocol.verifier import OpenItem, SequenceVerifier
from tests.protocol.shapes import least

Event = dict[str, Any]
RUN = {"threadId": "t", "runId": "r"}
BEGIN: Event = {"type": "RUN_STARTED", **RUN}
FINISH: Event = {"type": "RUN_FINISHED", **RUN}
ERROR: Event = {"type": "RUN_ERROR", "message": "x"}


def ev(type: str, id: str = "", by: str | None = None, **more: Any) -> Event:
    """A short spelling: TEXT+ TEXT TEXT- CALL+ ... for START, CONTENT, END."""
    short = {
        "TEXT+": "TEXT_MESSAGE_START", "TEXT": "TEXT_MESSAGE_CONTENT", "TEXT-": "TEXT_MESSAGE_END",
        "CALL+": "TOOL_CALL_START", "CALL": "TOOL_CALL_ARGS", "CALL-": "TOOL_CALL_END",
        "SPAN+": "REASONING_START", "SPAN-": "REASONING_END",
        "THINK+": "REASONING_MESSAGE_START", "THINK": "REASONING_MESSAGE_CONTENT", "THINK-": "REASONING_MESSAGE_END",
        "STEP+": "STEP_STARTED", "STEP-": "STEP_FINISHED", "SUB+": "SUBAGENT_STARTED", "SUB-": "SUBAGENT_FINISHED",
        "SUB!": "SUBAGENT_ERROR", "RESULT": "TOOL_CALL_RESULT", "SEAL": "REASONING_ENCRYPTED_VALUE",
    }  # fmt: skip
    kind = short.get(type, type)
    event = least(kind)
    for field in ("toolCallId", "messageId", "stepName", "subagentRunId", "entityId"):
        if field in event:
            event[field] = id
            break
    if by is not None:
        event["subagentRunId"] = by
    event.update(more)
    assert enforce(event, pytest.fail) is event
    return event


def result(call: str, message: str = "result", by: str | None = None) -> Event:
    return ev("RESULT", call, by, messageId=message)


def snapshot(*messages: Event) -> Event:
    return ev("MESSAGES_SNAPSHOT", messages=list(messages))


def said(id: str, by: str | None = None, calls: tuple[str, ...] = (), role: str = "assistant") -> Event:
    message: Event = {"id": id, "role": role, "content": "x"}
    if role == "activity":
        message |= {"content": {}, "activityType": "a"}
    if by is not None:
        message["subagentRunId"] = by
    if calls:
        function = {"name": "f", "arguments": ""}
        message["toolCalls"] = [{"id": call, "type": "function", "function": function} for call in calls]
    return message


def verdict(*events: Event, **options: Any) -> tuple[int, str] | None:
    """Index and text of the refusal, or None."""
    verifier = SequenceVerifier(**options)
    for index, event in enumerate(events):
        try:
            verifier.feed(event)
        except ProtocolViolation as violation:
            assert violation.event_type == event["type"]
            return index, str(violation)
    return None


# ---- legal ---------------------------------------------------------------------------------------------------------

LEGAL: dict[str, list[Event]] = {
    "an empty run": [],
    "a message": [ev("TEXT+", "m"), ev("TEXT", "m"), ev("TEXT-", "m")],
    "a closed message is not sealed": [ev("TEXT+", "m"), ev("TEXT-", "m"), ev("TEXT+", "m"), ev("TEXT-", "m")],
    "a closed call is not sealed": [ev("CALL+", "c"), ev("CALL-", "c"), ev("CALL+", "c"), ev("CALL-", "c")],
    "items interleave": [
        ev("TEXT+", "m"), ev("CALL+", "c"), ev("STEP+", "s"), ev("THINK+", "t"), ev("TEXT", "m"), ev("CALL", "c"),
        ev("TEXT-", "m"), ev("STEP-", "s"), ev("THINK", "t"), ev("CALL-", "c"), ev("THINK-", "t"),
    ],
    "a span and its message share an id": [ev("SPAN+", "x"), ev("THINK+", "x"), ev("THINK-", "x"), ev("SPAN-", "x")],
    "a message and a call share an id": [ev("TEXT+", "x"), ev("CALL+", "x"), ev("TEXT-", "x"), ev("CALL-", "x")],
    "standalone events anywhere": [
        ev("TEXT+", "m"), *(ev(kind, "q") for kind in (
            "STATE_SNAPSHOT", "STATE_DELTA", "MESSAGES_SNAPSHOT", "ACTIVITY_SNAPSHOT", "ACTIVITY_DELTA", "CUSTOM",
            "RAW", "SEAL",
        )), ev("TEXT-", "m"),
    ],
    "a result for a call of an earlier run": [result("elsewhere")],
    "attribution without announcement": [
        ev("TEXT+", "m", "s"), ev("TEXT", "m", "s"), ev("TEXT", "m"), ev("TEXT-", "m"),
    ],
    "tags of a finished subagent (TS)": [
        ev("SUB+", "s"), ev("SUB-", "s"), ev("TEXT+", "m", "s"), ev("TEXT-", "m", "s"),
    ],
    "steps of the same name per owner": [
        ev("STEP+", "x"), ev("STEP+", "x", "s"), ev("STEP+", "x", ""), ev("STEP-", "x"), ev("STEP-", "x", ""),
        ev("STEP-", "x", "s"),
    ],
    "nested and parallel subagents": [
        ev("SUB+", "a"), ev("SUB+", "b"), ev("SUB+", "c", parentSubagentRunId="a"), ev("SUB-", "a"),
        ev("SUB+", "d", parentSubagentRunId="a"), ev("SUB!", "b"), ev("SUB-", "d"), ev("SUB-", "c"),
    ],
    "a call of its message's owner": [ev("TEXT+", "m", "s"), ev("CALL+", "c", "s", parentMessageId="m"),
                                      ev("CALL", "c"), ev("CALL-", "c", "s"), ev("TEXT-", "m")],
    "a call inherits its message's owner (TS)": [ev("TEXT+", "m", "s"), ev("TEXT-", "m"),
                                                 ev("CALL+", "c", parentMessageId="m"), ev("CALL-", "c", "s")],
    "an untagged reopening keeps the owner (TS)": [ev("TEXT+", "m", "s"), ev("TEXT-", "m"), ev("TEXT+", "m"),
                                                   ev("TEXT", "m", "s"), ev("TEXT-", "m", "s")],
    "a snapshot gives messages new owners (TS)": [ev("TEXT+", "m"), ev("TEXT-", "m"), snapshot(said("m", "s")),
                                                  ev("TEXT+", "m", "s"), ev("TEXT-", "m", "s")],
    "a replacing activity is re-owned (TS)": [ev("ACTIVITY_SNAPSHOT", "a", "s"), ev("ACTIVITY_SNAPSHOT", "a", "r"),
                                              ev("ACTIVITY_DELTA", "a", "r")],
}  # fmt: skip


@pytest.mark.parametrize("producer", [False, True], ids=["consumer", "producer"])
@pytest.mark.parametrize("name", LEGAL)
def test_legal(name: str, producer: bool) -> None:
    assert verdict(BEGIN, *LEGAL[name], FINISH, producer=producer) is None


# ---- illegal: the last event is the one refused ---------------------------------------------------------------------

ILLEGAL: dict[str, tuple[list[Event], str]] = {
    "content without start": ([ev("TEXT", "m1")], "m1"),
    "end without start": ([ev("TEXT-", "m1")], "m1"),
    "content after end": ([ev("TEXT+", "m1"), ev("TEXT-", "m1"), ev("TEXT", "m1")], "m1"),
    "start of an open message": ([ev("TEXT+", "m1"), ev("TEXT+", "m1")], "m1"),
    "arguments without start": ([ev("CALL", "c1")], "c1"),
    "end of an unknown call": ([ev("CALL-", "c1")], "c1"),
    "start of an open call": ([ev("CALL+", "c1"), ev("CALL+", "c1")], "c1"),
    "reasoning content without start": ([ev("SPAN+", "x1"), ev("THINK", "x1")], "x1"),
    "reasoning message end without start": ([ev("SPAN+", "x1"), ev("THINK-", "x1")], "x1"),
    "span end without start": ([ev("THINK+", "x1"), ev("SPAN-", "x1")], "x1"),
    "span of an open id": ([ev("SPAN+", "x1"), ev("SPAN+", "x1")], "x1"),
    "reasoning message of an open id": ([ev("THINK+", "x1"), ev("THINK+", "x1")], "x1"),
    "step twice": ([ev("STEP+", "s1"), ev("STEP+", "s1")], "s1"),
    "step never started": ([ev("STEP-", "s1")], "not started"),
    "step of another": ([ev("STEP+", "s1"), ev("STEP-", "s1", "sub")], "started by another"),
    "step of another, untagged": ([ev("STEP+", "s1", "sub"), ev("STEP-", "s1")], "started by another"),
    "nested run": ([BEGIN], "active"),
    "subagent twice": ([ev("SUB+", "s1"), ev("SUB+", "s1")], "s1"),
    "subagent id used again": ([ev("SUB+", "s1"), ev("SUB-", "s1"), ev("SUB+", "s1")], "s1"),
    "subagent never started": ([ev("SUB-", "s1")], "s1"),
    "subagent error, never started": ([ev("SUB!", "s1")], "s1"),
    "subagent ended twice": ([ev("SUB+", "s1"), ev("SUB!", "s1"), ev("SUB-", "s1")], "s1"),
    "unknown parent invocation": ([ev("SUB+", "s1", parentSubagentRunId="p1")], "p1"),
    "its own parent": ([ev("SUB+", "s1", parentSubagentRunId="s1")], "s1"),
    "another's message": ([ev("TEXT+", "m1", "s"), ev("TEXT", "m1", "r")], "does not match"),
    "the parent's message": ([ev("TEXT+", "m1"), ev("TEXT", "m1", "s")], "does not match"),
    "another ends the message": ([ev("TEXT+", "m1", "s"), ev("TEXT-", "m1", "r")], "does not match"),
    "another reopens the message": ([ev("TEXT+", "m1", "s"), ev("TEXT-", "m1"), ev("TEXT+", "m1", "r")], "m1"),
    "another's call": ([ev("CALL+", "c1", "s"), ev("CALL", "c1", "r")], "does not match"),
    "another's reasoning": ([ev("THINK+", "x1", "s"), ev("THINK", "x1", "r")], "does not match"),
    "span and message of two owners (TS)": ([ev("SPAN+", "x1", "s"), ev("THINK+", "x1", "r")], "x1"),
    "another's activity": ([ev("ACTIVITY_SNAPSHOT", "a1", "s"), ev("ACTIVITY_DELTA", "a1", "r")], "a1"),
    "an activity that was not replaced (TS)": (
        [ev("ACTIVITY_SNAPSHOT", "a1"), ev("ACTIVITY_SNAPSHOT", "a1", "s", replace=False),
         ev("ACTIVITY_DELTA", "a1", "s")],
        "a1",
    ),
    "a call not of its message's owner": ([ev("TEXT+", "m1", "s"), ev("CALL+", "c1", "r", parentMessageId="m1")], "m1"),
    "a subagent's call in the parent's message": (
        [ev("TEXT+", "m1"), ev("CALL+", "c1", "s", parentMessageId="m1")], "m1",
    ),
    "a reopened call under another's message (TS)": (
        [ev("TEXT+", "m1", "s"), ev("CALL+", "c1"), ev("CALL-", "c1"), ev("CALL+", "c1", parentMessageId="m1")], "c1",
    ),
    "another's sealed value": (
        [ev("CALL+", "c1", "s"), ev("CALL-", "c1"), ev("SEAL", "c1", "r", subtype="tool-call")], "c1",
    ),
    "another's sealed thought": ([ev("THINK+", "x1", "s"), ev("SEAL", "x1", "r", subtype="message")], "x1"),
    "a message minted by another's result (TS)": ([result("c", "m1", "s"), ev("TEXT+", "m1", "r")], "m1"),
    "a snapshot's message": ([snapshot(said("m1", "s")), ev("TEXT+", "m1", "r")], "m1"),
    "a snapshot's call": ([snapshot(said("m", "s", ("c1",))), ev("CALL+", "c1", "r")], "c1"),
    "a snapshot's reasoning": ([snapshot(said("x1", "s", role="reasoning")), ev("THINK+", "x1", "r")], "x1"),
    "a snapshot's activity": ([snapshot(said("a1", "s", role="activity")), ev("ACTIVITY_DELTA", "a1", "r")], "a1"),
    "a snapshot re-owns what is open (TS)": (
        [ev("TEXT+", "m1"), snapshot(said("m1", "s")), ev("TEXT", "m1", "r")], "m1",
    ),
    "open message at the end": ([ev("TEXT+", "m1"), FINISH], "m1"),
    "open call at the end": ([ev("CALL+", "c1"), FINISH], "c1"),
    "open span at the end": ([ev("SPAN+", "x1"), FINISH], "x1"),
    "open reasoning message at the end": ([ev("THINK+", "x1"), FINISH], "x1"),
    "open step at the end": ([ev("STEP+", "s1"), FINISH], "s1"),
    "active subagent at the end": ([ev("SUB+", "s1"), FINISH], "s1"),
    "event after the end": ([FINISH, ev("TEXT+", "m1")], "RUN_FINISHED"),
    "standalone event after the end": ([FINISH, ev("CUSTOM")], "RUN_FINISHED"),
    "second end": ([FINISH, FINISH], "RUN_FINISHED"),
    "event after the error": ([ERROR, ev("CUSTOM")], "RUN_ERROR"),
    "end after the error": ([ERROR, FINISH], "RUN_ERROR"),
    "second error": ([ERROR, ERROR], "RUN_ERROR"),
    "another run's end": ([{**FINISH, "runId": "other"}], "runId"),
    "another thread's end": ([{**FINISH, "threadId": "other"}], "threadId"),
    "two interrupts of one id": (
        [{**FINISH, "outcome": {"type": "interrupt", "interrupts": [{"id": "i1", "reason": why} for why in "ab"]}}],
        "i1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("producer", [False, True], ids=["consumer", "producer"])
@pytest.mark.parametrize("name", ILLEGAL)
def test_illegal(name: str, producer: bool) -> None:
    events, named = ILLEGAL[name]
    refusal = verdict(BEGIN, *events, producer=producer)
    assert refusal is not None
    assert refusal[0] == len(events)
    assert named in refusal[1]


@pytest.mark.parametrize("kind", [kind for kind in EVENT_TYPES if kind not in CHUNKS and kind[:5] != "RUN_S"])
def test_first_event(kind: str) -> None:
    refusal = verdict(least(kind))
    assert (refusal is None) == (kind == "RUN_ERROR")


# ---- several runs, and the producer's one ----------------------------------------------------------------------------


def test_runs_in_sequence() -> None:
    second = {**BEGIN, "runId": "r2"}
    assert verdict(BEGIN, FINISH, second, {**FINISH, "runId": "r2"}) is None
    assert verdict(BEGIN, ERROR, second, ERROR, BEGIN, FINISH) is None
    assert verdict(ERROR, BEGIN, FINISH) is None
    assert verdict(BEGIN, FINISH, ERROR) is None, "a failure that surfaced late"
    assert verdict(BEGIN, FINISH, ERROR, ERROR) == (
        3,
        "Cannot send RUN_ERROR: the run has already ended with RUN_ERROR.",
    )
    # nothing stays open and nobody owns anything across the boundary
    assert verdict(BEGIN, ev("TEXT+", "m", "s"), ERROR, second, ev("TEXT+", "m", "r"), ev("TEXT-", "m", "r"),
                   ev("SUB+", "s"), ev("SUB-", "s"), {**FINISH, "runId": "r2"}) is None  # fmt: skip
    # but for what the echoed input tells
    echo = {**second, "input": {**RUN, "messages": [said("m", "s")]}}
    assert (verdict(BEGIN, FINISH, echo, ev("TEXT+", "m", "r")) or (0, ""))[0] == 3


def test_a_stream_is_about_one_thread() -> None:
    other = {**BEGIN, "threadId": "other"}
    assert (verdict(BEGIN, FINISH, other) or (0, ""))[0] == 2
    assert (verdict(other, thread_id="t") or (1, ""))[0] == 0
    assert verdict({**BEGIN, "runId": "replayed"}, thread_id="t", run_id="r") is None


def test_a_producer_has_one_run() -> None:
    assert verdict(BEGIN, FINISH, BEGIN, producer=True) == (
        2, "Cannot send RUN_STARTED: the run has already ended with RUN_FINISHED.",
    )  # fmt: skip
    assert (verdict(BEGIN, FINISH, ERROR, producer=True) or (0, ""))[0] == 2
    assert verdict(ERROR, producer=True) is None
    assert (verdict(ERROR, BEGIN, producer=True) or (0, ""))[0] == 1
    assert (verdict({**BEGIN, "runId": "x"}, producer=True, thread_id="t", run_id="r") or (1, ""))[0] == 0
    assert verdict(BEGIN, FINISH, producer=True, thread_id="t", run_id="r") is None


@pytest.mark.parametrize(
    ("pending", "legal"),
    [(["c1", "c3"], True), (["c3", "c1"], True), (["c1"], False), ([], False), (["c1", "c2", "c3"], False),
     (["c1", "c3", "c3"], False)],
)  # fmt: skip
def test_pending_calls_must_be_told_truly(pending: list[str], legal: bool) -> None:
    events = [BEGIN]
    for call in ("c1", "c2", "c3"):
        events += [ev("CALL+", call), ev("CALL-", call)]
    events += [result("c2"), {**FINISH, "outcome": {"type": "success", "pendingToolCallIds": pending}}]
    refusal = verdict(*events, producer=True)
    assert (refusal is None) == legal
    assert refusal is None or "pendingToolCallIds" in refusal[1]
    # a consumer derives them itself (events/tool-calls.mdx)
    assert verdict(*events) is None


# ---- what is open ----------------------------------------------------------------------------------------------------


def fed(*events: Event, **options: Any) -> SequenceVerifier:
    verifier = SequenceVerifier(**options)
    for event in events:
        verifier.feed(event)
    return verifier


def test_state_of_the_run() -> None:
    verifier = SequenceVerifier()
    assert (verifier.started, verifier.terminal) == (False, None)
    verifier.feed(BEGIN)
    assert (verifier.started, verifier.terminal) == (True, None)
    verifier.feed(FINISH)
    assert verifier.terminal == "RUN_FINISHED"
    verifier.feed(BEGIN)
    assert verifier.terminal is None
    verifier.feed(ev("TEXT+", "m"))
    verifier.feed(ERROR)
    assert verifier.terminal == "RUN_ERROR"
    assert verifier.open_items() == []


def test_open_and_closed_items() -> None:
    verifier = fed(BEGIN, ev("TEXT+", "m", "s"), ev("CALL+", "c"), ev("STEP+", "x", "s"), ev("TEXT-", "m"))
    assert verifier.open_items() == [OpenItem("tool_call", "c"), OpenItem("step", "x", "s", "s")]
    assert verifier.is_open("tool_call", "c")
    assert not verifier.is_open("text", "m")
    assert verifier.was_closed("text", "m")
    assert not verifier.was_closed("tool_call", "c")
    assert not verifier.was_closed("text", "never")
    assert verifier.is_open("step", "x", "s")
    assert not verifier.is_open("step", "x")
    verifier.feed(ev("TEXT+", "m"))
    assert verifier.is_open("text", "m")
    assert not verifier.was_closed("text", "m")


def test_unanswered_calls_in_the_order_they_were_made() -> None:
    verifier = fed(BEGIN, ev("CALL+", "b"), ev("CALL-", "b"), ev("CALL+", "a"), ev("CALL+", "c"), result("c"))
    assert verifier.unanswered_calls == ["b", "a"]
    verifier.feed(result("b", "r2"))
    assert verifier.unanswered_calls == ["a"]
    # an answer known from a snapshot is none of this run's results
    verifier.feed(snapshot({"id": "x", "role": "tool", "toolCallId": "a", "content": ""}))
    assert verifier.unanswered_calls == ["a"]


def test_closing_events_close_the_innermost_first() -> None:
    verifier = fed(
        BEGIN, ev("STEP+", "x"), ev("SUB+", "s"), ev("STEP+", "y", "s"), ev("TEXT+", "m", "s"), ev("SPAN+", "p"),
        ev("THINK+", "p"), ev("CALL+", "c", parentMessageId="m"), producer=True,
    )  # fmt: skip
    closing = verifier.closing_events()
    assert closing == [
        {"type": "TOOL_CALL_END", "toolCallId": "c"},
        {"type": "REASONING_MESSAGE_END", "messageId": "p"},
        {"type": "REASONING_END", "messageId": "p"},
        {"type": "TEXT_MESSAGE_END", "messageId": "m", "subagentRunId": "s"},
        {"type": "STEP_FINISHED", "stepName": "y", "subagentRunId": "s"},
        {"type": "SUBAGENT_FINISHED", "subagentRunId": "s"},
        {"type": "STEP_FINISHED", "stepName": "x"},
    ]
    assert len(verifier.open_items()) == 7, "they are not fed"
    for event in closing:
        verifier.feed(event)
    assert verifier.closing_events() == []
    verifier.feed(FINISH)


def test_subagents_close_behind_what_is_theirs() -> None:
    """Though the message was opened before its subagent was announced, and the inner subagent before a step."""
    verifier = fed(
        BEGIN, ev("TEXT+", "m", "s"), ev("SUB+", "s"), ev("SUB+", "inner", parentSubagentRunId="s"), ev("STEP+", "x"),
    )  # fmt: skip
    ids = [
        event.get("stepName") or event.get("messageId") or event["subagentRunId"] for event in verifier.closing_events()
    ]
    assert ids == ["x", "inner", "m", "s"]


def test_subagents_end_as_the_run_does() -> None:
    verifier = fed(BEGIN, ev("SUB+", "a"), ev("SUB+", "b", parentSubagentRunId="a"), ev("SUB+", "c"))
    assert verifier.closing_events(error="It failed.") == [
        {"type": "SUBAGENT_ERROR", "subagentRunId": id, "message": "It failed."} for id in ("c", "b", "a")
    ]
    assert verifier.closing_events(suspended={"b": ["i1"], "a": []}) == [
        {"type": "SUBAGENT_FINISHED", "subagentRunId": "c"},
        {"type": "SUBAGENT_FINISHED", "subagentRunId": "b", "outcome": {"type": "suspended", "interruptIds": ["i1"]}},
        {"type": "SUBAGENT_FINISHED", "subagentRunId": "a", "outcome": {"type": "suspended"}},
    ]


def test_a_delta_takes_the_same_steps_however_much_is_open() -> None:
    def steps(count: int) -> int:
        verifier = fed(BEGIN, *(ev("TEXT+", f"m{number}") for number in range(count)))
        delta = ev("TEXT", f"m{count // 2}")
        seen = 0

        def trace(frame: Any, event: str, arg: Any) -> Any:
            nonlocal seen
            frame.f_trace_opcodes = True
            seen += event == "opcode"
            return trace

        outer = sys.gettrace()
        sys.settrace(trace)
        try:
            verifier.feed(delta)
        finally:
            sys.settrace(outer)
        return seen

    assert 0 < steps(1) == steps(5000)


# ---- machines --------------------------------------------------------------------------------------------------------

IDS = st.sampled_from(["a", "b", "c"])
OWNERS = st.sampled_from([None, None, "s", "u", ""])
STREAMED = ("text", "tool_call", "reasoning", "reasoning_message")


class LegalStreams(RuleBasedStateMachine):
    """Plays legal streams, kept by a model of its own: all are accepted, and the verifier's account is the model's."""

    def __init__(self) -> None:
        super().__init__()
        self.verifiers = [SequenceVerifier(), SequenceVerifier(producer=True, thread_id="t", run_id="r")]
        self.open: list[tuple[str, str, str | None]] = []  # kind, id, owner
        self.owner: dict[tuple[str, str], str | None] = {}
        self.ended: set[str] = set()
        self.calls: list[str] = []
        self.results: set[str] = set()
        self.over = False

    def feed(self, event: Event) -> None:
        assert enforce(event, pytest.fail) is event
        for verifier in self.verifiers:
            verifier.feed(event)

    @initialize()
    def begin(self) -> None:
        self.feed(BEGIN)

    def tag(self, data: st.DataObject, owner: str | None) -> dict[str, Any]:
        """A continuation may leave the tag out, never contradict it."""
        return {} if owner is None or not data.draw(st.booleans()) else {"subagentRunId": owner}

    @precondition(lambda self: not self.over)
    @rule(kind=st.sampled_from(STREAMED), id=IDS, owner=OWNERS, data=st.data())
    def opens(self, kind: str, id: str, owner: str | None, data: st.DataObject) -> None:
        if any(item[:2] == (kind, id) for item in self.open):
            return
        bucket = (kind.removesuffix("_message"), id)  # a span and its message have one owner
        first = bucket not in self.owner
        owner = self.owner.setdefault(bucket, owner)
        tag = {"subagentRunId": owner} if first and owner is not None else self.tag(data, owner)
        self.feed({**least(FAMILIES[kind].opens), FAMILIES[kind].id_field: id, **tag})
        self.open.append((kind, id, owner))
        if kind == "tool_call" and id not in self.calls:
            self.calls.append(id)

    @precondition(lambda self: not self.over and self.open)
    @rule(data=st.data(), ends=st.booleans())
    def goes_on(self, data: st.DataObject, ends: bool) -> None:
        kind, id, owner = item = data.draw(st.sampled_from(self.open))
        family = FAMILIES[kind]
        if kind == "subagent":
            type = data.draw(st.sampled_from(["SUBAGENT_FINISHED", "SUBAGENT_ERROR"]))
            tag = {}
        else:
            type = family.closes if ends or not family.continues else family.continues
            tag = self.tag(data, owner)
        if kind == "step":  # a step's end is tagged exactly as its start
            tag = {} if owner is None else {"subagentRunId": owner}
        self.feed({**least(type), family.id_field: id, **tag})
        if type != family.continues:
            self.open.remove(item)

    @precondition(lambda self: not self.over)
    @rule(name=IDS, owner=OWNERS)
    def step(self, name: str, owner: str | None) -> None:
        if ("step", name, owner) not in self.open:
            self.feed(
                {**least("STEP_STARTED"), "stepName": name, **({} if owner is None else {"subagentRunId": owner})}
            )
            self.open.append(("step", name, owner))

    @precondition(lambda self: not self.over)
    @rule(id=st.sampled_from(["s", "u", "", "v"]), data=st.data())
    def subagent(self, id: str, data: st.DataObject) -> None:
        if id in self.ended:
            return
        parent = data.draw(st.sampled_from([None, *sorted(self.ended)]))
        self.feed({**least("SUBAGENT_STARTED"), "subagentRunId": id,
                   **({} if parent is None else {"parentSubagentRunId": parent})})  # fmt: skip
        self.open.append(("subagent", id, id))
        self.ended.add(id)  # from now on its id is used up

    @precondition(lambda self: not self.over)
    @rule(call=IDS, owner=OWNERS)
    def result(self, call: str, owner: str | None) -> None:
        self.feed(result(call, f"result-{call}", owner))
        self.results.add(call)

    @precondition(lambda self: not self.over)
    @rule(kind=st.sampled_from(["RAW", "CUSTOM", "STATE_SNAPSHOT", "STATE_DELTA", "ACTIVITY_SNAPSHOT"]), owner=OWNERS)
    def standalone(self, kind: str, owner: str | None) -> None:
        self.feed({**least(kind), **({} if owner is None else {"subagentRunId": owner})})

    @precondition(lambda self: not self.over)
    @rule(how=st.sampled_from(["closing events", "error"]))
    def ends(self, how: str) -> None:
        if how == "closing events":
            for event in self.verifiers[1].closing_events():
                self.feed(event)
            pending = [call for call in self.calls if call not in self.results]
            self.feed({**FINISH, "outcome": {"type": "success", "pendingToolCallIds": pending}})
        else:
            self.feed(ERROR)
        self.open.clear()
        self.over = True

    @precondition(lambda self: self.over)
    @rule(kind=st.sampled_from([kind for kind in EVENT_TYPES if kind not in CHUNKS]))
    def too_late(self, kind: str) -> None:
        with pytest.raises(ProtocolViolation):
            self.verifiers[1].feed(least(kind))

    @invariant()
    def account(self) -> None:
        for verifier in self.verifiers:
            assert [(item.kind, item.id, item.subagent_run_id) for item in verifier.open_items()] == self.open
            assert verifier.unanswered_calls == [call for call in self.calls if call not in self.results]
            assert (verifier.terminal is not None) == self.over


LegalStreams.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLegalStreams = LegalStreams.TestCase


@st.composite
def any_event(draw: st.DrawFn) -> Event:
    kind = draw(st.sampled_from([kind for kind in EVENT_TYPES if kind not in CHUNKS]))
    event = least(kind)
    for field in ("messageId", "toolCallId", "stepName", "entityId", "subagentRunId"):
        if field in event:
            event[field] = draw(st.sampled_from(["a", "b"]))
    event |= RUN if "runId" in event else {}
    if kind in {family.opens for family in FAMILIES.values()} | {"TOOL_CALL_RESULT"} and draw(st.booleans()):
        event["parentMessageId" if kind == "TOOL_CALL_START" else "subagentRunId"] = draw(st.sampled_from(["a", "b"]))
    elif draw(st.integers(0, 3)) == 0 and not kind.startswith(("RUN_", "MESSAGES")):
        event["subagentRunId"] = draw(st.sampled_from(["a", "b"]))
    if kind == "MESSAGES_SNAPSHOT":
        event["messages"] = [said(draw(st.sampled_from(["a", "b"])), draw(st.sampled_from([None, "a"])), ("a",))]
    return event


@settings(max_examples=200, deadline=None)
@given(
    events=st.lists(any_event().filter(lambda event: event["type"] not in ("RUN_FINISHED", "RUN_ERROR")), max_size=40),
    error=st.none() | st.just("It failed."),
)
def test_whatever_was_accepted_is_closed_legally(events: list[Event], error: str | None) -> None:
    """Refused events change nothing; what the producer's verifier has let through, closing_events() close."""
    verifier = fed(BEGIN, producer=True)
    accepted = [BEGIN]
    for event in events:
        before = copy.deepcopy((verifier.open_items(), verifier.unanswered_calls, verifier.terminal))
        try:
            verifier.feed(event)
        except ProtocolViolation:
            assert (verifier.open_items(), verifier.unanswered_calls, verifier.terminal) == before
        else:
            accepted.append(event)
    closing = verifier.closing_events(error=error)
    assert len(closing) == len(verifier.open_items())
    for event in closing:
        assert enforce(event, pytest.fail) is event
    stream = [*accepted, *closing, FINISH]
    assert verdict(*stream, producer=True) is None
    assert verdict(*stream) is None
