"""The socket under real servers: what they do with frames, pings, slow readers and their own end."""

from __future__ import annotations

import json
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.servers import Kind, ServerProcess

MB = 1024 * 1024

KINDS: list[Kind] = ["daphne", "uvicorn"]


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(request.param, tmp_path=tmp_path, env={"AGUI_SETTINGS": '{"GRACE": 0.5}'}) as running:
        yield running


@contextmanager
def socket(server: ServerProcess, agent: str = "echo", query: str = "", **options: Any) -> Iterator[ClientConnection]:
    url = f"{server.base_url.replace('http', 'ws', 1)}/agui/ws/{agent}?{query}"
    named = {"additional_headers": {"Authorization": "Token demo-ada"}, "max_size": None, **options}
    with connect(url, **named) as opened:
        yield opened


def ask(text: str, thread_id: str = "t1", **members: Any) -> str:
    return json.dumps({
        "threadId": thread_id, "runId": uuid.uuid4().hex, "tools": [], "context": [], "forwardedProps": {},
        "protocolVersion": "1.1", "messages": [{"id": uuid.uuid4().hex, "role": "user", "content": text}], **members,
    })  # fmt: skip


def read(opened: ClientConnection, until: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    got: list[dict[str, Any]] = []
    while not got or not until(got[-1]):
        got.append(json.loads(opened.recv(30)))
    return got


def ended(event: dict[str, Any]) -> bool:
    return event["type"] in ("RUN_FINISHED", "RUN_ERROR")


def close_code(opened: ClientConnection) -> int:
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            opened.recv(30)
    # 1006 is the absence of a code
    return 1006 if closed.value.rcvd is None else int(closed.value.rcvd.code)


def test_run_stop_and_close(server: ServerProcess) -> None:
    with socket(server) as opened:
        opened.send(ask("tokens:2000 delay_ms:20"))
        read(opened, lambda event: event["type"] == "TEXT_MESSAGE_CONTENT")
        asked = time.monotonic()
        opened.send('{"type": "cancel"}')
        assert read(opened, ended)[-1]["outcome"] == {"type": "cancelled"}
        assert time.monotonic() - asked < 1
    [run] = server.stored("t1")["runs"]
    assert (run["status"], run["endReason"]) == ("cancelled", "user")
    assert server.stop() in (0, -signal.SIGTERM)
    # Daphne's word for a consumer that does not end with its socket
    assert "took too long" not in server.log
    assert "Traceback" not in server.log


def test_handshake(server: ServerProcess) -> None:
    with socket(server, additional_headers={}, subprotocols=["agui.token.demo-ada", "agui"]) as opened:
        assert opened.subprotocol == "agui"
        opened.send(ask("hello"))
        assert ended(read(opened, ended)[-1])
    with socket(server, origin=server.base_url) as opened:
        opened.send('{"type": "follow", "threadId": "t1", "until": "idle"}')
        assert len(read(opened, ended)) == 4
        assert close_code(opened) == 1000
    with pytest.raises(InvalidStatus) as refused, socket(server, origin="https://evil.example"):
        pass
    assert refused.value.response.status_code == 403
    with socket(server, additional_headers={}) as opened:
        opened.send(ask("hello"))
        assert json.loads(opened.recv(30))["code"] == "not_authenticated"
        assert close_code(opened) == 4401


def test_large_frames(server: ServerProcess) -> None:
    with socket(server) as opened:
        opened.send(ask("tokens:1 " + "x" * (MB - 2000)))
        assert read(opened, ended)[-1]["type"] == "RUN_FINISHED"
    with socket(server) as opened:
        opened.send(ask("tokens:1 " + "x" * (2 * MB), "t2"))
        if server.kind == "daphne":
            assert close_code(opened) == 1006
        else:
            assert read(opened, ended)[-1]["type"] == "RUN_FINISHED"


def test_shutdown(server: ServerProcess) -> None:
    with socket(server) as feed, socket(server) as runs, socket(server) as idle:
        runs.send(ask("tokens:2000 delay_ms:20"))
        read(runs, lambda event: event["type"] == "TEXT_MESSAGE_CONTENT")
        feed.send('{"type": "follow", "threadId": "t1"}')
        read(feed, lambda event: event["type"] == "TEXT_MESSAGE_CONTENT")
        server.signal(signal.SIGTERM)
        for opened in (runs, feed):
            # the run is shown to its end
            assert read(opened, ended)[-1]["outcome"] == {"type": "cancelled"}
        # all are told to come back to another process: also who carries nothing, and who has been served
        assert [close_code(opened) for opened in (runs, feed, idle)] == [4503, 4503, 4503]
    # Under Daphne CPython's last collection, long after our work, now and then crashes in a coroutine of asyncio.Queue
    # that the stopped reactor left behind: nothing of the site runs any more.
    ends = (0, -signal.SIGTERM, -signal.SIGSEGV) if server.kind == "daphne" else (0, -signal.SIGTERM)
    assert server.wait(20) in ends, server.log[-6000:]
    assert "took too long" not in server.log


def memory(pid: int) -> float:
    """Resident megabytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


@pytest.mark.slow
def test_slow_readers_cost_nothing(tmp_path: Path) -> None:
    """Under uvicorn; Daphne has no back-pressure."""
    with ServerProcess("uvicorn", tmp_path=tmp_path) as server:
        with socket(server) as opened:
            opened.send(ask("tokens:1500 size:20000", runId="big"))
            length = sum(len(event.get("delta", "")) for event in read(opened, ended))
        assert length == 1500 * 20000
        before = memory(server.pid)
        with ExitStack() as stack:
            sockets = [stack.enter_context(socket(server, max_queue=2)) for _ in range(8)]
            for opened in sockets:
                opened.send('{"type": "follow", "threadId": "t1", "runId": "big"}')
            time.sleep(3)  # long enough to send all of it, had anybody read
            with socket(server) as quick:
                quick.send(ask("still here?", "t2"))
                assert ended(read(quick, ended)[-1])
            # 8 times 30 MB would be 240; each may hold one batch of rows
            assert memory(server.pid) - before < 80
            for opened in sockets[:2]:
                assert sum(len(event.get("delta", "")) for event in read(opened, ended)) == length
