"""Files of messages: stored before their request is opened, referred to by its messages, removed with their thread.

Law: a file is written outside of any transaction and its row inside the one that stores the message; what a crash
leaves between the two is a file without a row, which nobody is shown and `agui_prune` removes. Bytes, digests and
storages are the business of threads, never of the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from django.core.exceptions import ImproperlyConfigured
from django.core.files.base import File
from django.core.files.storage import Storage, storages
from django.db import connections, transaction
from django.db.models.signals import post_delete
from django.dispatch import receiver
from django.urls import NoReverseMatch, reverse
from django.utils import timezone

from agui_django.conf import settings
from agui_django.models import Attachment, Message, Thread
from agui_django.protocol.attachments import Inline, inline_content, inline_types, refer, referred
from agui_django.protocol.errors import AttachmentRefused, AttachmentTooLarge
from agui_django.protocol.run_input import RunInput
from agui_django.runs.database import database_alias, get_pool
from agui_django.runs.requests import StartRequest
from agui_django.runs.setup import Wire

T = TypeVar("T")

logger = logging.getLogger("agui_django.runs")

#: Where the storage keeps our files: `FOLDER/<year>/<month>/<hex>`, without an extension that a server could act on.
FOLDER = "agui_attachments"


class Unstored(Exception):
    """A message turned out to be new whose files are not stored: they have to be, and the request is opened again."""


# ---- a request's files ----------------------------------------------------------------------------------------------


async def uploading(request: StartRequest, start: Callable[[], Awaitable[T]]) -> T:
    """Store the files of a request, open it, and remove those again that no message took.

    Args:
        request: it has files.
        start: opens the request; called again where it turns out that more files are needed.

    Raises:
        AttachmentTooLarge, AttachmentRefused: a file is not taken; nothing was stored.
    """
    files = request.run_input.inline
    upload = Upload(files, request.attachments_at or default_address())
    request.upload = upload
    loop = asyncio.get_running_loop()
    try:
        for known in (await get_pool().run(_known, request), frozenset[str]()):
            wanted = [file for file in files if file.message_id not in known]
            _check(wanted)
            await loop.run_in_executor(None, upload.store, wanted)
            try:
                return await start()
            except Unstored:
                continue
        raise Unstored
    finally:
        # A commit whose answer was lost has taken them: the rows say so.
        await _settled(upload)


class Upload:
    """The files of one request, and where they are kept.

    Args:
        files: those that were taken out of its messages.
        address: what clients find in front of a file's id.
    """

    def __init__(self, files: Sequence[Inline], address: str) -> None:
        """Nothing is stored yet."""
        self.files = files
        self._address = address
        self._ids = {(file.digest, file.media_type): uuid.uuid4() for file in files}
        #: The names of what was stored, by digest and media type.
        self.names: dict[tuple[str, str], str] = {}
        #: What the thread has of them already.
        self.rows: dict[tuple[str, str], Attachment] = {}

    def store(self, wanted: Iterable[Inline]) -> None:
        """Write files to the storage, each digest once; in a thread."""
        held = {file.digest: file for file in self.files if file.data is not None}
        for file in wanted:
            key = file.digest, file.media_type
            if key in self.names:
                continue
            source = held[file.digest]
            if source.data is None:
                raise RuntimeError("A file's bytes were let go before it was stored.")
            source.data.seek(0)
            now = timezone.now()
            name = f"{FOLDER}/{now:%Y/%m}/{self._ids[key].hex}"
            self.names[key] = in_thread(storage().save, name, File(source.data, name=name))

    def resolve(self, alias: str, thread: Thread | None) -> None:
        """Turn the parts into references, to what the thread has already where it has the same; in its transaction."""
        self.rows = {}
        if thread is not None:
            rows = Attachment.objects.using(alias).filter(thread=thread, digest__in={f.digest for f in self.files})
            self.rows = {(row.digest, row.media_type): row for row in rows}
        for file in self.files:
            key = file.digest, file.media_type
            uid = self.rows[key].pk if key in self.rows else self._ids[key]
            refer(file, f"{self._address}{uid}", uid)

    def keep(self, alias: str, thread: Thread, messages: Iterable[Wire], user: Any) -> None:
        """Insert the rows of the files that new messages refer to; in the thread's transaction.

        Raises:
            Unstored: the bytes of one are not there.
        """
        taken = {id(part) for message in messages for part in _content(message)}
        made: dict[tuple[str, str], Attachment] = {}
        for file in self.files:
            key = file.digest, file.media_type
            if id(file.part) not in taken or key in self.rows or key in made:
                continue
            if key not in self.names:
                raise Unstored
            made[key] = Attachment(
                uuid=self._ids[key], thread=thread, user=user, name=self.names[key], title=file.title,
                media_type=file.media_type, size=file.size, digest=file.digest,
            )  # fmt: skip
        if made:
            Attachment.objects.using(alias).bulk_create(made.values())


def _known(request: StartRequest) -> frozenset[str]:
    """The messages of a request's files that the thread has already: what a client sends again is not stored again."""
    if request.policy.history == "client":
        return frozenset()
    ids = {file.message_id for file in request.run_input.inline}
    where = {"thread__scope": request.scope, "thread__thread_id": request.run_input.thread_id}
    rows = Message.objects.using(database_alias()).filter(message_id__in=ids, **where)
    return frozenset(rows.values_list("message_id", flat=True))


