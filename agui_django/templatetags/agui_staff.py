"""Tags of the admin's pages. ``{% agui_inbox %}`` is for every page of a site's admin, the others are for ours.

Law: Django imports this wherever the app is installed, with the admin or without: so the admin is imported inside.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import template
from django.utils.safestring import SafeString

register = template.Library()


@register.simple_tag(takes_context=True)
def agui_inbox(context: Any) -> SafeString | str:
    """How many questions wait for a person, as a link to the inbox; once on a page, and for who may see them."""
    from agui_django.admin.inbox import badge

    return badge(context.get("request"))


@register.inclusion_tag("admin/agui_django/zone.html", takes_context=True)
def agui_zone(context: Any) -> dict[str, Any]:
    """The time zone of the page, and the buttons that change it."""
    from agui_django.admin.clock import choices

    return choices(context["request"])


@register.filter
def moment(at: datetime | None, written: str = "j M Y H:i:s") -> SafeString | str:
    """A time in the viewer's zone, with UTC in its tooltip, written in one of Django's formats."""
    from agui_django.admin.clock import moment as shown

    return shown(at, written)
