"""The agents and the page of the CopilotKit example, without a browser; tests/browser/test_copilotkit.py has one."""

from __future__ import annotations

from functools import partial

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.urls import reverse

from agui_django.testing import run_agent
from project import showcase, views


@pytest.mark.asyncio
async def test_the_weather_of_every_city_in_the_question() -> None:
    run = await run_agent(partial(showcase.weather, pause=0), "What is the weather in Lisbon and Oslo?")
    assert run.said == ["That is the weather in Lisbon and Oslo."]
    results = [event["content"] for event in run.events if event["type"] == "TOOL_CALL_RESULT"]
    assert '"degrees":18' in results[0].replace(" ", "") and '"degrees":16' in results[1].replace(" ", "")


@pytest.mark.asyncio
async def test_booking_waits_for_the_page() -> None:
    run = await run_agent(showcase.booking, "The roof", tools=["choose_slot"])
    assert run.said == ["Let me see what is free."]
    assert (await run.answer_frontend({"choose_slot": {"slot": "Friday 9:15"}})).said[-1] == "Booked: Friday 9:15."
    run = await run_agent(showcase.booking, "The roof", tools=["choose_slot"])
    assert (await run.answer_frontend({"choose_slot": {"slot": None}})).said[-1] == "No appointment was made."


@pytest.mark.asyncio
async def test_the_cook_takes_what_the_person_edited() -> None:
    run = await run_agent(showcase.cook, "Make it vegan", state={**showcase.PANTRY, "servings": 5})
    assert run.state == {
        "title": "Vegan tomato soup",
        "servings": 5,
        "ingredients": ["4 tomatoes", "1 onion", "200 ml oat cream"],
    }


@pytest.mark.asyncio
async def test_the_document_is_what_the_call_says() -> None:
    run = await run_agent(partial(showcase.writer, pause=0), 'A "quoted"\ntitle')
    assert run.state == {"document": f'A "quoted"\ntitle\n\n{showcase.STORY}'}


@pytest.mark.asyncio
async def test_delegations_are_calls_with_results() -> None:
    run = await run_agent(partial(showcase.desk, pause=0), "the tide")
    assert run.types.count("SUBAGENT_STARTED") == run.types.count("SUBAGENT_FINISHED") == 2
    results = [event["content"] for event in run.events if event["type"] == "TOOL_CALL_RESULT"]
    assert results == ["Three sources agree about the tide.", "The second source is a copy of the first."]


@pytest.mark.asyncio
async def test_the_agent_that_fails() -> None:
    run = await run_agent(partial(showcase.fragile, pause=0), "Tell me")
    assert run.error is not None
    assert (run.error["code"], run.error["message"]) == ("line_broken", "The line is broken. Ask me to try again.")
    assert run.said == ["So far, so good: this much was said, and then"]
    assert (await run_agent(partial(showcase.fragile, pause=0), "Again")).said == ["This time the line held."]


@pytest.mark.django_db
@pytest.mark.parametrize("built", [True, False])
def test_the_page_says_how_it_is_built(client: Client, monkeypatch: pytest.MonkeyPatch, built: bool) -> None:
    get_user_model().objects.create_user("ada")
    monkeypatch.setattr(views.finders, "find", lambda path: path if built else None)
    page = client.get("/copilotkit-demo/")
    assert page.status_code == 200
    text = page.content.decode()
    assert ("copilotkit_demo/main.js" in text) is built
    assert ("make frontend" in text) is not built
    assert 'data-runtime="/copilotkit"' in text


@pytest.mark.django_db
def test_the_page_asks_for_a_login_elsewhere(client: Client, settings) -> None:
    address = reverse("copilotkit-demo")  # the site's addresses are made now, while it is a demo
    settings.DEMO = False
    assert client.get(address)["Location"].startswith("/admin/login/")
