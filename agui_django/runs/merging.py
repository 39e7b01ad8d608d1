"""What a thread's state is around a run, and what becomes of the edits that people make meanwhile.

A thread's row holds the state as it was last stored, and its version. While a run is active (and after edits of a
thread at rest) `base_version` says what that run began with (what the last one left): the state that the run's log
leads on from, and that a client's edit is compared with.
Law: an edit is a version as soon as it is accepted. The active run takes it in, and its log says so (`marked`); what it
has not taken in when it ends is made on the state that it leaves. Whoever writes holds the thread's row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from agui_django.agents.registry import get_agent
from agui_django.agents.state_schema import StateSchema
from agui_django.conf import settings
from agui_django.models import Run, RunEvents, StateVersion, Thread
from agui_django.protocol.codec import decode, encode
from agui_django.protocol.errors import NotFound
from agui_django.protocol.json_patch import json_equal
from agui_django.protocol.reducer import Reducer
from agui_django.runs import sql
from agui_django.runs.edits import Edit, marked
from agui_django.runs.ledger import Ledger, state_digest

logger = logging.getLogger("agui_django.runs")

_STATE_EVENT = '"STATE_'


# ---- reading: in a database thread ----------------------------------------------------------------------------------


def base_of(alias: str, thread: Thread) -> tuple[int, Any]:
    """What the active run began with, or the last one left: its version and the state."""
    version = left(thread)
    found = state_at(alias, thread, version)
    return version, {} if found is None else found[0]


def left(thread: Thread) -> int:
    """The version that the last run of a thread at rest left."""
    return thread.state_version if thread.base_version is None else thread.base_version


def state_at(alias: str, thread: Thread, version: int) -> tuple[Any] | None:
    """The state of a version, in a tuple; None where it is not stored."""
    if version == thread.state_version:
        return (decode(thread.state),)
    rows = StateVersion.objects.using(alias).filter(thread=thread.pk, version=version)
    text = rows.values_list("state", flat=True).first()
    if text is None:
        return None if version else ({},)  # no thread has a row of its empty beginning
    return (decode(text),)


def pending(alias: str, thread: int, after: int) -> list[Edit]:
    """The edits behind a version that an active run has to take in."""
    rows = StateVersion.objects.using(alias).filter(thread=thread, version__gt=after).exclude(edit="")
    found = []
    for row in rows.order_by("version"):
        edit = decode(row.edit)
        found.append(Edit(row.version, edit["base"], edit["patch"], decode(row.state), row.origin, row.user_id))
    return found


def present_state(alias: str, thread: Thread, run: Run) -> Any:
    """The state of a thread with an active run, as far as it is stored, with the edits that run has yet to take in."""
    taken, base = base_of(alias, thread)
    reducer = Reducer([], base)
    batches = RunEvents.objects.using(alias).filter(run=run, text__contains=_STATE_EVENT).order_by("first_seq")
    for text in batches.values_list("text", flat=True):
        for line in text.split("\n"):
            if _STATE_EVENT in line and (event := decode(line))["type"] in ("STATE_DELTA", "STATE_SNAPSHOT"):
                reducer.apply(event)
                taken = max(taken, marked(event))
    state = reducer.state
    for edit in pending(alias, thread.pk, taken):
        state = edit.on(state)
    return state


def guard_of(agent: str) -> Callable[[Any], list[dict[str, str]]]:
    """What says where a state does not fit an agent's schema; an agent that is not there any more takes everything."""
    try:
        schema = get_agent(agent).options.state_schema
        return StateSchema(schema).errors if schema is not None else lambda _: []
    except (NotFound, TypeError):  # a schema that is none: the agent's run tells it
        return lambda _: []


def fits(text: str) -> bool:
    """Whether a state is small enough."""
    return len(text) <= settings.MAX_STATE and (text.isascii() or len(text.encode()) <= settings.MAX_STATE)


# ---- the end of a run whose thread was edited -----------------------------------------------------------------------


def leave(alias: str, ledger: Ledger, run: Any, state: Any, *, changed: bool) -> dict[str, Any]:
    """Store what a run leaves of a thread's state, where that was edited while it ran.

    Args:
        alias: the database.
        ledger: the run's notes; their version is that of the last edit that it took in.
        run: its key.
        state: what it leaves.
        changed: whether that is another state than it began with.

    Returns:
        The columns of the thread's row, which is locked.
    """
    thread = Thread.objects.using(alias).select_for_update(no_key=True).filter(pk=ledger.thread).first()
    if thread is None:
        return {}
    late = pending(alias, thread.pk, ledger.version)
    StateVersion.objects.using(alias).filter(thread=thread).exclude(edit="").update(edit="")
    if not changed:
        # The edits are on what it began with, and stored as that.
        return {}
    values: dict[str, Any] = {"base_version": None}
    version = thread.state_version
    if late or not json_equal(decode(thread.state), state):
        version += 1
        values |= insert_version(alias, thread.pk, version, state, run=run, origin=StateVersion.Origin.AGENT)
    made = state
    guard = guard_of(thread.agent)
    for edit in late:
        after = edit.on(made)
        if guard(after) or not fits(encode(after)):
            logger.warning("Version %d of thread %d does not go with what run %s left", edit.version, thread.pk, run)
        else:
            made = after
    if not json_equal(made, state):
        values["base_version"] = version
        values |= insert_version(alias, thread.pk, version + 1, made, origin=late[-1].origin, user=late[-1].user)
    return values


def insert_version(
    alias: str, thread: int, version: int, state: Any, *, origin: str, run: Any = None, user: Any = None, edit: str = ""
) -> dict[str, Any]:
    """Insert a version; returns the columns of the thread's row."""
    row = StateVersion(
        thread_id=thread,
        run_id=run,
        version=version,
        state=encode(state),
        digest=state_digest(state),
        origin=origin,
        user_id=user,
        edit=edit,
    )
    sql.insert_row(alias, row)
    return {"state": row.state, "state_version": version}
