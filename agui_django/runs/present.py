"""A thread's present, and the events that restate it to somebody who has not seen the past.

Law: history is restated as snapshots, never as deltas, which a client that holds the text already would append again;
what is open is opened again by its own ids, and only what comes later is told as it was. What was never recorded
carries the time it is told at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agui_django.protocol.codec import decode, encode
from agui_django.protocol.consumer import PROTOCOL_VERSION
from agui_django.protocol.downgrade import downgrade
from agui_django.protocol.reducer import Reducer
from agui_django.protocol.verifier import SequenceVerifier
from agui_django.runs.setup import Wire, milliseconds


@dataclass(frozen=True)
class Present:
    """What a run that is under way has made so far.

    Attributes:
        seq: the number of the last event that is in it.
        messages: the thread's messages; only values inside them are shared with the run.
        state: plain JSON of the receiver.
        open: the events that open again what is open, in opening order.
    """

    seq: int
    messages: list[Wire]
    state: Any
    open: list[Wire] = field(default_factory=list)


def replayed(messages: Iterable[Wire], state: Any, log: Iterable[Wire]) -> Present:
    """The present of a run that another process executes: its log, applied to what the thread held when it began."""
    reducer, verifier = Reducer(messages, state), SequenceVerifier()
    seq = 0
    for event in log:
        seq += 1
        verifier.feed(event)
        reducer.apply(event)
    return Present(seq, reducer.messages, reducer.state, [item.opening() for item in verifier.open_items()])


def joined(thread_id: str, run_id: str, present: Present, *, legacy: bool) -> list[str]:
    """The events that restate a run in its middle, as wire texts."""
    held = {message["id"] for message in present.messages}
    held |= {call["id"] for message in present.messages for call in message.get("toolCalls") or ()}
    # What a snapshot of the agent dropped while it was open: a client that makes it anew has to drop it, too.
    dropped = [event for event in present.open if not _held(event, held)]
    events = [
        started(thread_id, run_id),
        *dropped,
        *snapshots(present.messages, present.state),
        *(event for event in present.open if event not in dropped),
    ]
    return _texts(stamped(events), legacy=legacy)


def at_rest(
    thread_id: str, run_id: str, messages: Sequence[str], state: str, terminal: str, *, legacy: bool
) -> list[str]:
    """The events that restate a thread in which nothing runs, as wire texts.

    Args:
        thread_id: the client's id.
        run_id: the client's id of the last run; empty without one.
        messages: wire texts.
        state: wire text.
        terminal: wire text of the event that ends it, see `ended`.
        legacy: shape them for clients from before 1.0.
    """
    # The thread stands as its last run left it, and since then.
    at = decode(terminal).get("timestamp", milliseconds())
    texts = [encode({**started(thread_id, run_id), "timestamp": at})]
    # An empty MESSAGES_SNAPSHOT would delete the message that the user is just sending.
    if messages:
        texts.append(f'{{"type":"MESSAGES_SNAPSHOT","messages":[{",".join(messages)}],"timestamp":{at}}}')
    texts += [f'{{"type":"STATE_SNAPSHOT","snapshot":{state},"timestamp":{at}}}', terminal]
    return _texts(map(decode, texts), legacy=True) if legacy else texts


def ended(thread_id: str, run_id: str, outcome: Mapping[str, Any] | None, interrupts: Sequence[Wire]) -> Wire:
    """The RUN_FINISHED of a restatement: how the last run ended, and the questions that wait.

    An error is not told again: a client would report it anew at every reload.
    """
    event: Wire = {"type": "RUN_FINISHED", "threadId": thread_id, "runId": run_id, "timestamp": milliseconds()}
    if interrupts:
        event["outcome"] = {"type": "interrupt", "interrupts": list(interrupts)}
    elif outcome is not None and outcome["type"] != "interrupt":
        event["outcome"] = dict(outcome)
    return event


def started(thread_id: str, run_id: str) -> Wire:
    """What a restatement begins with."""
    return {"type": "RUN_STARTED", "threadId": thread_id, "runId": run_id, "protocolVersion": PROTOCOL_VERSION}


def snapshots(messages: Sequence[Wire], state: Any) -> Iterator[Wire]:
    """What a thread holds."""
    # An empty MESSAGES_SNAPSHOT would delete the message that the user is just sending.
    if messages:
        yield {"type": "MESSAGES_SNAPSHOT", "messages": messages}
    yield {"type": "STATE_SNAPSHOT", "snapshot": state}


def stamped(events: Iterable[Wire]) -> list[Wire]:
    """Events that are told now, with the time where they have none."""
    now = milliseconds()
    return [event if "timestamp" in event else {**event, "timestamp": now} for event in events]


def _held(event: Wire, held: set[str]) -> bool:
    if event["type"] == "TOOL_CALL_START":
        return event["toolCallId"] in held
    return event["type"] not in ("TEXT_MESSAGE_START", "REASONING_MESSAGE_START") or event["messageId"] in held


def _texts(events: Iterable[Wire], *, legacy: bool) -> list[str]:
    shaped = (downgrade(event) if legacy else event for event in events)
    return [encode(event) for event in shaped if event is not None]
