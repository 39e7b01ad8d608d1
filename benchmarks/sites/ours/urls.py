"""The package's addresses, and the counter of statements when it is switched on."""

from __future__ import annotations

import os

from django.http import HttpRequest, JsonResponse
from django.urls import include, path

from benchmarks.sites.ours import counting


async def statements(request: HttpRequest) -> JsonResponse:
    """Tell how many statements this process has sent to the database so far."""
    return JsonResponse({"statements": counting.total()})


urlpatterns = [path("agui/", include("agui_django.urls")), path("bench/statements", statements)]

if os.environ.get("AGUI_BENCH_COUNT"):
    counting.switch_on()
