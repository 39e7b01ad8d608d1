"""The exception tree, and the ONE table: class -> code, HTTP status, WebSocket close code.

Every error a client may meet is a subclass of `AgUiError`. The texts of these classes are ours and may travel; the
text of any other exception never does.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple


class Answer(NamedTuple):
    """How an error is told: stable code, HTTP status, WebSocket close code."""

    code: str
    status: int
    close_code: int


class AgUiError(Exception):
    """Something went wrong inside the AG-UI app.

    Args:
        message: text a client may read; default: the first line of the class docstring.
        code: overrides the table's code.
        fields: what was wrong where, as ``{"path": "/messages/0/role", "message": "..."}`` entries.
        extra: further public members for the JSON error body (``runId``, ``retryAfter`` ...).
    """

    #: True where the message may be shown to the client as it is.
    public: ClassVar[bool] = True

    def __init__(
        self,
        message: Any = "",
        *,
        code: str = "",
        fields: Sequence[Mapping[str, str]] = (),
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        # A lazy translation stays lazy: it is rendered in the request's language when it is told.
        self.message = message or (type(self).__doc__ or "").strip().split("\n")[0]
        self.code = code or answer_for(type(self)).code
        self.fields = list(fields)
        self.extra = dict(extra or {})
        super().__init__(self.message)

    def __str__(self) -> str:
        return str(self.message)

    @property
    def status(self) -> int:
        """The HTTP status of this error's class."""
        return answer_for(type(self)).status

    @property
    def close_code(self) -> int:
        """The WebSocket close code of this error's class."""
        return answer_for(type(self)).close_code


# ---- the request is at fault: told before anything is stored -------------------------------------------------------


class RequestError(AgUiError):
    """The request cannot be served."""


class InvalidJson(RequestError):
    """The body is not valid JSON."""


class InvalidInput(RequestError):
    """The request has malformed fields."""


class UnsupportedVersion(InvalidInput):
    """This major version of the protocol is not spoken here."""


class InvalidCursor(RequestError):
    """The cursor is not one of ours."""


class UnsupportedMediaType(RequestError):
    """Only application/json bodies are read."""


class BodyTooLarge(RequestError):
    """The body is larger than this site accepts."""


class AttachmentTooLarge(BodyTooLarge):
    """A file in a message is larger than this site accepts."""


class AttachmentRefused(UnsupportedMediaType):
    """A file in a message is of a type that this site does not accept."""


class NotAuthenticated(RequestError):
    """Authentication is required."""


class PermissionRefused(RequestError):
    """You may not do this."""


class MethodRefused(RequestError):
    """This method is not allowed here."""


class NotFound(RequestError):
    """There is no such thing here."""


class VersionConflict(RequestError):
    """It has been changed meanwhile: read it again."""


class PatchConflict(RequestError):
    """The patch does not apply to the state as it is now."""


class StateRefused(InvalidInput):
    """The state would not fit the agent's schema."""


class StateTooLarge(RequestError):
    """The shared state would be larger than this site accepts."""


class CursorGone(RequestError):
    """The events behind this cursor are no longer kept one by one; read from the beginning."""


class ThreadBusy(RequestError):
    """Another run is active on this thread."""


class LimitExceeded(RequestError):
    """Too many runs are active; try again later."""


class RateExceeded(LimitExceeded):
    """Too many requests; try again later."""


class Draining(RequestError):
    """The server is shutting down; try again."""


class DatabaseAway(RequestError):
    """The database does not answer; try again."""


class AsgiRequired(RequestError):
    """AG-UI streams need an ASGI server (daphne, uvicorn, or gunicorn with uvicorn workers)."""


# ---- the resume is at fault: told as the stream's only event, nothing is changed -----------------------------------


class ResumeError(AgUiError):
    """The answers cannot be taken."""


class ResumeIncomplete(ResumeError):
    """Open interrupts are without an answer."""


class ResumeConflict(ResumeError):
    """An interrupt was already answered otherwise."""


class ResumeInvalid(ResumeError):
    """An answer does not fit its response schema."""


class InterruptExpired(ResumeError):
    """An expired interrupt can be cancelled, not answered."""


class InterruptsOpen(ResumeError):
    """The thread waits for answers to its open interrupts."""


# ---- the agent is at fault: told as RUN_ERROR at the end of the run ------------------------------------------------


class AgentFault(AgUiError):
    """The agent failed."""

    public = False


class ProtocolViolation(AgentFault):
    """The agent emitted an event that the protocol does not allow here.

    Attributes:
        path: JSON Pointer of the malformed value, where there is one.
        event_type: the type of the refused event.
    """

    def __init__(self, message: Any = "", *, event_type: str = "", path: str = "", **kwargs: Any) -> None:
        super().__init__(message, **kwargs)
        self.event_type = event_type
        self.path = path


class AgentException(AgentFault):
    """The agent raised an exception."""


class KeyReused(AgentException):
    """A key was used twice in one pass."""


class NotJson(AgentException):
    """A value is not JSON."""


class StateInvalid(AgentFault):
    """The state does not fit its schema."""


class OnceUnknown(AgentFault):
    """A crash left it unknown whether this step was done."""


class AgentFlood(AgentFault):
    """The agent emitted faster than it awaited."""


