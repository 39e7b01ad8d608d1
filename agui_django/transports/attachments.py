"""The address of a file of a message: its bytes, for whoever may see its thread.

Law: the file is looked up inside the caller's scope, for staff who read others' messages in all of them; a foreign one
answers as an unknown one does. What a browser could
execute is never shown, only saved: the type that is sent is one of a short list, and nothing is guessed from bytes.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.core.files.base import File
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.utils.http import content_disposition_header, parse_etags

from agui_django.access import get_policy
from agui_django.models import Attachment, Run
from agui_django.protocol.errors import NotFound
from agui_django.runs.attachments import in_thread, storage
from agui_django.runs.database import database_alias, get_pool
from agui_django.transports import requests
from agui_django.transports.threads import release_request_thread

#: Bytes that are read at once.
CHUNK = 256 * 1024

#: Types that a browser shows without executing anything of them.
SHOWN = frozenset(
    {"application/pdf"}
    | {f"image/{kind}" for kind in ("png", "jpeg", "gif", "webp", "avif", "bmp", "heic", "heif", "tiff")}
    | {f"audio/{kind}" for kind in ("mpeg", "mp3", "mp4", "aac", "ogg", "opus", "wav", "x-wav", "wave", "webm", "flac")}
    | {f"video/{kind}" for kind in ("mp4", "webm", "ogg", "quicktime", "mpeg", "x-matroska", "x-msvideo")}
)
#: Types that are told as they are, to be saved; any other is told as bytes of no type.
TOLD = SHOWN | {
    "text/plain", "text/csv", "text/markdown", "application/json", "application/rtf", "application/msword",
    "application/vnd.ms-excel", "application/vnd.ms-powerpoint",
    "application/vnd.oasis.opendocument.text", "application/vnd.oasis.opendocument.spreadsheet",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation",
}  # fmt: skip

#: Who holds one of these reads what others wrote, files and all: by the REST API, or in the admin.
_READERS = tuple(f"agui_django.{name}" for name in ("view_attachment", "view_message", "view_content"))

_RANGE = re.compile(r"bytes=(?:([0-9]{1,18})-([0-9]{1,18})?|-([0-9]{1,18}))")


@requests.endpoint("GET", "HEAD")
async def attachment(request: HttpRequest, uuid: str, **_: Any) -> HttpResponseBase:
    """A file, whole or one range of it."""
    found = await get_pool().run(_find, request, UUID(uuid))
    etag = f'"{found.digest}"'
    headers = {
        "ETag": etag,
        # Kept by the browser of whoever may see it, and asked for again each time: who logs out sees no more of it.
        "Cache-Control": "private, no-cache",
        "Accept-Ranges": "bytes",
        "X-Content-Type-Options": "nosniff",
        # GZipMiddleware would compress what is compressed, chunk by chunk.
        "Content-Encoding": "identity",
        "Content-Disposition": content_disposition_header(found.media_type not in SHOWN, found.title or "file")
        or "inline",
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; media-src 'self'",
    }
    kind = found.media_type if found.media_type in TOLD else "application/octet-stream"
    known = parse_etags(request.headers.get("If-None-Match", ""))
    if "*" in known or any(each.removeprefix("W/") == etag for each in known):
        response = HttpResponse(status=304, headers=headers)
        del response["Content-Type"]
        return response
    start, end, status = _asked(request, found.size, etag)
    if status == 416:
        return HttpResponse(status=416, headers={**headers, "Content-Range": f"bytes */{found.size}"})
    if status == 206:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{found.size}"
    headers["Content-Length"] = str(end - start)
    if request.method == "HEAD":
        return HttpResponse(status=status, content_type=kind, headers=headers)
    body: Any = await Body.open(found, start, end)
    return StreamingHttpResponse(body, status=status, content_type=kind, headers=headers)


def _find(request: HttpRequest, uuid: UUID) -> Attachment:
    """A file of a thread that the caller may see.

    Raises:
        NotFound: there is none, or it is somebody else's.
    """
    policy = get_policy()
    caller = policy.enter(request)
    alias = database_alias()
    found = Attachment.objects.using(alias).select_related("thread").defer("thread__state").filter(pk=uuid).first()
    if found is None:
        raise NotFound
    if found.thread.scope != caller.scope:
        if not any(policy.beyond_scope(caller.user, permission) for permission in _READERS):
            raise NotFound
        return found
    # Who may follow the thread may see its files.
    latest = Run.objects.using(alias).filter(thread=found.thread_id).defer("input", "traceback").order_by("-created_at")
    if not all(policy.may_see(caller.user, run) for run in latest[:1]):
        raise NotFound
    return found


def _asked(request: HttpRequest, size: int, etag: str) -> tuple[int, int, int]:
    """The place to start, the place to end, and the status: 200 whole, 206 a range, 416 a range that is none.

    Several ranges, and a range of another version, are answered with the whole file (RFC 9110, section 14.2).
    """
    found = _RANGE.fullmatch(request.headers.get("Range", "").replace(" ", ""))
    if found is None or request.headers.get("If-Range", etag) != etag:
        return 0, size, 200
    first, last, suffix = found.groups()
    if suffix is not None:
        start, end = max(size - int(suffix), 0), size
    else:
        start, end = int(first), min(int(last) + 1, size) if last is not None else size
        if last is not None and int(last) < start:
            return 0, size, 200
    return (start, end, 206) if start < end else (0, 0, 416)


class Body:
    """The bytes of a file, read in threads as fast as they are taken; the file is closed whatever becomes of them."""

    def __init__(self, file: File[bytes], left: int) -> None:
        """Read so many bytes from where the file stands."""
        self._file: File[bytes] | None = file
        self._left = left

    @classmethod
    async def open(cls, attachment: Attachment, start: int, end: int) -> Body:
        """Open a file at a place.

        Raises:
            NotFound: the storage does not have it (any more).
        """

        def opened() -> File[bytes]:
            file = storage().open(attachment.name)
            try:
                if start:
                    file.seek(start)
            except BaseException:
                file.close()
                raise
            return file

        release_request_thread()
        try:
            return cls(await _in_thread(opened), end - start)
        except FileNotFoundError:
            raise NotFound from None

    def __aiter__(self) -> Body:
        """Bytes are taken once."""
        return self

    async def __anext__(self) -> bytes:
        """The next piece."""
        file = self._file
        if file is None or self._left <= 0:
            self.close()
            raise StopAsyncIteration
        piece: bytes = await _in_thread(lambda: file.read(min(CHUNK, self._left)))
        if not piece:
            # Shorter than its row says: what was promised cannot be sent, so the answer is cut rather than ended.
            self.close()
            raise OSError("A file of the storage is shorter than it was.")
        self._left -= len(piece)
        return piece

    def close(self) -> None:
        """Close the file; harmless when repeated."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def __del__(self) -> None:
        """A response that a middleware was still busy with when the client left is dropped, never closed."""
        self.close()


async def _in_thread(function: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, in_thread, function)
