"""The public conformance streams of AG-UI, through the whole pipeline."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from agui_django.protocol.consumer import Consumer
from agui_django.protocol.errors import ProtocolViolation
from tests.parts import CONFORMANCE, require
from tests.protocol.conformance import OUR_WORDS, TOTAL, has, subset, value_at

#: Judge what a client sends, or how it treats an old peer: a client is built elsewhere, the stream is run here.
REQUEST_KEYS = {"request", "requestAbsentPaths"}

#: Fixtures that are not run -> why.
SKIPPED = {
    "truncated-run-reported-as-completed": (
        "It pins a gap of today's clients and contradicts truncated-stream-fails-the-run, which is the specification's"
        " rule: a stream without a terminal event has no outcome and never counts as a success."
    ),
}

#: Fixtures whose stream is run, but of which these expectations are not judged -> (keys, why).
PARTLY = {
    "era-0-0-39-flattens-content": (
        {"warnings"},
        "The warning is about the request that a client sends to a 0.0.39 peer, not about the stream.",
    ),
    "era-0-0-45-thinking-translated": (
        {"messages"},
        "Retired THINKING_* events are translated by a client's compatibility boundary, which stands before this"
        " pipeline; here they are unknown events: dropped, each with a warning naming its type.",
    ),
    "era-0-0-57-subagent-dropped-with-warning": (
        {"warnings", "eventTypesAbsent"},
        "A client pinned to 0.0.57 hides subagents; this pipeline speaks 1.1 and delivers them.",
    ),
}

KNOWN_KEYS = REQUEST_KEYS | {
    "outcome", "errorContains", "eventTypes", "eventTypesAbsent", "eventPaths", "eventAbsentPaths", "warnings",
    "noWarnings", "messageCount", "messages", "state", "runError",
}  # fmt: skip


def fixtures() -> list[Any]:
    files = sorted([*CONFORMANCE.glob("streams/*.json"), *CONFORMANCE.glob("streams-extra/*.json")])
    return [pytest.param(json.loads(file.read_text()), id=file.stem) for file in files]


STREAMS = fixtures()


def run(fixture: dict[str, Any]) -> tuple[Consumer, list[dict[str, Any]], ProtocolViolation | None]:
    consumer = Consumer(fixture.get("input", {}).get("messages", ()))
    events: list[dict[str, Any]] = []
    try:
        for event in fixture["stream"]:
            events += consumer.feed(event)
        events += consumer.end()
    except ProtocolViolation as violation:
        return consumer, events, violation
    return consumer, events, None


@pytest.mark.parametrize("fixture", STREAMS)
def test_stream(fixture: dict[str, Any]) -> None:
    name = fixture["name"]
    if name in SKIPPED:
        pytest.skip(SKIPPED[name])
    expect = {key: value for key, value in fixture["expect"].items() if key not in PARTLY.get(name, (set(), ""))[0]}
    assert expect.keys() <= KNOWN_KEYS
    consumer, events, violation = run(fixture)
    types = [event["type"] for event in events]

    assert ("completed" if violation is None else "failed") == expect["outcome"], violation
    if "errorContains" in expect:
        wanted = OUR_WORDS.get(expect["errorContains"], expect["errorContains"])
        said = f"{violation} {violation.path}" if violation else ""
        assert wanted in said
    for wanted in expect.get("warnings", ()):
        assert any(OUR_WORDS.get(wanted, wanted) in warning for warning in consumer.warnings), consumer.warnings
    if expect.get("noWarnings"):
        assert consumer.warnings == []
    if "eventTypes" in expect:
        assert types == expect["eventTypes"]
    assert not set(expect.get("eventTypesAbsent", ())) & set(types)
    for path, value in expect.get("eventPaths", {}).items():
        assert value_at(events, path) == value
    for path in expect.get("eventAbsentPaths", ()):
        assert not has(events, path)
    held = consumer.messages[len(fixture.get("input", {}).get("messages", ())) :]
    if "messageCount" in expect:
        assert len(held) == expect["messageCount"]
    if "messages" in expect:
        assert subset(expect["messages"], held), held
    if "state" in expect:
        assert subset(expect["state"], consumer.state), consumer.state
    assert [error["message"] for error in consumer.run_errors] == ([expect["runError"]] if "runError" in expect else [])


def test_truncated_run_keeps_what_it_delivered() -> None:
    """Of the fixture that is skipped, this half is the specification's: what came before the break stays."""
    require("conformance")
    fixture = next(param.values[0] for param in STREAMS if param.id == "truncated-run-reported-as-completed")
    consumer, _, violation = run(fixture)
    assert violation is not None
    assert violation.code == "truncated"
    assert subset(fixture["expect"]["messages"], consumer.messages)


def test_all_are_accounted_for(capsys: pytest.CaptureFixture[str]) -> None:
    require("conformance")
    names = {param.id for param in STREAMS}
    assert len(STREAMS) == TOTAL, f"{len(STREAMS)} streams in {CONFORMANCE}"
    assert names >= SKIPPED.keys() | PARTLY.keys(), "a listed fixture does not exist"
    whole = [name for name in names if name not in SKIPPED and name not in PARTLY]
    with capsys.disabled():
        print(f"\nconformance: {len(whole) + len(PARTLY)} of {TOTAL} streams run, {len(PARTLY)} of them in part")
        asking = [param.id for param in STREAMS if param.values[0]["expect"].keys() & REQUEST_KEYS]
        print(
            f"  {', '.join(sorted(REQUEST_KEYS))} judge a client's request and are not looked at: {', '.join(asking)}"
        )
        for name, reason in SKIPPED.items():
            print(f"  not run: {name}: {reason}")
        for name, (keys, reason) in PARTLY.items():
            print(f"  in part: {name} (without {', '.join(sorted(keys))}): {reason}")


@pytest.mark.parametrize("name", [*SKIPPED, *PARTLY])
def test_what_is_left_out_has_a_reason(name: str) -> None:
    reason = SKIPPED[name] if name in SKIPPED else PARTLY[name][1]
    assert len(re.findall(r"\w+", reason)) >= 8, f"{name} is left out without a written reason"
