"""Plays a script: a JSON list of events, with marks for what JSON cannot say.

``{"$raise": "ValueError: text"}`` raises, ``{"$sleep": seconds}`` waits, ``{"$float": "nan"}`` is a float,
``{"$utf16": ["d83d"]}`` a text with those code units.
"""

from __future__ import annotations

import asyncio
import builtins
import json
from collections.abc import AsyncIterator
from typing import Any

from agui_django import AgentError

#: The official models would refuse these without their ids; a script may leave them out.
NEEDS_IDS = frozenset({"RUN_STARTED", "RUN_FINISHED"})


async def play(text: str, *, thread_id: str, run_id: str) -> AsyncIterator[dict[str, Any]]:
    """Yield the script's events.

    Raises:
        AgentError: the text is no JSON list of objects.
    """
    for line in parse(text):
        if "$raise" in line:
            name, _, message = str(line["$raise"]).partition(": ")
            error = getattr(builtins, name, None)
            raise (error if isinstance(error, type) and issubclass(error, BaseException) else RuntimeError)(message)
        if "$sleep" in line:
            await asyncio.sleep(float(line["$sleep"]))
            continue
        event = marked(line)
        if event.get("type") in NEEDS_IDS:
            event = {"threadId": thread_id, "runId": run_id, **event}
        yield event


def parse(text: str) -> list[dict[str, Any]]:
    """The script's lines."""
    try:
        lines = json.loads(text)
    except ValueError as error:
        raise AgentError(f"A script is a JSON list of events: {error}", code="bad_script") from None
    if not isinstance(lines, list) or not all(isinstance(line, dict) for line in lines):
        raise AgentError("A script is a JSON list of events.", code="bad_script")
    return lines


def marked(value: Any) -> Any:
    """A value with its marks resolved."""
    if isinstance(value, list):
        return [marked(item) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"$float"}:
        return float(value["$float"])
    if set(value) == {"$utf16"}:
        return "".join(chr(int(unit, 16)) for unit in value["$utf16"])
    return {key: marked(item) for key, item in value.items()}
