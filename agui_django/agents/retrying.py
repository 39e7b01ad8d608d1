"""`Retry`: whether a run that failed before it showed anything is tried again.

Law: pure. Nothing is tried again that was seen, or that may have been done: the engine asks only where no event is out
and nothing was claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How often an agent is called again that failed before the first event of its run.

    Attributes:
        attempts: calls in all, the first one counted.
        on: the codes of errors that may pass.
        wait: seconds before the next call; or a function of how many failed, from 1. Default: 0.5, 1, 2 … A provider's
            own word (`ProviderError.retry_after`) counts instead.
        longest: seconds; who is to wait longer is not tried again.
    """

    attempts: int = 3
    on: Collection[str] = ("provider_rate_limited", "provider_unavailable")
    wait: float | Callable[[int], float] | None = None
    longest: float = 30.0

    def __post_init__(self) -> None:
        if isinstance(self.on, str):
            raise TypeError("Retry: on takes the codes, not one text.")
        if self.attempts < 1:
            raise ValueError("Retry: attempts counts the first call, too; it is at least 1.")

    def pause(self, failed: int, code: str, error: BaseException | None) -> float | None:
        """Seconds until the next call; None: there is none.

        Args:
            failed: how many calls have failed.
            code: the code that the run would end with.
            error: what was raised.
        """
        if failed >= self.attempts or code not in self.on:
            return None
        seconds: float | None = getattr(error, "retry_after", None)
        if seconds is None:
            wait = 0.5 * 2 ** (failed - 1) if self.wait is None else self.wait
            seconds = wait(failed) if callable(wait) else wait
        return max(seconds, 0.0) if seconds <= self.longest else None
