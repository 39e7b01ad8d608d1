"""Random event streams for the differential test: stories that are mostly legal, and damage done to them.

Seeded and plain `random`: one seed is one stream, in every process.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]

SCALARS: tuple[Any, ...] = (None, True, False, 0, 1, 2, -7, 1.5, "", "x", "1", "\u00e9\u4e16\U0001f600")
#: Where two sides may be held to one result. Left out is what RFC 6902 forbids and the client's library lets pass (a
#: move into itself, an insertion beyond the end by move or copy, `01` and the empty token as an index, a missing source
#: for the whole document, members of plain values beside other operations): test_json_patch shows that we refuse it.
POINTERS = ("/a", "/b", "/a/x", "/b/0", "/items", "/items/0", "/items/1", "/items/-", "/items/3/deep", "/a~1b", "/m~0n")
MEMBERS = ("/a", "/b", "/a/x", "/a~1b", "/m~0n")
ROLES = ("assistant", "user", "system", "developer")


@dataclass
class Stream:
    """What one client gets to see."""

    seed: int
    events: list[Event]
    messages: list[Event]
    state: Any
    damage: list[str] = field(default_factory=list)
    thread_id: str = "t"
    run_id: str = "run-1"


class Story:
    """Writes one legal stream; ids come from small pools, so that messages are continued and ids collide."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.events: list[Event] = []
        self.open: dict[str, dict[str, str | None]] = {kind: {} for kind in ("text", "reasoning", "span", "call")}
        self.owner: dict[tuple[str, str], str | None] = {}
        self.steps: list[tuple[str, str | None]] = []
        self.subagents: dict[str, bool] = {}
        self.run = 0
        self.number = 0

    # ---- pieces ----

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def value(self, depth: int = 2) -> Any:
        kind = self.rng.randrange(6) if depth else 0
        if kind == 1:
            return [self.value(depth - 1) for _ in range(self.rng.randrange(4))]
        if kind == 2:
            return {self.rng.choice(("a", "b", "items", "a/b", "m~n")): self.value(depth - 1) for _ in range(3)}
        return self.rng.choice(SCALARS)

    def state(self) -> Any:
        if self.chance(0.15):
            return self.value()
        return {"a": self.value(), "items": [self.value(1) for _ in range(self.rng.randrange(4))], "b": self.value()}

    def metadata(self) -> dict[str, Any]:
        return {self.rng.choice(("k", "l", "ag-ui")): self.value(1)}

    def fresh(self, kind: str) -> str:
        self.number += 1
        return f"{kind}{self.number}"

    def some_id(self, kind: str) -> str:
        """A new id, or one that was used before, sometimes for something else."""
        if self.chance(0.7):
            return self.fresh(kind)
        return f"{self.rng.choice((kind, kind, 'm', 'r', 'c', 'p'))}{self.rng.randrange(1, max(2, self.number + 1))}"

    def subagent(self) -> str | None:
        active = [name for name, is_active in self.subagents.items() if is_active]
        return self.rng.choice(active) if active and self.chance(0.5) else None

    def emit(self, kind: str, *, owner: str | None = None, **fields: Any) -> None:
        event: Event = {"type": kind, **fields}
        if owner is not None:
            event["subagentRunId"] = owner
        if self.chance(0.12):
            event["metadata"] = self.metadata()
        if self.chance(0.05):
            event["timestamp"] = self.rng.randrange(10**13)
        if self.chance(0.03):
            event["rawEvent"] = {"raw": self.value(1)}
        self.events.append(event)

    def part(self) -> Event:
        source = (
            {"type": "url", "value": "u"} if self.chance(0.5) else {"type": "data", "value": "aGk=", "mimeType": "x/y"}
        )
        kind = self.rng.choice(("text", "image", "document"))
        return {"type": "text", "text": "part"} if kind == "text" else {"type": kind, "source": source}

    def content(self) -> Any:
        return [self.part() for _ in range(self.rng.randrange(3))] if self.chance(0.2) else self.rng.choice(("", "hi"))

    def message(self) -> Event:
        role = self.rng.choice((*ROLES, "assistant", "tool", "reasoning", "activity"))
        message: Event = {"id": self.some_id(self.rng.choice("mrcp")), "role": role}
        if role == "activity":
            message |= {"activityType": self.rng.choice(("PLAN", "CHART")), "content": {"items": [self.value(1)]}}
        elif role == "tool":
            message |= {"toolCallId": self.some_id("c"), "content": self.content()}
        elif role == "user":
            message["content"] = self.content()
        elif role != "assistant" or self.chance(0.7):
            message["content"] = self.rng.choice(("", "text"))
        if role == "assistant" and self.chance(0.5):
            message["toolCalls"] = [
                {"id": self.some_id("c"), "type": "function", "function": {"name": "f", "arguments": "{"}}
                for _ in range(self.rng.randrange(3))
            ]
        if role in ROLES and self.chance(0.1):
            message["name"] = "name"
        if self.chance(0.1):
            message["metadata"] = self.metadata()
        return message

    def op(self) -> Event:
        kind = self.rng.choice(("add", "add", "replace", "remove", "test", "move", "copy"))
        op: Event = {"op": kind, "path": self.rng.choice(POINTERS)}
        if kind in ("add", "replace", "test"):
            op["value"] = self.value(1)
        elif kind != "remove":
            op["path"] = self.rng.choice(MEMBERS)
            op["from"] = self.rng.choice([pointer for pointer in POINTERS if not op["path"].startswith(pointer)])
        if self.chance(0.05):
            op["extra"] = 1
        return op

    def patch(self, least: int) -> list[Event]:
        if self.chance(0.1):
            return [{"op": self.rng.choice(("add", "replace", "test")), "path": "", "value": self.state()}]
        return [self.op() for _ in range(self.rng.randrange(least, 4))]

    # ---- what happens next ----

    def start_run(self) -> None:
        self.run += 1
        self.owner.clear()
        self.subagents.clear()
        event: Event = {"type": "RUN_STARTED", "threadId": "t", "runId": f"run-{self.run}"}
        if self.chance(0.5):
            event["protocolVersion"] = "1.0"
        if self.chance(0.3):
            messages = [self.message() for _ in range(self.rng.randrange(4))]
            event["input"] = {
                "threadId": "t",
                "runId": event["runId"],
                "messages": messages,
                "tools": [],
                "context": [],
            }
        self.events.append(event)

    def stream(self, kind: str, prefix: str, opens: str, closes: str, id_field: str, content: str | None) -> None:
        """One step of an item that is opened, continued and closed."""
        open_ids = self.open[kind]
        if not open_ids or self.chance(0.3):
            item = self.some_id(prefix)
            if item in open_ids:
                return
            owner = self.owner.setdefault((kind, item), self.subagent())
            open_ids[item] = owner
            fields: Event = {id_field: item}
            if kind == "text" and self.chance(0.8):
                fields["role"] = self.rng.choice(ROLES)
            if kind == "text" and self.chance(0.1):
                fields["name"] = "name"
            if kind == "reasoning":
                fields["role"] = "reasoning"
            if kind == "call":
                fields["toolCallName"] = self.rng.choice(("f", "g"))
                if self.chance(0.6):
                    fields["parentMessageId"] = self.some_id("m")
            self.emit(opens, owner=owner if self.chance(0.9) else None, **fields)
            return
        item = self.rng.choice(list(open_ids))
        owner = open_ids[item] if self.chance(0.7) else None
        if content is not None and self.chance(0.75):
            self.emit(
                content, owner=owner, delta=self.rng.choice(("", "a", "bc", '{"x":', "\U0001f600")), **{id_field: item}
            )
        else:
            del open_ids[item]
            self.emit(closes, owner=owner, **{id_field: item})

    def text(self) -> None:
        self.stream("text", "m", "TEXT_MESSAGE_START", "TEXT_MESSAGE_END", "messageId", "TEXT_MESSAGE_CONTENT")

    def reasoning(self) -> None:
        if self.chance(0.3):
            self.stream("span", "s", "REASONING_START", "REASONING_END", "messageId", None)
        else:
            self.stream(
                "reasoning", "r", "REASONING_MESSAGE_START", "REASONING_MESSAGE_END", "messageId",
                "REASONING_MESSAGE_CONTENT",
            )  # fmt: skip

    def call(self) -> None:
        self.stream("call", "c", "TOOL_CALL_START", "TOOL_CALL_END", "toolCallId", "TOOL_CALL_ARGS")

    def result(self) -> None:
        fields: Event = {"messageId": self.some_id("t"), "toolCallId": self.some_id("c"), "content": self.content()}
        if self.chance(0.3):
            fields["role"] = "tool"
        self.emit("TOOL_CALL_RESULT", **fields)

    def chunks(self) -> None:
        kind = self.rng.choice(("TEXT_MESSAGE", "TOOL_CALL", "REASONING_MESSAGE"))
        if kind == "TOOL_CALL":
            fields: Event = {"toolCallId": self.fresh("c"), "toolCallName": "f"}
            if self.chance(0.3):
                fields["parentMessageId"] = self.some_id("m")
            if self.chance(0.5):
                fields["delta"] = "{"
        else:
            fields = {"messageId": self.fresh("m" if kind == "TEXT_MESSAGE" else "r")}
            if kind == "TEXT_MESSAGE" and self.chance(0.3):
                fields["role"] = self.rng.choice(ROLES)
            if self.chance(0.8):
                fields["delta"] = self.rng.choice(("", "chunk"))
        owner = self.subagent()
        self.emit(f"{kind}_CHUNK", owner=owner, **fields)
        for _ in range(self.rng.randrange(4)):
            if self.chance(0.2):
                self.emit("RAW", event=self.value(1))
            if self.chance(0.1):
                self.activity()
            again = dict(fields) if self.chance(0.3) else {}
            again["delta"] = self.rng.choice(("", "more"))
            self.emit(f"{kind}_CHUNK", owner=owner, **again)

    def states(self) -> None:
        if self.chance(0.3):
            self.emit("STATE_SNAPSHOT", snapshot=self.state())
        else:
            self.emit("STATE_DELTA", delta=self.patch(1))

    def snapshot(self) -> None:
        self.emit("MESSAGES_SNAPSHOT", messages=[self.message() for _ in range(self.rng.randrange(6))])

    def activity(self) -> None:
        fields: Event = {"messageId": self.some_id("p"), "activityType": self.rng.choice(("PLAN", "CHART"))}
        if self.chance(0.5):
            if self.chance(0.4):
                fields["replace"] = self.chance(0.5)
            self.emit("ACTIVITY_SNAPSHOT", content={"items": [self.value(1)], "a": self.value(1)}, **fields)
        else:
            self.emit("ACTIVITY_DELTA", patch=self.patch(0), **fields)

    def step(self) -> None:
        if self.steps and self.chance(0.6):
            name, owner = self.steps.pop(self.rng.randrange(len(self.steps)))
            self.emit("STEP_FINISHED", stepName=name, owner=owner)
        else:
            step = (self.rng.choice(("plan", "act")), self.subagent())
            if step not in self.steps:
                self.steps.append(step)
                self.emit("STEP_STARTED", stepName=step[0], owner=step[1])

    def subagents_(self) -> None:
        active = [name for name, is_active in self.subagents.items() if is_active]
        if active and self.chance(0.4):
            self.finish_subagent(self.rng.choice(active))
        else:
            name = self.fresh("sub")
            fields: Event = {"name": "helper"}
            if self.subagents and self.chance(0.5):
                fields["parentSubagentRunId"] = self.rng.choice(list(self.subagents))
            self.subagents[name] = True
            self.emit("SUBAGENT_STARTED", owner=name, **fields)

    def finish_subagent(self, name: str) -> None:
        self.subagents[name] = False
        if self.chance(0.2):
            self.emit("SUBAGENT_ERROR", owner=name, message="x")
        else:
            outcome = {"outcome": {"type": "success"}} if self.chance(0.3) else {}
            self.emit("SUBAGENT_FINISHED", owner=name, **outcome)

    def encrypted(self) -> None:
        subtype = self.rng.choice(("message", "tool-call"))
        entity = self.some_id("c" if subtype == "tool-call" else "m")
        self.emit("REASONING_ENCRYPTED_VALUE", subtype=subtype, entityId=entity, encryptedValue="e")

    def other(self) -> None:
        if self.chance(0.5):
            self.emit("RAW", event=self.value())
        else:
            self.emit("CUSTOM", name="n", value=self.value())

    def close(self) -> None:
        closings = {
            "text": ("TEXT_MESSAGE_END", "messageId"),
            "reasoning": ("REASONING_MESSAGE_END", "messageId"),
            "span": ("REASONING_END", "messageId"),
            "call": ("TOOL_CALL_END", "toolCallId"),
        }
        for kind, (event, id_field) in closings.items():
            for item in list(self.open[kind]):
                self.emit(event, **{id_field: item})
            self.open[kind].clear()
        while self.steps:
            name, owner = self.steps.pop()
            self.emit("STEP_FINISHED", stepName=name, owner=owner)
        for name, active in list(self.subagents.items()):
            if active:
                self.finish_subagent(name)

    def end_run(self) -> None:
        if self.chance(0.15):
            self.emit("RUN_ERROR", message="x")
            for kind in self.open.values():
                kind.clear()
            self.steps.clear()
            return
        self.close()
        fields: Event = {"threadId": "t", "runId": f"run-{self.run}"}
        ending = self.rng.randrange(6)
        if ending == 0:
            fields["outcome"] = {"type": "success"}
        elif ending == 1:
            fields["outcome"] = {"type": "cancelled"}
        elif ending == 2:
            fields["outcome"] = {"type": "interrupt", "interrupts": [{"id": "i1", "reason": "x"}]}
        if self.chance(0.2):
            fields["result"] = {"r": 1}
        if self.chance(0.2):
            fields["usage"] = [{"inputTokens": 3}]
        self.emit("RUN_FINISHED", **fields)
        if self.chance(0.05):
            self.emit("RUN_ERROR", message="late")

    def write(self) -> Stream:
        """The whole stream."""
        messages = [self.message() for _ in range(self.rng.randrange(4))] if self.chance(0.6) else []
        state = self.state()
        state = {} if state is None else state  # the client starts from {} where it is given null
        doings = (
            [self.text] * 8 + [self.call] * 6 + [self.reasoning] * 4 + [self.states] * 4 + [self.result] * 2
            + [self.chunks] * 2 + [self.activity] * 2 + [self.snapshot, self.step, self.subagents_, self.encrypted]
            + [self.other]
        )  # fmt: skip
        for _ in range(1 if self.chance(0.8) else 2):
            self.start_run()
            for _ in range(self.rng.randrange(1, 30)):
                self.rng.choice(doings)()
            self.end_run()
        return Stream(0, self.events, messages, state)


