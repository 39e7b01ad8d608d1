"""R: raw ASGI that streams ready frames, one per chunk or WebSocket frame. What the server itself costs."""

from __future__ import annotations

from typing import Any

from benchmarks.work import Order, ready_frames, ready_texts

HEADERS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]


async def socket(receive: Any, send: Any) -> None:
    """Answer every text with a run."""
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        async for text in ready_texts(Order.read(message["text"])):
            await send({"type": "websocket.send", "text": text})


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Serve every HTTP request as a run; GET is the health check."""
    if scope["type"] == "websocket":
        await socket(receive, send)
    if scope["type"] != "http":
        return
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    if scope["method"] == "POST":
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        async for frame in ready_frames(Order.read(body.decode())):
            await send({"type": "http.response.body", "body": frame, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
