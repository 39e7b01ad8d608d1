"""Random events of one legal run: what agents emit, with several items open at once, continued and closed."""

from __future__ import annotations

import random
from typing import Any

Event = dict[str, Any]


class _Writer:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.events: list[Event] = []
        self.number = 0
        self.open: list[tuple[str, str, str | None]] = []
        self.closed: list[tuple[str, str, str | None]] = []
        self.subagents: list[str] = []
        self.calls: list[str] = []
        self.texts: list[tuple[str, str | None]] = []
        self.activities: list[str] = []
        self.items = 0

    def emit(self, kind: str, owner: str | None = None, **fields: Any) -> None:
        event: Event = {"type": kind, **fields}
        if owner is not None:
            event["subagentRunId"] = owner
        if self.rng.random() < 0.1 and not kind.startswith(("STATE", "SUBAGENT")):
            event["metadata"] = {self.rng.choice("kl"): self.rng.randrange(3)}
        self.events.append(event)

    def fresh(self, prefix: str) -> str:
        self.number += 1
        return f"{prefix}{self.number}"

    def opened(self, kind: str) -> None:
        owner = self.rng.choice([None, *self.subagents])
        item = self.fresh(kind)
        if kind == "text":
            self.emit("TEXT_MESSAGE_START", owner, messageId=item, role="assistant")
            self.texts.append((item, owner))
        elif kind == "call":
            own = [name for name, whose in self.texts if whose == owner]
            parent = {"parentMessageId": self.rng.choice(own)} if own and self.rng.random() < 0.6 else {}
            self.emit("TOOL_CALL_START", owner, toolCallId=item, toolCallName="look", **parent)
            self.calls.append(item)
        elif kind == "reasoning":
            self.emit("REASONING_MESSAGE_START", owner, messageId=item, role="reasoning")
        elif kind == "span":
            self.emit("REASONING_START", owner, messageId=item)
        elif kind == "step":
            item = self.rng.choice(("plan", "act"))
            if ("step", item, owner) in self.open:
                return
            self.emit("STEP_STARTED", owner, stepName=item)
        self.open.append((kind, item, owner))

    def goes_on(self, kind: str, item: str, owner: str | None) -> None:
        tag = owner if self.rng.random() < 0.5 else None
        delta = self.rng.choice(("a", "bc ", "\U0001f600", '{"x":', "1}"))
        if kind == "text":
            self.emit("TEXT_MESSAGE_CONTENT", tag, messageId=item, delta=delta)
        elif kind == "call":
            self.emit("TOOL_CALL_ARGS", tag, toolCallId=item, delta=delta)
        elif kind == "reasoning":
            self.emit("REASONING_MESSAGE_CONTENT", tag, messageId=item, delta=delta)

    def close(self, entry: tuple[str, str, str | None]) -> None:
        kind, item, owner = entry
        self.open.remove(entry)
        names = {
            "text": ("TEXT_MESSAGE_END", "messageId"), "call": ("TOOL_CALL_END", "toolCallId"),
            "reasoning": ("REASONING_MESSAGE_END", "messageId"), "span": ("REASONING_END", "messageId"),
            "step": ("STEP_FINISHED", "stepName"),
        }  # fmt: skip
        event, field = names[kind]
        self.emit(event, owner, **{field: item})
        if kind == "text":
            self.closed.append(entry)

    def subagent(self) -> None:
        if self.subagents and self.rng.random() < 0.4:
            name = self.rng.choice(self.subagents)
            for entry in [entry for entry in self.open if entry[2] == name]:
                self.close(entry)
            self.subagents.remove(name)
            self.emit("SUBAGENT_FINISHED", name)
        else:
            name = self.fresh("sub")
            self.emit("SUBAGENT_STARTED", name, name="helper")
            self.subagents.append(name)

    def state(self) -> None:
        if not self.items or self.rng.random() < 0.2:
            self.items = 1
            self.emit("STATE_SNAPSHOT", snapshot={"items": [0], "n": 0})
        else:
            self.items += 1
            self.emit("STATE_DELTA", delta=[{"op": "add", "path": "/items/-", "value": self.items}])

    def activity(self) -> None:
        if self.activities and self.rng.random() < 0.6:
            patch = [{"op": "add", "path": "/done/-", "value": self.number}]
            self.emit("ACTIVITY_DELTA", messageId=self.rng.choice(self.activities), activityType="PLAN", patch=patch)
        else:
            self.activities.append(self.fresh("activity"))
            self.emit("ACTIVITY_SNAPSHOT", messageId=self.activities[-1], activityType="PLAN", content={"done": []})

    def other(self) -> None:
        if self.calls and self.rng.random() < 0.5:
            call = self.calls.pop(0)
            if not any(entry[1] == call for entry in self.open):
                self.emit("TOOL_CALL_RESULT", messageId=self.fresh("result"), toolCallId=call, content="seen")
        elif self.closed and self.rng.random() < 0.3:
            entry = self.closed.pop()
            if entry[2] is None or entry[2] in self.subagents:
                self.emit("TEXT_MESSAGE_START", entry[2], messageId=entry[1], role="assistant")
                self.open.append(entry)
        else:
            self.emit("CUSTOM", name="n", value=self.number)

    def step(self) -> None:
        choice = self.rng.random()
        if self.open and choice < 0.5:
            self.goes_on(*self.rng.choice(self.open))
        elif self.open and choice < 0.62:
            self.close(self.rng.choice(self.open))
        elif choice < 0.8:
            self.opened(self.rng.choice(("text", "text", "call", "call", "reasoning", "span", "step")))
        else:
            self.rng.choice((self.subagent, self.state, self.state, self.activity, self.other))()


def random_events(rng: random.Random, steps: int = 60) -> list[Event]:
    """The events of a run between its RUN_STARTED and its end, everything closed."""
    writer = _Writer(rng)
    for _ in range(steps):
        writer.step()
    for entry in list(reversed(writer.open)):
        writer.close(entry)
    for name in writer.subagents:
        writer.emit("SUBAGENT_FINISHED", name)
    return writer.events
