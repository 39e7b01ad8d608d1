"""The API's addresses while packages are missing that it needs."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponseBase
from django.urls import re_path

from agui_django.api.needs import missing
from agui_django.transports.requests import endpoint


@endpoint()
async def refuse(request: HttpRequest, **_: Any) -> HttpResponseBase:
    """Every address: the client is told nothing, the log what is missing."""
    raise ImproperlyConfigured(f"The REST API needs {' and '.join(missing())}: pip install 'agui-django[api]'")


urlpatterns = [re_path(r"", refuse)]