WRONG: tuple[Any, ...] = (1, True, [], {}, "wrong", ["x"], {"type": "later"}, -1)


DAMAGES = (
    "drop", "repeat", "swap", "truncate", "unknown type", "unknown field", "lose field", "wrong value", "null",
    "other id", "other type", "inner", "foreign ids", "owner", "later subtype",
)  # fmt: skip


def damage(stream: Stream, rng: random.Random) -> None:
    """Do one kind of harm to a stream; what was done is noted."""
    events = stream.events
    at = rng.randrange(len(events))
    event = events[at]
    kind = rng.choice(DAMAGES)
    if kind == "drop":
        del events[at]
    elif kind == "repeat":
        events.insert(rng.randrange(len(events) + 1), copy.deepcopy(event))
    elif kind == "swap":
        other = rng.randrange(len(events))
        events[at], events[other] = events[other], events[at]
    elif kind == "truncate":
        del events[at + 1 :]
    elif kind == "unknown type":
        events.insert(at, {"type": "LATER_EVENT", "x": 1})
    elif kind == "unknown field":
        event[rng.choice(("later", "toString", "constructor"))] = rng.choice(WRONG)
    elif kind == "lose field":
        event.pop(rng.choice([name for name in event if name != "type"] or ["none"]), None)
    elif kind == "wrong value":
        event[rng.choice([name for name in event if name != "type"] or ["timestamp"])] = rng.choice(WRONG)
    elif kind == "null":
        event[rng.choice((*event.keys() - {"type"}, "metadata", "timestamp", "subagentRunId", "rawEvent"))] = None
    elif kind == "other id":
        for name in ("messageId", "toolCallId", "stepName", "subagentRunId", "parentMessageId"):
            if name in event and rng.random() < 0.7:
                event[name] = f"{rng.choice('mrcps')}{rng.randrange(1, 8)}"
    elif kind == "other type":
        event["type"] = rng.choice(events)["type"]
    elif kind == "inner":
        _damage_inside(event, rng)
    elif kind == "foreign ids":
        for name in ("threadId", "runId"):
            if name in event and rng.random() < 0.7:
                event[name] = "foreign"
    elif kind == "later subtype":
        for sealed in (item for item in events if item["type"] == "REASONING_ENCRYPTED_VALUE"):
            sealed["subtype"] = "later"
    elif kind == "owner":
        event["subagentRunId"] = rng.choice(("sub1", "sub2", "sub3", "nobody"))
    stream.damage.append(kind)


