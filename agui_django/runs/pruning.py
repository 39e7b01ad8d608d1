"""What is old goes: threads that nobody needs any more, and files that no message knows.

Law: a thread that runs, waits, or asks somebody something is kept, however old it is, and that is looked at again under
its lock. Transactions are short: a kill in the middle leaves whole threads, at most with a part of their old logs, and
the next call goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import NamedTuple

from django.core.files.storage import Storage
from django.db.models import Count, Exists, OuterRef, Q, QuerySet, Sum
from django.utils import timezone

from agui_django.models import Attachment, Interrupt, Message, Run, RunEvents, Thread
from agui_django.runs.attachments import FOLDER, storage
from agui_django.runs.database import database_alias, transact

#: Threads that are looked for at once; files whose rows are.
SOME = 200
#: Rows of logs that are deleted in one transaction.
ROWS = 1_000
#: A file that is younger may belong to a request that is just being opened.
UPLOAD = timedelta(days=1)


@dataclass
class Counted:
    """What goes, or has gone."""

    threads: int = 0
    runs: int = 0
    messages: int = 0
    files: int = 0
    bytes: int = 0

    def add(self, other: Counted) -> None:
        """Count these, too."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


class Place(NamedTuple):
    """Where in the order of their last change a look at the threads has come."""

    at: datetime
    pk: int


def prunable(before: datetime, agents: Sequence[str] = ()) -> QuerySet[Thread]:
    """Threads that nothing has changed since a time, in which nothing runs, waits or is asked.

    Args:
        before: the time.
        agents: names; empty: all.
    """
    runs = Run.objects.filter(thread=OuterRef("pk"), status__in=[Run.Status.QUEUED, *Run.ACTIVE])
    asked = Interrupt.objects.filter(thread=OuterRef("pk")).open(timezone.now())
    found = Thread.objects.using(database_alias()).filter(~Exists(runs), ~Exists(asked), updated_at__lt=before)
    return found.filter(agent__in=agents) if agents else found


def candidates(before: datetime, agents: Sequence[str] = (), behind: Place | None = None) -> list[Place]:
    """Some of the threads that may be pruned, the longest untouched first; in a database thread."""
    found = prunable(before, agents)
    if behind is not None:
        found = found.filter(Q(updated_at__gt=behind.at) | Q(updated_at=behind.at, pk__gt=behind.pk))
    return [Place(at, pk) for at, pk in found.order_by("updated_at", "pk").values_list("updated_at", "pk")[:SOME]]


def count(thread: int) -> Counted:
    """What a thread holds; in a database thread."""
    alias = database_alias()
    files = Attachment.objects.using(alias).filter(thread=thread).aggregate(n=Count("pk"), size=Sum("size"))
    return Counted(
        threads=1,
        runs=Run.objects.using(alias).filter(thread=thread).count(),
        messages=Message.objects.using(alias).filter(thread=thread).count(),
        files=files["n"],
        bytes=files["size"] or 0,
    )


def prune(thread: int, before: datetime, agents: Sequence[str] = ()) -> Counted | None:
    """Delete a thread that may still be pruned; in a database thread.

    Returns:
        What has gone; None where the thread is kept: it came to life, or is gone already.
    """
    while True:
        # Logs are most of what a thread holds: in slices, so that nobody waits long for a lock.
        deleted = transact(_prune_log, thread, before, agents)
        if deleted is None:
            return None
        if deleted < ROWS:
            return transact(_prune, thread, before, agents)


def _locked(thread: int, before: datetime, agents: Sequence[str]) -> Thread | None:
    """The thread, locked, where it may be pruned: behind the lock it is looked at again."""
    alias = database_alias()
    row = Thread.objects.using(alias).select_for_update(no_key=True).filter(pk=thread).first()
    return row if row is not None and prunable(before, agents).filter(pk=thread).exists() else None


def _prune_log(thread: int, before: datetime, agents: Sequence[str]) -> int | None:
    if _locked(thread, before, agents) is None:
        return None
    rows = RunEvents.objects.using(database_alias()).filter(run__thread=thread)
    keys = list(rows.values_list("pk", flat=True)[:ROWS])
    RunEvents.objects.using(database_alias()).filter(pk__in=keys).delete()
    return len(keys)


def _prune(thread: int, before: datetime, agents: Sequence[str]) -> Counted | None:
    row = _locked(thread, before, agents)
    if row is None:
        return None
    counted = count(thread)
    # By the ORM: a site may have rows of its own that belong to ours, and files go with their rows.
    row.delete(using=database_alias())
    return counted


# ---- files that no message knows ------------------------------------------------------------------------------------


def orphans(before: datetime | None = None) -> Iterator[tuple[str, int]]:
    """Files of our folder of the storage that have no row, and their sizes; in a database thread.

    Args:
        before: only those that were written before this time; None: a day ago.

    Raises:
        NotImplementedError: the storage cannot list its files.
    """
    files, limit = storage(), before or timezone.now() - UPLOAD
    for folder in _folders(files):
        names = [f"{folder}/{name}" for name in files.listdir(folder)[1]]
        for start in range(0, len(names), SOME):
            some = names[start : start + SOME]
            rows = Attachment.objects.using(database_alias()).filter(name__in=some)
            known = set(rows.values_list("name", flat=True))
            for name in some:
                if name not in known:
                    try:
                        if files.get_modified_time(name) < limit:
                            yield name, files.size(name)
                    except FileNotFoundError:  # somebody else was faster
                        continue


def _folders(files: Storage) -> Iterator[str]:
    """`FOLDER/<year>/<month>`."""
    for year in _inside(files, FOLDER):
        for month in _inside(files, f"{FOLDER}/{year}"):
            yield f"{FOLDER}/{year}/{month}"


def _inside(files: Storage, folder: str) -> list[str]:
    try:
        return sorted(files.listdir(folder)[0])
    except FileNotFoundError:
        return []


def remove(name: str) -> None:
    """Remove a file that has no row."""
    storage().delete(name)
