"""The end of a run: what is still open is closed, the table decides, and the closing says what is to be written.

Law: never raises, whatever the agent left; the terminal event is the last thing it makes.
"""

from __future__ import annotations

import logging
import secrets
from typing import Any

from agui_django.agents.asking import plain
from agui_django.agents.lanes import CANCELLED, FAILED
from agui_django.protocol.errors import NotJson, ProtocolViolation
from agui_django.runs.endings import Ending, Happened, decide
from agui_django.runs.session import RunSession
from agui_django.runs.setup import Closing, Wire

logger = logging.getLogger("agui_django.runs")


class Finish:
    """The end of one run.

    Args:
        session: the run.
        began: when it began, by the loop's clock.
        returned: what the agent's function returned.
        faults: what it raised, and what went wrong before.
        reason: why it was cancelled, or None.
        swallowed: it returned although it was cancelled.
    """

    def __init__(
        self,
        session: RunSession,
        *,
        began: float,
        returned: Any,
        faults: list[BaseException],
        reason: str | None,
        swallowed: bool,
    ) -> None:
        self.session = session
        self.setup = session.setup
        self.began = began
        self.result = returned
        self.faults = faults
        self.reason = reason
        self.swallowed = swallowed

    def closing(self) -> Closing:
        """Close what is open; gives what is to be written."""
        session = self.session
        result = self._last_words()
        ending = decide(self._happened())
        reference = secrets.token_hex(6) if ending.status == "failed" else ""
        failure = ending.failure(reference)
        if failure is not None:
            self._log_failure(ending, reference)
        self._closing_events(ending)
        terminal = session.normaliser.terminal(self._terminal(ending, reference, result))
        if session.hints is not None:
            session.hints.finished(self.result, self.swallowed)
        interrupted = ending.status == "interrupted"
        now = session.loop.time()
        return Closing(
            ending.status,
            terminal,
            messages=[
                message for id in session.reducer.touched if (message := session.reducer.message(id)) is not None
            ],
            removed=session.reducer.removed,
            state=session.document.plain(),
            state_changed=session.state_edited,
            interrupts=[interrupt for interrupt, _ in session.questions.values()] if interrupted else [],
            interrupt_keys={question["id"]: key for key, (question, _) in session.questions.items()}
            if interrupted
            else {},
            interrupt_permissions={question["id"]: permission for question, permission in session.questions.values()}
            if interrupted
            else {},
            usage=list(session.usage.values()),
            costs=session.costs,
            tool_calls=len(session.normaliser.calls),
            failure=failure,
            end_reason=ending.reason,
            spent=session.acted,
            first_event_ms=None if session.first_at is None else round((session.first_at - self.began) * 1000),
            duration_ms=round((now - self.began) * 1000),
        )

    def _last_words(self) -> Any:
        """What the function left undone: edits, the implicit message, its result; faults are noted."""
        session = self.session
        if session.followed is not None:
            session.followed.finish()
        try:
            session.settle()
            session.end_implicit()
        except Exception as error:
            self.faults.append(error)
        normaliser = session.normaliser
        try:
            session.append(normaliser.close_chunks() + normaliser.close_reopened())
        except Exception as error:
            self.faults.append(error)
        items = normaliser.verifier.open_items()
        excused = self.faults or self.reason or session.limit or session.questions or normaliser.own_terminal
        if items and not excused:
            names = ", ".join(f"{item.kind} '{item.id}'" for item in items)
            self.faults.append(ProtocolViolation(f"The agent returned and left open: {names}."))
        result = session.result if self.result is None else self.result
        try:
            return plain(result)
        except NotJson as error:
            self.faults.append(error)
            return None

    def _happened(self) -> Happened:
        session = self.session
        own = session.normaliser.own_terminal
        marks = [session.limit, session.normaliser.violation, session.flood]
        return Happened(
            cancelled=self.reason,
            faults=[mark for mark in marks if mark is not None] + self.faults,
            own_error=own if own is not None and own["type"] == "RUN_ERROR" else None,
            own_cancel=own is not None and (own.get("outcome") or {}).get("type") == "cancelled",
            asked=bool(session.questions),
        )

    def _closing_events(self, ending: Ending) -> None:
        session = self.session
        suspended = session.suspensions() if ending.status == "interrupted" else None
        error = {"failed": FAILED, "cancelled": CANCELLED}.get(ending.status)
        try:
            session.append(session.normaliser.close_all(error=error, suspended=suspended))
        except Exception:
            # The log takes no more: RUN_ERROR ends whatever is open along with the run.
            logger.exception("The closing events of run %s were refused", self.setup.address)

    def _terminal(self, ending: Ending, reference: str, result: Any) -> Wire:
        session = self.session
        usage = {"usage": list(session.usage.values())} if session.usage else {}
        if ending.status == "failed":
            return {"type": "RUN_ERROR", "message": ending.message(reference), "code": ending.code, **usage}
        event: Wire = {"type": "RUN_FINISHED", "threadId": self.setup.thread_id, "runId": self.setup.run_id}
        if ending.status == "cancelled":
            return {**event, "outcome": {"type": "cancelled"}, **usage}
        if ending.status == "interrupted":
            interrupts = [interrupt for interrupt, _ in session.questions.values()]
            event["outcome"] = {"type": "interrupt", "interrupts": interrupts}
        elif pending := session.normaliser.verifier.unanswered_calls:
            event["outcome"] = {"type": "success", "pendingToolCallIds": pending}
        if result is not None:
            event["result"] = result
        return {**event, **usage}

    def _log_failure(self, ending: Ending, reference: str) -> None:
        level = logging.WARNING if ending.public else logging.ERROR
        logger.log(
            level,
            "Run %s of agent %s failed: %s (reference %s) %s",
            self.setup.address,
            self.setup.agent,
            ending.code,
            reference,
            ending.detail or ending.error or "",
            exc_info=ending.trace_of,
        )
