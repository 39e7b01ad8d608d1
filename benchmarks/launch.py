"""Starts a program pinned to one core, with room for many sockets, that dies with whoever started it.

``python launch.py CORE PROGRAM ARGUMENT...``
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys

PR_SET_PDEATHSIG, SIGKILL = 1, 9


def main() -> None:
    """Pin, then become the program."""
    core, *command = sys.argv[1:]
    os.sched_setaffinity(0, {int(core)})
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
