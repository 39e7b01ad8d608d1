"""``manage.py agui_seed --runs 1000``: made-up conversations, to try lists, pages, searches and charts at size."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.management.color import no_style
from django.db import connections, models, transaction
from django.utils import timezone

from agui_django.agents.registry import all_agents
from agui_django.management.seeding import MODELS, Row, Story
from agui_django.models import Message, Run, RunEvents, Thread
from agui_django.runs.database import database_alias

#: Threads that are written at once; messages from which on PostgreSQL makes its indexes afterwards.
THREADS, LARGE = 2000, 100_000


class Command(BaseCommand):
    """Fills the database, all of it or nothing."""

    help = "Adds made-up threads with runs of every status, messages, usage, errors, questions and feedback."

    def add_arguments(self, parser: CommandParser) -> None:
        """How much of what."""
        parser.add_argument("--runs", type=int, default=1000)
        parser.add_argument("--messages", type=int, help="in all threads; by default five for each run")
        parser.add_argument("--users", type=int, default=50, help="whose threads they are")
        parser.add_argument("--days", type=int, default=90, help="until now, in which the threads began")
        parser.add_argument("--seed", type=int, default=1, help="another one makes others")
        parser.add_argument("--force", action="store_true", help="also where DEBUG is off")

    def handle(self, *args: Any, **options: Any) -> None:
        """Make them in one transaction.

        Raises:
            CommandError: DEBUG is off, or a number makes no sense.
        """
        if not settings.DEBUG and not options["force"]:
            raise CommandError("Made-up conversations are not for production: set DEBUG, or say --force.")
        runs, messages = options["runs"], options["messages"]
        messages = 5 * runs if messages is None else messages
        if min(runs, options["users"], options["days"]) < 1 or messages < 0:
            raise CommandError("At least one run, one user, one day, and no fewer messages than none.")
        begun, alias = time.monotonic(), database_alias()
        with transaction.atomic(alias):
            story = Story(
                owners=_owners(alias, options["users"]),
                agents=[entry.name for entry in all_agents()][:8] or ["support"],
                now=timezone.now(), days=options["days"], seed=options["seed"],
                keys=(_free(alias, Thread), _free(alias, Message)),
            )  # fmt: skip
            with _indexes_afterwards(alias, messages):
                made = story.threads(runs, messages)
                while some := list(islice(made, THREADS)):
                    for model in MODELS:
                        _write(alias, model, [row for each in some for row in each[model]])
            _keys_go_on(alias)
        if connections[alias].vendor == "postgresql":
            with connections[alias].cursor() as cursor:
                cursor.execute("ANALYZE")
        self.stdout.write(f"{runs} runs and {messages} messages in {time.monotonic() - begun:.0f} s.")


def _owners(alias: str, count: int) -> list[Any]:
    """Keys of users named seeded-0 and so on; nobody can log in as one."""
    users = get_user_model()._default_manager.using(alias)
    name = get_user_model().USERNAME_FIELD
    names = [f"seeded-{number}" for number in range(count)]
    known = set(users.filter(**{f"{name}__in": names}).values_list(name, flat=True))
    fresh = [get_user_model()(**{name: each}) for each in names if each not in known]
    for user in fresh:
        user.set_unusable_password()
    users.bulk_create(fresh)
    return list(users.filter(**{f"{name}__in": names}).order_by("pk").values_list("pk", flat=True))


def _free(alias: str, model: Any) -> int:
    return (model._default_manager.using(alias).aggregate(last=models.Max("pk"))["last"] or 0) + 1


def _keys_go_on(alias: str) -> None:
    """What is inserted next gets keys behind those that were given here."""
    connection = connections[alias]
    with connection.cursor() as cursor:
        for statement in connection.ops.sequence_reset_sql(no_style(), [Thread, Message]):
            cursor.execute(statement)


def _write(alias: str, model: type[models.Model], rows: list[Row]) -> None:
    """Insert rows, which may leave out what has a default."""
    if not rows:
        return
    connection = connections[alias]
    fields = [field for field in model._meta.concrete_fields if field.attname in rows[0] or not field.primary_key]
    defaults = [(field.attname, field.get_default()) for field in fields]
    values = ([row.get(name, default) for name, default in defaults] for row in rows)
    table = connection.ops.quote_name(model._meta.db_table)
    names = ", ".join(connection.ops.quote_name(str(field.column)) for field in fields)
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql" and hasattr(cursor.cursor, "copy"):  # psycopg 3
            with cursor.copy(f"COPY {table} ({names}) FROM STDIN") as copy:
                for row in values:
                    copy.write_row(row)
            return
        places = ", ".join(["%s"] * len(fields))
        adapted = [
            [field.get_db_prep_save(value, connection) for field, value in zip(fields, row, strict=True)]
            for row in values
        ]
        cursor.executemany(f"INSERT INTO {table} ({names}) VALUES ({places})", adapted)  # noqa: S608 - our names


#: Tables whose indexes cost more than their rows.
INDEXED: Final = (Message, Run, RunEvents)


@contextmanager
def _indexes_afterwards(alias: str, messages: int) -> Iterator[None]:
    """On PostgreSQL, make the indexes that no constraint needs when all rows are there: several times as fast."""
    connection = connections[alias]
    if connection.vendor != "postgresql" or messages < LARGE:
        yield
        return
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL maintenance_work_mem = '512MB'")
        cursor.execute(
            "SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index i "
            "WHERE indrelid = ANY(%s::regclass[]) AND NOT indisunique",
            [[connection.ops.quote_name(model._meta.db_table) for model in INDEXED]],
        )
        found = cursor.fetchall()
        for name, _ in found:
            cursor.execute(f"DROP INDEX {name}")
        yield
        # The rows' references are checked before, by the indexes of keys.
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for _, made in found:
            cursor.execute(made)
