"""The chat page. In the demo its visitor is logged in as a demo user; elsewhere one has to log in."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth import get_user_model, login
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.decorators.http import require_safe

DEMO_USER = "ada"
#: No inline scripts and styles, nothing from elsewhere.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


@require_safe
@never_cache
@ensure_csrf_cookie
def chat(request: HttpRequest) -> HttpResponse:
    """The page at ``/``."""
    if not request.user.is_authenticated:
        user = get_user_model().objects.filter(username=DEMO_USER).first() if settings.DEMO else None
        if user is None:
            return redirect_to_login(request.get_full_path())
        login(request, user, backend="django.contrib.auth.backends.ModelBackend")
    response = render(request, "chat.html")
    response["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
    return response
