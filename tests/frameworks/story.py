"""What the stories are made of: an agent's model and tools, how a framework makes agents of them, what is compared."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from typing import Any, Protocol

from agui_django import approval_required
from agui_django.testing.replies import Script

SECRET = "hunter2"
PICK = {
    "name": "pick_color",
    "description": "Let the user pick a color.",
    "parameters": {"type": "object", "properties": {"choices": {"type": "array", "items": {"type": "string"}}}},
}


class Story:
    """What a story's agent is made of: a model's script and tools, and the events that its test waits for.

    Attributes:
        script: the model.
        tools: names of the methods that are its tools. ``count`` is the framework's to make: it sets ``count`` in the
            shared state to one more and ``items`` to ``["a"]``, and gives ``counted``.
        refunds: what `refund` paid.
    """

    def __init__(self, script: Script, *tools: str) -> None:
        self.script = script
        self.tools = tools
        self.entered, self.go_on, self.left = threading.Event(), threading.Event(), threading.Event()
        self.refunds: list[int] = []

    def find_order(self, order_id: int) -> str:
        """Find an order."""
        return f"kettle {order_id}"

    async def weather(self, city: str) -> str:
        """Tell the weather."""
        return f"sunny in {city}"

    async def clock(self) -> str:
        """Tell the time."""
        return "noon"

    @approval_required("Refund {amount} €?")
    def refund(self, amount: int) -> str:
        """Refund an amount. It asks a person first; where a framework has its own way to ask, that is used."""
        self.refunds.append(amount)
        return f"refunded {amount}"

    async def wait(self) -> str:
        """Wait for ever."""
        self.entered.set()
        try:
            await asyncio.sleep(3600)
        finally:
            self.left.set()
        return "waited"

    async def gate(self) -> None:
        """Wait until the test says `go_on`."""
        self.entered.set()
        while not self.go_on.is_set():
            await asyncio.sleep(0.01)


class Framework(Protocol):
    """How a framework makes agents.

    Attributes:
        name: of the framework; agents are called ``fw-<name>``.
    """

    name: str

    def agent(self, story: Story) -> Any:
        """What ``register()`` takes: an agent with the story's model and tools."""


def shape(messages: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Messages without what may differ between frameworks: ids, metadata, which of parallel tools was done first."""
    names = {call["id"]: call["function"]["name"] for each in messages for call in each.get("toolCalls", ())}
    made = list(names)
    # Results stand behind their calls in any case: what is left of their order is which of one message came first.
    results = iter(
        sorted((each for each in messages if each["role"] == "tool"), key=lambda each: made.index(each["toolCallId"]))
    )
    out: list[tuple[Any, ...]] = []
    for each in messages:
        if each["role"] == "tool":
            result = next(results)
            out.append(("tool", names[result["toolCallId"]], result["content"]))
            continue
        calls = [
            (call["function"]["name"], json.loads(call["function"]["arguments"] or "{}"))
            for call in each.get("toolCalls", ())
        ]
        out.append((each["role"], each.get("content") or "", *([calls] if calls else [])))
    return out


def approve(interrupts: Sequence[dict[str, Any]], *payloads: dict[str, Any]) -> list[dict[str, Any]]:
    """The resume entries."""
    return [
        {"interruptId": each["id"], "status": "resolved", "payload": payload}
        for each, payload in zip(interrupts, payloads, strict=True)
    ]


GRANTED = {"approved": True}
DENIED = {"approved": False, "reason": "Too much."}
