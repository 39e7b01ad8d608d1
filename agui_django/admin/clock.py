"""Pages in their viewer's time zone, and the switch between the site's, the browser's and UTC.

Law: what is shown, filtered and exported for a request is in one zone, whose name is beside it; UTC is in the tooltips.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import SimpleTemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.safestring import SafeString

from agui_django.admin.zones import COOKIE, known, viewer_zone

Answer = TypeVar("Answer")

YEAR: Final = 365 * 24 * 3600


def in_zone(request: HttpRequest, view: Callable[[], Answer]) -> Answer:
    """What a view answers, made in the viewer's time zone."""
    with timezone.override(viewer_zone(request)):
        response = view()
        # A list's page would be rendered later, where the zone is the site's again.
        if isinstance(response, SimpleTemplateResponse):
            response.render()
        return response


def moment(at: datetime | None, written: str = "j M Y H:i:s") -> SafeString | str:
    """A time in the current zone, with UTC in its tooltip.

    Args:
        at: the time; None: nothing is shown.
        written: a format of Django's.
    """
    if at is None:
        return ""
    utc = at.astimezone(UTC)
    return format_html(
        '<time datetime="{}" title="{} UTC">{}</time>',
        utc.isoformat(), f"{utc:%Y-%m-%d %H:%M:%S}", date_format(timezone.localtime(at), written),
    )  # fmt: skip


def choices(request: HttpRequest) -> dict[str, Any]:
    """What the switch shows: the zone that counts, and those that may be chosen."""
    zone = str(viewer_zone(request))
    return {
        "request": request,
        "zone": zone,
        "site": str(timezone.get_default_timezone()),
        "own": COOKIE in request.COOKIES,
    }


def switch(request: HttpRequest) -> HttpResponse:
    """Keep the viewer's choice: ``zone`` is the name of one, empty: the site's; then back to where they were."""
    home = reverse("admin:index")
    to = request.POST.get("next", "")
    hosts = {request.get_host()}
    response = redirect(to if url_has_allowed_host_and_scheme(to, hosts, request.is_secure()) else home)
    name = request.POST.get("zone", "")
    if request.method == "POST" and name in known():
        response.set_cookie(
            COOKIE, name, YEAR, path=home, secure=request.is_secure(), httponly=True, samesite="Lax"
        )  # fmt: skip
    elif request.method == "POST" and not name:
        response.delete_cookie(COOKIE, path=home, samesite="Lax")
    return response
