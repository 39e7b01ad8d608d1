"""Whose days and hours a page shows: one time zone per viewer, for columns, filters, charts and exports alike."""

from __future__ import annotations

import functools
import zoneinfo
from datetime import tzinfo
from typing import Final

from django.http import HttpRequest
from django.utils import timezone

#: Holds the name of a time zone, such as ``Europe/Berlin``; without it the site's counts.
COOKIE: Final = "agui_zone"


def viewer_zone(request: HttpRequest) -> tzinfo:
    """The viewer's time zone: the cookie's, else the site's; a name that is none is as no cookie."""
    name = request.COOKIES.get(COOKIE, "")
    return zoneinfo.ZoneInfo(name) if name in known() else timezone.get_default_timezone()


@functools.cache
def known() -> frozenset[str]:
    """The names of time zones that databases know, too: not the machine's own one, nor those with leap seconds."""
    return frozenset(zoneinfo.available_timezones() - {"localtime", "Factory"})
