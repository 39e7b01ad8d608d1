"""What the API needs beyond the app itself. Imports none of it, so that a check can say what is missing."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

#: module -> the distribution that has it
NEEDS: Final = {"django_filters": "django-filter", "drf_spectacular": "drf-spectacular"}


def missing() -> list[str]:
    """The distributions that are not installed."""
    return [distribution for module, distribution in NEEDS.items() if find_spec(module) is None]
