"""The CopilotKit example in a real browser, against Daphne and uvicorn: what it shows is what is stored."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.parts import ROOT, chromium, require
from tests.servers import Kind, ServerProcess

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]
Drive = Callable[..., dict[str, Any]]

both = pytest.mark.parametrize("server", ["daphne", "uvicorn"], indirect=True)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Kind], ServerProcess]]:
    """One server of each kind, started when it is asked for."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def start(kind: Kind) -> ServerProcess:
            folder = tmp_path_factory.mktemp(kind)
            return stack.enter_context(
                ServerProcess(kind, tmp_path=folder, env={"AGUI_ATTACHMENTS": str(folder / "attachments")})
            )

        yield start


@pytest.fixture
def server(request: pytest.FixtureRequest, servers: Callable[[Kind], ServerProcess]) -> ServerProcess:
    require("node", "browser", "chromium", "frontend")
    return servers(getattr(request, "param", "daphne"))


@pytest.fixture
def drive(server: ServerProcess) -> Drive:
    def run(scenario: str, **environment: str) -> dict[str, Any]:
        command = ["node", "copilotkit.mjs", scenario, f"{server.base_url}/copilotkit-demo/"]
        # AGUI_SCREENSHOTS names a folder to look at; the scenarios themselves compare texts.
        if folder := os.environ.get("AGUI_SCREENSHOTS"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            command.append(folder)
        with subprocess.Popen(
            command, cwd=ROOT / "tests" / "browser", text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "CHROMIUM": chromium() or "", **environment},
        ) as driver:  # fmt: skip
            assert driver.stdin is not None and driver.stdout is not None and driver.stderr is not None
            killer = threading.Timer(210, driver.kill)
            killer.start()
            try:
                told = driver.stdout.readline()
                if told == "kill\n":
                    port = server.port
                    server.kill()
                    server.start(port)
                    driver.stdin.write("there is another one\n")
                    driver.stdin.flush()
                    told = driver.stdout.readline()
                trouble = driver.stderr.read()
            finally:
                killer.cancel()
        assert driver.returncode == 0, f"{trouble}\n{server.log[-3000:]}"
        result: dict[str, Any] = json.loads(told)
        return result

    return run


def said(thread: dict[str, Any], role: str) -> list[str]:
    return [message["content"] for message in thread["messages"] if message["role"] == role and message.get("content")]


def statuses(thread: dict[str, Any]) -> list[str]:
    return [run["status"] for run in thread["runs"]]


@both
def test_every_page_does_its_thing(server: ServerProcess, drive: Drive) -> None:
    stored = {name: server.stored(thread) for name, thread in drive("pages").items()}
    assert {name: statuses(thread) for name, thread in stored.items()} == {
        "chat": ["finished"], "tools": ["finished"], "steps": ["finished"], "cards": ["finished", "finished"],
        "document": ["finished"], "thoughts": ["finished"], "subagents": ["finished"], "recipe": ["finished"],
        "files": ["finished", "finished"],
    }  # fmt: skip
    assert stored["recipe"]["state"]["servings"] == 5
    assert stored["document"]["state"]["document"].startswith("The server that remembered\n\nOnce upon a time")
    assert said(stored["cards"], "tool") == ["shown"]
    (picture,) = [part for part in stored["files"]["messages"][0]["content"] if part["type"] == "image"]
    assert "/attachments/" in picture["source"]["value"]


@both
def test_reload_after_an_answer_and_in_the_middle(server: ServerProcess, drive: Drive) -> None:
    shown = drive("reload")
    assert said(server.stored(shown["first"]), "assistant") == ["You said: First"]
    thread = server.stored(shown["second"])
    (text,) = said(thread, "assistant")
    assert len(text) == 250 * 24
    assert shown["text"] == text.strip()
    assert statuses(thread) == ["finished"]


@both
def test_stop_ends_the_agent(server: ServerProcess, drive: Drive) -> None:
    shown = drive("stop")
    thread = server.stored(shown["thread"])
    assert statuses(thread) == ["cancelled", "cancelled", "finished"]
    assert [run["endReason"] for run in thread["runs"]][:2] == ["user", "user"]
    first, _, last = said(thread, "assistant")
    assert first.strip() == shown["text"]
    assert last == "You said: Still there?"


