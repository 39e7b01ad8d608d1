"""Prints what the database holds of a thread: one JSON question per line in, one JSON answer per line out.

Runs as ``python -m tests.stored`` in the environment of the server under test, beside it.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def describe(thread_id: str, username: str) -> dict[str, Any]:
    """Return a user's thread as plain JSON; ``{}`` when there is none."""
    from agui_django.models import Interrupt, Message, Run, RunEvents, Thread

    thread = Thread.objects.filter(owner__username=username, thread_id=thread_id).first()
    if thread is None:
        return {}
    runs = []
    for run in Run.objects.filter(thread=thread).order_by("created_at"):
        batches = RunEvents.objects.filter(run=run).order_by("first_seq")
        lines = [line for batch in batches for line in batch.text.split("\n") if line]
        runs.append({
            "uuid": str(run.pk), "runId": run.run_id, "status": run.status, "agent": run.agent, "lastSeq": run.last_seq,
            "errorCode": run.error_code, "endReason": run.end_reason, "protocolVersion": run.protocol_version,
            "events": [json.loads(line) for line in lines],
        })  # fmt: skip
    interrupts = Interrupt.objects.filter(thread=thread).order_by("created_at", "position")
    return {
        "messages": [json.loads(message.wire) for message in Message.objects.filter(thread=thread).in_play()],
        "state": json.loads(thread.state),
        "runs": runs,
        "interrupts": [
            {
                "id": row.interrupt_id,
                "status": row.status,
                "payload": json.loads(row.response).get("payload") if row.response else None,
                "draft": json.loads(row.draft).get("payload") if row.draft else None,
            }
            for row in interrupts
        ],
    }


def main() -> None:
    """Answer questions until standard input ends."""
    import django

    django.setup()
    from django.db import connections

    for line in sys.stdin:
        question = json.loads(line)
        print(json.dumps(describe(question["threadId"], question["user"])), flush=True)
        # Nothing may stay open between two questions: a test may drop the database or count connections.
        connections.close_all()


if __name__ == "__main__":
    main()
