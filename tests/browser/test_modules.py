"""The browser client's modules, in Node: they make of a stream what the protocol core makes of it."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from agui_django.protocol.consumer import Consumer
from agui_django.protocol.errors import ProtocolViolation
from tests.parts import CONFORMANCE, ROOT, require


def legal_streams() -> dict[str, tuple[list[dict[str, Any]], Consumer]]:
    """What the pipeline lets through of each public stream that it does not refuse."""
    found = {}
    for path in sorted(CONFORMANCE.glob("streams*/*.json")):
        consumer = Consumer()
        try:
            seen = [event for given in json.loads(path.read_text())["stream"] for event in consumer.feed(given)]
        except ProtocolViolation:
            continue
        found[path.stem] = (seen, consumer)
    return found


def essence(message: dict[str, Any]) -> dict[str, Any]:
    """What the page shows of a message."""
    calls = [
        (call["id"], call["function"]["name"], call["function"]["arguments"]) for call in message.get("toolCalls", ())
    ]
    return {
        "id": message["id"], "role": message["role"], "content": message.get("content") or "", "calls": calls,
        "subagent": message.get("subagentRunId"),
    }  # fmt: skip


def test_fold_agrees_with_the_reducer() -> None:
    require("node", "conformance")
    streams = legal_streams()
    assert len(streams) > 30
    done = subprocess.run(
        ["node", "fold.mjs"], cwd=ROOT / "tests" / "browser", text=True, capture_output=True, timeout=60, check=True,
        input=json.dumps([seen for seen, _ in streams.values()]),
    )  # fmt: skip
    for (name, (seen, consumer)), folded in zip(streams.items(), json.loads(done.stdout), strict=True):
        assert folded["ids"] == list(range(1, len(seen) + 1)), name
        shown = [essence(message) for message in folded["messages"]]
        assert json.loads(json.dumps([essence(message) for message in consumer.messages])) == json.loads(
            json.dumps(shown)
        ), name
        assert (folded["state"] or {}) == (consumer.state or {}), name
