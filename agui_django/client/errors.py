"""What a caller of the client may have to catch: one root, each with a code and, where a server answered, its status.

- `ClientError`
  - `Refused`: the server answered the request by an error
  - `Unreachable`: no answer, or a stream that broke off and could not be gone on with
  - `StreamRefused`: what came is not AG-UI
  - `RunFailed`: the run itself ended with RUN_ERROR
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agui_django.protocol.errors import ProtocolViolation


class ClientError(Exception):
    """A request, a stream or a run has failed.

    Attributes:
        message: what happened.
        code: the server's code, or one of ``unreachable``, ``timeout``, ``truncated``, ``redirect``,
            ``invalid_response``, ``frame_too_large``, ``stream_too_large``, ``agent_protocol_error``.
        status: the HTTP status of the answer; None where there was none.
    """

    def __init__(self, message: str, *, code: str, status: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status


class Refused(ClientError):
    """The server refused the request.

    Attributes:
        fields: what was wrong where, as ``{"path", "message"}`` entries.
        details: the other members of the server's error: ``reference``, ``runId`` and so on.
        retry_after: seconds to wait, where the server said so.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str,
        status: int | None = None,
        fields: list[dict[str, str]] | None = None,
        details: Mapping[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, code=code, status=status)
        self.fields = fields or []
        self.details = dict(details or {})
        self.retry_after = retry_after


class Unreachable(ClientError):
    """The server was not reached, or the stream broke off."""


class StreamRefused(ClientError):
    """The stream is not one that the protocol allows. What came before it was delivered.

    Attributes:
        violation: which event was refused and why; None where it was no event at all.
    """

    def __init__(self, message: str, *, code: str, violation: ProtocolViolation | None = None) -> None:
        super().__init__(message, code=code, status=200)
        self.violation = violation


class RunFailed(ClientError):
    """The run ended with RUN_ERROR.

    Attributes:
        event: that event.
    """

    def __init__(self, event: Mapping[str, Any]) -> None:
        super().__init__(str(event.get("message", "")), code=str(event.get("code") or "run_error"), status=200)
        self.event = dict(event)
