"""The pipeline as one: what comes out, what is kept, when a stream is refused."""

from __future__ import annotations

from typing import Any

import pytest

from agui_django.protocol.consumer import Consumer
from agui_django.protocol.errors import ProtocolViolation

BEGIN = {"type": "RUN_STARTED", "threadId": "t", "runId": "r"}
FINISH = {"type": "RUN_FINISHED", "threadId": "t", "runId": "r"}


def test_chunks_come_out_expanded_and_reduced() -> None:
    consumer = Consumer(messages=[{"id": "u", "role": "user", "content": "hi"}], state={"n": 1})
    assert consumer.feed(BEGIN) == [BEGIN]
    out = consumer.feed({"type": "TEXT_MESSAGE_CHUNK", "messageId": "m", "delta": "Hel"})
    assert [event["type"] for event in out] == ["TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT"]
    consumer.feed({"type": "TEXT_MESSAGE_CHUNK", "delta": "lo"})
    consumer.feed({"type": "STATE_DELTA", "delta": [{"op": "replace", "path": "/n", "value": 2}]})
    assert consumer.feed({"type": "FUTURE"}) == []
    assert [event["type"] for event in consumer.feed(FINISH)] == ["RUN_FINISHED"]
    assert consumer.end() == []
    assert consumer.messages == [
        {"id": "u", "role": "user", "content": "hi"},
        {"id": "m", "role": "assistant", "content": "Hello"},
    ]
    assert consumer.state == {"n": 2}
    assert len(consumer.warnings) == 1
    assert "FUTURE" in consumer.warnings[0]


def test_a_refused_stream_stays_refused() -> None:
    consumer = Consumer()
    consumer.feed(BEGIN)
    with pytest.raises(ProtocolViolation) as first:
        consumer.feed({"type": "TEXT_MESSAGE_END", "messageId": "m"})
    for again in (lambda: consumer.feed(FINISH), consumer.end):
        with pytest.raises(ProtocolViolation) as later:
            again()
        assert later.value is first.value


@pytest.mark.parametrize("events", [[], [BEGIN], [BEGIN, FINISH, BEGIN]], ids=["nothing", "open run", "second run"])
def test_a_stream_without_a_terminal_event_is_truncated(events: list[dict[str, Any]]) -> None:
    consumer = Consumer()
    for event in events:
        consumer.feed(event)
    with pytest.raises(ProtocolViolation, match="ended without a terminal event") as caught:
        consumer.end()
    assert caught.value.code == "truncated"


def test_a_truncated_chunk_stream_keeps_its_text() -> None:
    consumer = Consumer()
    consumer.feed(BEGIN)
    consumer.feed({"type": "TEXT_MESSAGE_CHUNK", "messageId": "m", "delta": "half an ans"})
    with pytest.raises(ProtocolViolation):
        consumer.end()
    assert consumer.messages == [{"id": "m", "role": "assistant", "content": "half an ans"}]


def test_run_errors_are_reported_not_refused() -> None:
    consumer = Consumer()
    error = {"type": "RUN_ERROR", "message": "no", "code": "busy"}
    consumer.feed(error)
    consumer.end()
    assert consumer.run_errors == [error]


def test_another_threads_stream_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match="threadId"):
        Consumer(thread_id="mine").feed(BEGIN)
    assert Consumer(thread_id="t", run_id="asked").feed(BEGIN) == [BEGIN], "replayed history may come first"


@pytest.mark.parametrize(
    ("declared", "warned"),
    [(None, False), ("1.1", False), ("1.0", False), ("0.9", False), ("1.2", True), ("1.10", True), ("2.0", True),
     ("draft", True), ("1", True), ("1.1.0", True), ("1.x", True), ("", True), ("9" * 5000 + ".0", True)],
)  # fmt: skip
def test_the_producers_version(declared: str | None, warned: bool) -> None:
    consumer = Consumer()
    consumer.feed(BEGIN if declared is None else {**BEGIN, "protocolVersion": declared})
    assert bool(consumer.warnings) == warned
