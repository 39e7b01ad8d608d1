"""mypy in strict mode knows state keys, answers and shapes, and flags wrong ones."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TYPED = ROOT / "tests/agents/typed.py"
WANTED = re.compile(r"# E: ([\w-]+)")
GIVEN = re.compile(r"typed\.py:(\d+)(?::\d+)?: error: .*\[([\w-]+)\]$")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_mypy(tmp_path_factory: pytest.TempPathFactory):
    cache = ROOT / ".mypy_cache"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", str(cache), str(TYPED)],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=280, check=False,
    )  # fmt: skip
    wanted = {
        (number, code)
        for number, line in enumerate(TYPED.read_text().splitlines(), 1)
        for code in WANTED.findall(line)
        if not line.startswith('"""')
    }
    given = {(int(match[1]), match[2]) for line in done.stdout.splitlines() if (match := GIVEN.search(line))}
    assert given == wanted, done.stdout + done.stderr
