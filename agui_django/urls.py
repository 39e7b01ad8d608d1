"""The HTTP addresses, to be included under a prefix of the site. Both with and without trailing slash: no redirects."""

from __future__ import annotations

from django.urls import re_path

from agui_django.transports import attachments, feeds, views

UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"

app_name = "agui_django"

urlpatterns = [
    re_path(r"^$", views.index, name="index"),
    re_path(r"^health/?$", views.health, name="health"),
    re_path(r"^agents/(?P<name>[^/]+)/?$", views.run_agent, name="agent"),
    re_path(rf"^runs/(?P<run>{UUID})/events/?$", views.run_events, name="run-events"),
    re_path(rf"^runs/(?P<run>{UUID})/cancel/?$", views.cancel_run, name="run-cancel"),
    re_path(rf"^attachments/(?P<uuid>{UUID})/?$", attachments.attachment, name="attachment"),
    re_path(r"^threads/events/?$", feeds.thread_events, name="thread-events"),
    # Everything else below the prefix: JSON, too, and no redirect to an address with a slash.
    re_path(r"", views.unknown, name="unknown"),
]
