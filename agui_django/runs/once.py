"""What happens once per turn: claims and values, kept on the turn's first run.

Law: a claim is committed before anything is done for it, under the thread's lock and only by the process that has the
run; what nobody has settled stays unknown. Settling is the writer's, in the transaction of the run's events.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from agui_django.agents.approvals import approval_key
from agui_django.agents.sink import OnceClaim
from agui_django.models import Message, Run, Thread
from agui_django.protocol.codec import decode, encode
from agui_django.protocol.errors import RunClosed
from agui_django.runs import sql
from agui_django.runs.database import database_alias, transact
from agui_django.runs.settling import look_up, settle
from agui_django.runs.setup import Settled, Wire


def claim_once(thread: int, run: UUID, claim: str, turn: str, wanted: OnceClaim) -> OnceClaim:
    """Claim a key of a turn for a run, unless that was done before; call in a pool's thread.

    Args:
        thread: primary key of the thread.
        run: who claims.
        claim: whose run that must be.
        turn: the turn's name.
        wanted: the key, and a name for this very claim: one whose commit was not answered is recognised by it.

    Raises:
        RunClosed: the run was taken away from this process; nothing may be done for it any more.
    """
    return transact(_claim_once, thread, run, claim, turn, wanted)


def _claim_once(thread: int, run: UUID, claim: str, turn: str, wanted: OnceClaim) -> OnceClaim:
    alias = database_alias()
    held = Thread.objects.using(alias).select_for_update(no_key=True).filter(pk=thread).values_list("pk", flat=True)
    mine = {"uuid": run, "claim": claim, "status": Run.Status.RUNNING}
    if not held.first() or not sql.update(alias, Run, {"heartbeat": sql.NOW}, **mine):
        raise RunClosed("The run was taken away from this process.")
    home = home_of(turn)
    entries = _locked(alias, home)
    if entries is None:  # the turn's first run was removed: nobody knows what was done
        return wanted.found("unknown")
    found = look_up(entries, wanted)
    if found.state == "mine":
        entries[wanted.key] = {"run": run.hex, "by": wanted.by}
        sql.update(alias, Run, {"once": encode(entries)}, uuid=home)
    return found


def settle_here(alias: str, settled: Iterable[Settled]) -> None:
    """Settle claims of runs whose rows the caller's transaction holds."""
    homes: dict[UUID, list[Settled]] = defaultdict(list)
    for each in settled:
        homes[home_of(each.turn)].append(each)
    for home, some in homes.items():
        entries = _locked(alias, home)
        if entries is not None:
            settle(entries, some)
            sql.update(alias, Run, {"once": encode(entries)}, uuid=home)


def has_claimed(alias: str, run: Run) -> bool:
    """Whether a run has claimed anything, whatever became of it."""
    if run.once != "{}":  # a turn's first run: the claims are its own
        return True
    text = Run.objects.using(alias).filter(pk=home_of(run.turn)).values_list("once", flat=True).first()
    return any(entry["run"] == run.pk.hex for entry in decode(text or "{}").values())


def cut_off(alias: str, thread: Thread, calls: Iterable[str], messages: Iterable[Wire]) -> set[str]:
    """Those of a thread's calls whose approved execution has begun, and whose outcome nobody knows.

    Args:
        alias: the database.
        thread: the locked row.
        calls: their ids.
        messages: the thread's, with those that made them.
    """
    wanted = set(calls)
    made = {
        call["id"]: (call["function"], message["id"]) for message in messages for call in message.get("toolCalls") or ()
    }
    made = {call: found for call, found in made.items() if call in wanted}
    rows = Message.objects.using(alias).filter(thread=thread, superseded_by=None, run__isnull=False)
    turns = rows.filter(message_id__in={maker for _, maker in made.values()}).values_list("run__turn", flat=True)
    homes = Run.objects.using(alias).filter(pk__in=map(home_of, set(turns))).exclude(once="{}")
    begun = {
        name
        for text in homes.values_list("once", flat=True)
        for name, entry in decode(text).items()
        if "value" not in entry and not entry.get("released")
    }
    keys = {call: approval_key(call, function["name"], function["arguments"]) for call, (function, _) in made.items()}
    # A subagent's stands in front of the key.
    return {call for call, key in keys.items() if any(name.endswith(key) for name in begun)}


def home_of(turn: str) -> UUID:
    """The address of a turn's first run."""
    return UUID(hex=turn)


def _locked(alias: str, home: UUID) -> dict[str, Any] | None:
    """The claims of a turn; their row is locked behind that of the run that works on them."""
    rows = Run.objects.using(alias).select_for_update(no_key=True).filter(pk=home)
    text = rows.values_list("once", flat=True).first()
    return None if text is None else decode(text)
