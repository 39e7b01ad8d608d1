"""The site's own titles: asked for behind the first turn that ended well, never in the way, never over a person's."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from agui_django.models import Run, Thread
from agui_django.runs import supervisor, titling
from agui_django.runs.database import get_pool
from agui_django.runs.keeping import arename
from agui_django.runs.start import astart_run, start_run
from agui_django.testing import override_agent

#: What the functions below were called with, and what they do instead of giving a title.
asked: list[tuple[Thread, list[dict[str, Any]]]] = []
does: dict[str, Any] = {}


def of_thread(thread: Thread, messages: list[dict[str, Any]]) -> Any:
    asked.append((thread, messages))
    # The ORM may be used here.
    assert Run.objects.filter(thread=thread).count() == len(messages) / 2
    return does.get("title", f"About {messages[0]['content']}")


async def of_model(thread: Thread, messages: list[dict[str, Any]]) -> Any:
    asked.append((thread, messages))
    await asyncio.sleep(does.get("seconds", 0))
    if "error" in does:
        raise does["error"]
    return does.get("title", f"About {messages[0]['content']}")


@pytest.fixture(autouse=True)
def fresh(agui_runtime: None, settings: Any) -> Iterator[None]:
    asked.clear()
    does.clear()
    settings.AGUI_DJANGO = {"TITLE": "tests.runs.test_titling.of_model"}
    with override_agent("answers", lambda run: run.say("fine")):
        yield


async def turn(text: str = "kettles", **more: Any) -> Thread:
    run = await astart_run("answers", "t", text, scope="s", **more)
    await supervisor.settle()
    return await get_pool().run(Thread.objects.get, pk=run.thread_id)


@pytest.mark.asyncio
@pytest.mark.parametrize("function", ["of_model", "of_thread"])
async def test_the_site_is_asked_once(settings: Any, function: str) -> None:
    settings.AGUI_DJANGO = {"TITLE": f"tests.runs.test_titling.{function}"}
    thread = await turn()
    assert (thread.title, thread.titled_by) == ("About kettles", "site")
    ((given, messages),) = asked
    assert given == thread and given.title == "kettles"
    assert [(message["role"], message["content"]) for message in messages] == [
        ("user", "kettles"), ("assistant", "fine"),
    ]  # fmt: skip
    assert (await turn("teapots")).title == "About kettles"
    assert len(asked) == 1


@pytest.mark.asyncio
async def test_without_it_nobody_is_asked(settings: Any) -> None:
    settings.AGUI_DJANGO = {}
    assert ((await turn()).title, asked) == ("kettles", [])


@pytest.mark.asyncio
async def test_a_person_s_title_stays(settings: Any) -> None:
    settings.AGUI_DJANGO = {}
    thread = await turn()
    await arename(thread, "Mine")
    settings.AGUI_DJANGO = {"TITLE": "tests.runs.test_titling.of_model"}
    assert ((await turn()).title, asked) == ("Mine", [])


@pytest.mark.asyncio
async def test_a_person_who_is_faster_wins() -> None:
    begun = asyncio.Event()

    async def slow(thread: Thread, messages: list[dict[str, Any]]) -> str:
        begun.set()
        await arename(thread, "Mine")
        return "Theirs"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(titling, "imported", lambda path: slow)
        thread = await turn()
    assert begun.is_set()
    assert (thread.title, thread.titled_by) == ("Mine", "person")


@pytest.mark.asyncio
@pytest.mark.parametrize("wrong", ["error", "none", "number", "slow", "missing"])
async def test_what_goes_wrong_is_logged_and_breaks_nothing(
    wrong: str, settings: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(titling, "PATIENCE", 5.0 if wrong != "slow" else 0.01)
    does.update({"error": {"error": RuntimeError("no model")}, "none": {"title": None}, "number": {"title": 7},
                 "slow": {"seconds": 60}}.get(wrong, {}))  # fmt: skip
    if wrong == "missing":
        settings.AGUI_DJANGO = {"TITLE": "tests.runs.test_titling.nothing"}
    with caplog.at_level(logging.ERROR, "agui_django.runs"):
        thread = await turn()
    assert (thread.title, thread.titled_by) == ("kettles", "")
    assert "TITLE gave no title" in caplog.text
    assert (await get_pool().run(Run.objects.get)).status == "finished"
    # It is asked again behind the next turn.
    does.clear()
    settings.AGUI_DJANGO = {"TITLE": "tests.runs.test_titling.of_model"}
    monkeypatch.setattr(titling, "PATIENCE", 5.0)
    assert (await turn("teapots")).title == "About kettles"


@pytest.mark.asyncio
async def test_hostile_titles_are_cut_and_cleaned() -> None:
    does["title"] = "a\0\n b " + "x" * 1_000
    assert (await turn()).title == f"a\ufffd b {'x' * 250}"


@pytest.mark.asyncio
async def test_an_empty_title_leaves_the_first_words() -> None:
    does["title"] = " "
    assert ((await turn()).title, len(asked)) == ("kettles", 1)
    assert ((await turn()).title, len(asked)) == ("kettles", 2)


@pytest.mark.asyncio
async def test_a_turn_that_failed_is_none() -> None:
    with override_agent("answers", lambda run: 1 / 0):
        assert ((await turn()).title, asked) == ("kettles", [])
    assert (await turn()).title == "About kettles"


@pytest.mark.asyncio
async def test_a_thread_that_is_deleted_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    thread = await turn()
    await get_pool().run(lambda: Thread.objects.all().delete())
    await titling.entitle(thread.pk)
    assert not caplog.records


def test_synchronous_starts_are_titled_too() -> None:
    done = threading.Event()

    async def told(thread: Thread, messages: list[dict[str, Any]]) -> str:
        done.set()
        return "Told"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(titling, "imported", lambda path: told)
        start_run("answers", "t", "kettles", scope="s")
        assert done.wait(20)
