"""An answer that waits for the others of its run, as `Interrupt.draft` holds it: a resume entry, with who and when."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from agui_django.protocol.codec import decode, encode

if TYPE_CHECKING:
    from agui_django.models import Interrupt


@dataclass(frozen=True)
class Draft:
    """An answer that was given and is not sent yet.

    Attributes:
        entry: the resume entry.
        by: primary key of who gave it, None for the site itself.
        at: when.
    """

    entry: dict[str, Any]
    by: Any
    at: datetime

    @property
    def text(self) -> str:
        """What the column holds."""
        return encode({**self.entry, "by": None if self.by is None else str(self.by), "at": self.at.isoformat()})


def draft_of(interrupt: Interrupt) -> Draft | None:
    """The draft of a question; None where nobody has answered it yet."""
    if not interrupt.draft:
        return None
    entry = decode(interrupt.draft)
    by, at = entry.pop("by"), datetime.fromisoformat(entry.pop("at"))
    return Draft(entry, by, at)
