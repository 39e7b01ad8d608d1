"""What every address has in common: who asks, what is read of the body, and how an error is told.

Law: an answer that is not a stream is JSON, whatever went wrong and under whatever server; nothing a request held is
given back, and no exception's text that is not ours.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

from django.conf import settings as django_settings
from django.core.handlers.asgi import ASGIRequest
from django.db import InterfaceError, OperationalError, connections, transaction
from django.http import HttpRequest, HttpResponseBase, JsonResponse
from django.http.request import UnreadablePostError
from django.views.decorators.csrf import csrf_exempt

from agui_django.conf import settings
from agui_django.protocol.errors import (
    AgUiError,
    AsgiRequired,
    BodyTooLarge,
    DatabaseAway,
    InvalidInput,
    InvalidJson,
    LimitExceeded,
    MethodRefused,
    NotAuthenticated,
    UnsupportedMediaType,
)
from agui_django.protocol.run_input import check_version, is_legacy
from agui_django.runs.database import database_alias, passing
from agui_django.transports.threads import release_request_thread

logger = logging.getLogger("agui_django.request")

View = Callable[..., Coroutine[Any, Any, HttpResponseBase]]

#: What an error looks like: of the error and its reference the status and the body.
Shape = Callable[[AgUiError, str], tuple[int, dict[str, Any]]]

#: Seconds after which a refused client may come back.
RETRY_AFTER = 2

_NUMBER = re.compile(r"[0-9]{1,10}")


def endpoint(*methods: str, shape: Shape | None = None) -> Callable[[View], View]:
    """Make an address of a view: its methods (none: any), JSON errors, and none of the site's HTML habits.

    Args:
        methods: those that it takes.
        shape: what its errors look like; None: as everywhere.

    CSRF is checked by the authenticator that needs it (sessions do), so that the answer is JSON and a token needs no
    cookie. A view of this app never runs in a request's transaction.
    """

    def decorate(view: View) -> View:
        @wraps(view)
        async def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            try:
                if not isinstance(request, ASGIRequest):
                    raise AsgiRequired
                if methods and request.method not in methods:
                    raise MethodRefused
                # From here on the request waits for our own threads; a crowd that waits must not hold one each.
                release_request_thread()
                return await view(request, *args, **kwargs)
            except AgUiError as error:
                response = error_response(request, error, shape)
                if isinstance(error, MethodRefused):
                    response["Allow"] = ", ".join(methods)
                return response
            except Exception as error:
                return error_response(request, error, shape)

        wrapped: View = csrf_exempt(answer)
        for alias in django_settings.DATABASES:
            wrapped = transaction.non_atomic_requests(using=alias)(wrapped)
        # LoginRequiredMiddleware would redirect to a login page.
        wrapped.login_required = False  # type: ignore[attr-defined]
        return wrapped

    return decorate


def error_response(request: HttpRequest, error: Exception, shape: Shape | None = None) -> JsonResponse:
    """The JSON answer for an error; its reference is in the log beside what really happened."""
    reference = secrets.token_hex(6)
    if not isinstance(error, AgUiError) or not error.public:
        logger.error(
            "%s %s failed, reference %s", request.method, request.path, reference,
            exc_info=error, extra={"request": request},
        )  # fmt: skip
        told = hidden(error)
    else:
        told = error
        logger.info("%s %s: %s (%s), reference %s", request.method, request.path, told.status, told.code, reference)
    challenge = told.extra.get("authenticate")
    status, body = (shape or _shape)(told, reference)
    response = JsonResponse(body, status=status, json_dumps_params={"ensure_ascii": False})
    response["Cache-Control"] = "no-store"
    if isinstance(told, NotAuthenticated) and challenge:
        response["WWW-Authenticate"] = challenge
    if isinstance(told, LimitExceeded) or told.status == 503:
        response["Retry-After"] = str(told.extra.get("retryAfter", RETRY_AFTER))
    return response


def _shape(told: AgUiError, reference: str) -> tuple[int, dict[str, Any]]:
    extra = {name: value for name, value in told.extra.items() if name != "authenticate"}
    body = {"code": told.code, "message": str(told.message), "fields": told.fields, "reference": reference, **extra}
    return told.status, {"error": body}


def hidden(error: Exception, reference: str = "") -> AgUiError:
    """What is told instead of an error that is not for clients: that it passes, or nothing."""
    if isinstance(error, OperationalError | InterfaceError) and passing(error, connections[database_alias()]):
        return DatabaseAway()
    return AgUiError(f"Something went wrong here.{reference and f' (reference {reference})'}")


def json_response(data: Any, status: int = 200) -> JsonResponse:
    """A JSON answer that nobody keeps."""
    response = JsonResponse(data, status=status, json_dumps_params={"ensure_ascii": False})
    response["Cache-Control"] = "no-store"
    return response


# ---- what is read of a request ------------------------------------------------------------------------------------


def check_content_type(request: HttpRequest, *, required: bool = True) -> None:
    """Let JSON in only: other bodies can be sent across origins without asking.

    Raises:
        UnsupportedMediaType: it declares something else; with ``required``, also when it declares nothing.
    """
    declared = (request.content_type or "").lower()
    if declared != "application/json" and (declared or required):
        raise UnsupportedMediaType
    charset = request.content_params.get("charset", "utf-8") if request.content_params else "utf-8"
    if charset.lower().replace("_", "-") not in ("utf-8", "utf8"):
        raise UnsupportedMediaType


def read_body(request: HttpRequest) -> bytes:
    """The whole body, within our own limit (not Django's, which knows forms).

    Raises:
        BodyTooLarge: it is longer than ``MAX_BODY``.
    """
    limit = settings.MAX_BODY
    declared = request.META.get("CONTENT_LENGTH") or ""
    if declared.isdigit() and (len(declared) > 18 or int(declared) > limit):
        raise BodyTooLarge
    try:
        body = request.read(limit + 1)
    except UnreadablePostError as error:
        raise InvalidJson("The body could not be read.") from error
    if len(body) > limit:
        raise BodyTooLarge
    # For whoever asks the request for it later: an authenticator that looks for a CSRF token, the site's policy.
    request._body = body
    return body


def cursor_of(request: HttpRequest) -> int:
    """The number of the last event a client has; 0 where it names none.

    ``Last-Event-ID`` counts before ``?after=``: a browser's EventSource comes back to the same address with it.

    Raises:
        InvalidInput: it is not a number.
    """
    name, value = "after", request.GET.get("after", "")
    if header := request.headers.get("Last-Event-ID", ""):
        name, value = "Last-Event-ID", header
    if value == "":
        return 0
    if _NUMBER.fullmatch(value) is None:
        raise InvalidInput("The cursor is not one of ours.", fields=[{"path": name, "message": "must be a number"}])
    return int(value)


def wants_legacy(request: HttpRequest) -> bool:
    """Whether a watcher asked for the shape of 0.x clients by ``?protocolVersion=0.x``; absent: the current one.

    Raises:
        UnsupportedVersion: it asks for another major version.
    """
    declared = request.GET.get("protocolVersion")
    if declared is None:
        return False
    if declared.endswith(".x"):
        declared = declared[:-2] + ".0"
    check_version(declared)
    return is_legacy(declared)
