"""CopilotKit's own client core (`@copilotkit/core`, in Node) against the site, by either of its transports."""

from __future__ import annotations

import contextlib
import json
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rest_framework.authtoken.models import Token

from agui_django.models import Run, Thread
from agui_django.testing import override_agent
from tests.copilotkit.conftest import Gate
from tests.live import LiveServer
from tests.parts import program, require

pytestmark = pytest.mark.django_db(transaction=True)

Story = Callable[..., dict[str, Any]]


CORE, NEWEST = "@copilotkit/core", "core-newest"


@pytest.fixture(params=[("auto", CORE), ("single", CORE), ("auto", NEWEST)], ids=["auto", "single", "newest"])
def live(request: pytest.FixtureRequest, server: LiveServer, ada: Any) -> Story:
    """Let a new client live through a story of drive.mjs; gives what it saw."""
    require("copilotkit")
    transport, core = request.param
    token = Token.objects.create(user=ada).key
    node = program("node")
    assert node is not None

    def tell(story: str, **more: Any) -> dict[str, Any]:
        spec = {
            "story": story, "url": f"{server.url}/copilotkit/", "transport": transport, "core": core,
            "headers": {"Authorization": f"Token {token}"}, "threadId": str(uuid.uuid4()), **more,
        }  # fmt: skip
        done = subprocess.run(
            [node, "drive.mjs"],
            cwd=Path(__file__).parent, input=json.dumps(spec), capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        seen: dict[str, Any] = json.loads(done.stdout)
        return seen

    return tell


@pytest.fixture
def gate(agui_runtime: None) -> Iterator[None]:
    """Agent ``gate`` waits between two words until agent ``release`` has run."""
    held = Gate()

    async def releases(run: Any) -> None:
        held.opened.set()
        await run.say("Done.")

    with contextlib.ExitStack() as stack:
        stack.enter_context(override_agent("gate", held))
        stack.enter_context(override_agent("release", releases))
        yield
    held.opened.set()


def roles(seen: dict[str, Any]) -> list[str]:
    return [message["role"] for message in seen["messages"]]


def words(seen: dict[str, Any]) -> list[str]:
    """What was said; an assistant's message may hold calls only."""
    said = [message.get("content") for message in seen["messages"] if message["role"] == "assistant"]
    return [text for text in said if text]


def test_info(live: Story) -> None:
    seen = live("info")
    assert (seen["status"], seen["errors"]) == ("connected", [])
    assert {"default", "echo", "plan", "refund"} <= set(seen["agents"])
    assert [request["status"] for request in seen["requests"]] == [200]


def test_a_front_end_tool_takes_two_runs(live: Story) -> None:
    async def painter(run: Any) -> None:
        if run.messages[-1].role == "tool":
            await run.say(f"The page said {run.messages[-1].content}.")
        else:
            run.tool_call("setColor", {"color": "blue"})

    with override_agent("painter", painter):
        seen = live("tool")
    assert seen["colours"] == ["blue"]
    assert roles(seen) == ["user", "assistant", "tool", "assistant"]
    assert seen["messages"][-1]["content"] == "The page said done."
    assert seen["errors"] == []
    assert [run.status for run in Run.objects.all()] == ["finished", "finished"]


@pytest.mark.parametrize("reload", [False, True])
def test_an_interrupt_is_answered(live: Story, reload: bool) -> None:
    seen = live("interrupt", reload=reload)
    [question] = seen["before"]["open"]
    assert question["message"] == "Refund 40 € for order 7 (Blue teapot)?"
    assert words(seen["after"])[-1] == "Refunded 7 € (no reason given)."
    assert seen["after"]["open"] == []
    assert seen["before"]["errors"] + seen["after"]["errors"] == []


def test_a_reload_shows_what_is_stored(live: Story) -> None:
    seen = live("reload")
    assert seen["second"] == seen["first"]
    assert seen["second"]["state"]["goal"] == "A walk"
    assert seen["empty"] == {"messages": [], "errors": []}


def test_a_page_that_comes_in_the_middle(live: Story, gate: None) -> None:
    seen = live("middle")
    assert words(seen["first"]) == words(seen["second"]) == ["before after"]
    assert seen["first"]["errors"] + seen["second"]["errors"] == []
    # The run of a second tab is refused, and it is told why.
    assert {error["code"] for error in seen["busy"]["errors"]} == {"agent_run_failed_event", "agent_run_failed"}
    assert all(error["message"].startswith("HTTP 409: ") for error in seen["busy"]["errors"])
    assert "thread_busy" in seen["busy"]["errors"][0]["message"]


@pytest.mark.parametrize("reload", [False, True])
def test_stop(live: Story, gate: None, reload: bool) -> None:
    seen = live("stop", reload=reload)
    assert words(seen["first"]) == words(seen["second"]) == ["before"]
    assert seen["first"]["errors"] + seen["second"]["errors"] == []
    assert Run.objects.get().status == "cancelled"


def test_threads(live: Story) -> None:
    seen = live("threads")
    told = [{"id": name, "name": f"About {name}", "archived": False} for name in "cba"]
    assert seen["first"] == told[:2]
    assert seen["whole"] == told
    assert seen["last"] == [{"id": "b", "name": "About b", "archived": True},
                            {"id": "a", "name": "Alpha", "archived": False}]  # fmt: skip
    assert "404" in seen["failed"]
    assert sorted(Thread.objects.values_list("thread_id", "title", "archived")) == [
        ("a", "Alpha", False), ("b", "About b", True),
    ]  # fmt: skip


def test_suggestions(live: Story) -> None:
    async def helpful(run: Any) -> None:
        if [tool.name for tool in run.tools] == ["copilotkitSuggest"]:
            run.tool_call("copilotkitSuggest", {"suggestions": [{"title": "More", "message": "Tell me more"}]})
        else:
            await run.say("Good day.")

    with override_agent("helpful", helpful):
        seen = live("suggestions")
    assert seen["suggestions"] == [{"title": "More", "message": "Tell me more"}]
    assert roles(seen) == ["user", "assistant"]
    assert (Thread.objects.count(), Run.objects.count()) == (1, 1)
