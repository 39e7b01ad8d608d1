"""The chat page in a real browser, against Daphne: what it shows is what is stored."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.parts import ROOT, chromium, require
from tests.servers import ServerProcess

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]
Drive = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    require("node", "browser", "chromium")
    with ServerProcess("daphne", tmp_path=tmp_path_factory.mktemp("chat")) as running:
        yield running


@pytest.fixture
def drive(server: ServerProcess) -> Drive:
    def run(scenario: str) -> dict[str, Any]:
        command = ["node", "chat.mjs", scenario, f"{server.base_url}/"]
        # AGUI_SCREENSHOTS names a folder to look at; the scenarios themselves compare texts.
        if folder := os.environ.get("AGUI_SCREENSHOTS"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            command.append(folder)
        done = subprocess.run(
            command, cwd=ROOT / "tests" / "browser", capture_output=True, text=True, timeout=150, check=False,
            env={**os.environ, "CHROMIUM": chromium() or ""},
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stderr}\n{server.log[-3000:]}"
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    return run


def stored_texts(thread: dict[str, Any], role: str) -> list[str]:
    return [message["content"] for message in thread["messages"] if message["role"] == role and message.get("content")]


def test_chat_and_raw_events(server: ServerProcess, drive: Drive) -> None:
    shown = drive("chat")
    thread = server.stored(shown["thread"])
    assert stored_texts(thread, "user") == ["Hello **there** & <b>you</b>", "And again"]
    assert stored_texts(thread, "assistant") == ["You said: Hello **there** & <b>you</b>", "You said: And again"]
    assert [run["status"] for run in thread["runs"]] == ["finished", "finished"]


def test_reload_in_the_middle(server: ServerProcess, drive: Drive) -> None:
    shown = drive("reload")
    thread = server.stored(shown["thread"])
    (text,) = stored_texts(thread, "assistant")
    assert len(text) == 200 * 24
    assert shown["text"].strip() == text.strip()
    (run,) = thread["runs"]
    assert (run["status"], run["lastSeq"]) == ("finished", 204)


def test_two_tabs_of_one_thread(server: ServerProcess, drive: Drive) -> None:
    shown = drive("tabs")
    thread = server.stored(shown["thread"])
    assert [text.strip() for text in stored_texts(thread, "assistant")] == [text.strip() for text in shown["answers"]]
    assert [run["status"] for run in thread["runs"]] == ["finished", "finished", "cancelled"]


def test_an_event_source(server: ServerProcess, drive: Drive) -> None:
    shown = drive("source")
    _, run = server.stored(shown["thread"])["runs"]
    restated = ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT", "RUN_FINISHED"]
    assert shown["types"] == restated + [event["type"] for event in run["events"]]
    assert shown["opened"] >= 2


def test_plan_is_watched(server: ServerProcess, drive: Drive) -> None:
    shown = drive("plan")
    state = server.stored(shown["thread"])["state"]
    assert state["progress"] == 100
    assert [item["done"] for item in state["items"]] == [True, True, True]
    assert shown["arguments"] == {"task": "Prepare"}
    assert 'goal"A picnic by the lake"' in shown["state"]
    assert "progress100" in shown["state"]


def test_interrupt_is_answered(server: ServerProcess, drive: Drive) -> None:
    shown = drive("refund")
    approved, declined = server.stored(shown["thread"]), server.stored(shown["declined"])
    assert [interrupt["status"] for interrupt in approved["interrupts"]] == ["resolved"]
    assert [interrupt["status"] for interrupt in declined["interrupts"]] == ["cancelled"]
    assert [run["status"] for run in approved["runs"]] == ["interrupted", "finished"]
    assert stored_texts(approved, "assistant") == ["Let me look at that order.", "Refunded 25 € (late)."]


def test_an_approved_tool_is_executed_once(server: ServerProcess, drive: Drive) -> None:
    thread = server.stored(drive("orders")["thread"])
    assert thread["state"] == {"orders": [{"number": 1, "item": "Blue teapot", "quantity": 1}]}
    assert [run["status"] for run in thread["runs"]] == ["interrupted", "finished"] * 2
    assert [row["payload"] for row in thread["interrupts"]] == [
        {"approved": True}, {"approved": False, "reason": "too red"},
    ]  # fmt: skip
    results = [message for message in thread["messages"] if message["role"] == "tool"]
    assert [message["content"] for message in results] == ['{"number":1}', "Not approved: too red"]


def test_approval_in_two_tabs(server: ServerProcess, drive: Drive) -> None:
    shown = drive("approval")
    thread = server.stored(shown["thread"])
    assert [run["status"] for run in thread["runs"]] == ["interrupted", "finished"] * 4
    assert [interrupt["payload"]["amount"] for interrupt in thread["interrupts"]] == [21, 22, 23, 24]
    assert [text for text in stored_texts(thread, "assistant") if text.startswith("Refunded")] == [
        "Refunded 21 € (damaged).", "Refunded 22 € (damaged).", "Refunded 23 € (late).", "Refunded 24 € (damaged).",
    ]  # fmt: skip


def test_stop(server: ServerProcess, drive: Drive) -> None:
    shown = drive("stop")
    thread = server.stored(shown["thread"])
    (run,) = thread["runs"]
    assert (run["status"], run["endReason"]) == ("cancelled", "user")
    assert stored_texts(thread, "assistant")[0].strip() == shown["text"].strip()


def test_failure_is_told(drive: Drive) -> None:
    assert "secret" not in drive("failure")["notice"]


def test_threads_go_on_in_the_background(server: ServerProcess, drive: Drive) -> None:
    (run,) = server.stored(drive("threads")["thread"])["runs"]
    assert run["status"] == "cancelled"


def test_a_broken_connection_is_taken_up_where_it_broke(server: ServerProcess, drive: Drive) -> None:
    shown = drive("reconnect")
    thread = server.stored(shown["thread"])
    assert shown["seen"] == list(range(1, 105))
    assert [shown["text"]] == stored_texts(thread, "assistant")
    assert len(thread["runs"]) == 1


def test_forms(drive: Drive) -> None:
    shown = drive("forms")
    assert shown["before"] == shown["empty"]
    assert shown["after"] == {
        "name": "Ada", "count": 3, "price": 1.5, "ready": True, "size": 2, "day": "2026-05-04",
        "address": {"city": "Bath"}, "tags": ["a", "b"],
    }  # fmt: skip
    assert shown["problem"].startswith("tags is not valid JSON")
    assert shown["raw"] == 7
    assert shown["kinds"] == [
        "text", "number", "number", "checkbox", "select-one", "date", "text", "text", "textarea",
    ]  # fmt: skip


def test_looks(drive: Drive) -> None:
    drive("looks")