@both
def test_a_person_in_the_loop(server: ServerProcess, drive: Drive) -> None:
    for thread_id, slot in zip(drive("choose")["threads"], ["Friday 9:15", None], strict=True):
        thread = server.stored(thread_id)
        assert statuses(thread) == ["finished", "finished"]
        assert [json.loads(content) for content in said(thread, "tool")] == [{"slot": slot}]


@both
def test_interrupts(server: ServerProcess, drive: Drive) -> None:
    threads = [server.stored(thread) for thread in drive("approval")["threads"]]
    answered, reloaded, cancelled = ([each["status"] for each in thread["interrupts"]] for thread in threads)
    assert (answered, reloaded, cancelled) == (["resolved"], ["resolved"], ["cancelled", "resolved"])
    assert [statuses(thread)[:2] for thread in threads] == [["interrupted", "finished"]] * 3
    assert [thread["interrupts"][0]["payload"]["amount"] for thread in threads[:2]] == [25, 40]


@both
def test_threads_are_listed_renamed_archived_and_deleted(server: ServerProcess, drive: Drive) -> None:
    shown = drive("threads")
    assert said(server.stored(shown["kept"]), "user") == ["Bread and butter"]
    assert server.stored(shown["deleted"]) == {}


@both
def test_what_others_never_see(server: ServerProcess, drive: Drive) -> None:
    thread_id = drive("strangers")["thread"]
    assert said(server.stored(thread_id), "user") == ["A secret"]
    assert said(server.stored(thread_id, "admin"), "user") == ["Whose is this?"]


@both
def test_a_busy_thread_is_told_once(server: ServerProcess, drive: Drive) -> None:
    thread = server.stored(drive("busy")["thread"])
    assert statuses(thread) == ["finished", "cancelled"]


@both
def test_a_server_that_is_killed_in_the_middle(server: ServerProcess, drive: Drive) -> None:
    shown = drive("killed")
    thread = server.stored(shown["thread"])
    assert statuses(thread) == ["finished", "failed", "finished"]
    assert [run["errorCode"] for run in thread["runs"]] == ["", "abandoned", ""]
    first, cut, last = said(thread, "assistant")
    assert (first, last) == ("You said: First", "You said: And now?")
    assert cut.startswith(shown["text"])


@both
def test_an_agent_that_fails_is_told_once(server: ServerProcess, drive: Drive) -> None:
    thread = server.stored(drive("fails")["thread"])
    assert statuses(thread) == ["failed", "finished"]
    assert [text.strip() for text in said(thread, "assistant")] == [
        "So far, so good: this much was said, and then", "This time the line held.",
    ]  # fmt: skip


@both
def test_regenerate(server: ServerProcess, drive: Drive) -> None:
    thread = server.stored(drive("regenerate")["thread"])
    assert statuses(thread) == ["finished"] * 4
    assert (said(thread, "user"), said(thread, "assistant")) == (["First"], ["You said: First"])


@both
def test_a_file_of_20_megabytes(server: ServerProcess, drive: Drive) -> None:
    thread = server.stored(drive("large")["thread"])
    assert statuses(thread) == ["finished"] * 3
    (file,) = [part for part in thread["messages"][0]["content"] if part["type"] == "document"]
    assert "/attachments/" in file["source"]["value"]


@both
def test_without_a_runtime(server: ServerProcess, drive: Drive) -> None:
    thread = server.stored(drive("plain")["thread"])
    assert statuses(thread) == ["finished", "cancelled"]
    assert [run["endReason"] for run in thread["runs"]][1] == "user"


def test_a_page_of_the_single_route_transport(server: ServerProcess, drive: Drive, tmp_path: Path) -> None:
    require("copilotkit")
    subprocess.run(["node", ROOT / "tests" / "copilotkit" / "build.mjs", tmp_path], check=True, timeout=60)
    shown = drive("single", AGUI_BUNDLE=str(tmp_path))
    stored = {name: server.stored(thread) for name, thread in shown["threads"].items()}
    assert {name: statuses(thread) for name, thread in stored.items()} == {
        "threads": ["finished"], "cards": ["finished", "finished"], "choose": ["finished", "finished"],
        "approval": ["interrupted", "finished"],
    }  # fmt: skip
    assert said(stored["threads"], "assistant")[0].strip() == shown["text"]
    assert len(shown["text"]) > 149 * 24
    envelopes = [f"POST /copilotkit {method}" for method in ("agent/connect", "agent/run", "info")]
    assert shown["calls"] == ["GET /copilotkit/threads", *envelopes]  # its list of threads knows REST only