def _check(files: Iterable[Inline]) -> None:
    large = [
        _field(file.path, f"larger than {settings.ATTACHMENT_SIZE} bytes") for file in files if too_large(file.size)
    ]
    if large:
        raise AttachmentTooLarge(fields=large)
    refused = [
        _field(f"{file.path}/mimeType", "is not accepted here") for file in files if not accepted(file.media_type)
    ]
    if refused:
        raise AttachmentRefused(fields=refused)


def check_small(run_input: RunInput, new: Iterable[Wire]) -> None:
    """Refuse files of other types inside new messages, too small to be stored as files.

    Raises:
        AttachmentRefused: with the path of each.
    """
    refused = [
        (message["id"], position)
        for message in new
        for position, media_type in inline_types(message)
        if media_type is None or not accepted(media_type)
    ]
    if refused:
        places = {message["id"]: number for number, message in enumerate(run_input.data["messages"])}
        raise AttachmentRefused(
            fields=[
                _field(f"/messages/{places[message]}/content/{position}/source/mimeType", "is not accepted here")
                for message, position in refused
            ]
        )


def accepted(media_type: str) -> bool:
    """Whether ``ATTACHMENT_TYPES`` lists a media type."""
    return any(
        media_type.startswith(entry[:-1]) if entry.endswith("*") else media_type == entry
        for entry in map(str.lower, settings.ATTACHMENT_TYPES)
    )


def too_large(size: int) -> bool:
    """Whether a file is above ``ATTACHMENT_SIZE``."""
    return bool(size > settings.ATTACHMENT_SIZE)


def _field(path: str, message: str) -> dict[str, str]:
    return {"path": path, "message": message}


async def _settled(upload: Upload) -> None:
    """Let go of the bytes, and remove the files that have no row; one that cannot be is left to `agui_prune`."""
    for file in upload.files:
        file.data = None
    if not upload.names:
        return
    try:
        names = set(upload.names.values())
        unused = names - await get_pool().run(_rows_of, names)
        if unused:
            await asyncio.get_running_loop().run_in_executor(None, _remove, unused)
    except Exception:
        logger.warning("Files of a request that was not taken may be left in the storage.", exc_info=True)


# ---- a file's bytes -------------------------------------------------------------------------------------------------


def storage() -> Storage:
    """The storage of the site's choice."""
    found: Storage = storages[settings.ATTACHMENT_STORAGE]
    return found


def default_address() -> str:
    """What clients find in front of a file's id, where no request says it."""
    given = settings.ATTACHMENT_URL
    if given is not None:
        return given if given.endswith("/") else f"{given}/"
    zero = str(UUID(int=0))
    try:
        return reverse("agui_django:attachment", args=[zero]).removesuffix("/").removesuffix(zero)
    except NoReverseMatch:
        raise ImproperlyConfigured(
            "The address of attachments cannot be found: include agui_django.urls in the site's addresses, or set "
            "AGUI_DJANGO['ATTACHMENT_URL']."
        ) from None


