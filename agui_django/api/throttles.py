"""How often a caller may ask: ``agui_reads`` for what only reads, ``agui_runs`` for what changes or starts something.

Rates are REST framework's (``DEFAULT_THROTTLE_RATES``); a scope without a rate is not limited.
"""

from __future__ import annotations

from typing import Any

from rest_framework.permissions import SAFE_METHODS
from rest_framework.settings import api_settings
from rest_framework.throttling import SimpleRateThrottle

READS, RUNS = "agui_reads", "agui_runs"


class ScopedThrottle(SimpleRateThrottle):
    """Counts the requests of a user, or of an address where nobody is logged in."""

    def __init__(self) -> None:
        """The rate depends on the request."""

    def allow_request(self, request: Any, view: Any) -> bool:
        """Count a request; False where it is one too many."""
        self.scope = READS if request.method in SAFE_METHODS else RUNS
        rate = api_settings.DEFAULT_THROTTLE_RATES.get(self.scope)
        if rate is None:
            return True
        self.rate = str(rate)
        self.num_requests, self.duration = self.parse_rate(self.rate)
        return bool(super().allow_request(request, view))

    def get_cache_key(self, request: Any, view: Any) -> str:
        """Who asks."""
        user = request.user
        who = user.pk if user is not None and user.is_authenticated else self.get_ident(request)
        return self.cache_format % {"scope": self.scope, "ident": who}
