"""Running agents in tests: in memory, and every stream is checked against the strict clients' rules."""

from __future__ import annotations

from typing import Any

from agui_django.testing import AgentRun, assert_valid_run, run_agent


async def run(agent: Any, text: Any = "hello", **options: Any) -> AgentRun:
    """`run_agent`, and a legal stream whatever the agent does."""
    result = await run_agent(agent, text, **options)
    return checked(result)


def checked(result: AgentRun) -> AgentRun:
    """The same run, after checks that hold for every run."""
    assert_valid_run(result.wire, messages=result.setup.messages, state=result.setup.input["state"])
    assert result.events[-1] == result.terminal
    assert [event["type"] for event in result.events].count("RUN_STARTED") == 1
    assert all(isinstance(event["timestamp"], int) for event in result.events)
    # What the engine would store is what a client holds.
    held = {message["id"]: message for message in result.wire_messages}
    assert all(held[message["id"]] == message for message in result.closing.messages)
    return result


def bodies(result: AgentRun) -> list[tuple[Any, ...]]:
    """The agent's events, short: type and what it carries."""
    out: list[tuple[Any, ...]] = []
    for event in result.events[1:-1]:
        values = [value for name, value in event.items() if name in _TELLING]
        out.append((event["type"], *values))
    return out


_TELLING = {"delta", "stepName", "toolCallName", "content", "value", "snapshot", "patch", "encryptedValue", "subtype"}
