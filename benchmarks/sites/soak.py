"""The demo site, with an address that tells what the process holds: its tasks and its threads."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from typing import Any

from project.asgi import application as site


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answer ``/soak``; everything else is the site's."""
    if scope["type"] != "http" or scope["path"] != "/soak":
        await site(scope, receive, send)
        return
    gc.collect()
    held = {"tasks": len(asyncio.all_tasks()), "threads": threading.active_count()}
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": json.dumps(held).encode()})
