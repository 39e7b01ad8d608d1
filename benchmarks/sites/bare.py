"""D: a bare Django async StreamingHttpResponse of ready frames: no middleware, no authentication, nothing stored."""

from __future__ import annotations

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponse, HttpResponseBase
from django.urls import path

from benchmarks.work import Order, ready_frames

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="bench", MIDDLEWARE=[])
django.setup()


async def run(request: HttpRequest) -> HttpResponseBase:
    """Stream a run."""
    frames = ready_frames(Order.read(request.body.decode()))
    return StreamingHttpResponse(frames, content_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def health(request: HttpRequest) -> HttpResponse:
    """Say that the server is up."""
    return HttpResponse("ok")


urlpatterns = [path("run", run), path("health", health)]
application = get_asgi_application()
