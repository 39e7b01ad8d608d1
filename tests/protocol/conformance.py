"""How the conformance fixtures say what they expect."""

from __future__ import annotations

from typing import Any

TOTAL = 77

#: The wording of errorContains and warnings is the TypeScript client's; where ours differs, what it must name.
OUR_WORDS = {
    "does not match the open stream's role": "/role",
    "does not match the open stream's toolCallName": "/toolCallName",
    "No active text message found with ID 'orphan-content-m1'": "orphan-content-m1",
    "First TEXT_MESSAGE_CHUNK must have a messageId": "messageId",
    "First TOOL_CALL_CHUNK must have a toolCallName": "toolCallName",
    "The run has already finished with 'RUN_FINISHED'": "already ended with RUN_FINISHED",
    "First event must be 'RUN_STARTED'": "first event must be RUN_STARTED",
    "Cannot send 'RUN_STARTED' while a run is still active": "nested-run-started-r-1",
    "Cannot send 'RUN_FINISHED' while text messages are still active": "open-message-at-run-finished-m-1",
    "No active reasoning message found with ID 'm-reasoning-discipline-1'": "m-reasoning-discipline-1",
    'expected \\"reasoning\\"': 'expected "reasoning"',
    "that was not started": "step-finished-without-start-never-opened",
    "expected object, received array": "/outcome: expected an object",
    "two interrupts carrying the id 'i-duplicate-interrupt'": "i-duplicate-interrupt",
    "must agree on their runId": "runId",
    "carry the input's threadId": "threadId",
    "carries the input's threadId": "threadId",
    "Failed to apply state patch": "STATE_DELTA",
}


def subset(expected: Any, actual: Any) -> bool:
    """The fixtures' match: members of objects may be missing from `expected`, lists have the same length."""
    if isinstance(expected, dict):
        return isinstance(actual, dict) and all(
            name in actual and subset(item, actual[name]) for name, item in expected.items()
        )
    if isinstance(expected, list):
        return (
            isinstance(actual, list)
            and len(expected) == len(actual)
            and all(subset(a, b) for a, b in zip(expected, actual, strict=True))
        )
    return type(expected) is type(actual) and expected == actual


def value_at(events: list[Any], path: str) -> Any:
    value: Any = events
    for token in path.split("."):
        value = value[int(token)] if isinstance(value, list) else value[token]
    return value


def has(events: list[Any], path: str) -> bool:
    try:
        value_at(events, path)
    except (KeyError, IndexError, TypeError):
        return False
    return True