def attachment_bytes(attachment: Attachment) -> bytes:
    """The bytes of a file; in a thread.

    Raises:
        FileNotFoundError: the storage does not have it (any more).
    """
    with storage().open(attachment.name) as file:
        data: bytes = file.read()
    return data


async def aattachment_bytes(attachment: Attachment) -> bytes:
    """`attachment_bytes`, from any event loop."""
    return await asyncio.get_running_loop().run_in_executor(None, in_thread, attachment_bytes, attachment)


async def content(thread: int | None, part: Mapping[str, Any]) -> bytes:
    """The bytes of a message's part: those it holds, or those it refers to; what is elsewhere is never fetched.

    Args:
        thread: the primary key of the thread whose files may be read; None: no thread is stored.
        part: as a wire dict.

    Raises:
        ValueError: the part has no bytes here: it is a text, or its address is somebody else's.
        FileNotFoundError: the file is gone.
    """
    key = referred(part)
    if key is None:
        held = await asyncio.get_running_loop().run_in_executor(None, inline_content, part)
        if held is None:
            raise ValueError("The part holds no file of this site.")
        return held
    found = None if thread is None else await get_pool().run(_find, thread, key)
    if found is None:
        raise ValueError("The part refers to no file of this thread.")
    return await aattachment_bytes(found)


def in_thread(function: Callable[..., T], /, *args: Any) -> T:
    """Call a function of a storage in a thread that is nobody's: what it opened of databases is closed behind it."""
    try:
        return function(*args)
    finally:
        if not get_pool().inside:
            for connection in connections.all(initialized_only=True):
                connection.close()


def _find(thread: int, key: UUID) -> Attachment | None:
    return Attachment.objects.using(database_alias()).filter(pk=key, thread=thread).first()


# ---- removing and copying -------------------------------------------------------------------------------------------


@receiver(post_delete, sender=Attachment, dispatch_uid="agui_django.attachments")
def _deleted(instance: Attachment, using: str, **_: Any) -> None:
    """A row has gone, with its thread or alone: so does the file once that is committed."""
    transaction.on_commit(partial(_remove_unused, {instance.name}, using), using=using, robust=True)


def _remove_unused(names: set[str], alias: str) -> None:
    """Remove files that no row has any more: a fork has rows of its own for the same files."""
    used = Attachment.objects.using(alias).filter(name__in=names).values_list("name", flat=True)
    _remove(names - set(used))


def _remove(names: Collection[str]) -> None:
    for name in names:
        try:
            storage().delete(name)
        except Exception:
            logger.warning("The file %s is left in the storage.", name, exc_info=True)


def _rows_of(names: Collection[str]) -> set[str]:
    rows = Attachment.objects.using(database_alias()).filter(name__in=names)
    return set(rows.values_list("name", flat=True))


def copy_attachments(alias: str, source: Thread, target: Thread, wires: Sequence[str]) -> list[str]:
    """Give a fork rows of its own for the files of its messages; the files themselves are shared.

    Call it in the transaction that makes the fork, with the source's row locked: its files must not go meanwhile.

    Args:
        alias: the database.
        source: the thread whose messages are copied.
        target: the fork.
        wires: the wire texts of its messages.

    Returns:
        The wire texts, with the addresses of the fork's files.
    """
    out = list(wires)
    for row in Attachment.objects.using(alias).filter(thread=source):
        old = str(row.pk)
        if not any(old in wire for wire in out):
            continue
        new = uuid.uuid4()
        Attachment.objects.using(alias).create(
            uuid=new, thread=target, user_id=row.user_id, name=row.name, title=row.title, media_type=row.media_type,
            size=row.size, digest=row.digest,
        )  # fmt: skip
        out = [wire.replace(old, str(new)) for wire in out]
    return out


def _content(message: Wire) -> list[Any]:
    found = message.get("content")
    return found if isinstance(found, list) else []
