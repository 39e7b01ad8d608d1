"""The admin's own addresses, each behind its permissions.

Law: `AdminSite.admin_view` asks whether somebody is staff, not what they may do, and cannot take an async view: so no
address is added but by `page` and `live`. Neither is part of a transaction of its request, which a run could not see.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.admin import AdminSite
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponseBase
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_protect

from agui_django.admin.clock import in_zone

View = Callable[..., HttpResponseBase]
AsyncView = Callable[..., Awaitable[HttpResponseBase]]


def demand(user: Any, *permissions: str) -> None:
    """Let through who has all of these permissions.

    Raises:
        PermissionDenied: one is missing.
    """
    if not user.has_perms(permissions):
        raise PermissionDenied


def page(site: AdminSite, view: View, *permissions: str) -> View:
    """A synchronous view of the admin, for staff with all of these permissions."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        demand(request.user, *permissions)
        return in_zone(request, lambda: view(request, *args, **kwargs))

    wrapped: View = transaction.non_atomic_requests(site.admin_view(guarded))
    return wrapped


def live(site: AdminSite, view: AsyncView, *permissions: str) -> Any:
    """An asynchronous view of the admin, for staff with all of these permissions."""

    @wraps(view)
    async def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        user: Any = await request.auser()
        request.user = user

        def allowed() -> bool:
            entered = site.has_permission(request)
            if entered:
                demand(user, *permissions)
            return entered

        if not await sync_to_async(allowed)():
            return redirect_to_login(request.get_full_path(), reverse("admin:login", current_app=site.name))
        return await view(request, *args, **kwargs)

    return transaction.non_atomic_requests(never_cache(csrf_protect(guarded)))
