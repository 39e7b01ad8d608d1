"""Chunk expansion (basic/patterns/streaming.mdx): lanes, first chunks, conflicting repeats, what closes a stream."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agui_django.protocol.chunks import ChunkExpander
from agui_django.protocol.enforcement import enforce
from agui_django.protocol.errors import ProtocolViolation
from agui_django.protocol.events import CHUNKS, EVENT_TYPES
from tests.protocol.shapes import least

Event = dict[str, Any]


def text(delta: str | None = None, **more: Any) -> Event:
    return {"type": "TEXT_MESSAGE_CHUNK", **({} if delta is None else {"delta": delta}), **more}


def call(delta: str | None = None, **more: Any) -> Event:
    return {**text(delta, **more), "type": "TOOL_CALL_CHUNK"}


def thought(delta: str | None = None, **more: Any) -> Event:
    return {**text(delta, **more), "type": "REASONING_MESSAGE_CHUNK"}


def expand(*events: Event) -> list[Event]:
    expander = ChunkExpander()
    return [out for event in events for out in expander.feed(event)] + expander.close_all()


def start(id: str, **more: Any) -> Event:
    return {"type": "TEXT_MESSAGE_START", "messageId": id, "role": "assistant", **more}


def content(id: str, delta: str, **more: Any) -> Event:
    return {"type": "TEXT_MESSAGE_CONTENT", "messageId": id, "delta": delta, **more}


def end(id: str, **more: Any) -> Event:
    return {"type": "TEXT_MESSAGE_END", "messageId": id, **more}


def test_text() -> None:
    assert expand(text("a", messageId="m", name="Ada"), text("b"), text("c", messageId="m", name="Ada")) == [
        start("m", name="Ada"), content("m", "a"), content("m", "b"), content("m", "c"), end("m"),
    ]  # fmt: skip


def test_tool_call() -> None:
    assert expand(call("{", toolCallId="c", toolCallName="f", parentMessageId="m"), call("}", toolCallName="f")) == [
        {"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "f", "parentMessageId": "m"},
        {"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": "{"},
        {"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": "}"},
        {"type": "TOOL_CALL_END", "toolCallId": "c"},
    ]


def test_reasoning() -> None:
    assert expand(thought("hm", messageId="t")) == [
        {"type": "REASONING_MESSAGE_START", "messageId": "t", "role": "reasoning"},
        {"type": "REASONING_MESSAGE_CONTENT", "messageId": "t", "delta": "hm"},
        {"type": "REASONING_MESSAGE_END", "messageId": "t"},
    ]


def test_another_id_opens_another_item_and_the_first_closes_before() -> None:
    assert expand(text("a", messageId="1"), text("b", messageId="2")) == [
        start("1"), content("1", "a"), end("1"), start("2"), content("2", "b"), end("2"),
    ]  # fmt: skip


def test_another_kind_in_the_lane_closes_the_first() -> None:
    types = [event["type"] for event in expand(text("a", messageId="1"), call("x", toolCallId="c", toolCallName="f"))]
    assert types == [
        "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END",
        "TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END",
    ]  # fmt: skip


def test_metadata_and_raw_event_reach_the_item_and_the_timestamp_does_not() -> None:
    meta, raw = {"k": 1}, {"provider": 1}
    assert expand(text(messageId="m", metadata=meta, rawEvent=raw, timestamp=5), text(metadata={"u": 2})) == [
        start("m", metadata=meta),
        content("m", "", metadata=meta, rawEvent=raw),
        content("m", "", metadata={"u": 2}),
        end("m"),
    ]
    # opening without a delta needs no content: the START carries the metadata
    assert expand(text(messageId="m", metadata=meta)) == [start("m", metadata=meta), end("m")]
    # nor does a chunk that closes one item hand it its own metadata
    assert expand(text(messageId="1"), text(messageId="2", metadata=meta))[1] == end("1")


def test_an_empty_continuation_says_nothing() -> None:
    assert expand(text("a", messageId="m"), text(), text(messageId="m", role="assistant")) == [
        start("m"), content("m", "a"), end("m"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("first", "then", "path"),
    [
        (text("a", messageId="m"), text("b", role="user"), "/role"),  # assistant by omission
        (text("a", messageId="m", role="user"), text("b", messageId="m", role="assistant"), "/role"),
        (text("a", messageId="m"), text("b", name="Ada"), "/name"),
        (call("a", toolCallId="c", toolCallName="f"), call("b", toolCallName="g"), "/toolCallName"),
        (call("a", toolCallId="c", toolCallName="f"), call("b", parentMessageId="m"), "/parentMessageId"),
        (text("a", messageId="m"), text("b", messageId="m", subagentRunId="s"), "/subagentRunId"),
        (text("a", messageId="m", subagentRunId="s"), text("b", messageId="m", subagentRunId="r"), "/subagentRunId"),
    ],
)
def test_conflicting_repeats_are_refused(first: Event, then: Event, path: str) -> None:
    with pytest.raises(ProtocolViolation) as caught:
        expand(first, then)
    assert caught.value.path == path
    assert caught.value.event_type == then["type"]


@pytest.mark.parametrize(
    ("chunk", "missing"),
    [(text("a"), "messageId"), (thought("a"), "messageId"), (call("a"), "toolCallId"),
     (call("a", toolCallName="f"), "toolCallId"), (call("a", toolCallId="c"), "toolCallName")],
)  # fmt: skip
def test_the_first_chunk_must_carry_its_ids(chunk: Event, missing: str) -> None:
    with pytest.raises(ProtocolViolation, match=missing) as caught:
        expand(chunk)
    assert caught.value.path == f"/{missing}"


ASIDE = {"RAW", "ACTIVITY_SNAPSHOT", "ACTIVITY_DELTA", "REASONING_ENCRYPTED_VALUE", "SUBAGENT_STARTED"}
RUN_LEVEL = {"RUN_STARTED", "RUN_FINISHED", "RUN_ERROR", "MESSAGES_SNAPSHOT"}


@pytest.mark.parametrize("kind", [kind for kind in EVENT_TYPES if kind not in CHUNKS])
def test_what_closes_a_stream(kind: str) -> None:
    """The parent's stream and a subagent's, when an event of the parent, of that and of another subagent comes."""
    owners = (None, "s", "other")
    for owner in owners if kind not in RUN_LEVEL else (None,):
        event = least(kind)
        if owner is not None:
            event["subagentRunId"] = owner
        elif kind.startswith("SUBAGENT_"):
            continue
        assert enforce(event) is event
        expander = ChunkExpander()
        expander.feed(text("a", messageId="1"))
        expander.feed(text("b", messageId="2", subagentRunId="s"))
        *closing, last = expander.feed(event)
        assert last is event
        if kind in RUN_LEVEL:
            assert closing == [end("1"), end("2", subagentRunId="s")]
            assert not expander.pending
        elif kind in ASIDE or owner == "other":
            assert closing == []
        else:
            assert closing == ([end("1")] if owner is None else [end("2", subagentRunId="s")])


def test_lanes_assemble_side_by_side() -> None:
    assert expand(
        text("p", messageId="1"), text("s", messageId="2", subagentRunId="s"),
        text("P"), text("S", subagentRunId="s"), text("S", messageId="2"),
    ) == [
        start("1"), content("1", "p"),
        start("2", subagentRunId="s"), content("2", "s", subagentRunId="s"),
        content("1", "P"), content("2", "S", subagentRunId="s"), content("2", "S", subagentRunId="s"),
        end("1"), end("2", subagentRunId="s"),
    ]  # fmt: skip


def test_a_continuation_without_id_and_tag() -> None:
    # the only stream of its kind
    assert expand(text("a", messageId="m", subagentRunId="s"), text("b"))[2] == content("m", "b", subagentRunId="s")
    # none of the parent's, two of subagents: ambiguous
    with pytest.raises(ProtocolViolation, match="ambiguous"):
        expand(text("a", messageId="1", subagentRunId="s"), text("b", messageId="2", subagentRunId="r"), text("c"))
    # a stream of another kind is not its referent
    with pytest.raises(ProtocolViolation, match="messageId"):
        expand(call("a", toolCallId="c", toolCallName="f"), text("b"))


def test_other_events_pass_untouched_when_nothing_is_open() -> None:
    expander = ChunkExpander()
    for kind in EVENT_TYPES:
        if kind not in CHUNKS:
            event = least(kind)
            (same,) = expander.feed(event)
            assert same is event
    assert not expander.pending
    assert expander.close_all() == []


chunks = st.one_of(
    st.builds(
        lambda kind, id, tag, delta: {
            **kind(delta),
            **({} if id is None else {("toolCallId" if kind is call else "messageId"): id}),
            **({"toolCallName": "f"} if kind is call else {}),
            **({} if tag is None else {"subagentRunId": tag}),
        },
        st.sampled_from([text, call, thought]),
        st.sampled_from([None, "1", "2"]),
        st.sampled_from([None, None, "s", "r"]),
        st.sampled_from([None, "", "x"]),
    ),
    st.sampled_from(["CUSTOM", "RAW", "MESSAGES_SNAPSHOT"]).map(least),
)


@given(events=st.lists(chunks, max_size=30))
def test_what_comes_out_is_made_of_valid_balanced_events(events: list[Event]) -> None:
    expander = ChunkExpander()
    out: list[Event] = []
    for event in events:
        try:
            out += expander.feed(event)
        except ProtocolViolation:
            break
    out += expander.close_all()
    open_items: set[tuple[str, str]] = set()
    for event in out:
        assert enforce(event, pytest.fail) is event
        kind, id = event["type"].rpartition("_")[0], event.get("toolCallId", event.get("messageId"))
        if event["type"].endswith("_START"):
            assert (kind, id) not in open_items
            open_items.add((kind, id))
        elif event["type"].endswith(("_CONTENT", "_ARGS")):
            assert (kind, id) in open_items
        elif event["type"].endswith("_END"):
            open_items.remove((kind, id))
    assert not open_items
