"""RUN_STARTED, the first event of every run: made of what the run starts from.

Law: a run that is executed at once has it in the transaction that inserts the run, so that it costs no other one.
"""

from __future__ import annotations

from dataclasses import dataclass

from agui_django.protocol.codec import encode
from agui_django.protocol.consumer import PROTOCOL_VERSION
from agui_django.protocol.downgrade import needs_downgrade
from agui_django.runs.setup import RunSetup, Wire, milliseconds

#: RUN_STARTED leaves its input out above this size: client 1.0.0 dies of frames over 10 MB.
MAX_INPUT = 256 * 1024


@dataclass(frozen=True)
class FirstEvent:
    """RUN_STARTED as it is stored."""

    wire: Wire
    text: str
    plain: bool


def first_event(setup: RunSetup) -> FirstEvent:
    """Make the RUN_STARTED of a run."""
    wire: Wire = {"type": "RUN_STARTED", "threadId": setup.thread_id, "runId": setup.run_id}
    if setup.parent_run_id is not None:
        wire["parentRunId"] = setup.parent_run_id
    wire["protocolVersion"] = PROTOCOL_VERSION
    # Of the messages only those that the thread did not have yet.
    wire["input"] = {"tools": [], "context": [], **setup.input, "messages": setup.new_messages}
    wire["timestamp"] = milliseconds()
    text = encode(wire)
    if len(text) > MAX_INPUT:
        del wire["input"]
        text = encode(wire)
    return FirstEvent(wire, text, plain=not needs_downgrade(wire))