def _damage_inside(value: Any, rng: random.Random) -> None:
    """Harm something below the top of an event."""
    places: list[tuple[Any, Any]] = []

    def collect(item: Any, depth: int) -> None:
        pairs = item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ()
        for key, inner in pairs:
            if depth:
                places.append((item, key))
            collect(inner, depth + 1)

    collect(value, 0)
    if not places:
        return
    tags = [place for place in places if place[1] in ("type", "role", "op")]
    container, key = rng.choice(tags if tags and rng.random() < 0.25 else places)
    deed = rng.randrange(4)
    if deed == 0:
        container[key] = rng.choice(WRONG)
    elif deed == 1 and isinstance(container, dict):
        del container[key]
    elif deed == 2 and isinstance(container, dict):
        container["later"] = rng.choice(WRONG)
    else:
        container[key] = None


def make_stream(seed: int) -> Stream:
    """The stream of one seed: half of them are damaged, some twice."""
    stream = Story(seed).write()
    # What two places share must not be harmed in both.
    stream.events = copy.deepcopy(stream.events)
    rng = random.Random(seed ^ 0x5EED)
    stream.seed = seed
    if rng.random() < 0.5:
        for _ in range(rng.choice((1, 1, 2))):
            if stream.events:
                damage(stream, rng)
    return stream
