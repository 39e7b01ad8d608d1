"""The site's pages. In the demo their visitor is logged in as a demo user; elsewhere one has to log in."""

from __future__ import annotations

from django.conf import settings
from django.contrib.auth import get_user_model, login
from django.contrib.auth.views import redirect_to_login
from django.contrib.staticfiles import finders
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.decorators.http import require_safe

DEMO_USER = "ada"


@require_safe
@never_cache
@ensure_csrf_cookie
def chat(request: HttpRequest) -> HttpResponse:
    """The page at ``/``."""
    return page(request, "chat.html")


@require_safe
@never_cache
@ensure_csrf_cookie
def copilotkit(request: HttpRequest) -> HttpResponse:
    """The React example; ``make frontend`` builds it."""
    built = finders.find("copilotkit_demo/main.js") is not None
    return page(request, "copilotkit_demo.html", built=built)


def page(request: HttpRequest, template: str, **context: bool) -> HttpResponse:
    """A page for those who are logged in, in the demo for everybody."""
    if not request.user.is_authenticated:
        user = get_user_model().objects.filter(username=DEMO_USER).first() if settings.DEMO else None
        if user is None:
            return redirect_to_login(request.get_full_path())
        login(request, user, backend="django.contrib.auth.backends.ModelBackend")
    return render(request, template, context)
