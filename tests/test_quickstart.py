"""Follows the quickstart word for word, in a fresh virtual environment and a fresh project."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.parts import ROOT, require
from tests.servers import free_port

PASSWORD = "tea-at-five"
MARKED = re.compile(r"<!-- quickstart: .*?-->\n(.*)<!-- end of quickstart -->", re.DOTALL)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"`([\w/]+\.py)`:\s*$")


class Block(NamedTuple):
    language: str
    code: str
    file: str


def text_of(page: str) -> str:
    found = MARKED.search((ROOT / page).read_text())
    assert found is not None, f"{page} has no quickstart"
    return found[1].strip()


def blocks(text: str) -> Iterator[Block]:
    for match in BLOCK.finditer(text):
        file = FILE.search(text[: match.start()])
        yield Block(match[1], match[2], file[1] if match[1] == "python" and file else "")


def test_readme_and_docs_show_the_same() -> None:
    assert text_of("README.md") == text_of("docs/quickstart.md")


def checkout(folder: Path) -> Path:
    """A copy of what the package is built from: a build writes beside its sources."""
    target = folder / "agui_django"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "agui_django", target / "agui_django", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target)
    return target


class Terminal:
    """A shell with a terminal of its own: createsuperuser asks for a password only there."""

    def __init__(self, script: Path, folder: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("AGUI_", "DJANGO_"))}
        environment.pop("VIRTUAL_ENV", None)
        # The interpreter of this test run stands for the reader's python3.
        (folder / "bin").mkdir()
        (folder / "bin" / "python3").symlink_to(sys.executable)
        environment["PATH"] = f"{folder / 'bin'}{os.pathsep}{environment['PATH']}"
        spawn = "import pty, sys; sys.exit(pty.spawn(['bash', '-e', sys.argv[1]]) >> 8)"
        self.output = ""
        self.process = subprocess.Popen(
            [sys.executable, "-c", spawn, str(script)], cwd=folder, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        os.set_blocking(self.process.stdout.fileno(), False)

    def expect(self, pattern: str, seconds: float) -> str:
        """Wait for output, and forget what stood before it."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.output)):
            assert time.monotonic() < deadline, f"no {pattern!r} in {seconds} s:\n{self.output[-4000:]}"
            chunk = self.process.stdout.read()
            if chunk == b"" and self.process.poll() is not None:
                raise AssertionError(f"the shell ended before {pattern!r}:\n{self.output[-4000:]}")
            self.output += (chunk or b"").decode(errors="replace")
            if not chunk:
                time.sleep(0.05)
        self.output = self.output[found.end() :]
        return found[0]

    def type(self, line: str) -> None:
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def close(self, group: int) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(group, number)
            except ProcessLookupError:
                break
            time.sleep(0.5)
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            pipe.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ends_in_a_streamed_answer(tmp_path: Path) -> None:
    require("curl", "network")
    port = free_port()
    script = ["echo group=$$."]
    *steps, last = blocks(text_of("docs/quickstart.md"))
    for block in steps:
        code = block.code.replace("8000", str(port)).replace("path/to/agui_django", str(checkout_once(tmp_path)))
        if block.language == "python":
            assert block.file, block.code
            code = f"cat >> {block.file} <<'END_OF_FILE'\n{code}END_OF_FILE\n"
        script.append(code)
    path = tmp_path / "quickstart.sh"
    path.write_text("\n".join(script))
    terminal = Terminal(path, tmp_path)
    group = int(terminal.expect(r"group=\d+", 30).partition("=")[2])
    try:
        for _ in range(2):
            terminal.expect(r"Password.*: ", 480)
            terminal.type(PASSWORD)
        terminal.expect(r"Superuser created successfully", 60)
        terminal.expect(r"Starting ASGI/Daphne", 60)
        wait_for(port)
        assert last.language == "sh" and last.code.startswith("curl -N -u ")
        done = subprocess.run(
            ["bash", "-c", last.code.replace("8000", str(port))],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    finally:
        terminal.close(group)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("data: ")]
    assert [event["type"] for event in events] == [
        "RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "RUN_FINISHED",
    ]  # fmt: skip
    assert events[2]["delta"] == "You said: Hello"


def wait_for(port: int) -> None:
    """The reader types the last command after the server has said that it started."""
    deadline = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, "nothing listens"
            time.sleep(0.1)
        else:
            return


def checkout_once(folder: Path) -> Path:
    target = folder / "agui_django"
    return target if target.exists() else checkout(folder)
