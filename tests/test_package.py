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


def test_the_public_names() -> None:
    """Those a site is told of."""
    import agui_django

    named = (
        "agent register get_agent start_run RunContext SyncRunContext Event ToolCall AgentError Declined RunSuspended "
        "approval_required Retry"
    )
    assert set(agui_django.__all__) == {*named.split(), "astart_run"}
    assert all(getattr(agui_django, name) is not None for name in agui_django.__all__)
    with pytest.raises(AttributeError):
        _ = agui_django.nothing_of_the_sort
