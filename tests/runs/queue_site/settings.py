"""What each of the three queues needs in a site's settings; AGUI_TEST_RUNNER says which."""

from __future__ import annotations

import os

import django

from project.settings import *  # noqa: F403
from project.settings import AGUI_DJANGO, INSTALLED_APPS

KIND = os.environ["AGUI_TEST_RUNNER"]

AGUI_DJANGO = {"RUNNER": f"agui_django.runs.runners.{KIND}Runner", **AGUI_DJANGO}

if KIND == "Celery":
    from tests.runs.queue_site.celery_app import app as celery_app

    __all__ = ["celery_app"]
    CELERY_BROKER_URL = os.environ.get("AGUI_TEST_BROKER", "redis://127.0.0.1:6379/9")
    CELERY_TASK_DEFAULT_QUEUE = os.environ.get("AGUI_TEST_QUEUE", "agui")
    CELERY_WORKER_PREFETCH_MULTIPLIER = 1
    CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
elif KIND == "Procrastinate":
    INSTALLED_APPS = [*INSTALLED_APPS, "procrastinate.contrib.django"]
else:
    # From Django 6.0 on the tasks API is Django's own.
    backport = [] if django.VERSION >= (6, 0) else ["django_tasks"]
    INSTALLED_APPS = [*INSTALLED_APPS, *backport, "django_tasks_db"]
    TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}
