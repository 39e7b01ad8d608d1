"""The demo site's addresses."""

from __future__ import annotations

from django.conf import settings
from django.contrib import admin
from django.urls import include, path

from agui_django.copilotkit import copilotkit_urls
from agui_django.transports.views import index
from project import views

urlpatterns = [
    path("", views.chat, name="chat"),
    path("admin/", admin.site.urls),
    path("agui", index),  # an include begins behind its prefix: without this, the slash is asked for by a redirect
    path("agui/", include("agui_django.urls")),
    path("api/agui/", include("agui_django.api.urls")),
    *copilotkit_urls("copilotkit", default_agent="echo"),
]

if settings.DEMO:  # its agents are the demo's
    urlpatterns.append(path("copilotkit-demo/", views.copilotkit, name="copilotkit-demo"))
