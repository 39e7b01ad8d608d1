"""How a run's status and its durations are shown."""

from __future__ import annotations

from typing import Any, Final

from django.utils.html import format_html

from agui_django.models import Run

#: What stands where there is nothing.
NONE: Final = "\u2013"
#: A status is a word, a shape and a colour.
SHAPES: Final = {
    "queued": "…", "pending": "○", "running": "▶", "finished": "✓", "interrupted": "?", "cancelled": "■", "failed": "✗",
}  # fmt: skip


def badge(status: str) -> Any:
    """A run's status."""
    label = Run.Status(status).label
    return format_html(
        '<span class="agui-status agui-{}"><span aria-hidden="true">{}</span> {}</span>', status, SHAPES[status], label
    )


def seconds(milliseconds: int | None) -> str:
    """A duration that a person reads."""
    if milliseconds is None:
        return NONE
    if milliseconds < 60_000:
        return f"{milliseconds / 1000:.1f} s"
    return f"{milliseconds // 60_000}:{milliseconds // 1000 % 60:02} min"
