"""The package that `pip install .` builds holds all that Django looks for in it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tests.parts import ROOT, require
from tests.test_quickstart import checkout

SOURCES = {".py", ".html", ".js", ".css", ".svg", ".txt", ".typed", ".po", ".mo"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_wheel(tmp_path: Path) -> None:
    require("network")
    source = checkout(tmp_path)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--disable-pip-version-check", "-q"]
    subprocess.run([*command, "-w", tmp_path, source], check=True, timeout=280)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith("METADATA"))
        told = Parser().parsestr(archive.read(metadata).decode())
    expected = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "agui_django").rglob("*")
        if path.is_file() and path.suffix in SOURCES and "__pycache__" not in path.parts
    }
    assert expected <= names
    for needed in (
        "py.typed",
        "migrations/0001_initial.py",
        "static/agui_django/fold.js",
        "management/commands/agui_run.py",
    ):
        assert f"agui_django/{needed}" in names
    assert not [name for name in names if name.startswith(("tests", "project", "benchmarks", "docs"))]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert told["Version"] == project["version"]
    assert told["Requires-Python"] == ">=3.11"
