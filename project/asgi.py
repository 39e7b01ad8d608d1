"""The demo site for ASGI servers. With DEBUG it serves static files, too; else the proxy does."""

from __future__ import annotations

import os
from typing import Any

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from django.conf import settings
from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")

http: Any = get_asgi_application()
if settings.DEBUG:
    http = ASGIStaticFilesHandler(http)

# After get_asgi_application(), which loads the apps.
from agui_django.routing import websocket_urlpatterns  # noqa: E402

application: Any = ProtocolTypeRouter(
    {"http": http, "websocket": AuthMiddlewareStack(URLRouter(websocket_urlpatterns))}
)
