"""The demo site for ASGI servers. With DEBUG it serves static files, too; else the proxy does."""

from __future__ import annotations

import os
from typing import Any

from django.conf import settings
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")

application: Any = get_asgi_application()
if settings.DEBUG:
    application = ASGIStaticFilesHandler(application)
