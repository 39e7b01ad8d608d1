"""Both official clients accept what edits from outside put into a stream, and end with the state that is stored."""

from __future__ import annotations

from typing import Any

from tests import sse
from tests.clients.test_rejoin import MESSAGE, OPEN, Thread, thread, watched
from tests.processes.test_edits import edit

__all__ = ["thread"]

STATE_ONLY = ["RUN_STARTED", "STATE_SNAPSHOT", "RUN_FINISHED"]


def recorded(thread: Thread, *steps: Any) -> str:
    """What a feed tells while things happen: after each of them so many runs have ended."""
    address = thread.feed()["url"].partition("/agui/")[2].replace("&until=idle", "")
    text = ""
    with (
        sse.client(thread.server.base_url) as http,
        http.stream("GET", f"/agui/{address}") as response,
    ):
        pieces = response.iter_text()
        for ended, step in enumerate((lambda: None, *steps), start=1):
            step()
            while text.count('"RUN_FINISHED"') < ended or not text.endswith("\n\n"):
                text += next(pieces)
    return text


def test_edits_of_a_thread_at_rest(thread: Thread) -> None:
    thread.script("script", [*OPEN[:1]])
    text = recorded(
        thread,
        lambda: edit(thread.server, thread.thread_id, {"n": 2, "who": "staff"}),
        lambda: thread.script("echo", "hello"),
        lambda: edit(thread.server, thread.thread_id, {"n": 3}),
    )
    [seen] = watched(thread.node, thread.package, [{**thread.feed(), "body": text}], thread.server)
    stored = thread.stored()
    assert seen["error"] is None
    assert seen["types"][4:7] == seen["types"][-3:] == STATE_ONLY
    assert seen["state"] == stored["state"] == {"n": 3, "who": "staff"}
    assert seen["messages"] == thread.shown(stored["messages"])


def test_questions_stay_open(thread: Thread) -> None:
    thread.script("trip", "book a trip")
    text = recorded(thread, lambda: edit(thread.server, thread.thread_id, {"n": 2}))
    [seen] = watched(thread.node, thread.package, [{**thread.feed(), "body": text}], thread.server)
    assert (seen["error"], seen["state"]) == (None, {"n": 2})
    assert [interrupt["message"] for interrupt in seen["pendingInterrupts"]] == ["Which hotel?", "And breakfast?"]


def test_edits_of_a_running_run(thread: Thread) -> None:
    """In the middle of a message: the client that joins has the edit, one that was there gets it as a delta."""
    thread.script("gated", [*OPEN[:1], *MESSAGE[0]], MESSAGE[1], upto=4)
    edit(thread.server, thread.thread_id, {"n": 7, "list": [1]}, pause=2.0)
    seen = thread.watch(release=True)
    assert seen["state"] == {"n": 7, "list": [1]}
    [run] = thread.stored()["runs"]
    types = [event["type"] for event in run["events"]]
    delta = types.index("STATE_DELTA")
    assert types.index("TEXT_MESSAGE_START") < delta < types.index("TEXT_MESSAGE_END")
    # The thread began without a state, which is version 0.
    assert run["events"][delta]["metadata"] == {"agui_django": {"stateVersion": 1}}
    # The run as its own client was told it.
    with sse.client(thread.server.base_url) as http:
        version = {"protocolVersion": "0.x"} if thread.legacy else {}
        told = http.get(f"/agui/runs/{run['uuid']}/events", params=version).text
    [seen] = watched(thread.node, thread.package, [{**thread.feed(), "body": told}], thread.server)
    assert (seen["error"], seen["state"]) == (None, {"n": 7, "list": [1]})
