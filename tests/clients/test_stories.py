"""What a user of either official client lives through; the client ends with exactly what was stored.

The expected messages come from the specification's account of each event (docs/spec/1.1/events of ag-ui).
"""

from __future__ import annotations

from typing import Any

from tests.clients.conftest import Story, script, user


def types(step: dict[str, Any]) -> list[str]:
    """Return the types of the events that the client was given."""
    return [event["type"] for event in step["events"]]


def test_text(story: Story) -> None:
    ask = script(
        {"type": "TEXT_MESSAGE_START", "messageId": "m1", "role": "assistant"},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m1", "delta": "Grüße, "},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m1", "delta": "\U0001f600 line\nbreak"},
        {"type": "TEXT_MESSAGE_END", "messageId": "m1"},
    )
    [step] = story.run("script", {"add": [ask]})["steps"]
    assert step["error"] is None
    assert types(step) == [
        "RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END",
        "RUN_FINISHED",
    ]  # fmt: skip
    assert step["messages"] == [ask, {"id": "m1", "role": "assistant", "content": "Grüße, \U0001f600 line\nbreak"}]
    story.assert_client_equals_store(step)


def test_text_by_chunks(story: Story) -> None:
    ask = script(
        {"type": "TEXT_MESSAGE_CHUNK", "messageId": "m1", "role": "assistant", "delta": "one "},
        {"type": "TEXT_MESSAGE_CHUNK", "delta": "two"},
        {"type": "TOOL_CALL_CHUNK", "toolCallId": "c1", "toolCallName": "look", "parentMessageId": "m1", "delta": "{}"},
        {"type": "TOOL_CALL_RESULT", "messageId": "r1", "toolCallId": "c1", "content": "seen"},
    )
    [step] = story.run("script", {"add": [ask]})["steps"]
    assert step["error"] is None
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    assert step["messages"] == [
        ask,
        {"id": "m1", "role": "assistant", "content": "one two", "toolCalls": [call]},
        {"id": "r1", "role": "tool", "toolCallId": "c1", "content": "seen"},
    ]
    story.assert_client_equals_store(step)


def test_reasoning(story: Story) -> None:
    ask = script(
        {"type": "REASONING_START", "messageId": "think"},
        {"type": "REASONING_MESSAGE_START", "messageId": "think", "role": "reasoning"},
        {"type": "REASONING_MESSAGE_CONTENT", "messageId": "think", "delta": "Hm, "},
        {"type": "REASONING_MESSAGE_CONTENT", "messageId": "think", "delta": "yes."},
        {"type": "REASONING_MESSAGE_END", "messageId": "think"},
        {"type": "REASONING_ENCRYPTED_VALUE", "subtype": "message", "entityId": "think", "encryptedValue": "c2VjcmV0"},
        {"type": "REASONING_END", "messageId": "think"},
        {"type": "TEXT_MESSAGE_START", "messageId": "m1", "role": "assistant"},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m1", "delta": "Yes."},
        {"type": "TEXT_MESSAGE_END", "messageId": "m1"},
    )
    [step] = story.run("script", {"add": [ask]})["steps"]
    assert step["error"] is None
    assert step["messages"] == [
        ask,
        {"id": "think", "role": "reasoning", "content": "Hm, yes.", "encryptedValue": "c2VjcmV0"},
        {"id": "m1", "role": "assistant", "content": "Yes."},
    ]
    story.assert_client_equals_store(step)


