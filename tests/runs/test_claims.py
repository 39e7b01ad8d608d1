"""A claim tells whether its process lives."""

from __future__ import annotations

import subprocess
import sys

import pytest

from agui_django.runs import claims

linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
PRINT = "from agui_django.runs import claims; print(claims.process_name(), flush=True); import sys; sys.stdin.read()"


def test_this_process_lives() -> None:
    name = claims.process_name()
    assert name == claims.process_name()
    assert len(name) <= 64
    assert not claims.is_dead(name)


@linux_only
def test_a_process_that_ended_is_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", PRINT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    name = process.stdout.readline().strip()
    assert not claims.is_dead(name)
    process.kill()
    process.communicate()
    assert claims.is_dead(name)


@linux_only
def test_another_process_with_the_same_number_is_not_it() -> None:
    machine, pid, started, token = claims.process_name().split(".")
    assert claims.is_dead(f"{machine}.{pid}.{int(started) - 1}.{token}")


@pytest.mark.parametrize("claim", ["", "elsewhere", "a-dead-process", "0123456789ab.1.2.3", "x.y.z"])
def test_what_cannot_be_told_is_not_dead(claim: str) -> None:
    assert not claims.is_dead(claim)
