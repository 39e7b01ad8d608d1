"""The badge in the admin's header: how many questions wait for a person."""

from __future__ import annotations

from typing import Any, Final

from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from agui_django.admin import rights
from agui_django.models import Interrupt
from agui_django.runs.database import database_alias

#: Beyond this nobody wants to know exactly.
MOST: Final = 99


def badge(request: Any) -> SafeString | str:
    """A link to the inbox: one statement. Nothing where nothing waits, or the viewer may not see it, or it was shown.

    A question waits while it is open and its time is not over: whatever else ends its thread's waiting closes it.
    """
    if request is None or getattr(request, "agui_badge", False):
        return ""
    request.agui_badge = True
    if not any(map(request.user.has_perm, (rights.ANSWER, "agui_django.view_interrupt"))):
        return ""
    waiting = Interrupt.objects.using(database_alias()).open(timezone.now())[: MOST + 1].count()
    if not waiting:
        return ""
    if waiting > MOST:
        said = _("more than %(count)d questions wait") % {"count": MOST}
    else:
        said = ngettext("%(count)d question waits", "%(count)d questions wait", waiting) % {"count": waiting}
    return format_html(
        '<a class="agui-badge" href="{}">{}</a> / ', reverse("admin:agui_django_interrupt_changelist"), said
    )