def test_tool_calls(story: Story) -> None:
    ask = script(
        {"type": "TOOL_CALL_START", "toolCallId": "c1", "toolCallName": "weather", "parentMessageId": "m1"},
        {"type": "TOOL_CALL_START", "toolCallId": "c2", "toolCallName": "clock", "parentMessageId": "m1"},
        {"type": "TOOL_CALL_ARGS", "toolCallId": "c1", "delta": '{"city": '},
        {"type": "TOOL_CALL_ARGS", "toolCallId": "c2", "delta": "{"},
        {"type": "TOOL_CALL_ARGS", "toolCallId": "c1", "delta": '"Rome"}'},
        {"type": "TOOL_CALL_ARGS", "toolCallId": "c2", "delta": "}"},
        {"type": "TOOL_CALL_END", "toolCallId": "c2"},
        {"type": "TOOL_CALL_END", "toolCallId": "c1"},
        {"type": "TOOL_CALL_RESULT", "messageId": "r1", "toolCallId": "c1", "content": "sunny", "role": "tool"},
        {"type": "TOOL_CALL_RESULT", "messageId": "r2", "toolCallId": "c2", "content": "noon", "role": "tool"},
    )
    [step] = story.run("script", {"add": [ask]})["steps"]
    assert step["error"] is None
    weather = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    clock = {"id": "c2", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    assert step["messages"] == [
        ask,
        {"id": "m1", "role": "assistant", "toolCalls": [weather, clock]},
        {"id": "r1", "role": "tool", "toolCallId": "c1", "content": "sunny"},
        {"id": "r2", "role": "tool", "toolCallId": "c2", "content": "noon"},
    ]
    story.assert_client_equals_store(step)


def test_blocks(story: Story) -> None:
    [step] = story.run("blocks", {"add": [user("go")]})["steps"]
    assert step["error"] is None
    assert step["result"] == {"orders": 1}
    assert [message["role"] for message in step["messages"]] == [
        "user", "reasoning", "assistant", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert [step["messages"][index]["content"] for index in (1, 2, 5)] == [
        "Let me think.", "It is fine.", "The kettle is on its way.",
    ]  # fmt: skip
    assert step["state"] == {"order": {"id": 7, "items": ["kettle"]}}
    story.assert_client_equals_store(step)


#: What the page can do; a call of anything else is the agent's own, and no page can answer it.
TOOLS = [
    {"name": name, "description": name, "parameters": {"type": "object", "properties": {}}}
    for name in ("pick_color", "pick_size")
]


def test_frontend_tool_round_trip(story: Story) -> None:
    first, second = story.run(
        "paint",
        {"add": [user("paint it")], "parameters": {"tools": TOOLS}},
        {"answer": {"pick_color": "red", "pick_size": "12"}, "parameters": {"tools": TOOLS}},
    )["steps"]
    assert first["error"] is None and second["error"] is None
    calls = [call for message in first["messages"] for call in message.get("toolCalls", [])]
    assert [call["function"]["name"] for call in calls] == ["pick_color", "pick_size"]
    assert "TOOL_CALL_RESULT" not in types(first)
    finished = first["events"][-1]
    if story.legacy:
        assert "pendingToolCallIds" not in str(finished)
    else:
        assert finished["outcome"]["pendingToolCallIds"] == [call["id"] for call in calls]
    # The second pass goes through the same calls and does not show them again.
    assert "TOOL_CALL_START" not in types(second)
    assert second["messages"][-1]["content"] == "Painting it red, 12."
    # Both calls are of one message, and the answers behind it: the page's list is the stored one, and models take it.
    assert [message["role"] for message in second["messages"]] == ["user", "assistant", "tool", "tool", "assistant"]
    stored = story.assert_client_equals_store(second)
    assert [run["status"] for run in stored["runs"]] == ["finished", "finished"]


def test_frontend_tool_round_trip_of_one_message(story: Story) -> None:
    ask = script(
        {"type": "TOOL_CALL_START", "toolCallId": "c1", "toolCallName": "pick_color", "parentMessageId": "m1"},
        {"type": "TOOL_CALL_END", "toolCallId": "c1"},
        {"type": "TOOL_CALL_START", "toolCallId": "c2", "toolCallName": "pick_size", "parentMessageId": "m1"},
        {"type": "TOOL_CALL_END", "toolCallId": "c2"},
    )
    thanks = script({"type": "TEXT_MESSAGE_CHUNK", "messageId": "m2", "role": "assistant", "delta": "Thank you."})
    _, second = story.run(
        "script",
        {"add": [ask], "parameters": {"tools": TOOLS}},
        {"answer": {"pick_color": "red", "pick_size": "12"}, "add": [thanks], "parameters": {"tools": TOOLS}},
    )["steps"]
    assert second["error"] is None
    calls = [
        {"id": call, "type": "function", "function": {"name": name, "arguments": ""}}
        for call, name in (("c1", "pick_color"), ("c2", "pick_size"))
    ]
    assert second["messages"] == [
        ask,
        {"id": "m1", "role": "assistant", "toolCalls": calls},
        {"id": "answer-c1", "role": "tool", "toolCallId": "c1", "content": "red"},
        {"id": "answer-c2", "role": "tool", "toolCallId": "c2", "content": "12"},
        thanks,
        {"id": "m2", "role": "assistant", "content": "Thank you."},
    ]
    story.assert_client_equals_store(second)


def test_state_deltas(story: Story) -> None:
    ask = script(
        {"type": "STATE_SNAPSHOT", "snapshot": {"items": ["a"], "count": 1, "none": None}},
        {"type": "STATE_DELTA", "delta": [{"op": "add", "path": "/items/-", "value": "b"}]},
        {
            "type": "STATE_DELTA",
            "delta": [
                {"op": "replace", "path": "/count", "value": 2},
                {"op": "move", "from": "/none", "path": "/gone"},
            ],
        },
    )
    [step] = story.run("script", {"add": [ask]}, initialState={"items": ["from the client"]})["steps"]
    assert step["error"] is None
    assert step["state"] == {"items": ["a", "b"], "count": 2, "gone": None}
    story.assert_client_equals_store(step)


def test_activity(story: Story) -> None:
    ask = script(
        {"type": "ACTIVITY_SNAPSHOT", "messageId": "a1", "activityType": "PLAN", "content": {"done": 0, "of": 2}},
        {
            "type": "ACTIVITY_DELTA",
            "messageId": "a1",
            "activityType": "PLAN",
            "patch": [
                {"op": "replace", "path": "/done", "value": 1},
            ],
        },
    )
    [step] = story.run("script", {"add": [ask]})["steps"]
    assert step["error"] is None
    assert step["messages"] == [
        ask,
        {"id": "a1", "role": "activity", "activityType": "PLAN", "content": {"done": 1, "of": 2}},
    ]
    story.assert_client_equals_store(step)


def untagged(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages as a client holds them that knows no subagents."""
    return [{name: value for name, value in message.items() if name != "subagentRunId"} for message in messages]


def test_subagents(story: Story) -> None:
    seen = story.run("team", {"add": [user("go")]})
    [step] = seen["steps"]
    assert step["error"] is None
    assert all("producer speaks protocol" in warning for warning in seen["warnings"])
    stored = story.stored()
    assert step["state"] == stored["state"]
    assert step["state"]["document"] in ("by a", "by b", "by c")
    said = [
        message["content"] for message in step["messages"] if message["role"] == "assistant" and "content" in message
    ]
    assert sorted(said) == [
        "Four minutes.", "It goes on.", "Oh", "a is checked.", "a0 a1 a2 a3 a4 ", "b is checked.", "b0 b1 b2 b3 b4 ",
        "c is checked.", "c0 c1 c2 c3 c4 ",
    ]  # fmt: skip
    if story.legacy:
        assert step["messages"] == untagged(stored["messages"])
        assert not any(kind.startswith(("SUBAGENT", "STEP")) for kind in types(step))
        assert "subagentRunId" not in str(step["events"])
        return
    assert step["messages"] == stored["messages"]
    assert types(step).count("SUBAGENT_STARTED") == 8
    assert types(step).count("SUBAGENT_FINISHED") == 7
    assert [event["message"] for event in step["events"] if event["type"] == "SUBAGENT_ERROR"] == [
        "The subagent failed."
    ]
    owners = {str(message.get("content")): message.get("subagentRunId", "") for message in step["messages"]}
    assert owners["a0 a1 a2 a3 a4 "].endswith(":a")
    assert owners["a is checked."].endswith("/check")
    assert owners["It goes on."] == ""


def test_a_subagents_question(story: Story) -> None:
    first, second = story.run(
        "archive_desk", {"add": [user("when was it?")]}, {"resume": {"status": "resolved", "payload": 1869}}
    )["steps"]  # fmt: skip
    assert first["error"] is None and second["error"] is None
    said = [message["content"] for message in second["messages"][1:]]
    assert said == ["Looking up the year.", "Found it in 1869.", "The researcher is done."]
    stored = story.stored()
    assert [run["status"] for run in stored["runs"]] == ["interrupted", "finished"]
    if story.legacy:
        assert "subagentRunId" not in str(first["events"]) + str(second["events"])
        assert second["messages"] == untagged(stored["messages"])
        return
    assert second["messages"] == stored["messages"]
    started = [
        event["subagentRunId"]
        for step in (first, second)
        for event in step["events"]
        if event["type"] == "SUBAGENT_STARTED"
    ]
    assert len(started) == 2 and started[0] == started[1]
    [question] = first["pendingInterrupts"]
    assert question["subagentRunId"] == started[0]
    assert next(e for e in first["events"] if e["type"] == "SUBAGENT_FINISHED")["outcome"] == {
        "type": "suspended", "interruptIds": [question["id"]],
    }  # fmt: skip


def test_interrupt_and_resume(story: Story) -> None:
    first, second = story.run(
        "trip",
        {"add": [user("book a trip")]},
        {"resume": {"status": "resolved", "payload": "Ritz"}},
    )["steps"]
    assert first["error"] is None and second["error"] is None
    assert [interrupt["message"] for interrupt in first["pendingInterrupts"]] == ["Which hotel?", "And breakfast?"]
    assert first["events"][-1]["outcome"]["type"] == "interrupt"
    assert second["pendingInterrupts"] == []
    # What stands above the questions has a key: it is not said again.
    said = [message["content"] for message in second["messages"] if message["role"] == "assistant"]
    assert said == ["Planning.", "Booked Ritz, breakfast at Ritz."]
    stored = story.assert_client_equals_store(second)
    assert [run["status"] for run in stored["runs"]] == ["interrupted", "finished"]
    assert [interrupt["status"] for interrupt in stored["interrupts"]] == ["resolved", "resolved"]


def test_interrupts_survive_a_reload(story: Story) -> None:
    story.run("trip", {"add": [user("book a trip")]})
    restored, answered = story.run(
        "trip", {}, {"resume": {"status": "resolved", "payload": "Ibis"}}
    )["steps"]  # fmt: skip
    assert restored["error"] is None and answered["error"] is None
    assert [interrupt["message"] for interrupt in restored["pendingInterrupts"]] == ["Which hotel?", "And breakfast?"]
    assert answered["messages"][-1]["content"] == "Booked Ibis, breakfast at Ibis."
    story.assert_client_equals_store(answered)


def test_error(story: Story) -> None:
    ask = script(
        {"type": "TEXT_MESSAGE_START", "messageId": "m1", "role": "assistant"},
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m1", "delta": "half an ans"},
        {"$raise": "RuntimeError: the database password is hunter2"},
    )
    [step] = story.run("script", {"add": [ask]})["steps"]
    assert types(step)[-2:] == ["TEXT_MESSAGE_END", "RUN_ERROR"]
    # Fixed code and text for an exception that was not meant for the user.
    assert step["events"][-1]["code"] == "agent_exception"
    # The request itself holds the text (it is the script), nothing that came back may.
    assert "hunter2" not in str(step["events"][1:])
    assert step["messages"] == [ask, {"id": "m1", "role": "assistant", "content": "half an ans"}]
    stored = story.assert_client_equals_store(step)
    assert [(run["status"], run["errorCode"]) for run in stored["runs"]] == [("failed", "agent_exception")]


def test_cancel_and_leave(story: Story) -> None:
    seen = story.run(
        "echo",
        {"add": [user("tokens:2000 delay_ms:20 size:4")], "stopAt": {"type": "TEXT_MESSAGE_CONTENT", "count": 3}},
        {"fresh": True},
    )
    stopped, restored = seen["steps"]
    assert stopped["cancel"]["status"] == 200
    assert stopped["error"] is None
    stored = story.assert_client_equals_store(restored)
    [run] = stored["runs"]
    assert (run["status"], run["endReason"]) == ("cancelled", "user")
    assert run["events"][-1]["type"] == "RUN_FINISHED"
    assert run["events"][-1]["outcome"] == {"type": "cancelled"}
    # Whatever the client saw before it left is stored.
    assert stored["messages"][-1]["content"].startswith(stopped["messages"][-1]["content"])
    assert 3 <= sum(event["type"] == "TEXT_MESSAGE_CONTENT" for event in run["events"]) < 2000


def test_cancel_and_watch(story: Story) -> None:
    stop = {"type": "TEXT_MESSAGE_CONTENT", "count": 3, "leave": False}
    [step] = story.run("echo", {"add": [user("tokens:2000 delay_ms:20 size:4")], "stopAt": stop})["steps"]
    assert step["error"] is None
    assert types(step)[-2:] == ["TEXT_MESSAGE_END", "RUN_FINISHED"]
    if story.legacy:
        # 0.0.59 would drop an outcome that it does not know, and with it the end of the run.
        assert "outcome" not in step["events"][-1]
    else:
        assert step["events"][-1]["outcome"] == {"type": "cancelled"}
    story.assert_client_equals_store(step)


def test_hydration(story: Story) -> None:
    [first] = story.run("blocks", {"add": [user("go")]})["steps"]
    [restored] = story.run("blocks", {})["steps"]
    assert restored["error"] is None
    assert types(restored) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT", "RUN_FINISHED"]
    assert restored["messages"] == first["messages"]
    assert restored["state"] == first["state"]
    stored = story.assert_client_equals_store(restored)
    assert len(stored["runs"]) == 1


def test_several_turns(story: Story) -> None:
    asked = [user(f"turn {number}") for number in range(4)]
    seen = story.run("echo", *({"add": [message]} for message in asked))
    assert [step["error"] for step in seen["steps"]] == [None] * 4
    last = seen["steps"][-1]
    assert [message["role"] for message in last["messages"]] == ["user", "assistant"] * 4
    assert [message for message in last["messages"] if message["role"] == "user"] == asked
    assert all("turn" in message["content"] for message in last["messages"])
    stored = story.assert_client_equals_store(last)
    # Each request brought the whole list; only what was new is recorded as new.
    news = [[message["id"] for message in run["events"][0]["input"]["messages"]] for run in stored["runs"]]
    assert news == [[message["id"]] for message in asked]


def test_turns_from_two_devices(story: Story) -> None:
    story.run("echo", {"add": [user("from the first")]})
    restored, second = story.run("echo", {}, {"add": [user("from the second")]})["steps"]
    assert len(restored["messages"]) == 2
    assert second["error"] is None
    assert [message["role"] for message in second["messages"]] == ["user", "assistant"] * 2
    story.assert_client_equals_store(second)


def test_protocol_version(story: Story) -> None:
    seen = story.run("echo", {"add": [user("hello")]})
    [step] = seen["steps"]
    declared = seen["exchanges"][0]["body"].get("protocolVersion")
    [run] = story.stored()["runs"]
    if story.legacy:
        assert declared is None
        assert run["protocolVersion"] == ""
    else:
        assert declared == run["protocolVersion"] == "1.0"
        assert step["events"][0]["protocolVersion"] == "1.1"
    assert run["events"][0]["protocolVersion"] == "1.1"


def test_an_address_of_the_run(story: Story) -> None:
    seen = story.run("echo", {"add": [user("hello")]})
    headers = seen["exchanges"][0]["headers"]
    [run] = story.stored()["runs"]
    assert run["uuid"] in headers["content-location"]
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["cache-control"] == "no-store"
    assert headers["x-accel-buffering"] == "no"


def test_refused_requests_are_told(story: Story) -> None:
    [step] = story.run("nobody", {"add": [user("hello")]})["steps"]
    assert step["error"]["status"] == 404
    [step] = story.run("echo", {"add": [user("hello")]}, headers={})["steps"]
    assert step["error"]["status"] == 401
    assert story.stored() == {}
