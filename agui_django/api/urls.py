"""The addresses of the REST API, to be included under a prefix of the site. With and without a slash at the end."""

from __future__ import annotations

from agui_django.api.needs import missing

app_name = "agui_django_api"

if missing():
    # A system check says what is missing; until then every address answers 500, and the log says why.
    from agui_django.api.incomplete import urlpatterns
else:
    from agui_django.api.routes import urlpatterns

__all__ = ["app_name", "urlpatterns"]
