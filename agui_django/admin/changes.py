"""Changes of the shared state, as a table a person reads: where, before, after."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import jsonpointer
from django.db.models import QuerySet
from django.db.models.functions import Length
from django.utils.safestring import SafeString

from agui_django.admin.markdown import tree
from agui_django.admin.rights import Redactor
from agui_django.models import StateVersion
from agui_django.protocol.codec import decode
from agui_django.protocol.json_patch import make_patch

#: Versions of a page, operations of a version, and characters of a state that is read for one.
VERSIONS, OPERATIONS, LARGE = 20, 50, 256 * 1024


@dataclass
class Change:
    """A version, and in what it differs from the one before."""

    version: int
    origin: str
    user: Any
    at: datetime
    size: int
    rows: list[tuple[str, SafeString | None, SafeString | None]] = field(default_factory=list)
    #: How many operations are not shown.
    more: int = 0
    #: Why nothing is shown.
    hidden: str = ""
    large: bool = False


def changes(rows: QuerySet[StateVersion], thread: int, redactor: Redactor) -> list[Change]:
    """The latest of these versions, the oldest first; two statements.

    Args:
        rows: versions of one thread.
        thread: its key.
        redactor: the viewer's.
    """
    sized = rows.annotate(size=Length("state")).order_by("-version")
    found: list[Any] = list(sized.values("version", "origin", "user", "created_at", "size")[:VERSIONS])[::-1]
    numbers = {row["version"] for row in found} | {row["version"] - 1 for row in found}
    stored = StateVersion.objects.using(rows.db).filter(thread=thread, version__in=numbers)
    states = {}
    if redactor.content:
        states = dict(stored.annotate(size=Length("state")).filter(size__lte=LARGE).values_list("version", "state"))
    return [_change(row, states, redactor) for row in found]


def _change(row: dict[str, Any], states: dict[int, str], redactor: Redactor) -> Change:
    number = row["version"]
    change = Change(number, row["origin"], row["user"], row["created_at"], row["size"])
    if not redactor.content:
        change.hidden = redactor.hidden(row["size"])
    elif number not in states:
        change.large = True
    else:
        before = decode(states[number - 1]) if number - 1 in states else {}
        patch = make_patch(before, decode(states[number]))
        change.more = max(len(patch) - OPERATIONS, 0)
        for op in patch[:OPERATIONS]:
            old = None if op["op"] == "add" else tree(jsonpointer.resolve_pointer(before, op["path"], None))
            new = None if op["op"] == "remove" else tree(op["value"])
            change.rows.append((op["path"] or "/", old, new))
    return change
