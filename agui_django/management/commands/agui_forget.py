"""``manage.py agui_forget``: a user is erased from what the app stores; their own row is the site's to delete.

Law: says what it does, does nothing twice, and goes on where a killed call stopped.
"""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError

from agui_django.runs import database, forgetting, supervisor
from agui_django.runs.database import get_pool


class Command(BaseCommand):
    """Erases a user."""

    help = (
        "Erases a user from everything the app stores: their threads with messages, runs, logs and files (what runs is "
        "cancelled first), their feedback, and their name in other people's rows."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Who it is."""
        who = parser.add_mutually_exclusive_group(required=True)
        who.add_argument("user", nargs="?", help="the user's name, as they log in with it")
        who.add_argument("--pk", help="the user's primary key: also of one whose row is gone")
        parser.add_argument("--dry-run", action="store_true", help="only count")

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it.

        Raises:
            CommandError: there is no such user.
        """
        user = user_of(options["user"], options["pk"])
        if options["dry_run"]:
            try:
                found = get_pool().run_sync(forgetting.count, user)
            finally:
                get_pool().close_sync()
        else:
            found = asyncio.run(_forget(user))
        said, held = "would be erased" if options["dry_run"] else "erased", found.held
        self.stdout.write(
            f"{held.threads} threads {said}, with {held.runs} runs, {held.messages} messages, {held.files} files of "
            f"{held.bytes} bytes"
        )
        self.stdout.write(f"{found.feedback} opinions on messages of others {said}")
        for place, number in sorted(found.names.items()):
            self.stdout.write(f"{number} times {said} as {place}")


def user_of(name: str | None, key: str | None) -> Any:
    """The user of that name, or the primary key that was given.

    Raises:
        CommandError: there is none, or it is no primary key.
    """
    users = get_user_model()
    if key is not None:
        try:
            return users._meta.pk.to_python(key)
        except Exception:
            raise CommandError(f"{key!r} is no primary key of a user.") from None
    try:
        return users._default_manager.get_by_natural_key(name)
    except users.DoesNotExist:
        raise CommandError(f"There is no user {name!r}.") from None


async def _forget(user: Any) -> forgetting.Forgotten:
    try:
        return await forgetting.aforget(user)
    finally:
        await supervisor.settle()
        await database.shutdown()
