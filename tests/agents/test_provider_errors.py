"""A provider that limits or is away is told apart from a bug, by what several packages raise."""

from __future__ import annotations

import socket
from typing import Any

import httpx
import openai
import pytest
from langchain_core.exceptions import ModelAPIError, ModelAuthenticationError, ModelConnectionError, ModelRateLimitError
from pydantic_ai.exceptions import ModelHTTPError, UnexpectedModelBehavior

from agui_django.agents.provider_errors import causes, provider_error
from agui_django.protocol.errors import ProviderError

REQUEST = httpx.Request("POST", "https://example.com/v1")


def answer(status: int, **headers: str) -> Any:
    return httpx.Response(status, headers=headers, request=REQUEST)


LIMITED: list[Exception] = [
    openai.RateLimitError("secret", response=answer(429), body=None),
    ModelRateLimitError("secret"),
    ModelHTTPError(429, "m"),
    httpx.HTTPStatusError("secret", request=REQUEST, response=answer(429)),
]
AWAY: list[Exception] = [
    openai.InternalServerError("secret", response=answer(503), body=None),
    openai.APIConnectionError(request=REQUEST),
    openai.APITimeoutError(request=REQUEST),
    openai.APIError("secret", request=REQUEST, body=None),  # inside of a stream
    ModelAPIError("secret"),
    ModelConnectionError("secret"),
    ModelHTTPError(529, "m"),
    httpx.ConnectError("secret"),
    httpx.ReadTimeout("secret"),
    ConnectionResetError("secret"),
    TimeoutError("secret"),
    socket.gaierror("secret"),
]
BUGS: list[Exception] = [
    openai.AuthenticationError("secret", response=answer(401), body=None),
    openai.BadRequestError("secret", response=answer(400), body=None),
    ModelAuthenticationError("secret"),
    ModelHTTPError(404, "m"),
    UnexpectedModelBehavior("secret"),
    FileNotFoundError("secret"),
    ValueError("secret"),
]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        *[(error, "provider_rate_limited") for error in LIMITED],
        *[(error, "provider_unavailable") for error in AWAY],
        *[(error, None) for error in BUGS],
    ],
    ids=[type(error).__name__ for error in [*LIMITED, *AWAY, *BUGS]],
)
def test_told_apart(error: Exception, code: str | None):
    told = provider_error(error)
    assert (told and told.code) == code and "secret" not in str(told)


def test_causes_count_and_what_was_handled_does_not():
    try:
        try:
            raise ConnectionError
        except ConnectionError as error:
            raise ValueError("wrapped") from error
    except ValueError as error:
        assert provider_error(error)
        assert provider_error(ExceptionGroup("several", [error]))
    try:
        try:
            raise ConnectionError
        except ConnectionError:
            raise ValueError("a bug in the handler")  # noqa: B904
    except ValueError as error:
        assert provider_error(error) is None
        assert [type(each) for each in causes(error)] == [ValueError, ConnectionError]
    own = ProviderError("mine", "provider_unavailable")
    assert provider_error(own) is own


def test_when_to_ask_again():
    told = provider_error(openai.RateLimitError("x", response=answer(429, **{"retry-after": "7"}), body=None))
    assert told is not None and told.retry_after == 7.0
    assert provider_error(LIMITED[0]).retry_after is None  # type: ignore[union-attr]
