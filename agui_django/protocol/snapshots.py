"""How a MESSAGES_SNAPSHOT reconciles with the messages a client holds (basic/patterns/snapshots).

Law: the official client's rule, message by message. A snapshot lists all messages that its producer tracks; what only
the client can hold, activities and reasoning, outlives a snapshot that carries none of its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agui_django.protocol.conversation import Message, own_copy

#: Where a snapshot may say which activity types it lists completely (a convention of the official client).
CLIENT_METADATA = "@ag-ui/client"


def reconcile(order: list[Message], event: Mapping[str, Any]) -> list[Message]:
    """The messages after a snapshot.

    Known ids keep their place and take the snapshot's version, unknown ones are appended in the snapshot's order, and
    what it leaves out is dropped, except for the activities and the reasoning that it does not own.
    """
    new = [own_copy(message) for message in event["messages"]]
    by_id = {message["id"]: message for message in new}
    keeps_activity = _activity_rule(event, new)
    # Streamed reasoning comes back under other ids where it comes back at all; both copies would show it twice.
    keeps_reasoning = not any(message["role"] == "reasoning" for message in new)
    result: list[Message] = []
    for message in order:
        if message["id"] in by_id:
            result.append(by_id[message["id"]])
        elif message["role"] == "activity":
            if keeps_activity(message):
                result.append(message)
        elif message["role"] == "reasoning" and keeps_reasoning:
            result.append(message)
    known = {message["id"] for message in result}
    return result + [message for message in new if message["id"] not in known]


_ABSENT: Any = object()


def _activity_rule(event: Mapping[str, Any], new: list[Message]) -> Callable[[Message], bool]:
    """Which of the activity messages that a snapshot leaves out survive it.

    A snapshot with any activity lists them all; one without says nothing about them. The client's own metadata key
    overrides this: null owns every type, a list the types in it, anything malformed none.
    """
    has_activity = any(message["role"] == "activity" for message in new)
    declared = (event.get("metadata") or {}).get(CLIENT_METADATA, _ABSENT)
    if declared is _ABSENT or (isinstance(declared, dict) and "authoritativeActivityTypes" not in declared):
        return lambda message: not has_activity
    types = declared.get("authoritativeActivityTypes") if isinstance(declared, dict) else ()
    if isinstance(declared, dict) and types is None:
        return lambda message: False
    valid = isinstance(types, list) and all(isinstance(name, str) for name in types)
    owned = frozenset(types) if isinstance(types, list) and valid else frozenset()
    return lambda message: message["activityType"] not in owned
