"""An edit of the state from outside, and the mark of the event by which a run takes it in. Knows no database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agui_django.protocol.merge import merge
from agui_django.runs.ledger import METADATA_KEY
from agui_django.runs.setup import Wire


@dataclass(frozen=True)
class Edit:
    """An edit that was made while a run was active.

    Attributes:
        version: its number among the thread's versions.
        base: the state that it was made on.
        patch: what it does, as JSON Patch.
        state: what that makes of the base.
        origin, user: who made it; the user's key.
    """

    version: int
    base: Any
    patch: list[Wire]
    state: Any
    origin: str = "staff"
    user: Any = None

    def on(self, state: Any) -> Any:
        """Make it on what the state is by now: where both changed the same, the edit wins."""
        return merge(self.base, state, self.state)


def mark(version: int) -> Wire:
    """The metadata of the event by which a run takes an edit in."""
    return {METADATA_KEY: {"stateVersion": version}}


def marked(event: Wire) -> int:
    """The version of the edit that an event takes in; 0 where it takes in none."""
    if event["type"] != "STATE_DELTA":
        return 0
    ours = (event.get("metadata") or {}).get(METADATA_KEY)
    version = ours.get("stateVersion") if isinstance(ours, dict) else None
    return version if type(version) is int else 0
