"""Staff's notes on runs: who looked into one, when, and what they found.

Law: a review says nothing about the run itself and changes nothing in it; the last one counts.
"""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from agui_django.models import Run
from agui_django.protocol.codec import clean_text
from agui_django.protocol.errors import InvalidInput, NotFound
from agui_django.runs.database import database_alias, transact

#: Characters of a note.
LONGEST = 2_000


def review(run: Run, user: Any, note: str = "") -> None:
    """Mark a run as reviewed; in a database thread, as its sibling.

    Args:
        run: the run, ended or not.
        user: who reviewed it.
        note: of at most 2,000 characters.

    Raises:
        InvalidInput: the note is too long.
        NotFound: the run is gone.
    """
    text = clean_text(note).strip()
    if len(text) > LONGEST:
        raise InvalidInput(fields=[{"path": "/note", "message": f"must have at most {LONGEST} characters"}])
    _write(run, {"reviewed_by": user.pk, "reviewed_at": timezone.now(), "review_note": text})


def take_back(run: Run) -> None:
    """Unmark a run; its note goes, too.

    Raises:
        NotFound: the run is gone.
    """
    _write(run, {"reviewed_by": None, "reviewed_at": None, "review_note": ""})


def _write(run: Run, values: dict[str, Any]) -> None:
    if not transact(lambda: Run.objects.using(database_alias()).filter(pk=run.pk).update(**values)):
        raise NotFound
