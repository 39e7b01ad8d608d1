"""Which state a client's copy was made from: found by the messages of the conversation that its list holds.

The protocol has no version in a request. A page that was shown a run has that run's messages, so what stands in the
thread behind the last message that it has says what it was not shown. Law: whoever has the last message is up to date,
and so is whoever does not say what they have; only what is certainly older is treated so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.db.models import Min, Q

from agui_django.models import Message, Run, Thread
from agui_django.runs import merging
from agui_django.runs.setup import Wire

#: The roles of messages that every client keeps.
_KEPT = ("user", "assistant")


def base_of_client(
    alias: str, thread: Thread, sent: Sequence[Wire], stored: Sequence[Wire], gone: Mapping[str, Any]
) -> Any:
    """The state that a client's copy was made from, in a thread at rest; one statement where that is the last run's.

    Args:
        alias: the database.
        thread: the locked row.
        sent: the client's list.
        stored: the messages in play, in order.
        gone: of messages of the list that are out of play, the run that took them out.

    Returns:
        What was there before the first run that the client was not shown, else what the last one left.
    """
    unseen, takers = _unseen(sent, stored, gone)
    if unseen or takers:
        of = Message.objects.filter(thread=thread, superseded_by=None, message_id=unseen).values("run")
        rows = Run.objects.using(alias).filter(Q(pk__in=takers) | Q(pk__in=of))
        oldest = rows.aggregate(Min("base_version"))["base_version__min"]
        if oldest is not None and (found := merging.state_at(alias, thread, oldest)) is not None:
            return found[0]
    return merging.base_of(alias, thread)[1]


def base_while_active(
    alias: str, thread: Thread, active: Run, sent: Sequence[Wire], stored: Sequence[Wire], gone: Mapping[str, Any]
) -> Any:
    """`base_of_client` while a run is active: what it has made of the state so far, for whoever was shown it."""
    brought = Message.objects.using(alias).filter(thread=thread, run=active, superseded_by=None)
    ids = set(brought.values_list("message_id", flat=True))
    if ids and ids.isdisjoint(message["id"] for message in sent):
        return base_of_client(alias, thread, sent, stored, gone)
    return merging.present_state(alias, thread, active)


def _unseen(sent: Sequence[Wire], stored: Sequence[Wire], gone: Mapping[str, Any]) -> tuple[str, set[Any]]:
    """The first message behind all that the client has, "" for none; and the runs that took its latest out of play."""
    places = {message["id"]: place for place, message in enumerate(stored)}
    takers: set[Any] = set()
    last = -1
    for message in sent:
        place = places.get(message["id"])
        if place is not None:
            last = max(last, place)
            takers.clear()
        elif message["id"] in gone:
            takers.add(gone[message["id"]])
    if last < 0:
        return "", takers
    behind = (message for message in stored[last + 1 :] if message["role"] in _KEPT and "subagentRunId" not in message)
    return next((message["id"] for message in behind), ""), takers
