"""Peer: django-ag-ui (Pydantic AI behind a Django view) with a scripted model; authentication off, stores nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import django
from django.conf import settings

settings.configure(
    ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="bench", MIDDLEWARE=[], USE_TZ=True,
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth"],
)  # fmt: skip
django.setup()

from django.core.asgi import get_asgi_application  # noqa: E402
from django.http import HttpRequest, HttpResponse  # noqa: E402
from django.urls import path  # noqa: E402
from django_ag_ui import AGUIServer, ToolRegistry  # noqa: E402
from pydantic_ai.models.function import FunctionModel  # noqa: E402

from benchmarks.work import Order  # noqa: E402


async def stream(messages: list[Any], info: Any) -> AsyncIterator[str]:
    """Stream what the last user message orders."""
    async for text in Order.read(str(messages[-1])).deltas():
        yield text


async def health(request: HttpRequest) -> HttpResponse:
    """Say that the server is up."""
    return HttpResponse("ok")


server = AGUIServer(
    ToolRegistry(), model=FunctionModel(stream_function=stream), require_authenticated=False, csrf_exempt=True
)
urlpatterns = [path("run/", server.urls), path("health", health)]
application = get_asgi_application()
