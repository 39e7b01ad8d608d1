"""``manage.py agui_export``: a thread, or everything of a user, as JSON, a record a line; for data requests.

Law: what is there under its name is whole: it is written beside it first. The same call again makes the same, and keeps
the files that are there already.
"""

from __future__ import annotations

import os
import shutil
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from django.core.management.base import BaseCommand, CommandError

from agui_django.management.commands.agui_forget import user_of
from agui_django.models import Attachment, Thread
from agui_django.protocol.codec import encode
from agui_django.runs.attachments import storage
from agui_django.runs.database import database_alias, get_pool
from agui_django.runs.exporting import Files, Record, export_thread, export_user


class Command(BaseCommand):
    """Exports a thread or a user."""

    help = "Writes a thread, or everything of a user, as JSON: a record a line."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """What, and where to."""
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument("--user", metavar="NAME", help="everything of the user who logs in as NAME")
        what.add_argument("--user-pk", metavar="PK", help="the same by primary key: also of one whose row is gone")
        what.add_argument("--thread", type=int, metavar="PK", help="a thread, by its primary key (not its threadId)")
        parser.add_argument("--output", type=Path, metavar="PATH", help="a file; with --files=copy a folder")
        parser.add_argument(
            "--files", choices=("none", "base64", "copy"), default="none",
            help="attachments: only described, inside of their records, or as files beside them",
        )  # fmt: skip
        parser.add_argument("--no-events", action="store_true", help="leave out the logs of runs")

    def handle(self, *args: Any, **options: Any) -> None:
        """Do it.

        Raises:
            CommandError: there is no such thread or user, or the options do not fit together.
        """
        output: Path | None = options["output"]
        copies = options["files"] == "copy"
        if copies and output is None:
            raise CommandError("--files=copy needs --output, a folder")
        try:
            records = self._records(options)
            if output is None:
                for record in records:
                    self.stdout.write(encode(record))
                return
            if copies:
                (output / "attachments").mkdir(parents=True, exist_ok=True)
                records = _copied(records, output / "attachments")
            number = _written(records, output / "export.jsonl" if copies else output)
            self.stdout.write(f"{number} records written to {output}")
        finally:
            get_pool().close_sync()

    def _records(self, options: dict[str, Any]) -> Iterator[Record]:
        events: bool = not options["no_events"]
        files: Files = "base64" if options["files"] == "base64" else "none"
        if options["thread"] is None:
            return export_user(user_of(options["user"], options["user_pk"]), events=events, files=files)
        found = get_pool().run_sync(Thread.objects.using(database_alias()).filter(pk=options["thread"]).first)
        if found is None:
            raise CommandError(f"There is no thread {options['thread']}.")
        return export_thread(found, events=events, files=files)


def _written(records: Iterator[Record], path: Path) -> int:
    """Write records to a file, which is there once it is whole; tells how many."""
    number = 0
    with _whole(path) as out:
        for record in records:
            out.write(encode(record).encode() + b"\n")
            number += 1
    return number


def _copied(records: Iterator[Record], folder: Path) -> Iterator[Record]:
    """Copy the files of attachments on their way, under their ids: a name that a client gave is no name of a file."""
    for record in records:
        if record["type"] == "attachment":
            target = folder / record["id"]
            if not target.exists() or target.stat().st_size != record["size"]:
                _copy(record["id"], target)
            record["file"] = f"attachments/{record['id']}" if target.exists() else None
        yield record


def _copy(uuid: str, target: Path) -> None:
    row = get_pool().run_sync(Attachment.objects.using(database_alias()).filter(pk=uuid).first)
    if row is None:
        return
    try:
        source = storage().open(row.name)
    except FileNotFoundError:
        return
    with source, _whole(target) as out:
        shutil.copyfileobj(source, out)


class _whole:
    """A file that gets its name when it is complete."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(f"{path.name}.part")

    def __enter__(self) -> IO[bytes]:
        # Whoever exports people's data shows it to nobody else.
        self._file = os.fdopen(os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
        return self._file

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._file.close()
        if kind is None:
            os.replace(self._part, self._path)
