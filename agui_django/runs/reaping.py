"""The end of runs whose process is gone: their log is replayed, so that what it said becomes rows, and ended.

Law: only a run without a sign of life is touched, by a conditional update inside the transaction that ends it; the
process, should it wake, finds its claim taken.
"""

from __future__ import annotations

import logging
import secrets
from datetime import timedelta
from typing import Any

from django.db.models import BooleanField, Case, Q, QuerySet, When
from django.db.models.functions import Now

from agui_django.conf import settings
from agui_django.models import Message, Run, RunEvents, Thread
from agui_django.protocol.codec import decode, encode
from agui_django.protocol.consumer import PROTOCOL_VERSION
from agui_django.protocol.downgrade import needs_downgrade
from agui_django.protocol.errors import ProtocolViolation, RunAbandoned
from agui_django.protocol.json_patch import json_equal
from agui_django.protocol.reducer import Reducer
from agui_django.protocol.verifier import SequenceVerifier
from agui_django.runs import merging
from agui_django.runs.claims import is_dead
from agui_django.runs.closing import close_here
from agui_django.runs.edits import marked
from agui_django.runs.ledger import Ledger
from agui_django.runs.once import has_claimed
from agui_django.runs.setup import Closing, Failure, Wire, milliseconds
from agui_django.runs.writer import Row

logger = logging.getLogger("agui_django.runs")

#: Events that a run may begin with before it has acted.
SILENT = frozenset({"RUN_STARTED", "STATE_SNAPSHOT", "MESSAGES_SNAPSHOT"})


def quiet() -> Q:
    """Active runs that gave no sign of life for too long, by the database's clock."""
    running = Q(status=Run.Status.RUNNING, heartbeat__lt=Now() - timedelta(seconds=settings.LEASE))
    pending = Q(status=Run.Status.PENDING, heartbeat__lt=Now() - timedelta(seconds=settings.PENDING_DEADLINE))
    return running | pending


def with_quiet(runs: QuerySet[Run]) -> QuerySet[Run]:
    """Runs with a flag ``quiet``; ask `lost` about each."""
    return runs.annotate(
        quiet=Case(When(quiet(), then=True), default=False, output_field=BooleanField()),
    )


def lost(run: Any) -> bool:
    """Whether an active run from `with_quiet` will not go on: its lease is over, or its process is known to be gone."""
    return bool(run.quiet) or (run.status == Run.Status.RUNNING and is_dead(run.claim))


def reap_here(alias: str, thread: Thread, run: Run, why: str = "") -> bool:
    """End a lost run inside the caller's transaction, which holds the thread's row.

    Args:
        alias: the database.
        thread: the locked row.
        run: the run.
        why: it never began, and this is known to be the reason; empty: what its row says of its life counts.

    Returns:
        False where it gave a sign of life meanwhile.
    """
    claim = f"reaper:{secrets.token_hex(8)}"
    found = Run.objects.using(alias).filter(pk=run.pk, status=run.status, claim=run.claim)
    if not why and not is_dead(run.claim):
        found = found.filter(quiet())
    if not found.update(claim=claim, status=Run.Status.RUNNING, heartbeat=Now()):
        return False
    logger.warning("Run %s was abandoned by %s; it is ended", run.pk, run.claim or "whoever should have claimed it")
    closing, ledger, rows, last_seq = _closing(alias, thread, run, why)
    close_here(run.pk, claim, ledger, rows, last_seq, closing)
    run.refresh_from_db(using=alias)
    return True


def _closing(alias: str, thread: Thread, run: Run, why: str) -> tuple[Closing, Ledger, list[Row], int]:
    """What the log says, and how it ends."""
    version, state = merging.base_of(alias, thread)
    ledger = Ledger(thread=thread.pk, resumed=run.resumed_run_id is not None, began=version, version=version)
    messages: list[Wire] = []
    in_play = Message.objects.using(alias).filter(thread=thread).in_play()
    for wire, order in in_play.values_list("wire", "order"):
        messages.append(decode(wire))
        ledger.note(messages[-1], order)
    reducer = Reducer(messages, state)
    verifier = SequenceVerifier(thread_id=thread.thread_id)
    last_seq = 0
    events: list[Wire] = []
    logged = RunEvents.objects.using(alias).filter(run=run).order_by("first_seq")
    for text, last_seq in logged.values_list("text", "last_seq"):  # noqa: B007 - the last one is used
        for line in text.split("\n"):
            event = decode(line)
            events.append(event)
            reducer.apply(event)
            ledger.version = max(ledger.version, marked(event))
            try:
                verifier.feed(event)
            except ProtocolViolation:
                logger.exception("The log of run %s is damaged", run.pk)
    failure = Failure(
        code=RunAbandoned().code,
        reference=secrets.token_hex(6),
        text=f"{RunAbandoned()} {why or f'Its claim was {run.claim!r}.'}",
    )
    ending = _ending(thread, run, events, verifier, failure)
    for event in ending:
        reducer.apply(event)
    changed = set(reducer.touched)
    acted = [event for event in events if event["type"] not in SILENT and not marked(event)]
    closing = Closing(
        status="failed",
        terminal=ending[-1],
        messages=[message for message in reducer.messages if message["id"] in changed],
        removed=reducer.removed,
        state=reducer.state,
        state_changed=ledger.version != version or not json_equal(reducer.state, state),
        tool_calls=sum(event["type"] == "TOOL_CALL_START" for event in events),
        failure=failure,
        spent=bool(acted) or has_claimed(alias, run),
        duration_ms=_span(events[:1], events[-1:]),
        first_event_ms=_span(events[:1], acted[:1]) or None,
    )
    texts = [encode(event) for event in ending]
    plain = not any(map(needs_downgrade, ending))
    rows = [Row(last_seq + 1, last_seq + len(ending), "\n".join(texts), plain)]
    return closing, ledger, rows, last_seq + len(ending)


def _ending(thread: Thread, run: Run, events: list[Wire], verifier: SequenceVerifier, failure: Failure) -> list[Wire]:
    """The events that close what is open, and the terminal one."""
    text = f"{RunAbandoned()} Reference: {failure.reference}"
    ending: list[Wire] = []
    if not events:
        ids = {"threadId": thread.thread_id, "runId": run.run_id}
        ending.append({"type": "RUN_STARTED", **ids, "protocolVersion": PROTOCOL_VERSION})
    ending += verifier.closing_events(error=text)
    ending.append({"type": "RUN_ERROR", "message": text, "code": failure.code})
    now = milliseconds()
    for event in ending:
        event["timestamp"] = now
    return ending


def _span(first: list[Wire], last: list[Wire]) -> int:
    """Milliseconds between two events, where both are there."""
    if not first or not last:
        return 0
    return max(0, int(last[0].get("timestamp", 0) - first[0].get("timestamp", 0)))
