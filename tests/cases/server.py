"""A real HTTP server inside the test process, so that a case may set settings and agents and read the database."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn


class LiveServer:
    """uvicorn in a thread with a loop of its own, on a free port of 127.0.0.1."""

    def __init__(self, app: Any) -> None:
        config = uvicorn.Config(app, host="127.0.0.1", port=0, lifespan="off", log_level="error", log_config=None)
        self.server = uvicorn.Server(config)
        self.server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.bind(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self.server.run, args=([self.socket],), daemon=True, name="live-server")

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.socket.getsockname()[1]}"

    def start(self) -> None:
        """Start and wait until it accepts."""
        self.socket.listen(256)
        self.thread.start()

    def stop(self) -> None:
        """Stop and wait for the thread."""
        self.server.should_exit = True
        self.server.force_exit = True
        self.thread.join(10)
        self.socket.close()


@contextlib.contextmanager
def live_server(app: Any) -> Iterator[LiveServer]:
    """A started server, stopped at the end."""
    server = LiveServer(app)
    server.start()
    try:
        yield server
    finally:
        server.stop()
