"""The reducer: what the official client makes of the same events (its apply/default.ts), and what it costs."""

from __future__ import annotations

import time
from typing import Any

import pytest

from agui_django.protocol.reducer import Reducer

Event = dict[str, Any]


def reduce(*events: Event, messages: tuple[dict[str, Any], ...] = (), state: Any = None) -> tuple[Reducer, list[str]]:
    warnings: list[str] = []
    reducer = Reducer(messages, state, warn=warnings.append)
    for event in events:
        reducer.apply(event)
    return reducer, warnings


def text(message_id: str, *deltas: str, **more: Any) -> list[Event]:
    return [
        {"type": "TEXT_MESSAGE_START", "messageId": message_id, "role": "assistant", **more},
        *({"type": "TEXT_MESSAGE_CONTENT", "messageId": message_id, "delta": delta} for delta in deltas),
        {"type": "TEXT_MESSAGE_END", "messageId": message_id},
    ]


def call(call_id: str, *deltas: str, parent: str | None = None, name: str = "tool", **more: Any) -> list[Event]:
    start = {"type": "TOOL_CALL_START", "toolCallId": call_id, "toolCallName": name, **more}
    if parent is not None:
        start["parentMessageId"] = parent
    return [
        start,
        *({"type": "TOOL_CALL_ARGS", "toolCallId": call_id, "delta": delta} for delta in deltas),
        {"type": "TOOL_CALL_END", "toolCallId": call_id},
    ]


def result(call_id: str, message_id: str, content: Any = "ok", **more: Any) -> Event:
    return {"type": "TOOL_CALL_RESULT", "messageId": message_id, "toolCallId": call_id, "content": content, **more}


def wire_call(call_id: str, arguments: str = "", name: str = "tool") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_text_is_joined() -> None:
    reducer, warnings = reduce(*text("m", "Hel", "", "lo", name="bot", subagentRunId="s"))
    assert reducer.messages == [
        {"id": "m", "role": "assistant", "content": "Hello", "name": "bot", "subagentRunId": "s"}
    ]
    assert reducer.touched == ["m"]
    assert warnings == []


def test_a_message_without_deltas_has_empty_content() -> None:
    assert reduce(*text("m"))[0].messages == [{"id": "m", "role": "assistant", "content": ""}]


def test_a_start_without_a_role_is_the_assistants() -> None:
    reducer, _ = reduce({"type": "TEXT_MESSAGE_START", "messageId": "m"})
    assert reducer.message("m") == {"id": "m", "role": "assistant", "content": ""}


