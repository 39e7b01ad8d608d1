"""Runs that wait behind their thread's active one: what their row holds meanwhile, and how they start or end.

Law: a queued run is judged when it arrives and touches nothing of its thread before it starts; then only its new
messages are appended. One that never starts leaves no trace in the thread but its own log.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from django.db.models import Exists, OuterRef
from django.utils import timezone

from agui_django.models import Message, Run, RunEvents, Thread
from agui_django.protocol.codec import decode, encode
from agui_django.protocol.consumer import PROTOCOL_VERSION
from agui_django.protocol.downgrade import needs_downgrade
from agui_django.protocol.errors import AgUiError, RunAbandoned
from agui_django.protocol.run_input import RunInput
from agui_django.runs import sql
from agui_django.runs.closing import run_values
from agui_django.runs.endings import place_of
from agui_django.runs.history import Reconciled
from agui_django.runs.ledger import Ledger
from agui_django.runs.requests import StartRequest
from agui_django.runs.setup import Closing, Failure, Wire, milliseconds

#: Where the row's input keeps what was decided when the request arrived.
KEY = "queued"


@dataclass(frozen=True)
class Found:
    """What a queued request does to its thread's messages.

    Attributes:
        new: the messages that the thread did not have when it arrived.
        superseded: ids of the messages that it takes out of play.
        behind: the message behind which it does so (a regenerate, an edit); empty: the beginning.
        active: the run that it met: what that one goes on to say behind `behind` goes out of play, too; empty: none.
        base: the state that the client's was made from, alone in a list; empty: what the last run leaves.
    """

    new: list[Wire]
    superseded: list[str] = field(default_factory=list)
    behind: str = ""
    active: str = ""
    base: Sequence[Any] = ()


def stored(data: Wire, found: Reconciled, active: Run | None, base: Sequence[Any] = ()) -> Wire:
    """The input as the row of a queued run holds it: with the state it was sent, and its new messages only."""
    kept, sent = found.kept, data["messages"]
    props = data["forwardedProps"]
    edits = isinstance(props, dict) and isinstance(props.get("supersedeAfter"), str)
    asks_again = not found.new and kept and sent and kept[-1]["role"] == "user" and kept[-1]["id"] == sent[-1]["id"]
    notes: Wire = {"superseded": found.superseded}
    if base:
        notes["base"] = base
    if edits or asks_again:
        notes["behind"] = kept[-1]["id"] if kept else ""
        notes["active"] = active.pk.hex if active is not None else ""
    return {**data, "messages": found.new, KEY: notes}


def request_of(run: Run, thread: Thread, entry: Any, claim: str) -> tuple[StartRequest, Found]:
    """The request that a queued run's row holds."""
    data = decode(run.input)
    found = Found(data["messages"], **data.pop(KEY, {}))
    request = StartRequest(
        scope=thread.scope,
        owner=thread.owner,
        user=run.user,
        actor=run.actor,
        agent=entry,
        run_input=RunInput(data, run.digest, run.protocol_version or None, []),
        transport=run.transport,
        extra=decode(run.extra),
        language=run.language,
        time_zone=run.time_zone,
        claim=claim,
    )
    return request, found


def late(alias: str, thread: Thread, messages: list[Wire], ledger: Ledger, found: Found) -> Reconciled:
    """What becomes of a thread's messages now that a queued run starts."""
    gone = set(found.superseded) & ledger.orders.keys()
    if found.active and (not found.behind or found.behind in ledger.orders):
        made = Message.objects.using(alias).filter(thread=thread, run=UUID(found.active), superseded_by=None)
        behind = ledger.orders.get(found.behind, -1)
        gone.update(made.filter(order__gt=behind).values_list("message_id", flat=True))
    kept = [message for message in messages if message["id"] not in gone]
    return Reconciled(kept, list(_missing(kept, found.new)), [each["id"] for each in messages if each["id"] in gone])


def _missing(kept: list[Wire], new: list[Wire]) -> Iterator[Wire]:
    """New messages that no other run has brought meanwhile; of two results of one call the first stands."""
    known = {message["id"] for message in kept}
    answered = {message["toolCallId"] for message in kept if message["role"] == "tool"}
    for message in new:
        if message["id"] not in known and not (message["role"] == "tool" and message["toolCallId"] in answered):
            yield message


def idle(alias: str, limit: int) -> list[int]:
    """Threads in which runs wait though none is active."""
    active = Run.objects.filter(thread=OuterRef("thread"), status__in=Run.ACTIVE)
    waiting = Run.objects.using(alias).filter(~Exists(active), status=Run.Status.QUEUED).order_by("thread_id")
    return list(waiting.values_list("thread_id", flat=True).distinct()[:limit])


# ---- the end of a run that never started ----------------------------------------------------------------------------


def cancel(alias: str, thread: Thread, run: Run, reason: str) -> bool:
    """End a queued or pending run as cancelled; the caller holds the thread's row. False: it is neither any more."""
    finished = {"type": "RUN_FINISHED", **_ids(thread, run), "outcome": {"type": "cancelled"}}
    return _end(alias, thread, run, Closing("cancelled", finished, end_reason=reason))


def fail(alias: str, thread: Thread, run: Run, error: Exception) -> bool:
    """End a queued run that cannot start."""
    reference = secrets.token_hex(6)
    told = error if isinstance(error, AgUiError) and error.public else RunAbandoned("The run could not be started.")
    failed = {"type": "RUN_ERROR", "message": f"{told} Reference: {reference}", "code": told.code}
    kind = type(error).__name__
    failure = Failure(told.code, reference, f"{kind}: {error}", kind=kind, place=place_of(error))
    return _end(alias, thread, run, Closing("failed", failed, failure=failure))


def _ids(thread: Thread, run: Run) -> Wire:
    return {"threadId": thread.thread_id, "runId": run.run_id}


def _end(alias: str, thread: Thread, run: Run, closing: Closing) -> bool:
    now = milliseconds()
    started = {"type": "RUN_STARTED", **_ids(thread, run), "protocolVersion": PROTOCOL_VERSION}
    events = [{**event, "timestamp": now} for event in (started, closing.terminal)]
    values = run_values(closing, len(events))
    if run.status == Run.Status.QUEUED:
        # Its place among the thread's runs is where it began, which is here; and nobody needs its messages any more.
        moment = timezone.now()
        data = decode(run.input)
        kept = {key: value for key, value in data.items() if key not in ("messages", "state", KEY)}
        values |= {"created_at": moment, "started_at": moment, "input": encode(kept)}
    if not sql.update(alias, Run, values, uuid=run.pk, status=run.status):
        return False
    plain = not any(map(needs_downgrade, events))
    text = "\n".join(map(encode, events))
    row = {"run_id": run.pk, "first_seq": 1, "last_seq": len(events), "text": text, "plain": plain}
    sql.insert(alias, RunEvents, [row])
    return True
