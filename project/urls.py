"""The demo site's addresses."""

from __future__ import annotations

from django.contrib import admin
from django.urls import include, path

from project import views

urlpatterns = [
    path("", views.chat, name="chat"),
    path("admin/", admin.site.urls),
    path("agui/", include("agui_django.urls")),
]
