"""A thread with everything in it, as a download."""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import AsyncIterator, Iterator
from typing import Any, ClassVar, Final

from django.http import HttpResponseBase, StreamingHttpResponse
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse

from agui_django.api.answers import JSON, download
from agui_django.api.base import ApiView
from agui_django.api.schema import operation
from agui_django.api.views.runs import NDJSON, wants_lines
from agui_django.models import (
    Attachment,
    Feedback,
    Interrupt,
    Message,
    Run,
    RunEvents,
    StateVersion,
    Thread,
)
from agui_django.protocol.codec import encode
from agui_django.protocol.errors import InvalidInput
from agui_django.runs.database import get_pool
from agui_django.runs.exporting import export_thread

#: What an export shows of a thread, and so what staff need to be allowed to see.
SHOWN: Final = (Thread, Run, RunEvents, Message, StateVersion, Interrupt, Feedback, Attachment)
#: Characters that are sent at once.
CHUNK = 64 * 1024


class ExportThread(ApiView):
    """A thread as JSON."""

    query: ClassVar = ("events", "files", "format")

    @operation(
        operation_id="threads_export",
        parameters=[
            OpenApiParameter("events", bool, description="Whether the logs of its runs are in it; true by default."),
            OpenApiParameter(
                "files",
                {"type": "string", "enum": ["none", "base64"]},
                description="Whether attachments hold their bytes, or (by default) are described only.",
            ),
            OpenApiParameter("format", {"type": "string", "enum": ["json", "ndjson"]}, description="Before `Accept`."),
        ],
        responses={
            (200, JSON): OpenApiResponse({"type": "array", "items": {"type": "object"}}, description="The records."),
            (200, NDJSON): OpenApiResponse({"type": "string"}, description="A record a line."),
        },
    )
    async def get(self, pk: int) -> HttpResponseBase:
        """Everything in a thread: records that are told apart by `type`."""
        events = self._one_of("events", "true", "false") == "true"
        files: Any = self._one_of("files", "none", "base64")
        lines = wants_lines(self.request._request)
        thread = await get_pool().run(self.sight.thread, pk, *SHOWN)
        found = export_thread(thread, events=events, files=files)
        body = written(found, "", "\n", "\n") if lines else written(found, "[", ",\n", "]\n")
        name = f"thread-{thread.pk}.{'ndjson' if lines else 'json'}"
        return StreamingHttpResponse(body, content_type=NDJSON if lines else JSON, headers=download(name))

    def _one_of(self, name: str, *choices: str) -> str:
        asked = self.request._request.GET.get(name) or choices[0]
        if asked not in choices:
            fields = [{"path": name, "message": f"must be {' or '.join(choices)}"}]
            raise InvalidInput("The query is malformed.", fields=fields)
        return asked


async def written(records: Iterator[Any], begin: str, between: str, end: str) -> AsyncIterator[bytes]:
    """Records as text, some at a time; they are made in a thread, which asks the database's for rows."""

    def some() -> str:
        parts: list[str] = []
        size = 0
        for record in records:
            parts += [between if parts or not first else "", encode(record)]
            size += len(parts[-1])
            if size > CHUNK:
                break
        return "".join(parts)

    first, loop = True, get_running_loop()
    yield begin.encode()
    while text := await loop.run_in_executor(None, some):
        first = False
        yield text.encode()
    yield end.encode()
