"""Files of 20 MB through real servers, and what both official clients make of the references."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import threading
import time
import uuid
from typing import Any

import httpx
import pytest

from tests import sse
from tests.clients.conftest import TOKEN, Story
from tests.servers import ServerProcess

pytestmark = pytest.mark.timeout(300)

MB = 1024 * 1024


def made(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


def picture(data: bytes, key: str) -> dict[str, Any]:
    source = {"type": "data", "value": base64.b64encode(data).decode(), "mimeType": "image/png"}
    part = {"type": "image", "source": source, "metadata": {"filename": "big.png"}}
    return {"id": key, "role": "user", "content": [{"type": "text", "text": "How large?"}, part]}


def resident(server: ServerProcess, name: str) -> int:
    """Megabytes of the server's process: VmRSS now, VmHWM at most so far."""
    with open(f"/proc/{server.pid}/status") as status:
        [line] = [line for line in status if line.startswith(name)]
    return int(line.split()[1]) // 1024


def test_twenty_megabytes(server: ServerProcess) -> None:
    """Taken in, shown as a reference by every face, given to the agent and given out; others are served meanwhile."""
    data = made(20 * MB, 1)
    thread = f"big-{uuid.uuid4()}"
    raw = json.dumps({**sse.body(thread, ""), "messages": [picture(data, f"u-{thread}")]}).encode()
    assert len(raw) > 26 * MB
    before = resident(server, "VmRSS")
    late: list[float] = []
    over = threading.Event()

    def others() -> None:
        with httpx.Client(base_url=server.base_url, timeout=30) as http:
            while not over.is_set():
                begun = time.monotonic()
                assert http.get("/agui/health").status_code == 200
                late.append(time.monotonic() - begun)
                over.wait(0.01)

    watcher = threading.Thread(target=others)
    watcher.start()
    try:
        with httpx.Client(base_url=server.base_url, headers=TOKEN, timeout=120) as http:
            headers = {"Content-Type": "application/json"}
            answer = http.post("/agui/agents/measure", content=raw, headers=headers)
    finally:
        over.set()
        watcher.join()
    assert answer.status_code == 200, answer.text[:1000]
    assert len(answer.content) < 10_000
    stored = server.stored(thread)
    part = stored["messages"][0]["content"][1]
    about = part["metadata"]["aguiAttachment"]
    assert about == {"id": about["id"], "size": 20 * MB, "mediaType": "image/png", "name": "big.png"}
    assert part["source"] == {"type": "url", "value": f"/agui/attachments/{about['id']}", "mimeType": "image/png"}
    assert stored["messages"][1]["content"] == f"{20 * MB} {hashlib.sha256(data).hexdigest()}"
    print(f"{server.kind}: longest wait of others {max(late):.3f} s, memory {before} -> {resident(server, 'VmHWM')} MB")
    assert max(late) < 5, "others waited"
    with httpx.Client(base_url=server.base_url, headers=TOKEN, timeout=120) as http:
        given = http.get(part["source"]["value"])
        assert given.content == data
        assert http.get(part["source"]["value"], headers={"Range": "bytes=0-9"}).content == data[:10]
        feed = http.get("/agui/threads/events", params={"threadId": thread, "until": "idle"})
        run = stored["runs"][0]["uuid"]
        log = http.get(f"/agui/runs/{run}/events")
        hydration = http.post("/agui/agents/measure", json={**sse.body(thread, ""), "messages": []})
        for shown in (feed, log, hydration):
            assert part["source"]["value"] in shown.text
            assert len(shown.content) < 10_000
        # the client goes on with its own copy: nothing is stored twice
        again = json.loads(raw)
        again |= {"runId": str(uuid.uuid4())}
        again["messages"] += [*stored["messages"][1:], {"id": "next", "role": "user", "content": "And now?"}]
        assert http.post("/agui/agents/measure", json=again).status_code == 200
        assert server.stored(thread)["messages"][0]["content"][1] == part
        over_size = {**sse.body(f"{thread}-x", ""), "messages": [picture(data + b"x", "u")]}
        refused = http.post("/agui/agents/measure", json=over_size)
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "attachment_too_large")
        assert server.stored(f"{thread}-x") == {}


def test_both_clients_take_references(story: Story) -> None:
    data = made(3 * MB, 2)
    key = f"u-{uuid.uuid4()}"
    [first, shown, more] = story.run(
        "measure",
        {"add": [picture(data, key)]},
        {"fresh": True},
        {"add": [{"id": f"{key}-2", "role": "user", "content": "Once more."}]},
    )["steps"]
    answer = f"{3 * MB} {hashlib.sha256(data).hexdigest()}"
    assert first["error"] is None
    assert first["messages"][1]["content"] == answer
    stored = story.stored()
    assert shown["error"] is None
    assert shown["messages"] == stored["messages"][:2]
    part = shown["messages"][0]["content"][1]
    assert part["source"]["value"].startswith("/agui/attachments/")
    # the client sends the reference back, and keeps it
    assert more["error"] is None
    assert more["messages"] == stored["messages"]
    assert more["messages"][3]["content"] == answer
    with httpx.Client(base_url=story.server.base_url, headers=TOKEN, timeout=60) as http:
        assert http.get(part["source"]["value"]).content == data
