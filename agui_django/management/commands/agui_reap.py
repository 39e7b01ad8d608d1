"""``manage.py agui_reap``: what dead processes left is ended, what expired is closed, what waits is moved; for cron.

Law: only what any serving process does by itself when it meets them; safe beside them, and as often as one likes.
"""

from __future__ import annotations

from argparse import ArgumentParser
from functools import partial
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError

from agui_django.models import Run
from agui_django.runs import announce, expiring, runners
from agui_django.runs.database import Pool, database_alias, get_pool
from agui_django.runs.store import Begun, ThreadStore

#: How many runs or threads are looked at together.
SOME = 100


class Command(BaseCommand):
    """Ends lost runs, and closes questions that expired."""

    help = (
        "Ends runs whose process is gone, closes questions whose time is over, and hands queued runs of free threads "
        "to the RUNNER."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """What is not to be done."""
        parser.add_argument("--dry-run", action="store_true", help="only count")

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it.

        Raises:
            CommandError: a run could not be handed to the RUNNER; it was ended.
        """
        store, pool = ThreadStore(), get_pool()
        self._failed = 0
        try:
            if options["dry_run"]:
                found, waiting = pool.run_sync(store.lost), pool.run_sync(_waiting)
                over = pool.run_sync(expiring.count)
                self.stdout.write(f"{len(found)} lost, {waiting} waiting, {over} expired")
                return
            lost = 0
            while ended := pool.run_sync(store.reap_lost, SOME):
                lost += len(ended)
            self.stdout.write(f"{lost} lost runs ended")
            self._expire(pool)
            self._move(store, pool)
        finally:
            pool.close_sync()

    def _expire(self, pool: Pool) -> None:
        runner = runners.get_runner()
        # Without a RUNNER only a process that serves may execute what an expiry lets go on; it looks by itself.
        claim = None if runner is None else ""
        closed = 0
        seen: set[int] = set()
        while threads := [key for key in pool.run_sync(expiring.due).threads if key not in seen]:
            seen.update(threads)
            for thread in threads:
                lapsed = pool.run_sync(expiring.expire, thread, claim)
                closed += len(lapsed.closed)
                announce.send_closed(lapsed.closed)
                if runner is not None and lapsed.opened is not None and lapsed.opened.run is not None:
                    self._submit(runner, lapsed.opened.run.pk, pool)
        self.stdout.write(f"{closed} expired questions closed")

    def _move(self, store: ThreadStore, pool: Pool) -> None:
        runner = runners.get_runner()
        threads = pool.run_sync(store.idle_queues, SOME)
        if runner is None:
            # Only a process that serves may execute them; it looks for them by itself.
            if threads:
                self.stdout.write(f"{len(threads)} queues wait for a server")
            return
        submitted = 0
        for thread in threads:
            begun: Begun = pool.run_sync(store.start_next, thread, "")
            if begun.opened is None or begun.opened.run is None:
                continue
            if self._submit(runner, begun.opened.run.pk, pool):
                submitted += 1
        self.stdout.write(f"{submitted} queued runs handed to the RUNNER")
        if self._failed:
            raise CommandError(f"{self._failed} runs could not be handed to the RUNNER, and have ended")

    def _submit(self, runner: Any, run: UUID, pool: Pool) -> bool:
        try:
            runner.submit(str(run))
        except Exception as error:
            self._failed += 1
            self.stderr.write(f"Run {run} could not be handed to the RUNNER: {error}")
            pool.run_sync(partial(ThreadStore().reap, run, why=f"The RUNNER could not take it: {error}"))
            return False
        return True


def _waiting() -> int:
    return Run.objects.using(database_alias()).filter(status=Run.Status.QUEUED).count()
