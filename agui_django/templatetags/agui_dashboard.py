"""Tags of the dashboard on the app's page of the admin.

Law: Django imports this wherever the app is installed, with the admin or without: so the admin is imported inside.
"""

from __future__ import annotations

from typing import Any

from django import template
from django.utils.safestring import SafeString

register = template.Library()


@register.simple_tag(takes_context=True)
def agui_dashboard(context: Any) -> SafeString:
    """The dashboard, for who may see runs, in the viewer's time zone."""
    from agui_django.admin.dashboard import frame

    return frame(context.request)


@register.filter
def grouped(number: int) -> str:
    """A number that a person reads."""
    from agui_django.admin.dashboard import grouped as written

    return written(number)
