"""What is saved as a file: line by line, however large, from a server of either kind.

Law: a file of a message is never something that a browser executes: raster images are shown, all else is saved.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final
from uuid import UUID

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse
from django.utils.http import content_disposition_header

from agui_django.models import Attachment
from agui_django.runs.attachments import in_thread, storage
from agui_django.runs.database import get_pool
from agui_django.runs.stream import read_entries

NDJSON: Final = "application/x-ndjson"
CHUNK: Final = 256 * 1024
#: Types that are shown in the page.
RASTER: Final = frozenset(f"image/{kind}" for kind in ("png", "jpeg", "gif", "webp", "avif", "bmp"))
#: What a browser is told about whatever somebody else wrote.
SAFE: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "X-Accel-Buffering": "no",
    "Content-Encoding": "identity",
}


def streamed(request: HttpRequest, parts: Iterator[bytes], kind: str, name: str, *, save: bool = True) -> Any:
    """A response that is made while it is sent."""
    asynchronous = isinstance(request, ASGIRequest)
    headers = {**SAFE, "Content-Disposition": content_disposition_header(save, name) or "inline"}
    body: Any = _apart(parts) if asynchronous else parts
    return StreamingHttpResponse(body, content_type=kind, headers=headers)


def event_lines(run: UUID) -> Iterator[bytes]:
    """The committed events of a run, an event a line; some rows at a time."""
    after = 0
    while entries := get_pool().run_sync(read_entries, run, after):
        yield "".join([f"{text}\n" for _, text, _ in entries]).encode()
        after = entries[-1][0]


def file_parts(row: Attachment) -> Iterator[bytes]:
    """The bytes of a file.

    Raises:
        FileNotFoundError: the storage does not have it (any more).
    """
    file = in_thread(storage().open, row.name)
    return _read(file)


def _read(file: Any) -> Iterator[bytes]:
    with file:
        while part := file.read(CHUNK):
            yield part


async def _apart(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The parts, each made in a thread: the event loop never waits for one."""
    loop = asyncio.get_running_loop()
    while part := await loop.run_in_executor(None, next, parts, b""):
        yield part
