"""The words of the relay: names of groups, kinds of messages, and how runs and threads are written in them.

Old and new processes speak them side by side during an upgrade: a word may be added, never change its meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.utils.crypto import salted_hmac

from agui_django.models import Run
from agui_django.runs.broadcaster import Key
from agui_django.runs.database import database_alias

#: Rows of these runs and threads moved. ``open``: sent to whoever may follow, not to a known follower.
WAKE = "agui.wake"
#: These runs are followed from a channel, for a while.
WATCH = "agui.watch"
#: A run of yours was asked to stop, or has an edit of the state to take in: look at the rows.
STOP = "agui.stop"

#: Runs or threads named in one message.
MANY = 500


def group(kind: str, name: object) -> str:
    """The group of a ``key`` or a ``process``: hashed, as layers take few characters and sites may share a Redis."""
    return "agui-" + salted_hmac("agui_django.relay", f"{kind}:{name}", algorithm="sha256").hexdigest()


def written(key: Key) -> str:
    """A run's address or a thread's primary key as text."""
    return key.hex if isinstance(key, UUID) else str(key)


def read(text: str) -> Key:
    """What `written` wrote: a primary key never has 32 digits.

    Raises:
        ValueError: it is none of ours.
    """
    return UUID(text) if len(text) == 32 else int(text)


def parts(keys: list[str]) -> Iterable[list[str]]:
    """Keys in lists for one message each."""
    return (keys[start : start + MANY] for start in range(0, len(keys), MANY))


def read_claims(runs: Iterable[UUID]) -> dict[UUID, str]:
    """Which process executes each of these runs, of those that are executed; in a database thread."""
    rows = Run.objects.using(database_alias()).filter(pk__in=list(runs), status=Run.Status.RUNNING)
    return dict(rows.values_list("pk", "claim"))
