"""The WebSocket addresses, for a Channels `URLRouter`; needs `channels` and an `AuthMiddlewareStack` around it."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Any

from django.urls import re_path

if find_spec("channels") is None:
    raise ImportError("The WebSocket needs Channels: pip install 'agui_django[channels]'")

from agui_django.transports.websocket import AgUiConsumer


def websocket_routes(prefix: str = "agui/") -> list[Any]:
    """The routes under a prefix: ``ws/<agent>`` to run an agent, ``ws`` to follow only.

    Args:
        prefix: without a slash in front; with one at its end.
    """
    consumer = AgUiConsumer.as_asgi()
    under = re.escape(prefix)
    return [re_path(rf"^{under}ws/(?P<agent>[^/]+)/?$", consumer), re_path(rf"^{under}ws/?$", consumer)]


websocket_urlpatterns = websocket_routes()
