"""`run_agent`: an agent's runs in memory, through the engine's own driver."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any
from uuid import uuid4

from ag_ui.core import Interrupt, Message
from django.contrib.auth.models import AnonymousUser
from django.utils import timezone
from pydantic import TypeAdapter

from agui_django.agents.asking import json_default
from agui_django.agents.registry import AgentEntry, AgentOptions, get_agent
from agui_django.protocol.codec import clean, decode, encode
from agui_django.protocol.consumer import PROTOCOL_VERSION, Consumer
from agui_django.protocol.interrupts import OpenInterrupt, plan_resume
from agui_django.protocol.run_input import build_run_input
from agui_django.runs.driver import DriveOptions, RunControl, drive
from agui_django.runs.memory import MemoryLog
from agui_django.runs.setup import Answer, Closing, Failure, RunSetup, Wire

_MESSAGES: TypeAdapter[list[Message]] = TypeAdapter(list[Message])


async def run_agent(
    agent: Any,
    text: str | Sequence[Any] = "",
    *,
    user: Any = None,
    state: Any = None,
    tools: Sequence[Any] = (),
    context: Sequence[Any] = (),
    forwarded_props: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    thread: Any = None,
    timeout: float | None = 10.0,  # noqa: ASYNC109 - the run's option of that name
    idle_timeout: float | None = None,
    cancel_after: float | None = None,
    max_log: int = 64 * 1024 * 1024,
) -> AgentRun:
    """Run an agent in memory.

    Args:
        agent: a function, class or instance, a registered name, or a registry entry.
        text: the user's message, or the whole conversation as wire dicts or official models.
        user: whom the run is for; default: an anonymous one.
        state: the shared state it starts from.
        tools: the page's tools, as names, wire dicts or official models.
        context: what the page says about itself.
        forwarded_props: the request's ``forwardedProps``.
        extra: what ``AccessPolicy.run_context`` would have stored.
        thread: what ``run.thread`` is.
        timeout: seconds the run may take.
        idle_timeout: seconds it may go without emitting.
        cancel_after: seconds after which the user stops it.
        max_log: bytes the log may hold.
    """
    messages: list[Any] = [{"id": uuid4().hex, "role": "user", "content": text}] if isinstance(text, str) else [*text]
    options = DriveOptions(timeout, idle_timeout, cancel_grace=1.0)
    case = _Case(
        entry=_entry_of(agent),
        user=AnonymousUser() if user is None else user,
        tools=[_tool(tool) for tool in tools],
        context=[_plain(item) for item in context],
        forwarded_props=dict(forwarded_props or {}),
        extra=dict(extra or {}),
        thread=thread,
        thread_id=uuid4().hex,
        options=options,
        max_log=max_log,
    )
    wire = [_plain(message) for message in messages]
    return await case.run(wire, new=wire, state={} if state is None else _plain(state), cancel_after=cancel_after)


@dataclass(frozen=True)
class AgentRun:
    """What came of one run, and the way to the next.

    Attributes:
        events: the events as wire dicts.
        wire: their texts, as a client gets them.
        closing: what the engine would have written.
        setup: what the run started from.
    """

    events: list[Wire]
    wire: list[str]
    closing: Closing
    setup: RunSetup
    _case: _Case = field(repr=False)

    @property
    def types(self) -> list[str]:
        """The events' types."""
        return [event["type"] for event in self.events]

    @property
    def terminal(self) -> Wire:
        """The last event."""
        return self.closing.terminal

    @property
    def outcome(self) -> str:
        """How it ended: success, interrupt, cancelled or error."""
        if self.terminal["type"] == "RUN_ERROR":
            return "error"
        return str((self.terminal.get("outcome") or {"type": "success"})["type"])

    @property
    def error(self) -> Wire | None:
        """The RUN_ERROR, with ``code`` and ``message``; None where it did not fail."""
        return self.terminal if self.terminal["type"] == "RUN_ERROR" else None

    @property
    def failure(self) -> Failure | None:
        """What staff would read about the failure: text, traceback, reference."""
        return self.closing.failure

    @property
    def result(self) -> Any:
        """RUN_FINISHED's result."""
        return self.terminal.get("result")

    @property
    def usage(self) -> list[Wire]:
        """Token usage per provider and model."""
        return self.closing.usage

    @property
    def state(self) -> Any:
        """The shared state at the end."""
        return self.closing.state

    @property
    def interrupts(self) -> dict[str, Interrupt]:
        """The questions, by key."""
        keys = self.closing.interrupt_keys
        return {keys[wire["id"]]: Interrupt.model_validate(wire) for wire in self.closing.interrupts}

    @cached_property
    def wire_messages(self) -> list[Wire]:
        """The conversation as wire dicts."""
        consumer = Consumer(self.setup.messages, self.setup.state)
        for event in self.events:
            consumer.feed(event)
        return consumer.messages

    @property
    def messages(self) -> list[Message]:
        """The conversation as official models."""
        return _MESSAGES.validate_python(self.wire_messages)

    @property
    def said(self) -> list[str]:
        """What the agent has said in this turn, message by message."""
        turn: list[str] = []
        for message in self.wire_messages:
            if message["role"] == "user":
                turn = []
            elif message["role"] == "assistant" and message.get("content"):
                turn.append(message["content"])
        return turn

    @property
    def pending(self) -> dict[str, str]:
        """The calls without a result, as id -> tool."""
        return _pending(self.wire_messages)

    async def resume(
        self, answers: Mapping[str, Any] | None = None, *, cancelled: Iterable[str] = (), **run: Any
    ) -> AgentRun:
        """Answer the questions and run the agent again.

        Args:
            answers: the payloads, by key.
            cancelled: keys of the questions that are cancelled instead.
            run: ``cancel_after``.

        Raises:
            ResumeError: a server would refuse these answers.
        """
        ids = {key: wire_id for wire_id, key in self.closing.interrupt_keys.items()}
        entries: list[Wire] = []
        for key, payload in (answers or {}).items():
            entry = {"interruptId": ids.get(key, key), "status": "resolved"}
            entries.append(entry if payload is None else {**entry, "payload": _plain(payload)})
        entries += [{"interruptId": ids.get(key, key), "status": "cancelled"} for key in cancelled]
        now = timezone.now()
        questions = [
            OpenInterrupt(wire["id"], wire.get("responseSchema"), _moment(wire.get("expiresAt")))
            for wire in self.closing.interrupts
        ]
        given = dict(self.setup.answers)
        for taken in plan_resume(questions, {}, entries, now=now):
            key = self.closing.interrupt_keys[taken.id]
            given[key] = Answer(key, taken.id, taken.status, taken.payload, self.setup.user, now, taken.metadata or {})
        return await self._again([], answers=given, resume=entries, **run)

    async def answer_frontend(
        self, answers: Mapping[str, Any] | None = None, *, failed: Mapping[str, str] | None = None, **run: Any
    ) -> AgentRun:
        """Answer the page's calls and run the agent again.

        Args:
            answers: by tool, or by call id where a tool was called several times; a text as it is, else JSON.
            failed: what the page could not do, and why.
            run: ``cancel_after``.

        Raises:
            LookupError: no call waits for this answer, or several do; a server would drop it.
        """
        new: list[Wire] = []
        for name, value in (answers or {}).items():
            content = value if isinstance(value, str) else encode(_plain(value))
            new.append({"id": uuid4().hex, "role": "tool", "toolCallId": self._call(name), "content": content})
        for name, why in (failed or {}).items():
            call = self._call(name)
            new.append({"id": uuid4().hex, "role": "tool", "toolCallId": call, "content": why, "error": why})
        return await self._again(new, answers=self.setup.answers, **run)

    async def say(self, text: str, **run: Any) -> AgentRun:
        """Send another message of the user: a new turn."""
        message = {"id": uuid4().hex, "role": "user", "content": text}
        return await self._again([message], answers={}, turn="", **run)

    async def _again(self, new: list[Wire], **run: Any) -> AgentRun:
        run.setdefault("turn", self.setup.turn)
        return await self._case.run([*self.wire_messages, *new], new=new, state=self.state, **run)

    def _call(self, name: str) -> str:
        tools = {tool["name"] for tool in self._case.tools}
        pages = {
            call_id: tool
            for call_id, tool in self.pending.items()
            if tool in tools or call_id.startswith(f"{self.setup.turn}:")
        }
        calls = [name] if name in pages else [call_id for call_id, tool in pages.items() if tool == name]
        if len(calls) != 1:
            raise LookupError(f"{len(calls)} calls of {name!r} wait for an answer of the page; waiting are {pages}.")
        return calls[0]