def test_partial_text_is_seen_and_continued() -> None:
    reducer, _ = reduce(*text("m", "a", "b"))
    seen = reducer.messages
    reducer.apply({"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "c"})
    assert seen[0]["content"] == "ab"
    assert reducer.message("m") == {"id": "m", "role": "assistant", "content": "abc"}
    assert reducer.message("unknown") is None


def test_a_reopened_message_is_appended_to() -> None:
    reducer, _ = reduce(*text("m", "a"), *text("n", "x"), *text("m", "b"))
    assert [(m["id"], m["content"]) for m in reducer.messages] == [("m", "ab"), ("n", "x")]


def test_text_continues_a_message_of_the_thread_and_leaves_the_given_one_alone() -> None:
    given = {"id": "m", "role": "user", "content": [{"type": "text", "text": "see"}]}
    reducer, _ = reduce(*text("m", "a"), messages=(given,))
    # Structured content gives way to the streamed text.
    assert reducer.messages == [{"id": "m", "role": "user", "content": "a"}]
    assert given == {"id": "m", "role": "user", "content": [{"type": "text", "text": "see"}]}


def test_metadata_merges_key_by_key() -> None:
    reducer, _ = reduce(
        {"type": "TEXT_MESSAGE_START", "messageId": "m", "metadata": {"a": 1, "b": {"x": 1}}},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "t", "metadata": {"b": {"y": 2}}},
        {"type": "TEXT_MESSAGE_END", "messageId": "m", "metadata": {"c": None}},
    )
    assert reducer.messages[0]["metadata"] == {"a": 1, "b": {"y": 2}, "c": None}


def test_reasoning() -> None:
    reducer, _ = reduce(
        {"type": "REASONING_START", "messageId": "r"},
        {"type": "REASONING_MESSAGE_START", "messageId": "r1", "role": "reasoning", "subagentRunId": "s"},
        {"type": "REASONING_MESSAGE_CONTENT", "messageId": "r1", "delta": "th"},
        {"type": "REASONING_MESSAGE_CONTENT", "messageId": "r1", "delta": "ink", "metadata": {"k": 1}},
        {"type": "REASONING_MESSAGE_END", "messageId": "r1"},
        {"type": "REASONING_ENCRYPTED_VALUE", "subtype": "message", "entityId": "r1", "encryptedValue": "xyz"},
        {"type": "REASONING_END", "messageId": "r"},
    )
    assert reducer.messages == [
        {
            "id": "r1",
            "role": "reasoning",
            "content": "think",
            "subagentRunId": "s",
            "metadata": {"k": 1},
            "encryptedValue": "xyz",
        }
    ]


def test_encrypted_values_of_calls_and_of_nothing() -> None:
    encrypted = {"type": "REASONING_ENCRYPTED_VALUE", "subtype": "tool-call", "encryptedValue": "e"}
    reducer, warnings = reduce(
        *call("c"),
        {**encrypted, "entityId": "c", "encryptedValueType": "signature"},
        {**encrypted, "entityId": "nobody"},
        {**encrypted, "entityId": "nobody", "subtype": "message"},
    )
    assert ["'nobody'" in warning for warning in warnings] == [True, True]
    assert reducer.messages[0]["toolCalls"] == [
        {**wire_call("c"), "encryptedValue": "e", "encryptedValueType": "signature"}
    ]
    # The type describes one value and goes with it.
    reducer.apply({**encrypted, "entityId": "c", "encryptedValue": "f"})
    assert reducer.messages[0]["toolCalls"] == [{**wire_call("c"), "encryptedValue": "f"}]


class TestToolCalls:
    def test_without_a_parent_a_message_of_the_calls_id_holds_it(self) -> None:
        reducer, _ = reduce(*call("c", '{"a"', ":1}", subagentRunId="s"))
        assert reducer.messages == [
            {"id": "c", "role": "assistant", "subagentRunId": "s", "toolCalls": [wire_call("c", '{"a":1}')]}
        ]
        assert "content" not in reducer.messages[0]

    def test_a_known_parent_holds_it_and_keeps_its_owner(self) -> None:
        reducer, _ = reduce(*text("m", "hi"), *call("c", "{}", parent="m", subagentRunId="s"), *call("d", parent="m"))
        assert reducer.messages == [
            {"id": "m", "role": "assistant", "content": "hi", "toolCalls": [wire_call("c", "{}"), wire_call("d")]}
        ]

    def test_an_unknown_parent_is_created_and_the_text_joins_it(self) -> None:
        reducer, _ = reduce(*call("c", parent="m"), *text("m", "hi"))
        assert reducer.messages == [{"id": "m", "role": "assistant", "toolCalls": [wire_call("c")], "content": "hi"}]

    def test_a_parent_of_another_role_falls_back_to_the_calls_id(self) -> None:
        reducer, warnings = reduce(*call("c", parent="u"), messages=({"id": "u", "role": "user", "content": "x"},))
        assert [m["id"] for m in reducer.messages] == ["u", "c"]
        assert "'u'" in warnings[0]

    def test_an_empty_parent_id_is_none(self) -> None:
        assert reduce(*call("c", parent=""))[0].messages[0]["id"] == "c"

    def test_metadata_lands_on_the_call(self) -> None:
        start, *rest = call("c", "{}", metadata={"a": 1})
        end = {**rest[-1], "metadata": {"b": 2}}
        reducer, _ = reduce(start, *rest[:-1], end)
        assert reducer.messages == [
            {"id": "c", "role": "assistant", "toolCalls": [{**wire_call("c", "{}"), "metadata": {"a": 1, "b": 2}}]}
        ]

    def test_a_repeated_start_continues_and_renames(self) -> None:
        reducer, warnings = reduce(*call("c", "{"), *call("c", "}", name="other", parent="elsewhere"))
        assert reducer.messages == [{"id": "c", "role": "assistant", "toolCalls": [wire_call("c", "{}", name="other")]}]
        assert "'other'" in warnings[0]

    def test_results_stand_directly_behind_their_call(self) -> None:
        reducer, _ = reduce(
            *call("c", parent="m"),
            *call("d", parent="m"),
            *text("after", "x"),
            result("d", "rd", subagentRunId="s", metadata={"k": 1}),
            result("c", "rc"),
            result("stray", "rs"),
        )
        assert [m["id"] for m in reducer.messages] == ["m", "rd", "rc", "after", "rs"]
        assert reducer.messages[1] == {
            "id": "rd",
            "toolCallId": "d",
            "role": "tool",
            "content": "ok",
            "subagentRunId": "s",
            "metadata": {"k": 1},
        }
        assert reducer.touched == ["m", "after", "rd", "rc", "rs"]

    def test_a_result_of_parts_stays_parts(self) -> None:
        parts = [{"type": "text", "text": "a"}, {"type": "image", "source": {"type": "url", "value": "u"}}]
        assert reduce(*call("c"), result("c", "r", parts))[0].message("r")["content"] == parts  # type: ignore[index]

    def test_a_second_result_of_one_id_is_found_first(self) -> None:
        reducer, _ = reduce(
            *text("r", "x"), *call("c"), result("c", "r", "one"), result("c", "r2", "two"), *text("r", "y")
        )
        # As in the client, ids are looked up from the front.
        assert [(m["id"], m.get("content")) for m in reducer.messages] == [
            ("r", "xy"),
            ("c", None),
            ("r", "one"),
            ("r2", "two"),
        ]

    def test_a_doubled_id_in_front_takes_over(self) -> None:
        reducer, _ = reduce(*call("c"), *text("r", "x"), result("c", "r", "one"), {**text("r", "y")[1]})
        assert [(m["id"], m.get("content")) for m in reducer.messages] == [("c", None), ("r", "oney"), ("r", "x")]


class TestState:
    def test_snapshots_and_deltas(self) -> None:
        reducer, _ = reduce(
            {"type": "STATE_SNAPSHOT", "snapshot": {"a": [1]}},
            {"type": "STATE_DELTA", "delta": [{"op": "add", "path": "/a/-", "value": 2}]},
        )
        assert reducer.state == {"a": [1, 2]}
        assert reducer.touched == []

    @pytest.mark.parametrize("snapshot", [None, False, 0, "", [], {}])
    def test_falsy_snapshots_apply(self, snapshot: Any) -> None:
        assert reduce({"type": "STATE_SNAPSHOT", "snapshot": snapshot}, state={"a": 1})[0].state == snapshot

    def test_a_delta_that_does_not_apply_changes_nothing_and_warns(self) -> None:
        patch = [{"op": "add", "path": "/b", "value": 1}, {"op": "remove", "path": "/nowhere"}]
        reducer, warnings = reduce({"type": "STATE_DELTA", "delta": patch}, state={"a": 1})
        assert reducer.state == {"a": 1}
        assert len(warnings) == 1 and "STATE_DELTA" in warnings[0]

    def test_the_state_can_live_elsewhere(self) -> None:
        seen: list[Any] = []

        class Elsewhere(Reducer):
            def set_state(self, value: Any) -> None:
                seen.append(value)

            def patch_state(self, ops: list[dict[str, Any]]) -> bool:
                seen.append(ops)
                return True

        reducer = Elsewhere()
        reducer.apply({"type": "STATE_SNAPSHOT", "snapshot": 1})
        reducer.apply({"type": "STATE_DELTA", "delta": []})
        assert seen == [1, []]


def activity(message_id: str, content: dict[str, Any], **more: Any) -> Event:
    return {
        "type": "ACTIVITY_SNAPSHOT",
        "messageId": message_id,
        "activityType": "PLAN",
        "content": content,
        **more,
    }


class TestActivities:
    def test_snapshot_then_delta(self) -> None:
        reducer, _ = reduce(
            activity("a", {"steps": []}, subagentRunId="s", metadata={"k": 1}),
            {
                "type": "ACTIVITY_DELTA",
                "messageId": "a",
                "activityType": "PLAN2",
                "patch": [{"op": "add", "path": "/steps/-", "value": "x"}],
                "metadata": {"l": 2},
            },
        )
        assert reducer.messages == [
            {
                "id": "a",
                "role": "activity",
                "activityType": "PLAN2",
                "content": {"steps": ["x"]},
                "subagentRunId": "s",
                "metadata": {"k": 1, "l": 2},
            }
        ]

    def test_replace_brings_its_own_owner_and_keeps_the_metadata(self) -> None:
        reducer, _ = reduce(activity("a", {"n": 1}, subagentRunId="s", metadata={"k": 1}), activity("a", {"n": 2}))
        assert reducer.messages == [
            {"id": "a", "role": "activity", "activityType": "PLAN", "content": {"n": 2}, "metadata": {"k": 1}}
        ]

    def test_replace_false_keeps_what_is_there(self) -> None:
        reducer, _ = reduce(
            activity("a", {"n": 1}), activity("a", {"n": 2}, replace=False, metadata={"k": 1}), *text("m", "x")
        )
        reducer.apply(activity("m", {"n": 3}, replace=False))
        assert reducer.messages == [
            {"id": "a", "role": "activity", "activityType": "PLAN", "content": {"n": 1}, "metadata": {"k": 1}},
            {"id": "m", "role": "assistant", "content": "x"},
        ]

    def test_replace_takes_over_a_message_and_its_calls(self) -> None:
        reducer, warnings = reduce(*call("c", "{"), *text("c", "x"), activity("c", {}), *call("c", "}")[1:])
        assert reducer.messages == [{"id": "c", "role": "activity", "activityType": "PLAN", "content": {}}]
        assert all("'c'" in warning for warning in warnings) and len(warnings) == 2

    def test_text_never_overwrites_an_activity(self) -> None:
        reducer, warnings = reduce(activity("a", {"n": 1}), *text("a", "x", metadata={"k": 1}))
        assert reducer.messages == [{"id": "a", "role": "activity", "activityType": "PLAN", "content": {"n": 1}}]
        assert len(warnings) == 3

    def test_deltas_without_their_activity(self) -> None:
        delta = {"type": "ACTIVITY_DELTA", "activityType": "PLAN", "patch": [{"op": "remove", "path": "/x"}]}
        reducer, warnings = reduce(
            {**delta, "messageId": "nowhere"},
            *text("m", "x"),
            {**delta, "messageId": "m"},
            activity("a", {"n": 1}),
            {**delta, "messageId": "a", "metadata": {"k": 1}},
        )
        assert reducer.messages[1] == {
            "id": "a",
            "role": "activity",
            "activityType": "PLAN",
            "content": {"n": 1},
            "metadata": {"k": 1},
        }
        assert ["'m'" in warnings[0], "'a'" in warnings[1], len(warnings)] == [True, True, 2]


ASSISTANT = {"id": "m", "role": "assistant", "content": "x"}
REASONING = {"id": "r", "role": "reasoning", "content": "t"}
PLAN = {"id": "p", "role": "activity", "activityType": "PLAN", "content": {}}
CHART = {"id": "k", "role": "activity", "activityType": "CHART", "content": {}}
THREAD = (REASONING, ASSISTANT, PLAN, CHART)


class TestMessagesSnapshot:
    @pytest.mark.parametrize(
        ("messages", "metadata", "left"),
        [
            ([], None, ["r", "p", "k"]),
            ([ASSISTANT], None, ["r", "m", "p", "k"]),
            ([{**PLAN, "id": "p2"}], None, ["r", "p2"]),
            ([PLAN], None, ["r", "p"]),
            ([{**REASONING, "id": "r2"}], None, ["p", "k", "r2"]),
            ([], {"@ag-ui/client": {"authoritativeActivityTypes": None}}, ["r"]),
            ([], {"@ag-ui/client": {"authoritativeActivityTypes": ["PLAN"]}}, ["r", "k"]),
            ([PLAN], {"@ag-ui/client": {"authoritativeActivityTypes": ["PLAN"]}}, ["r", "p", "k"]),
            ([PLAN], {"@ag-ui/client": {"authoritativeActivityTypes": [1]}}, ["r", "p", "k"]),
            ([PLAN], {"@ag-ui/client": {"authoritativeActivityTypes": "PLAN"}}, ["r", "p", "k"]),
            ([PLAN], {"@ag-ui/client": None}, ["r", "p", "k"]),
            ([PLAN], {"@ag-ui/client": []}, ["r", "p", "k"]),
            ([PLAN], {"@ag-ui/client": {}}, ["r", "p"]),
            ([PLAN], {"other": 1}, ["r", "p"]),
        ],
    )
    def test_what_is_left(self, messages: list[Any], metadata: Any, left: list[str]) -> None:
        event: Event = {"type": "MESSAGES_SNAPSHOT", "messages": messages}
        if metadata is not None:
            event["metadata"] = metadata
        reducer, _ = reduce(event, messages=THREAD)
        assert [m["id"] for m in reducer.messages] == left
        assert set(reducer.removed) == {"r", "m", "p", "k"} - set(left)

    def test_known_ids_keep_their_place_and_new_ones_are_appended(self) -> None:
        new = [{"id": "n", "role": "user", "content": "new"}, {**ASSISTANT, "content": "y"}]
        reducer, _ = reduce({"type": "MESSAGES_SNAPSHOT", "messages": new}, messages=(ASSISTANT, {**new[0], "id": "o"}))
        assert reducer.messages == [{**ASSISTANT, "content": "y"}, new[0]]
        assert reducer.removed == ["o"]
        assert reducer.touched == ["m", "n"] or reducer.touched == ["n", "m"]

    def test_unchanged_messages_are_not_touched(self) -> None:
        reducer, _ = reduce({"type": "MESSAGES_SNAPSHOT", "messages": [ASSISTANT]}, messages=(ASSISTANT,))
        assert reducer.touched == []

    def test_streaming_goes_on_from_the_snapshot(self) -> None:
        snapshot = {
            "type": "MESSAGES_SNAPSHOT",
            "messages": [
                {"id": "m", "role": "assistant", "content": "AB"},
                {"id": "c", "role": "assistant", "toolCalls": [wire_call("c", "[")]},
            ],
        }
        reducer, _ = reduce(
            text("m", "a")[0],
            text("m", "a")[1],
            call("c")[0],
            {"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": "{"},
            snapshot,
            {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "c"},
            {"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": "]"},
        )
        assert reducer.messages == [
            {"id": "m", "role": "assistant", "content": "ABc"},
            {"id": "c", "role": "assistant", "toolCalls": [wire_call("c", "[]")]},
        ]
        assert snapshot["messages"][1]["toolCalls"][0]["function"]["arguments"] == "["  # type: ignore[index]

    def test_the_text_of_a_doubled_id_stays_with_the_message_it_was_for(self) -> None:
        doubled = ({"id": "x", "role": "user", "content": "a"}, {**PLAN, "id": "x"})
        reducer, warnings = reduce(
            *text("x", "b"),
            {"type": "MESSAGES_SNAPSHOT", "messages": []},
            *text("x", "c"),
            messages=doubled,
        )
        assert reducer.messages == [{**PLAN, "id": "x"}]
        assert len(warnings) == 3

    def test_deltas_for_a_dropped_message_are_warned_about(self) -> None:
        reducer, warnings = reduce(*text("m", "a"), {"type": "MESSAGES_SNAPSHOT", "messages": []}, text("m", "b")[1])
        assert reducer.messages == []
        assert reducer.touched == []
        assert reducer.removed == ["m"]
        assert len(warnings) == 1
        reducer.apply(text("m")[0])
        assert (reducer.touched, reducer.removed) == (["m"], [])


def test_run_started_brings_the_messages_that_are_missing() -> None:
    user = {"id": "u", "role": "user", "content": "hi"}
    started = {
        "type": "RUN_STARTED",
        "threadId": "t",
        "runId": "r",
        "input": {"threadId": "t", "runId": "r", "messages": [{**ASSISTANT, "content": "other"}, user, user]},
    }
    reducer, _ = reduce(started, {"type": "RUN_STARTED", "threadId": "t", "runId": "r"}, messages=(ASSISTANT,))
    assert reducer.messages == [ASSISTANT, user]
    assert reducer.touched == ["u"]


def test_usage_is_the_last_terminal_events() -> None:
    finished = {"type": "RUN_FINISHED", "threadId": "t", "runId": "r"}
    reducer, _ = reduce({**finished, "usage": [{"inputTokens": 1}]})
    assert reducer.usage == [{"inputTokens": 1}]
    reducer.apply({"type": "RUN_ERROR", "message": "x", "usage": [{"inputTokens": 2}]})
    assert reducer.usage == [{"inputTokens": 2}]
    reducer.apply(finished)
    assert reducer.usage == []


def test_what_is_returned_is_the_callers() -> None:
    reducer, _ = reduce(*call("c", "{}"))
    reducer.messages[0]["toolCalls"][0]["function"]["arguments"] = "edited"
    reducer.messages.clear()
    assert reducer.messages == [{"id": "c", "role": "assistant", "toolCalls": [wire_call("c", "{}")]}]


def test_deltas_are_linear() -> None:
    """Ten times the deltas take about ten times the time: a rebuilt string would take a hundred times."""

    def seconds(count: int) -> float:
        reducer = Reducer()
        reducer.apply({"type": "TEXT_MESSAGE_START", "messageId": "m"})
        reducer.apply({"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "t"})
        delta = {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "x" * 50}
        args = {"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": "y" * 50}
        start = time.process_time()
        for _ in range(count):
            reducer.apply(delta)
            reducer.apply(args)
        spent = time.process_time() - start
        assert len(reducer.messages[0]["content"]) == count * 50
        assert len(reducer.messages[1]["toolCalls"][0]["function"]["arguments"]) == count * 50
        return spent

    few = min(seconds(20_000) for _ in range(3))
    assert seconds(200_000) < 40 * max(few, 0.001)
