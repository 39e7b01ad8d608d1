"""``manage.py agui_prune``: old threads go, old logs get small, files that no message knows are removed; for cron.

Law: safe beside running servers, as often as one likes, and after a kill: what was done is done, the rest comes next.
"""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from agui_django.runs import compaction, pruning
from agui_django.runs.database import get_pool


class Command(BaseCommand):
    """Deletes what is old."""

    help = (
        "Deletes threads that nothing has changed for some days (never one that runs, waits or asks something), "
        "compacts the logs of older runs, and removes files that no message knows."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """What goes, and how much of it at once."""
        parser.add_argument("--days", type=days, metavar="N", help="delete threads unchanged for N days")
        parser.add_argument("--compact", type=days, metavar="N", help="compact logs of runs that ended N days ago")
        parser.add_argument(
            "--agent", action="append", default=[], metavar="NAME", help="only of this agent; repeatable"
        )
        parser.add_argument("--limit", type=int, metavar="N", help="at most N threads and N runs in this call")
        parser.add_argument("--no-files", action="store_true", help="do not look for files that no message knows")
        parser.add_argument("--dry-run", action="store_true", help="only count")

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it.

        Raises:
            CommandError: a limit makes no sense.
        """
        self._dry: bool = options["dry_run"]
        self._limit: int | None = options["limit"]
        if self._limit is not None and self._limit < 1:
            raise CommandError("--limit must be at least 1")
        now, agents = timezone.now(), options["agent"]
        try:
            if options["days"] is not None:
                self._prune(now - options["days"], agents)
            if options["compact"] is not None:
                self._compact(now - options["compact"], agents)
            if not options["no_files"]:
                self._files()
        finally:
            get_pool().close_sync()

    def _prune(self, before: datetime, agents: Sequence[str]) -> None:
        pool, total, kept, seen = get_pool(), pruning.Counted(), 0, 0
        behind: pruning.Place | None = None
        while places := pool.run_sync(pruning.candidates, before, agents, behind):
            for place in places:
                behind = place
                if self._limit is not None and seen >= self._limit:
                    break
                seen += 1
                counted = (
                    pool.run_sync(pruning.count, place.pk)
                    if self._dry
                    else pool.run_sync(pruning.prune, place.pk, before, agents)
                )
                if counted is None:
                    kept += 1
                else:
                    total.add(counted)
            else:
                continue
            break
        self.stdout.write(
            f"{total.threads} threads {self._said('deleted')}, with {total.runs} runs, {total.messages} messages, "
            f"{total.files} files of {total.bytes} bytes" + (f"; {kept} came to life" if kept else "")
        )

    def _compact(self, before: datetime, agents: Sequence[str]) -> None:
        pool, total, seen = get_pool(), compaction.Compacted(), 0
        behind: UUID | None = None
        while runs := pool.run_sync(partial(compaction.candidates, before, agents, behind=behind)):
            for run in runs:
                behind = run
                if self._limit is not None and seen >= self._limit:
                    break
                seen += 1
                total += pool.run_sync(partial(compaction.compact, run, dry=self._dry))
            else:
                continue
            break
        self.stdout.write(
            f"{seen} logs {self._said('compacted')}: {total.before} events to {total.after}, "
            f"{total.saved} characters saved"
        )

    def _files(self) -> None:
        pool, count, size = get_pool(), 0, 0
        found = pruning.orphans()
        try:
            while some := pool.run_sync(lambda: list(islice(found, pruning.SOME))):
                for name, length in some:
                    if not self._dry:
                        pruning.remove(name)
                    count, size = count + 1, size + length
        except NotImplementedError:
            self.stdout.write("The storage cannot list its files: orphans were not looked for")
            return
        self.stdout.write(f"{count} files without a message {self._said('removed')}, {size} bytes")

    def _said(self, done: str) -> str:
        return f"would be {done}" if self._dry else done


def days(text: str) -> timedelta:
    """A number of days; not negative."""
    try:
        number = float(text)
        if not 0 <= number <= 36_500:
            raise ValueError
    except ValueError:
        raise ArgumentTypeError("must be a number of days") from None
    return timedelta(days=number)
