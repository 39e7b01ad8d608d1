"""Names of executing processes, such that a process on the same machine can tell whether another still lives.

A dead server's runs need not wait for their lease to end: after a restart (or an autoreload) the next request on the
thread finds the claim's process gone and frees the thread at once. Where that cannot be told (another machine, another
container, no /proc) the lease decides.
"""

from __future__ import annotations

import functools
import hashlib
import os
import secrets
import socket
from pathlib import Path

PROC = Path("/proc")


@functools.cache
def _machine() -> str:
    """One kernel and one process namespace; "" where that cannot be told."""
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink(PROC / "self/ns/pid")
    except OSError:
        return ""
    return hashlib.sha256(f"{socket.gethostname()}|{boot}|{namespace}".encode()).hexdigest()[:12]


def _started(pid: int) -> str:
    """When a process began, in the kernel's ticks; "" when it is gone (a zombie is)."""
    try:
        # the name in parentheses may hold anything; the fields behind it are plain
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


@functools.cache
def _name_of(pid: int) -> str:
    # cached by process id, so that a forked worker makes a name of its own
    return f"{_machine() or 'elsewhere'}.{pid}.{_started(pid) or '0'}.{secrets.token_hex(4)}"


def process_name() -> str:
    """This process's claim: unique, at most 64 characters."""
    return _name_of(os.getpid())


def is_dead(claim: str) -> bool:
    """Whether the process of a claim is known to be gone. False where it cannot be told."""
    machine, _, rest = claim.partition(".")
    parts = rest.split(".")
    if not machine or machine != _machine() or len(parts) != 3 or not parts[0].isdigit():
        return False
    return _started(int(parts[0])) != parts[1]
