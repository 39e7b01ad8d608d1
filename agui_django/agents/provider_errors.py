"""What went wrong at a model's provider, told apart without knowing the provider's package.

Law: only what a model call raised may be given here. The same status from a tool's own request says nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from agui_django.protocol.errors import ProviderError
from agui_django.protocol.headers import retry_after

LIMITED: Final = "The model's provider has too much to do; try again later."
UNAVAILABLE: Final = "The model's provider is not available."

#: Words in the names of exceptions without a status that mean a network or a server that failed. The names of classes
#: are all that providers' packages have in common; those of the base classes count, too.
_AWAY: Final = ("ConnectionError", "Timeout", "TransportError", "gaierror", "APIError")


def provider_error(error: BaseException) -> ProviderError | None:
    """What the client is told of a failed model call.

    Args:
        error: what the call raised; its causes are looked at, too.

    Returns:
        ``provider_rate_limited`` for a 429, ``provider_unavailable`` for a server (5xx, 408) or a network that failed;
        None for anything else: a refused key or a bad request is a bug of the site. It has the provider's
        ``retry_after``, where that said so.
    """
    for each in causes(error, handled=False):
        if isinstance(each, ProviderError):
            return each
        status = _status(each)
        if status == 429 or (status is None and _named(each, ("RateLimit",))):
            return _waiting(ProviderError(LIMITED, "provider_rate_limited"), each)
        if status is not None:
            return _waiting(ProviderError(UNAVAILABLE), each) if status >= 500 or status == 408 else None
        if _named(each, _AWAY):
            return ProviderError(UNAVAILABLE)
    return None


def causes(error: BaseException, *, handled: bool = True) -> Iterator[BaseException]:
    """An exception, what is grouped in it, and what led to it.

    Args:
        error: where it begins.
        handled: also what was merely being handled when it was raised.
    """
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += each.exceptions if isinstance(each, BaseExceptionGroup) else ()
        around = each.__context__ if handled and not each.__suppress_context__ else None
        waiting += [held for held in (each.__cause__, around) if held is not None]


def _status(error: BaseException) -> int | None:
    holders: list[Any] = [error, getattr(error, "response", None)]
    for holder in holders:
        for name in ("status_code", "status", "code"):
            found = getattr(holder, name, None)
            if type(found) is int and 100 <= found <= 599:
                return found
    return None


def _waiting(told: ProviderError, error: BaseException) -> ProviderError:
    """The same, and when to ask again: from an attribute of that name, or the answer's header."""
    seconds = getattr(error, "retry_after", None)
    headers = getattr(getattr(error, "response", None), "headers", None)
    if seconds is None and isinstance(headers, Mapping):
        seconds = retry_after(headers)
    told.retry_after = float(seconds) if isinstance(seconds, int | float) else None
    return told


def _named(error: BaseException, words: tuple[str, ...]) -> bool:
    return any(word in kind.__name__ for kind in type(error).__mro__ for word in words)
