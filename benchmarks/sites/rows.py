"""N: what one writes first: one ORM insert per event, and a replay that reads the rows."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.db import connection, models
from django.http import HttpRequest, JsonResponse, StreamingHttpResponse
from django.http.response import HttpResponse, HttpResponseBase
from django.urls import path

from benchmarks.sites.database import databases
from benchmarks.work import DELTA, HEAD, TAIL, Order

settings.configure(
    ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="bench", MIDDLEWARE=[], DATABASES=databases(),
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField", USE_TZ=True,
)  # fmt: skip
django.setup()


class Event(models.Model):
    """One event, one row."""

    run = models.UUIDField()
    seq = models.PositiveIntegerField()
    type = models.CharField(max_length=40)
    payload = models.TextField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        """The log's order is (run, seq)."""

        app_label = "rows"
        constraints: ClassVar = [models.UniqueConstraint(fields=["run", "seq"], name="rows_run_seq")]

    def __str__(self) -> str:
        """Name it by its place."""
        return f"{self.run} {self.seq}"


def create_table() -> None:
    """Create the table; the database is new."""
    with connection.schema_editor() as editor:
        editor.create_model(Event)
    connection.close()


async def events(order: Order) -> AsyncIterator[dict[str, object]]:
    """Yield the run as wire dicts."""
    for wire in HEAD:
        yield wire
    async for text in order.deltas():
        yield {**DELTA, "delta": text}
    for wire in TAIL:
        yield wire


def row(run: uuid.UUID, seq: int, wire: dict[str, Any]) -> Event:
    """Return the unsaved row of an event."""
    return Event(run=run, seq=seq, type=wire["type"], payload=json.dumps(wire, separators=(",", ":")))


async def recorded(order: Order) -> AsyncIterator[str]:
    """Store each event, then show it."""
    run, seq = uuid.uuid4(), 0
    async for wire in events(order):
        seq += 1
        stored = row(run, seq, wire)
        await stored.asave(force_insert=True)
        yield f"data: {stored.payload}\n\n"


async def replayed(run: uuid.UUID) -> AsyncIterator[str]:
    """Show the stored events of a run."""
    async for payload in Event.objects.filter(run=run).order_by("seq").values_list("payload", flat=True):
        yield f"data: {payload}\n\n"


def stream(frames: AsyncIterator[str]) -> StreamingHttpResponse:
    """Return a stream of frames."""
    return StreamingHttpResponse(frames, content_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def start(request: HttpRequest) -> HttpResponseBase:
    """Stream a run while it is recorded."""
    return stream(recorded(Order.read(request.body.decode())))


async def replay(request: HttpRequest, run: uuid.UUID) -> HttpResponseBase:
    """Stream a recorded run from its start."""
    return stream(replayed(run))


async def seed(request: HttpRequest) -> JsonResponse:
    """Store a whole run in one go and return its address: for the measure of the replay."""
    run = uuid.uuid4()
    rows = [row(run, seq, wire) async for seq, wire in _numbered(events(Order.read(request.body.decode())))]
    await Event.objects.abulk_create(rows, batch_size=500)
    return JsonResponse({"address": f"/runs/{run}"})


async def _numbered(found: AsyncIterator[dict[str, object]]) -> AsyncIterator[tuple[int, dict[str, object]]]:
    seq = 0
    async for wire in found:
        seq += 1
        yield seq, wire


async def health(request: HttpRequest) -> HttpResponse:
    """Say that the server is up."""
    return HttpResponse("ok")


urlpatterns = [
    path("run", start),
    path("seed", seed),
    path("runs/<uuid:run>", replay),
    path("health", health),
]
create_table()
application = get_asgi_application()
