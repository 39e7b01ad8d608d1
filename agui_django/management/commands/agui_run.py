"""``manage.py agui_run <agent> "text"``: a run in the terminal, stored and executed like any other.

Law: it only watches the log, as every other face does; Ctrl-C is a cancel, and the run still ends in order.
"""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError

from agui_django.management.terminal import Printer
from agui_django.protocol.codec import decode
from agui_django.protocol.errors import AgUiError
from agui_django.runs import database, supervisor
from agui_django.runs.engine import get_engine
from agui_django.runs.start import astart_run
from agui_django.runs.stream import follow


class Command(BaseCommand):
    """Streams a run into the terminal."""

    help = "Runs an agent and streams text, tool calls and state changes into the terminal."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Agent and text, and whose thread it is."""
        parser.add_argument("agent", help="the name that the agent is registered under")
        parser.add_argument("text", help="the user's message")
        parser.add_argument("--thread", help="id of the thread to continue; default: a new one")
        parser.add_argument("--user", help="username of the user that the run is for; default: nobody")
        parser.add_argument("--json", action="store_true", help="print the events, one per line")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run it.

        Raises:
            CommandError: the run was refused, or it failed.
        """
        user = None
        if name := options["user"]:
            users = get_user_model()
            try:
                user = users._default_manager.get_by_natural_key(name)
            except users.DoesNotExist:
                raise CommandError(f"There is no user {name!r}.") from None
        try:
            failure = asyncio.run(self._run(user, options))
        except AgUiError as error:
            raise CommandError(f"{error} ({error.code})") from error
        except KeyboardInterrupt:
            raise CommandError("Stopped.", returncode=130) from None
        if failure:
            raise CommandError(failure)

    async def _run(self, user: Any, options: dict[str, Any]) -> str:
        """Start and follow; returns what the run failed with, else an empty text."""
        try:
            run = await astart_run(options["agent"], options["thread"], options["text"], user, wait=False)
            try:
                return await self._follow(run, options)
            except asyncio.CancelledError:
                await get_engine().cancel(run.pk, "user")
                raise
        finally:
            await supervisor.settle()
            await database.shutdown()

    async def _follow(self, run: Any, options: dict[str, Any]) -> str:
        printer = Printer(self.stdout, self.style)
        async for batch in follow(run.pk):
            for _, text, _ in batch:
                if options["json"]:
                    self.stdout.write(text)
                printer.take(decode(text), silent=options["json"])
            self.stdout.flush()
        if not options["json"]:
            printer.finish(run.thread.thread_id)
        return printer.failure
