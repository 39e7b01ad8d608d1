"""How many runs a process takes, in all and per user.

Law: counted in this process only; a slot that was taken is given back at the run's end, whoever executes it.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from agui_django.conf import settings
from agui_django.protocol.errors import LimitExceeded


class Slots:
    """How many runs are active or being opened, in this process and per user."""

    def __init__(self) -> None:
        """All free."""
        self.held = 0
        self._lock = threading.Lock()
        self._by_user: Counter[Any] = Counter()

    def take(self, user: Any, *, force: bool = False) -> None:
        """Take one.

        Args:
            user: whose run it is for.
            force: there is no request that could be refused.

        Raises:
            LimitExceeded: there is none.
        """
        limit, per_user = (None, None) if force else (settings.MAX_RUNS, settings.MAX_RUNS_PER_USER)
        key = getattr(user, "pk", None)
        with self._lock:
            if limit is not None and self.held >= limit:
                raise LimitExceeded
            if per_user is not None and key is not None and self._by_user[key] >= per_user:
                raise LimitExceeded
            self.held += 1
            self._by_user[key] += 1

    def give_back(self, user: Any) -> None:
        """Free one."""
        key = getattr(user, "pk", None)
        with self._lock:
            self.held -= 1
            self._by_user[key] -= 1
            if not self._by_user[key]:
                del self._by_user[key]
