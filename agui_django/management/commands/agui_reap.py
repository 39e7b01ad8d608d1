"""``manage.py agui_reap``: end the runs that dead processes left, and move queues that stand still; for cron.

Law: only what any serving process does by itself when it meets them; safe beside them, and as often as one likes.
"""

from __future__ import annotations

from argparse import ArgumentParser
from functools import partial
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from agui_django.models import Run
from agui_django.runs import runners
from agui_django.runs.database import Pool, database_alias, get_pool
from agui_django.runs.store import Begun, ThreadStore

#: How many runs or threads are looked at together.
SOME = 100


class Command(BaseCommand):
    """Ends lost runs."""

    help = "Ends runs whose process is gone, and hands queued runs of free threads to the RUNNER."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """What is not to be done."""
        parser.add_argument("--dry-run", action="store_true", help="only count")

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it.

        Raises:
            CommandError: a run could not be handed to the RUNNER; it was ended.
        """
        store, pool = ThreadStore(), get_pool()
        try:
            if options["dry_run"]:
                found, waiting = pool.run_sync(store.lost), pool.run_sync(_waiting)
                self.stdout.write(f"{len(found)} lost, {waiting} waiting")
                return
            lost = 0
            while ended := pool.run_sync(store.reap_lost, SOME):
                lost += len(ended)
            self.stdout.write(f"{lost} lost runs ended")
            self._move(store, pool)
        finally:
            pool.close_sync()

    def _move(self, store: ThreadStore, pool: Pool) -> None:
        runner = runners.get_runner()
        threads = pool.run_sync(store.idle_queues, SOME)
        if runner is None:
            # Only a process that serves may execute them; it looks for them by itself.
            if threads:
                self.stdout.write(f"{len(threads)} queues wait for a server")
            return
        submitted = failed = 0
        for thread in threads:
            begun: Begun = pool.run_sync(store.start_next, thread, "")
            if begun.opened is None or begun.opened.run is None:
                continue
            run = begun.opened.run.pk
            try:
                runner.submit(str(run))
                submitted += 1
            except Exception as error:
                failed += 1
                self.stderr.write(f"Run {run} could not be handed to the RUNNER: {error}")
                pool.run_sync(partial(store.reap, run, why=f"The RUNNER could not take it: {error}"))
        self.stdout.write(f"{submitted} queued runs handed to the RUNNER")
        if failed:
            raise CommandError(f"{failed} runs could not be handed to the RUNNER, and have ended")


def _waiting() -> int:
    return Run.objects.using(database_alias()).filter(status=Run.Status.QUEUED).count()
