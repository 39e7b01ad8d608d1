"""Who follows the arguments of tool calls while they are streamed.

Law: costs nothing in runs where nobody does; told in the loop's thread, when the piece is applied.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from agui_django.agents.sink import CallFollower
from agui_django.protocol.errors import AgentFlood, LogLimit, RunClosed

if TYPE_CHECKING:
    from agui_django.runs.session import RunSession

logger = logging.getLogger("agui_django.runs")


class FollowedCalls:
    """The followers of one run's tool calls."""

    def __init__(self, session: RunSession) -> None:
        """Listen from now on."""
        self._session = session
        self._followers: dict[str, CallFollower] = {}
        session.reducer.follow_calls(self._told)

    def add(self, follower: CallFollower) -> None:
        """Have somebody told; who writes to the same key is let go."""
        earlier = self._followers.pop(follower.key, None)
        if earlier is not None:
            earlier.finish()
        self._followers[follower.key] = follower

    def _told(self, kind: str, call_id: str, tool: str) -> None:
        for follower in self._followers.values():
            if kind == "TOOL_CALL_START" and follower.tool == tool:
                follower.began(call_id)
            elif kind == "TOOL_CALL_ARGS":
                follower.grew(call_id)
            elif kind == "TOOL_CALL_END":
                follower.ended(call_id)

    def finish(self) -> None:
        """The run ends: what was shown of calls without an end is put back, and told also where the run is lost."""
        wrote = [follower.finish() for follower in self._followers.values()]
        session, normaliser = self._session, self._session.normaliser
        if any(wrote) and (normaliser.violation or normaliser.refusal or normaliser.own_terminal):
            # Not as a patch: edits before this may have been refused.
            session.document.take()
            try:
                session.append(normaliser.aside({"type": "STATE_SNAPSHOT", "snapshot": session.document.plain()}))
            except (LogLimit, AgentFlood, RunClosed):
                logger.debug("The state at the end was refused", exc_info=True)
