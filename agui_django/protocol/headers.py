"""What HTTP headers of others say: read here, for whoever has them from whichever package."""

from __future__ import annotations

from collections.abc import Mapping


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds, where the header says seconds."""
    given = headers.get("retry-after", "").strip()
    return float(given) if given.isascii() and given.isdigit() and len(given) < 10 else None
