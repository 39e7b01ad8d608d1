"""The end of a run: its last events, its status and everything it changed, in one transaction.

Law: the fence again. A run whose claim was taken, or that is closed already, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db.models import F
from django.utils import timezone

from agui_django.models import ID_LENGTH, Interrupt, Message, MessageQuerySet, Run, RunEvents, StateVersion, Thread
from agui_django.protocol.codec import encode
from agui_django.runs import merging, once, pricing, resume, sql
from agui_django.runs.database import database_alias, transact
from agui_django.runs.ledger import (
    STEP,
    Ledger,
    expiry,
    fingerprint,
    last_words,
    readable,
    token_totals,
)
from agui_django.runs.setup import Closing, Settled, Wire

if TYPE_CHECKING:
    from agui_django.runs.writer import Row


class Taken(Exception):
    """The run is not this claim's any more; undoes the transaction."""


def close(
    uuid: UUID,
    claim: str,
    ledger: Ledger,
    rows: Sequence[Row],
    last_seq: int,
    closing: Closing,
    settled: Sequence[Settled] = (),
) -> bool:
    """Close a run in a transaction of its own; call in a pool's thread.

    Args:
        uuid: the run.
        claim: whose it must be.
        ledger: the notes of its open.
        rows: the events that are not stored yet, the terminal one last.
        last_seq: the terminal event's number.
        closing: what the driver found.
        settled: what became of claims and is not stored yet.

    Returns:
        False where the run is not this claim's any more.
    """
    try:
        transact(close_here, uuid, claim, ledger, rows, last_seq, closing, settled)
    except Taken:
        # A commit whose answer was lost has closed it already.
        mine = Run.objects.using(database_alias()).filter(uuid=uuid, claim=claim)
        return mine.filter(status=closing.status, last_seq=last_seq).exists()
    return True


def close_here(
    uuid: UUID,
    claim: str,
    ledger: Ledger,
    rows: Sequence[Row],
    last_seq: int,
    closing: Closing,
    settled: Sequence[Settled] = (),
) -> None:
    """`close` inside the caller's transaction.

    Raises:
        Taken: the run is not this claim's any more; the transaction must not be committed.
    """
    alias = database_alias()
    version = _update_thread(alias, uuid, ledger, closing)
    values = run_values(closing, last_seq)
    if not sql.update(alias, Run, values, uuid=uuid, claim=claim, status=Run.Status.RUNNING):
        raise Taken
    sql.insert(alias, RunEvents, [{"run_id": uuid, **row._asdict()} for row in rows])
    if settled:
        once.settle_here(alias, settled)
    _write_messages(alias, uuid, ledger, closing)
    if version is not None:
        origin = StateVersion.Origin.AGENT
        merging.insert_version(alias, ledger.thread, version, closing.state, origin=origin, run=uuid)
    if closing.interrupts:
        Interrupt.objects.using(alias).bulk_create(_interrupts(uuid, ledger, closing))
    if ledger.resumed and reopens(closing):
        resume.reopen(alias, uuid)


def reopens(closing: Closing) -> bool:
    """Whether a resume ended before it acted, through no decision of anybody: its questions are open again."""
    return not closing.spent and (closing.status == "failed" or closing.end_reason == "shutdown")


def run_values(closing: Closing, last_seq: int) -> dict[str, Any]:
    """The columns of a closed run."""
    terminal = closing.terminal
    values: dict[str, Any] = {
        "status": closing.status,
        "heartbeat": sql.NOW,
        "finished_at": timezone.now(),
        "last_seq": last_seq,
        "duration_ms": closing.duration_ms,
        "first_event_ms": closing.first_event_ms,
        "tool_calls": closing.tool_calls,
        "open_interrupts": len(closing.interrupts),
        "end_reason": closing.end_reason[:40],
        **token_totals(closing.usage),
    }
    if terminal.get("outcome") is not None:
        values["outcome"] = encode(terminal["outcome"])
    if "result" in terminal:
        values["result"] = encode(terminal["result"])
    if closing.usage:
        values["usage"] = encode(closing.usage)
        values |= pricing.columns(closing.usage, closing.costs)
    if (failure := closing.failure) is not None:
        values |= {
            "error_code": failure.code[:100],
            "error_text": failure.text,
            "error_reference": failure.reference[:32],
            "traceback": failure.traceback,
            "error_fingerprint": fingerprint(failure),
            "error_place": f"{failure.kind} {failure.place}".strip()[:ID_LENGTH],
        }
    return values


