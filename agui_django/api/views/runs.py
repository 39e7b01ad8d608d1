"""Runs: listed, looked at, cancelled; and their events, as pages or as a download."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from uuid import UUID

from django.http import HttpRequest, HttpResponseBase, StreamingHttpResponse
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse

from agui_django.api import rows
from agui_django.api.answers import JSON, download, json_answer, wire
from agui_django.api.base import ApiView, ListView
from agui_django.api.filters import RunFilters
from agui_django.api.pagination import Orders, limit_of
from agui_django.api.schema import operation
from agui_django.api.serializers import CancelShape, EventPageShape, RunShape, WholeRunShape, page_of
from agui_django.models import Run, RunEvents
from agui_django.protocol.errors import InvalidInput, PermissionRefused
from agui_django.runs.database import get_pool
from agui_django.runs.engine import get_engine
from agui_django.runs.stream import Entry, read_entries
from agui_django.transports.requests import cursor_of

NDJSON = "application/x-ndjson"

#: Events of a page: as many as are asked for, and how many where nobody says.
EVENTS, MOST_EVENTS = 200, 1000


_LIMIT = {"type": "integer", "minimum": 1, "maximum": MOST_EVENTS}
_FORMAT = {"type": "string", "enum": ["json", "ndjson"]}


class Runs(ListView):
    """Runs, the latest first."""

    shape = RunShape
    filters = RunFilters
    orders = Orders({"createdAt": "created_at"}, "-createdAt")

    @operation(operation_id="runs_list", responses={200: page_of(RunShape, "Runs")})
    def get(self) -> HttpResponseBase:
        """The runs that the caller sees."""
        return self.page(self.sight.rows(Run), prepare=rows.runs, shown=self.sight.shown_runs)


class ThreadRuns(Runs):
    """The runs of a thread, the latest first."""

    @operation(operation_id="threads_runs_list", responses={200: page_of(RunShape, "Runs")})
    def get(self, pk: int) -> HttpResponseBase:  # type: ignore[override]
        """The runs of a thread."""
        thread = self.sight.thread(pk, Run)
        found = Run.objects.using(thread._state.db).filter(thread=thread)
        return self.page(found, prepare=rows.runs, shown=self.sight.shown_runs)


class OneRun(ApiView):
    """A run."""

    @operation(operation_id="runs_retrieve", responses={200: WholeRunShape})
    def get(self, pk: UUID) -> HttpResponseBase:
        """A run, with its input and its result."""
        return json_answer(WholeRunShape(self.sight.run(pk)).data)


class CancelRun(ApiView):
    """The end of a run before its time."""

    @operation(operation_id="runs_cancel", request=None, responses={200: CancelShape})
    async def post(self, pk: UUID) -> HttpResponseBase:
        """Ask a run to stop; that it is asked again, or has ended, is no error."""
        run, reason = await get_pool().run(self._may, pk)
        asked = not run.ended and await get_engine().cancel(run.pk, reason)
        return json_answer({"run": str(run.pk), "runId": run.run_id, "cancelling": asked})

    def _may(self, pk: UUID) -> tuple[Run, str]:
        run = self.sight.run(pk)
        if self.sight.owns(run.thread):
            if not self.sight.policy.may_cancel(self.sight.caller.user, run):
                raise PermissionRefused
            return run, "user"
        self.sight.demand(run.thread, "change", Run)
        return run, "staff"


class Events(ApiView):
    """The events of a run."""

    query = ("after", "limit", "format")

    @operation(
        operation_id="runs_events",
        parameters=[
            OpenApiParameter("after", {"type": "integer", "minimum": 0}, description="The last event that is known."),
            OpenApiParameter("limit", _LIMIT, description="200 where it is left out; of pages only."),
            OpenApiParameter("format", _FORMAT, description="Counts before `Accept`."),
        ],
        responses={
            (200, "application/json"): EventPageShape,
            (200, NDJSON): OpenApiResponse({"type": "string"}, description="An event a line, as it was sent."),
        },
    )  # fmt: skip
    async def get(self, pk: UUID) -> HttpResponseBase:
        """The events that are committed: a page of them, or (as NDJSON) all."""
        request = self.request._request
        after = cursor_of(request)
        run = await get_pool().run(self.sight.run, pk, RunEvents)
        if run.ended and after > run.last_seq:
            fields = [{"path": "after", "message": "beyond the last event"}]
            raise InvalidInput("The cursor is not one of this run.", fields=fields)
        if wants_lines(request):
            # The first rows are read before the answer begins: that they are gone can still be told.
            body = lines(run.pk, await get_pool().run(read_entries, run.pk, after))
            return StreamingHttpResponse(body, content_type=NDJSON, headers=download(f"run-{run.pk}.ndjson"))
        limit = limit_of(request.GET, EVENTS, MOST_EVENTS)
        # No row is without an event.
        entries = (await get_pool().run(read_entries, run.pk, after, limit))[: limit + 1]
        last = entries[:limit][-1][0] if entries else after
        more = len(entries) > limit or last < (run.last_seq if run.ended else last)
        return json_answer(
            {
                "results": [{"seq": seq, "event": wire(text)} for seq, text, _ in entries[:limit]],
                "next": f"{request.path}?after={last}&limit={limit}" if more else None,
                "lastSeq": max(run.last_seq, last),
                "ended": run.ended,
            }
        )


def wants_lines(request: HttpRequest) -> bool:
    """Whether a download as NDJSON is asked for: by ``?format=``, else by ``Accept``.

    Raises:
        InvalidInput: it is another format.
    """
    asked = request.GET.get("format", "")
    if asked not in ("", "json", "ndjson"):
        raise InvalidInput("The query is malformed.", fields=[{"path": "format", "message": "must be json or ndjson"}])
    accepted = request.headers.get("Accept", "")
    return asked == "ndjson" or (not asked and NDJSON in accepted and JSON not in accepted)


async def lines(run: UUID, entries: Sequence[Entry]) -> AsyncIterator[bytes]:
    """The committed events of a run, an event a line, these first; never more than a few rows in memory."""
    while entries:
        yield "".join([f"{text}\n" for _, text, _ in entries]).encode()
        entries = await get_pool().read(read_entries, run, entries[-1][0])
