"""``python -m benchmarks.races [ROUNDS]``: two processes race for the same thread, request, answer and stop.

The same tests as in the suite, a thousand rounds each: some minutes. Exactly one of two must win every time.
"""

from __future__ import annotations

import os
import subprocess
import sys

from tests.databases import ROOT


def main() -> int:
    """Run them, and return pytest's exit code."""
    rounds = sys.argv[1] if len(sys.argv) > 1 else "1000"
    command = [sys.executable, "-m", "pytest", "tests/processes/test_races.py", "--durations=0", "-v"]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "AGUI_RACE_ROUNDS": rounds}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
