"""What went wrong at a model's provider, told apart without knowing the provider's package.

Law: only what a model call raised may be given here. The same status from a tool's own request says nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from agui_django.protocol.errors import ProviderError

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
        None for anything else: a refused key or a bad request is a bug of the site.
    """
    for each in causes(error, handled=False):
        if isinstance(each, ProviderError):
            return each
        status = _status(each)
        if status == 429 or (status is None and _named(each, ("RateLimit",))):
            return ProviderError(LIMITED, "provider_rate_limited")
        if status is not None:
            if status >= 500 or status == 408:
                return ProviderError(UNAVAILABLE)
            return None
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
        waiting += [held for held in (each.__cause__, each.__context__ if handled else None) if held is not None]


def _status(error: BaseException) -> int | None:
    holders: list[Any] = [error, getattr(error, "response", None)]
    for holder in holders:
        for name in ("status_code", "status", "code"):
            found = getattr(holder, name, None)
            if type(found) is int and 100 <= found <= 599:
                return found
    return None


def _named(error: BaseException, words: tuple[str, ...]) -> bool:
    return any(word in kind.__name__ for kind in type(error).__mro__ for word in words)
