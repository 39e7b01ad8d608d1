"""A plain SSE reader over httpx: what came, frame by frame, as any client would see it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import httpx


def body(thread_id: str, text: str, **members: Any) -> dict[str, Any]:
    """A run input with one fresh user message."""
    return {
        "threadId": thread_id,
        "runId": uuid.uuid4().hex,
        "tools": [],
        "context": [],
        "forwardedProps": {},
        "messages": [{"id": uuid.uuid4().hex, "role": "user", "content": text}],
        **members,
    }


def frames(response: httpx.Response) -> Iterator[tuple[int, dict[str, Any]]]:
    """The (id, event) pairs of a stream as they come; comments are passed over."""
    pending = ""
    for chunk in response.iter_text():
        pending += chunk
        while "\n\n" in pending:
            frame, pending = pending.split("\n\n", 1)
            lines = dict(line.split(": ", 1) for line in frame.split("\n") if not line.startswith(":"))
            if "data" in lines:
                yield int(lines.get("id", 0)), json.loads(lines["data"])


def client(base_url: str, token: str = "demo-ada", timeout: float = 60) -> httpx.Client:
    """An HTTP client with a demo user's token."""
    return httpx.Client(base_url=base_url, headers={"Authorization": f"Token {token}"}, timeout=timeout)


def run(
    http: httpx.Client, agent: str, members: dict[str, Any], *, stop_after: int | None = None
) -> list[tuple[int, dict[str, Any]]]:
    """Start a run and read it to its end, or until ``stop_after`` frames came."""
    seen = []
    with http.stream("POST", f"/agui/agents/{agent}", json=members) as response:
        response.read() if response.status_code != 200 else None
        assert response.status_code == 200, response.text
        for frame in frames(response):
            seen.append(frame)
            if stop_after is not None and len(seen) >= stop_after:
                break
    return seen
