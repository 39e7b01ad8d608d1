"""What a developer is told with DEBUG on: things that are legal, and probably not meant.

Law: hints change nothing; each is told once per run.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from agui_django.agents.live import LIVE
from agui_django.protocol.json_patch import copy_json, json_equal

if TYPE_CHECKING:
    from agui_django.runs.session import RunSession

logger = logging.getLogger("agui_django.agent")

#: Values put into the state that are looked at again at the end: the latest.
WATCHED = 200


class Hints:
    """The hints of one run."""

    def __init__(self, session: RunSession) -> None:
        self._session = session
        self._told: set[str] = set()
        #: what was put into the state last, by identity: the value and what it was then
        self._copied: dict[int, tuple[Any, Any]] = {}
        self._before: set[str] | None = None

    def tell(self, text: str, *args: Any) -> None:
        """One hint."""
        if text not in self._told:
            self._told.add(text)
            logger.warning("Agent %s: " + text, self._session.setup.agent, *args)

    def ended(self, message_id: str) -> None:
        """A text without a key was said; a later pass of the turn says it again."""
        if not self._session.context.resumed:
            return
        if self._before is None:
            self._before = self._said_before()
        message = self._session.message(message_id) or {}
        if message.get("content") in self._before:
            self.tell("%.60r was said in an earlier pass, too; give it a key to say it once.", message["content"])

    def _said_before(self) -> set[str]:
        said: set[str] = set()
        for message in self._session.setup.messages:
            if message["role"] == "user":
                said = set()
            elif message["role"] == "assistant" and message.get("content"):
                said.add(message["content"])
        return said

    def copied(self, value: Any) -> None:
        """A dict or list was put into the state, which copied it. Put there again, it may have changed meanwhile."""
        self._copied.pop(id(value), None)
        if not _has_live(value):
            self._copied[id(value)] = value, copy_json(value)
            if len(self._copied) > WATCHED:
                del self._copied[next(iter(self._copied))]

    def finished(self, result: Any, swallowed_cancel: bool) -> None:
        """The function has ended."""
        session = self._session
        if not all(json_equal(value, before) for value, before in self._copied.values()):
            self.tell(
                "a dict or list was edited after it was assigned to run.state, which copied it; edit run.state instead."
            )
        if isinstance(result, str) and not any(
            message["role"] == "assistant" and message.get("content")
            for message in (session.message(id) for id in session.reducer.touched)
            if message is not None
        ):
            self.tell("it returned a text and said nothing; a returned value is not shown, use run.say().")
        if swallowed_cancel:
            self.tell("it swallowed the CancelledError of a cancel; clean up in `finally` and let it pass.")
        calls = session.normaliser.calls
        waiting = [
            calls[id]
            for id in session.normaliser.verifier.unanswered_calls
            if calls[id] not in session.tool_names and not id.startswith(f"{session.setup.turn}:")
        ]
        if waiting and not session.questions:
            self.tell("its tool calls %s have no result and the page has no such tools.", ", ".join(waiting))

    def late(self) -> None:
        """Something was emitted after the end."""
        self.tell("it emitted something after the run had ended: a task or thread outlived the function.")


def _has_live(value: Any) -> bool:
    """Whether parts of the state itself are in it: their edits are no mistake."""
    if isinstance(value, LIVE):
        return True
    if isinstance(value, dict):
        return any(map(_has_live, value.values()))
    return isinstance(value, list) and any(map(_has_live, value))
