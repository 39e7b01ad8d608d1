"""How a run ends: the table that turns what happened into exactly one terminal event.

Law: the highest row that applies wins, so a bug is never hidden by a question, nor a cancel by a swallowed exception.
A text that is not ours never reaches the client.
"""

from __future__ import annotations

import asyncio
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from django.core.exceptions import PermissionDenied

import agui_django
from agui_django.protocol.errors import (
    AgentDenied,
    AgentError,
    AgentException,
    AgentFlood,
    AgUiError,
    Declined,
    LogLimit,
    OnceUnknown,
    ProtocolViolation,
    RunClosed,
    RunSuspended,
    RunTimeout,
    StateInvalid,
    StateTooLarge,
)
from agui_django.runs.setup import Failure, Status, Wire

#: Files whose frames are nobody's mistake: installed packages, Python's own, and this one.
_LIBRARIES = re.compile(rf"site-packages|/lib/python|^<|^{re.escape(agui_django.__path__[0])}/")


@dataclass
class Happened:
    """What is known at the end of an agent's function.

    Attributes:
        cancelled: why the run was cancelled, or None.
        faults: everything that went wrong and marks the run, whether the function swallowed it or not, then what it
            raised.
        own_error: the RUN_ERROR that the agent emitted.
        own_cancel: whether the agent emitted RUN_FINISHED with the cancelled outcome.
        asked: whether there are questions.
    """

    cancelled: str | None = None
    faults: list[BaseException] = field(default_factory=list)
    own_error: Wire | None = None
    own_cancel: bool = False
    asked: bool = False


@dataclass(frozen=True)
class Ending:
    """One row of the table, applied.

    Attributes:
        status: of the run.
        code, text: of RUN_ERROR.
        reason: what the run's row says.
        error: what staff are shown; `trace_of` is what it was raised in.
    """

    status: Status
    code: str = ""
    text: str = ""
    reason: str = ""
    public: bool = False
    referenced: bool = True
    error: BaseException | None = None
    detail: str = ""
    trace_of: BaseException | None = None

    def failure(self, reference: str) -> Failure | None:
        """What staff read about a failed run."""
        if self.status != "failed":
            return None
        shown = self.trace_of or self.error
        trace = "".join(traceback.format_exception(shown)) if shown is not None else ""
        detail = self.detail or (f"{type(self.error).__name__}: {self.error}" if self.error is not None else self.text)
        told = {} if self.error is None else {"kind": type(self.error).__name__, "place": place_of(self.error)}
        return Failure(self.code, reference, detail, trace, self.public, **told)

    def message(self, reference: str) -> str:
        """The text of RUN_ERROR: what the user may read."""
        return f"{self.text} (reference {reference})" if self.referenced else self.text


def place_of(error: BaseException) -> str:
    """The innermost frame outside libraries, such as ``shop/agents.py refund``; empty: it was never raised.

    Without the line's number: an edit elsewhere in the file keeps the error's identity.
    """
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = [code for code in codes if not _LIBRARIES.search(code.co_filename)] or codes
    return f"{'/'.join(own[-1].co_filename.split('/')[-2:])} {own[-1].co_qualname}" if own else ""


def decide(happened: Happened) -> Ending:
    """The ending: AGENT_API's table, from its top."""
    whole = {id(leaf): fault for fault in happened.faults for leaf in _leaves(fault)}
    ending = _decide(happened, [leaf for fault in happened.faults for leaf in _leaves(fault)])
    # The traceback shows the group, not only what was found in it.
    return ending if ending.error is None else replace(ending, trace_of=whole[id(ending.error)])


def _decide(happened: Happened, leaves: list[BaseException]) -> Ending:
    limit = _first(leaves, LogLimit)
    if happened.cancelled == "timeout":
        return _ours(RunTimeout, None, reason="timeout")
    if limit is not None:
        return _ours(LogLimit, limit)
    if happened.cancelled is not None:
        return Ending("cancelled", reason=happened.cancelled)
    violation = _first(leaves, ProtocolViolation)
    if violation is not None:
        return _ours(ProtocolViolation, violation)
    denied = _first(leaves, PermissionDenied)
    if denied is not None:
        return _ours(AgentDenied, denied, referenced=False)
    for leaf in leaves:
        if not isinstance(leaf, _KNOWN):
            return _ours(AgentException, leaf)
    for leaf in leaves:
        if isinstance(leaf, StateInvalid | StateTooLarge | OnceUnknown | AgentFlood):
            return _ours(type(leaf), leaf)
    told = _first(leaves, AgentError)
    if told is not None:
        return Ending("failed", told.code, str(told.message), public=True, referenced=False, error=told)
    declined = _first(leaves, Declined)
    if declined is not None or happened.own_cancel:
        return Ending("cancelled", reason="declined")
    if happened.own_error is not None:
        code = happened.own_error.get("code") or _code(AgentException)
        return Ending("failed", code, _text(AgentException), detail=f"RUN_ERROR: {happened.own_error['message']}")
    return Ending("interrupted" if happened.asked else "finished")


#: Leaves with a row of their own, or none; whatever else there is, is "any other exception".
_KNOWN = (StateInvalid, StateTooLarge, OnceUnknown, AgentFlood, AgentError, Declined, RunSuspended)


def is_cancel(error: BaseException) -> bool:
    """Whether an exception is nothing but the cancel that the engine sent."""
    return all(isinstance(leaf, asyncio.CancelledError | RunClosed) for leaf in _leaves(error))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _first(leaves: list[BaseException], kind: type[Any]) -> Any:
    return next((leaf for leaf in leaves if isinstance(leaf, kind)), None)


def _ours(kind: type[AgUiError], error: BaseException | None, *, reason: str = "", referenced: bool = True) -> Ending:
    return Ending("failed", _code(kind), _text(kind), reason=reason, referenced=referenced, error=error)


def _code(kind: type[AgUiError]) -> str:
    return kind().code


def _text(kind: type[AgUiError]) -> str:
    return str(kind().message)
