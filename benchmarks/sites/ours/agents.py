"""The agent that does the work, written as the documentation tells a site to write it."""

from __future__ import annotations

from agui_django import RunContext, agent
from benchmarks.work import Order


@agent("work")
async def work(run: RunContext) -> None:
    """Stream what the user's message orders."""
    async with run.message() as message:
        async for text in Order.read(run.text).deltas():
            await message.write(text)
