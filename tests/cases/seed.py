"""Rows that a case says were stored before its request."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from django.utils import timezone

from agui_django.models import Interrupt, Message, Run, StateVersion, Thread
from agui_django.protocol import codec


def store(stored: dict[str, Any], owner: Any, *, agent: str, thread_id: str = "t1") -> Thread:
    """Make the thread of a case with its messages, state, runs and open interrupts."""
    state = codec.encode(stored.get("state", {}))
    thread = Thread.objects.create(
        scope=f"user:{owner.pk}",
        thread_id=thread_id,
        owner=owner,
        agent=agent,
        state=state,
        state_version=1 if "state" in stored else 0,
    )
    if "state" in stored:
        StateVersion.objects.create(thread=thread, version=1, state=state, origin="agent")
    for order, message in enumerate(stored.get("messages", []), start=1):
        Message.objects.create(
            thread=thread, message_id=message["id"], role=message["role"], wire=codec.encode(message), order=order
        )
    for entry in stored.get("runs", []):
        seen = timezone.now() - timedelta(seconds=entry.get("heartbeat_age_s", 0))
        make_run(
            thread,
            agent,
            run_id=entry["id"],
            status=entry["status"],
            claim="a-dead-process",
            heartbeat=seen,
            started_at=seen,
        )
    if stored.get("open_interrupts"):
        run = make_run(
            thread,
            agent,
            run_id="asked",
            status="interrupted",
            finished_at=timezone.now(),
            open_interrupts=len(stored["open_interrupts"]),
        )
        for position, interrupt in enumerate(stored["open_interrupts"]):
            schema = interrupt.get("responseSchema")
            Interrupt.objects.create(
                thread=thread,
                run=run,
                interrupt_id=interrupt["id"],
                key=interrupt["id"],
                position=position,
                reason=interrupt["reason"],
                message=interrupt.get("message", ""),
                tool_call_id=interrupt.get("toolCallId", ""),
                response_schema="" if schema is None else codec.encode(schema),
                wire=codec.encode(interrupt),
            )
    return thread


def make_run(thread: Thread, agent: str, **fields: Any) -> Run:
    """A run row as a former process left it."""
    address = uuid.uuid4()
    return Run.objects.create(
        uuid=address, thread=thread, digest="", agent=agent, user=thread.owner, turn=address.hex, input="{}", **fields
    )
