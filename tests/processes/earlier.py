"""An earlier state of this code, as a site has it running while the next one is rolled out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.databases import ROOT, site_environment

#: Commits that are tried: not each of them was a whole site.
TRIED = 6

MIGRATIONS = "agui_django/migrations"


def earlier_code(folder: Path) -> Path:
    """The folder of the latest release; before there is one, of the earliest commit with the migrations of today.

    Skips the test where there is no history, such as in an archive or a shallow clone.
    """
    if not (ROOT / ".git").exists() or "true" in _git("rev-parse", "--is-shallow-repository"):
        pytest.skip("no history here: an earlier state of the code is needed")
    for number, commit in enumerate(_candidates()):
        code = folder / f"earlier-{number}"
        code.mkdir()
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", str(code)], input=archive.stdout, check=True)
        if _is_a_site(code):
            return code
    pytest.skip("no earlier commit has the migrations of today and is a whole site")


def _candidates() -> list[str]:
    releases = _git("describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^").split()
    if releases:
        return releases
    names = {path.name for path in (ROOT / MIGRATIONS).glob("0*.py")}
    same = []
    for commit in _git("rev-list", "--max-count=400", "HEAD^", "--", "agui_django").split():
        found = {Path(line).name for line in _git("ls-tree", "--name-only", commit, f"{MIGRATIONS}/").split()}
        if not names <= found:
            break
        same.append(commit)
    # From the earliest on, some from all over the way.
    step = max(1, len(same) // TRIED)
    return same[::-1][::step][:TRIED]


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def _is_a_site(code: Path) -> bool:
    env = site_environment("sqlite", str(code / "check.sqlite3"), {"PYTHONPATH": str(code)})
    checks = "import project.asgi; from django.core.management import call_command; call_command('check')"
    done = subprocess.run(
        [sys.executable, "-c", checks], cwd=code, env={**os.environ, **env}, capture_output=True, check=False
    )
    return done.returncode == 0