@dataclass(frozen=True)
class _Case:
    """What the runs of one `run_agent` share."""

    entry: AgentEntry
    user: Any
    tools: list[Wire]
    context: list[Wire]
    forwarded_props: dict[str, Any]
    extra: dict[str, Any]
    thread: Any
    thread_id: str
    options: DriveOptions
    max_log: int
    #: What was claimed in each turn.
    once: dict[str, dict[str, Any]] = field(default_factory=dict)

    async def run(
        self,
        messages: list[Wire],
        *,
        new: list[Wire],
        state: Any,
        answers: Mapping[str, Answer] | None = None,
        resume: Sequence[Wire] = (),
        turn: str = "",
        cancel_after: float | None = None,
    ) -> AgentRun:
        address = uuid4().hex
        data: Wire = {
            "threadId": self.thread_id,
            "runId": uuid4().hex,
            "protocolVersion": PROTOCOL_VERSION,
            "state": state,
            "messages": messages,
            "tools": self.tools,
            "context": self.context,
            "forwardedProps": self.forwarded_props,
        }
        if resume:
            data["resume"] = list(resume)
        accepted = build_run_input(data).data
        kept = [message for message in accepted["messages"] if message["role"] != "activity"]
        setup = RunSetup(
            run_id=accepted["runId"],
            thread_id=self.thread_id,
            address=address,
            agent=self.entry.name,
            input=accepted,
            new_messages=[message for message in kept if any(message["id"] == each["id"] for each in new)],
            messages=accepted["messages"],
            state=accepted["state"],
            answers=dict(answers or {}),
            resume=list(resume),
            turn=turn or address,
            user=self.user,
            thread=self.thread,
            extra=self.extra,
            protocol_version=PROTOCOL_VERSION,
        )
        log = MemoryLog(self.max_log, self.once.setdefault(setup.turn, {}))
        control = RunControl()
        if cancel_after is not None:
            asyncio.get_running_loop().call_later(cancel_after, control.cancel, "user")
        closing = await drive(self.entry, setup, log, control, self.options)
        log.close(closing)
        return AgentRun([decode(text) for text in log.texts], log.texts, closing, setup, self)


# ---- helpers ---------------------------------------------------------------------------------------------------------


def _entry_of(agent: Any) -> AgentEntry:
    if isinstance(agent, AgentEntry):
        return agent
    if isinstance(agent, str):
        return get_agent(agent)
    name = getattr(agent, "__name__", type(agent).__name__)
    return AgentEntry(name, agent, AgentOptions(), f"{getattr(agent, '__module__', '')}:{name}")


def _plain(value: Any) -> Any:
    return clean(value, default=json_default)


def _tool(tool: Any) -> Wire:
    if isinstance(tool, str):
        return {"name": tool, "description": tool, "parameters": {"type": "object", "properties": {}}}
    wire: Wire = _plain(tool)
    return wire


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _pending(messages: list[Wire]) -> dict[str, str]:
    answered = {message["toolCallId"] for message in messages if message["role"] == "tool"}
    return {
        call["id"]: call["function"]["name"]
        for message in messages
        for call in message.get("toolCalls") or ()
        if call["id"] not in answered
    }
