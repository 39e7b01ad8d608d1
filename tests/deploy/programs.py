"""Programs of the operating system, run by the test that needs them: in its folder, on free ports."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.parts import program


def written(template: Path, target: Path, changes: dict[str, str]) -> Path:
    """A configuration of the repository with the places changed that say "change"; each has to be there."""
    text = template.read_text()
    for old, new in changes.items():
        assert old in text, f"{template.name} has no {old!r}"
        text = text.replace(old, new)
    target.write_text(text)
    return target


@contextlib.contextmanager
def running(name: str, *arguments: str, port: int, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program that stays in the foreground, wait until it listens, end it at the end."""
    log_path = folder / f"{name}.log"
    command = [program(name) or name, *arguments]
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env={**os.environ}
        )
    try:
        deadline = time.monotonic() + 20
        while not _listens(port):
            assert process.poll() is None and time.monotonic() < deadline, f"{name}: {log_path.read_text()}"
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False
