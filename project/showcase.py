"""The agents of the CopilotKit example: scripted, no key needed, one per page. Registered on the demo site only."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

from typing_extensions import TypedDict  # pydantic's condition before Python 3.12

from agui_django import AgentError, Declined, RunContext, agent

WORD = re.compile(r"\S+\s*")

TOUR = """\
You asked about **{topic}**. This answer is scripted; what carries it is not:

- the run goes on when you reload the page, and the page finds it again;
- *Stop* ends the agent, not only what you see of it;
- the conversation is rows in your own database.

```python
urlpatterns += copilotkit_urls("copilotkit")
```

There is no Node server behind this page.
"""


async def words(text: str, pause: float) -> AsyncIterator[str]:
    """The text as a model would stream it."""
    for word in WORD.findall(text):
        yield word
        await asyncio.sleep(pause)


@agent("guide", title="Guide", description="Answers in Markdown, word by word.")
async def guide(run: RunContext, *, pause: float = 0.04) -> None:
    """Stream one answer."""
    await run.say(words(TOUR.format(topic=run.text.strip() or "nothing"), pause))


def get_weather(city: str) -> dict[str, Any]:
    """The back-end tool: the weather that a city's name sounds like."""
    kinds = ["sunny", "cloudy", "rainy", "windy"]
    return {"city": city, "kind": kinds[len(city) % 4], "degrees": 12 + len(city), "wind": 3 * len(city) % 40}


@agent("weather", title="Weather", description="Calls a tool of the server; the page draws the call and its result.")
async def weather(run: RunContext, *, pause: float = 0.4) -> None:
    """Look at each city in the question."""
    cities = re.findall(r"\b[A-Z][a-z]{2,}\b", re.sub(r"^\W*\w+", "", run.text)) or ["Oslo"]
    for city in cities[:3]:
        call = run.tool_call("get_weather", {"city": city})
        await asyncio.sleep(pause)
        await call.run(get_weather)
    await run.say(f"That is the weather in {' and '.join(cities[:3])}.")


SLOTS = ["Monday 10:00", "Tuesday 14:30", "Friday 9:15"]


class Slot(TypedDict):
    """What the person chose."""

    slot: str | None


@agent("booking", title="Booking", description="Has the person choose, through a tool of the page.")
async def booking(run: RunContext) -> None:
    """Ask with the page's own component; called again from the top with the answer."""
    await run.say("Let me see what is free.", key="intro")
    chosen = run.call_frontend_tool("choose_slot", {"topic": run.text.strip() or "A call", "slots": SLOTS}).answer(Slot)
    if chosen["slot"] is None:
        await run.say("No appointment was made.")
    else:
        await run.say(f"Booked: {chosen['slot']}.")


HAIKU = {
    "japanese": ["Furu ike ya", "kawazu tobikomu", "mizu no oto"],
    "english": ["An old silent pond", "A frog jumps into the pond", "Splash! Silence again"],
    "colour": "#0f766e",
}


@agent("haiku", title="Haiku", description="Calls a tool of the page, whose card is the answer.")
async def haiku(run: RunContext) -> None:
    """Have the page show a card."""
    try:
        run.call_frontend_tool("show_haiku", HAIKU).answer()
    except Declined:
        await run.say("Your page did not show the card.")
    else:
        await run.say("A frog, by Bashō.")


class Recipe(TypedDict):
    """What the page and the cook both edit."""

    title: str
    servings: int
    ingredients: list[str]


PANTRY: dict[str, Any] = {
    "title": "Tomato soup",
    "servings": 2,
    "ingredients": ["4 tomatoes", "1 onion", "200 ml cream"],
}


@agent(
    "cook", title="Cook", description="Works on a recipe that you edit, too.", state_schema=Recipe, initial_state=PANTRY
)
async def cook(run: RunContext[Recipe]) -> None:
    """Take the recipe as the person left it, and change what was asked for."""
    with run.edit_state() as recipe:
        if "vegan" in run.text.lower():
            recipe["title"] = f"Vegan {recipe['title'].lower()}"
            recipe["ingredients"] = [item.replace("cream", "oat cream") for item in recipe["ingredients"]]
        else:
            recipe["ingredients"].append("a handful of basil")
    await run.say(f"**{recipe['title']}** for {recipe['servings']}, with {len(recipe['ingredients'])} ingredients.")


STORY = (
    "Once upon a time a request left a browser and met a server that remembered. It told its story word by word, and "
    "when the browser fell asleep in the middle the server kept writing. In the morning all of it was there."
)


@agent("writer", title="Writer", description="A document that follows a tool's arguments while they are streamed.")
async def writer(run: RunContext[dict[str, Any]], *, pause: float = 0.05) -> None:
    """Stream the arguments of a call, as a model does; the state follows them."""
    run.predict_state("document", tool="write_document", argument="text")
    text = f"{run.text.strip() or 'A story'}\n\n{STORY}"
    async with run.message() as message:
        await message.tool_call_delta(0, name="write_document", args='{"text": "')
        async for word in words(text, pause):
            await message.tool_call_delta(0, args=json.dumps(word)[1:-1])
        await message.tool_call_delta(0, args='"}')
    for call in message.tool_calls:
        await call.result("written")
    await run.say("The document is written.")


THOUGHT = "A day has 24 hours, an hour 60 minutes, a minute 60 seconds. 24 times 3600 is 86 400. "


@agent("thinker", title="Thinker", description="Thinks before it answers.")
async def thinker(run: RunContext, *, pause: float = 0.05) -> None:
    """Stream thoughts, then the answer."""
    async with run.message() as message:
        async for word in words(THOUGHT, pause):
            await message.reasoning(word)
        async for word in words("A day has **86 400** seconds.", pause):
            await message.write(word)


@agent("desk", title="News desk", description="Two subagents work for it.")
async def desk(run: RunContext, *, pause: float = 0.05) -> None:
    """Delegate twice; the calls are what clients from before 1.0 see of it."""
    topic = run.text.strip() or "the tide"
    for name, task, finding in (
        ("researcher", f"Find out about {topic}", f"Three sources agree about {topic}."),
        ("critic", "Read what was found", "The second source is a copy of the first."),
    ):
        call = run.tool_call("delegate", {"to": name, "task": task})
        async with run.subagent(name, text=task, call=call) as sub:
            await sub.say(words(finding, pause))
            sub.result = finding
        await call.result(finding)
    await run.say(f"So there are two sources about {topic}.")


@agent("fragile", title="Fragile", description="Breaks in the middle, unless you ask it to try again.")
async def fragile(run: RunContext, *, pause: float = 0.04) -> None:
    """Fail with words that are meant for the person; what was said before them stays."""
    if "again" in run.text.lower():
        await run.say(words("This time the line held.", pause))
        return
    await run.say(words("So far, so good: this much was said, and then", pause))
    raise AgentError("The line is broken. Ask me to try again.", code="line_broken")


@agent("files", title="Files", description="Says what you attached.")
async def files(run: RunContext) -> None:
    """Read every file of the last message."""
    content = run.messages[-1].content if run.messages else ""
    parts = [part for part in content if part.type != "text"] if isinstance(content, list) else []
    if not parts:
        await run.say("Attach a file with the + button.")
    for part in parts:
        data = await run.attachment(part)
        metadata = getattr(part, "metadata", None) or {}
        await run.say(f"**{metadata.get('filename', 'A file')}** ({part.type}): {len(data)} bytes.")
