"""A TCP proxy that cuts connections: what a network does to a client, at moments that a test chooses."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType

RESET = struct.pack("ii", 1, 0)


class CuttingProxy:
    """Connects to the ports in turn (the last one for all that follow); a context manager.

    Attributes:
        cuts: after how many bytes towards the client its connections are cut, first to last; then none is.
        ports: where the connections so far went.
    """

    def __init__(self, ports: list[int]) -> None:
        self._targets = list(ports)
        self.cuts: list[int] = []
        self.ports: list[int] = []
        self._trigger: tuple[int, Callable[[], None]] | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    @property
    def port(self) -> int:
        """Where it listens."""
        found: int = self._listener.getsockname()[1]
        return found

    @property
    def connections(self) -> int:
        """How many there were."""
        return len(self.ports)

    def on_first_bytes(self, count: int, then: Callable[[], None]) -> None:
        """Call a function once, when so many bytes went to the first client."""
        self._trigger = count, then

    def redirect(self, port: int) -> None:
        """Connect to another port from now on."""
        self._targets = [port]

    def cut_all(self, cuts: list[int]) -> None:
        """Cut what is connected now, and what connects next as `cuts` says."""
        self.cuts = list(cuts)
        for connection in list(self._open):
            self._end(connection)

    def __enter__(self) -> CuttingProxy:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            self._end(connection)
        for thread in self._threads:
            thread.join(10)

    def _start(self, function: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            port = self._targets[min(len(self.ports), len(self._targets) - 1)]
            self.ports.append(port)
            self._open.append(client)
            try:
                server = socket.create_connection(("127.0.0.1", port))
            except OSError:
                self._end(client)
                continue
            self._open.append(server)
            left = self.cuts.pop(0) if self.cuts else None
            self._start(self._pump, client, server, None)
            self._start(self._pump, server, client, left)

    def _pump(self, source: socket.socket, target: socket.socket, left: int | None) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                if left is not None and passed + len(data) >= left:
                    target.sendall(data[: left - passed])
                    break
                target.sendall(data)
                passed += len(data)
                if self._trigger is not None and source.getpeername()[1] != self.port and passed >= self._trigger[0]:
                    (_, then), self._trigger = self._trigger, None
                    then()
        self._end(source)
        self._end(target)

    @staticmethod
    def _end(connection: socket.socket) -> None:
        """Cut without a word: what has not been read yet is lost, too."""
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()
