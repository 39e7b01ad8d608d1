"""The public conformance streams of AG-UI, through both clients and a real connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from agui_django.client import AsyncClient, Client, StreamRefused
from agui_django.client.conversation import RunView
from tests.parts import CONFORMANCE, require
from tests.protocol.conformance import OUR_WORDS, TOTAL, has, subset, value_at
from tests.scripted import Request, Scripted, scripted

#: It pins a gap of today's clients: a stream that just stops is taken for a success. The specification's rule, which
#: truncated-stream-fails-the-run judges, is ours; what the fixture says of the messages holds.
TRUNCATED = "truncated-run-reported-as-completed"

#: As in `OUR_WORDS`: what our warnings must name.
OUR_WARNINGS = {
    **OUR_WORDS,
    "DROPS non-text parts": "parts that are not text",
    "dropping SUBAGENT_STARTED": "SUBAGENT_STARTED is dropped",
}

FILES = sorted([*CONFORMANCE.glob("streams/*.json"), *CONFORMANCE.glob("streams-extra/*.json")])
FIXTURES: dict[str, dict[str, Any]] = {file.stem: json.loads(file.read_text()) for file in FILES}


async def tell(request: Request) -> None:
    """The stream that the path names, its bytes in pieces of seven."""
    await request.begin()
    stream = FIXTURES[request.path.rpartition("/")[2]]["stream"]
    data = "".join(f"data: {json.dumps(event, ensure_ascii=False)}\n\n" for event in stream).encode()
    request.writer.writelines(data[at : at + 7] for at in range(0, len(data), 7))
    await request.writer.drain()


@pytest.fixture(scope="module")
def peer() -> Iterator[Scripted]:
    with scripted(tell) as server:
        yield server


def options(fixture: dict[str, Any]) -> dict[str, Any]:
    first = fixture["stream"][0]
    return {
        "thread_id": first.get("threadId"),
        "messages": fixture.get("input", {}).get("messages", ()),
        "peer": fixture.get("client", {}).get("maxProtocolVersion"),
    }


def read(peer: Scripted, fixture: dict[str, Any]) -> tuple[Any, RunView, list[dict[str, Any]], StreamRefused | None]:
    events = []
    with Client(f"{peer.url}/agents/{fixture['name']}", **options(fixture)) as client:
        run = client.run()
        try:
            for event in run:
                events.append(event)
        except StreamRefused as refused:
            return client, run, events, refused
    return client, run, events, None


async def aread(peer: Scripted, fixture: dict[str, Any]) -> Any:
    events = []
    async with AsyncClient(f"{peer.url}/agents/{fixture['name']}", **options(fixture)) as client:
        run = client.run()
        try:
            async for event in run:
                events.append(event)
        except StreamRefused as refused:
            return client, run, events, refused
    return client, run, events, None


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize("name", FIXTURES)
def test_stream(peer: Scripted, name: str, way: str) -> None:
    fixture = FIXTURES[name]
    expect = fixture["expect"]
    client, run, events, refused = read(peer, fixture) if way == "sync" else asyncio.run(aread(peer, fixture))
    sent = peer.requests[-1].input

    if name == TRUNCATED:
        assert refused is not None
        assert refused.code == "truncated"
    else:
        assert ("completed" if refused is None else "failed") == expect["outcome"], refused
    if "errorContains" in expect:
        assert refused is not None
        path = refused.violation.path if refused.violation else ""
        assert OUR_WORDS.get(expect["errorContains"], expect["errorContains"]) in f"{refused} {path}"
    for wanted in expect.get("warnings", ()):
        assert any(OUR_WARNINGS.get(wanted, wanted) in warning for warning in client.warnings), client.warnings
    if expect.get("noWarnings"):
        assert client.warnings == []
    if "eventTypes" in expect:
        assert [event["type"] for event in events] == expect["eventTypes"]
    assert not set(expect.get("eventTypesAbsent", ())) & {event["type"] for event in events}
    for path, value in expect.get("eventPaths", {}).items():
        assert value_at(events, path) == value
    for path in expect.get("eventAbsentPaths", ()):
        assert not has(events, path)
    held = run.messages[len(fixture.get("input", {}).get("messages", ())) :]
    if "messageCount" in expect:
        assert len(held) == expect["messageCount"]
    if "messages" in expect:
        assert subset(expect["messages"], held), held
    if "state" in expect:
        assert subset(expect["state"], run.state), run.state
    assert [error["message"] for error in run.run_errors] == ([expect["runError"]] if "runError" in expect else [])
    assert subset(expect.get("request", {}), sent), sent
    for path in expect.get("requestAbsentPaths", ()):
        assert not has([sent], f"0.{path}")


def test_all_were_run() -> None:
    require("conformance")
    assert len(FIXTURES) == TOTAL, f"{len(FIXTURES)} streams in {CONFORMANCE}"
