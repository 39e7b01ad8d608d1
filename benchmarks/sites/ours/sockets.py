"""The measured application with its WebSocket; apart from `asgi`, so that a POST does not pass through Channels."""

from __future__ import annotations

from typing import Any

from channels.routing import ProtocolTypeRouter, URLRouter

from benchmarks.sites.ours.asgi import application as http

# Behind the line that loads the apps.
from agui_django.routing import websocket_urlpatterns  # isort: skip

application: Any = ProtocolTypeRouter({"http": http, "websocket": URLRouter(websocket_urlpatterns)})
