"""Thousands of random streams, legal and damaged, through the official TypeScript client 1.0.0 and through ours.

Verdict, messages and state must be equal. Where they are not the difference is listed, as a function with its reason.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from agui_django.protocol.consumer import Consumer
from agui_django.protocol.errors import ProtocolViolation
from agui_django.protocol.events import EVENT_TYPES
from tests.parts import ROOT, require
from tests.protocol.streams import Stream, make_stream

COUNT = 3000


@dataclass(frozen=True)
class Made:
    """What a pipeline made of a stream; for ours, also the event and the place that it refused."""

    failed: str | None
    messages: Any
    state: Any
    event: Any = None
    path: str = ""

    def refused_value(self) -> Any:
        """The value that was refused; MISSING where there is none."""
        value = self.event
        for token in self.path.split("/")[1:]:
            try:
                value = value[int(token) if isinstance(value, list) else token]
            except (KeyError, IndexError, TypeError):
                return MISSING
        return value

    def refused(self, *names: str) -> bool:
        """Whether a value at one of these names was refused as malformed."""
        return bool(self.path) and self.path.rpartition("/")[2] in names


MISSING = object()


def _truncated(made: Made, _official: Made) -> bool:
    """The client reports a stream without a terminal event as completed.

    Such a stream never counts as success: basic/transports, conformance stream truncated-stream-fails-the-run.
    """
    return made.failed is not None and made.failed.startswith("The stream ended without a terminal event")


def _foreign(made: Made, _official: Made) -> bool:
    """The client does not compare thread and run ids.

    The boundary events of a run must agree with it: basic/run-input, conformance streams
    run-finished-wrong-run-id-fatal, run-finished-wrong-thread-id-fatal, second-run-on-another-thread-fatal.
    """
    return re.match(r"Cannot send RUN_(STARTED|FINISHED): the (threadId|runId) is not", made.failed or "") is not None


def _tag(made: Made, _official: Made) -> bool:
    """A union member whose tag is missing or no string: the client drops it as unrecognised.

    To us it is a described field with a value that the schema rejects, which is fatal: basic/processing.
    """
    return made.refused("type", "role", "op") and not isinstance(made.refused_value(), str)


def _old_null(made: Made, _official: Made) -> bool:
    """A whole null that parsers before 1.0 took for an absent field: the client's compatibility boundary removes it.

    That is a middleware ahead of enforcement; what an agent of ours sends is stripped of nulls by the normaliser.
    """
    return made.refused("rawEvent", "result", "parentMessageId", "outcome") and made.refused_value() is None


def _subtype(_made: Made, official: Made) -> bool:
    """The client fails on a REASONING_ENCRYPTED_VALUE of a later subtype; we drop the event with a warning.

    events/reasoning demands that, and basic/processing names the client's behaviour a gap.
    """
    return official.failed is not None and '"subtype"' in official.failed


#: Where we refuse and the client does not, or later; once the reverse.
LISTED: dict[str, Callable[[Made, Made], bool]] = {
    "truncated": _truncated,
    "foreign ids": _foreign,
    "tag": _tag,
    "old null": _old_null,
    "subtype": _subtype,
}


def ours(stream: Stream) -> Made:
    """What our pipeline makes of a stream."""
    consumer = Consumer(stream.messages, stream.state, stream.thread_id, stream.run_id)
    event = None
    try:
        for event in json.loads(json.dumps(stream.events)):
            consumer.feed(event)
        consumer.end()
    except ProtocolViolation as violation:
        return Made(str(violation), consumer.messages, consumer.state, event, violation.path)
    return Made(None, consumer.messages, consumer.state)


def theirs(streams: list[Stream]) -> list[Made]:
    """What the official client makes of the streams."""
    batch = [
        {
            "messages": stream.messages,
            "state": stream.state,
            "threadId": stream.thread_id,
            "runId": stream.run_id,
            "events": stream.events,
        }
        for stream in streams
    ]
    done = subprocess.run(
        ["node", "differential.mjs"],
        cwd=ROOT / "tests" / "clients",
        input=json.dumps(batch),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [Made(made["failed"], made.get("messages"), made.get("state", MISSING)) for made in json.loads(done.stdout)]


def same(a: Made, b: Made) -> bool:
    """Whether both came to the same verdict, messages (in order) and state."""
    # dumps tells true and 1 apart, as == does not.
    return (a.failed is None) == (b.failed is None) and text(a) == text(b)


def text(made: Made) -> str:
    """Messages and state, comparable and printable."""
    return json.dumps([made.messages, made.state], sort_keys=True, default=lambda _: "(no JSON)")


def test_the_streams_cover_the_protocol() -> None:
    streams = [make_stream(seed) for seed in range(300)]
    seen = {event["type"] for stream in streams for event in stream.events}
    assert seen >= set(EVENT_TYPES)
    assert make_stream(7) == make_stream(7)
    undamaged = [ours(stream).failed for stream in streams if not stream.damage]
    assert undamaged.count(None) > 0.9 * len(undamaged)


@pytest.mark.timeout(240)
def test_the_official_client_comes_to_the_same_end() -> None:
    require("clients")
    streams = [make_stream(seed) for seed in range(COUNT)]
    count: Counter[str] = Counter()
    for stream, official in zip(streams, theirs(streams), strict=True):
        mine = ours(stream)
        if same(mine, official):
            count["failed" if mine.failed else "completed"] += 1
            continue
        listed = [name for name, applies in LISTED.items() if applies(mine, official)]
        assert listed, (
            f"seed {stream.seed}, damage {stream.damage}:\nours   {mine.failed} {text(mine)}\n"
            f"theirs {official.failed} {text(official)}"
        )
        count[listed[0]] += 1
    print(dict(count))
    assert count["completed"] > 0.5 * COUNT
    assert count["failed"] > 0.15 * COUNT
    assert {name for name in LISTED if not count[name]} == set(), "a listed difference no longer occurs"