class LogLimit(AgentFault):
    """The run's log grew beyond its limit."""


class RunTimeout(AgentFault):
    """The run took too long."""


class RunAbandoned(AgentFault):
    """The server that executed this run disappeared."""


class RunClosed(AgentFault):
    """The run has ended; nothing more can be emitted."""


class AgentDenied(AgentFault):
    """The agent was refused by a permission."""


class AgentError(AgUiError):
    """An error that the user may read: its message is shown as it is."""

    def __init__(self, message: Any, code: str = "agent_error", **kwargs: Any) -> None:
        super().__init__(message, code=code, **kwargs)


class ToolArgumentsError(AgentError):
    """A tool was called with arguments that do not fit."""

    def __init__(self, message: Any, code: str = "tool_arguments", **kwargs: Any) -> None:
        super().__init__(message, code, **kwargs)


class ProviderError(AgentError):
    """The model's provider failed.

    Attributes:
        retry_after: seconds after which it may be asked again, where it said so.
    """

    retry_after: float | None = None

    def __init__(self, message: Any, code: str = "provider_unavailable", **kwargs: Any) -> None:
        super().__init__(message, code, **kwargs)


class Declined(AgUiError):
    """A question was cancelled or expired; uncaught, the run ends as cancelled."""


# ---- not errors: how a function is left ----------------------------------------------------------------------------


class RunSuspended(BaseException):
    """The run asked something outside and ends here. A BaseException: ``except Exception`` leaves it alone."""


class RunCancelled(CancelledError):
    """Raised in a synchronous agent at its next ``run.*`` call after the run was cancelled."""


#: class -> code, HTTP status, WebSocket close code. Nearest class in the MRO wins; a test demands a row per class.
TABLE: dict[type[AgUiError], Answer] = {
    AgUiError: Answer("internal_error", 500, 4500),
    RequestError: Answer("bad_request", 400, 4400),
    InvalidJson: Answer("invalid_json", 400, 4400),
    InvalidInput: Answer("invalid_input", 422, 4422),
    UnsupportedVersion: Answer("unsupported_version", 422, 4422),
    InvalidCursor: Answer("invalid_cursor", 400, 4400),
    UnsupportedMediaType: Answer("unsupported_media_type", 415, 4415),
    BodyTooLarge: Answer("body_too_large", 413, 4413),
    AttachmentTooLarge: Answer("attachment_too_large", 413, 4413),
    AttachmentRefused: Answer("attachment_type", 415, 4415),
    NotAuthenticated: Answer("not_authenticated", 401, 4401),
    PermissionRefused: Answer("permission_denied", 403, 4403),
    MethodRefused: Answer("method_not_allowed", 405, 4405),
    NotFound: Answer("not_found", 404, 4404),
    VersionConflict: Answer("version_conflict", 412, 4412),
    PatchConflict: Answer("patch_conflict", 409, 4409),
    StateRefused: Answer("state_invalid", 422, 4422),
    StateTooLarge: Answer("state_too_large", 413, 4413),
    CursorGone: Answer("cursor_gone", 410, 4410),
    ThreadBusy: Answer("thread_busy", 409, 4409),
    LimitExceeded: Answer("too_many_runs", 429, 4429),
    RateExceeded: Answer("too_many_requests", 429, 4429),
    Draining: Answer("draining", 503, 4503),
    DatabaseAway: Answer("database_away", 503, 4503),
    AsgiRequired: Answer("asgi_required", 503, 4503),
    ResumeError: Answer("resume_error", 409, 4409),
    ResumeIncomplete: Answer("resume_incomplete", 409, 4409),
    ResumeConflict: Answer("resume_conflict", 409, 4409),
    ResumeInvalid: Answer("resume_invalid", 422, 4422),
    InterruptExpired: Answer("interrupt_expired", 409, 4409),
    InterruptsOpen: Answer("interrupts_open", 409, 4409),
    AgentFault: Answer("agent_exception", 500, 4500),
    ProtocolViolation: Answer("agent_protocol_error", 500, 4500),
    AgentException: Answer("agent_exception", 500, 4500),
    KeyReused: Answer("agent_exception", 500, 4500),
    NotJson: Answer("agent_exception", 500, 4500),
    StateInvalid: Answer("state_invalid", 500, 4500),
    OnceUnknown: Answer("outcome_unknown", 500, 4500),
    AgentFlood: Answer("agent_flood", 500, 4500),
    LogLimit: Answer("log_limit", 500, 4500),
    RunTimeout: Answer("timeout", 500, 4500),
    RunAbandoned: Answer("abandoned", 500, 4500),
    RunClosed: Answer("run_closed", 500, 4500),
    AgentDenied: Answer("permission_denied", 403, 4403),
    AgentError: Answer("agent_error", 500, 4500),
    ToolArgumentsError: Answer("tool_arguments", 500, 4500),
    ProviderError: Answer("provider_unavailable", 502, 4502),
    Declined: Answer("declined", 500, 4500),
}


def answer_for(error: type[AgUiError]) -> Answer:
    """The table's row for a class, or for its nearest ancestor that has one (sites may subclass `AgentError`)."""
    for cls in error.__mro__:
        if cls in TABLE:
            return TABLE[cls]
    raise LookupError(error)  # AgUiError itself has a row