def _update_thread(alias: str, uuid: UUID, ledger: Ledger, closing: Closing) -> int | None:
    """Update the thread's row, which locks it first; returns the number of the state's version that is to be stored."""
    values: dict[str, Any] = {"updated_at": timezone.now()}
    totals = token_totals(closing.usage)
    for column in ("input_tokens", "output_tokens"):
        if totals[column]:
            values[column] = sql.Plus(totals[column])
    if words := last_words(closing.messages):
        values["last_words"] = words
    if ledger.version == ledger.began:
        state = {"state": encode(closing.state), "state_version": ledger.version + 1} if closing.state_changed else {}
        # Another version: it was edited meanwhile. That costs a run that was not edited no statement.
        if sql.update(alias, Thread, values | state, id=ledger.thread, state_version=ledger.version):
            return ledger.version + 1 if state else None
    values |= merging.leave(alias, ledger, uuid, closing.state, changed=closing.state_changed)
    sql.update(alias, Thread, values, id=ledger.thread)
    return None


def _write_messages(alias: str, uuid: UUID, ledger: Ledger, closing: Closing) -> None:
    """Store what the run created or changed; known messages keep their place."""
    if not closing.messages and not closing.removed:
        return
    ledger = ledger.copy()  # the transaction may be tried again
    if closing.removed:
        _messages(alias, ledger, closing.removed).update(superseded_by=uuid)
        ledger.forget(closing.removed)
    known = set(ledger.orders)
    changed = {message["id"]: message for message in closing.messages if message["id"] in known}
    fresh = {message["id"]: message for message in closing.messages if message["id"] not in known}
    if changed:
        found = list(_messages(alias, ledger, changed))
        for row in found:
            for name, value in columns(changed[row.message_id]).items():
                setattr(row, name, value)
        Message.objects.using(alias).bulk_update(found, ["role", "wire", "search_text"], batch_size=100)
    if fresh:
        store_messages(alias, uuid, ledger, fresh.values())


def _messages(alias: str, ledger: Ledger, ids: Iterable[str]) -> MessageQuerySet:
    return Message.objects.using(alias).filter(thread=ledger.thread, message_id__in=ids, superseded_by=None)


def store_messages(alias: str, uuid: UUID, ledger: Ledger, messages: Iterable[Wire]) -> None:
    """Store new messages of a run; a tool message goes directly behind its call, others to the end."""
    rows: list[dict[str, Any]] = []
    for message in messages:
        order, shift = ledger.place(message)
        if shift:
            later = Message.objects.using(alias).filter(thread=ledger.thread, order__gte=order)
            later.update(order=F("order") + STEP)
            for row in rows:
                row["order"] = ledger.orders[row["message_id"]]
        place = {"thread_id": ledger.thread, "run_id": uuid, "message_id": message["id"], "order": order}
        rows.append(place | columns(message))
    sql.insert(alias, Message, rows)


def columns(message: Wire) -> dict[str, Any]:
    """A message's row, as far as it follows from the wire value."""
    return {"role": message["role"], "wire": encode(message), "search_text": readable(message)}


def _interrupts(uuid: UUID, ledger: Ledger, closing: Closing) -> list[Interrupt]:
    return [
        Interrupt(
            thread_id=ledger.thread,
            run_id=uuid,
            interrupt_id=wire["id"],
            key=closing.interrupt_keys.get(wire["id"]) or wire["id"],
            position=position,
            reason=wire["reason"],
            message=wire.get("message", ""),
            tool_call_id=wire.get("toolCallId", ""),
            response_schema=encode(wire["responseSchema"]) if "responseSchema" in wire else "",
            expires_at=expiry(wire.get("expiresAt")),
            metadata=encode(wire["metadata"]) if "metadata" in wire else "",
            permission=closing.interrupt_permissions.get(wire["id"], ""),
            wire=encode(wire),
        )
        for position, wire in enumerate(closing.interrupts)
    ]
