"""Who may import whom: the contracts in pyproject.toml, and what the protocol core may know."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from tests.parts import ROOT

PROTOCOL_MAY = {"ag_ui", "pydantic", "pydantic_core", "orjson", "jsonpatch", "jsonpointer", "jsonschema", "referencing"}


#: Files named after a framework are imported by who uses it; so are its test doubles.
FRAMEWORKS = ("pydantic_ai", "langgraph", "langchain")


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


def test_floors_and_circles() -> None:
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout


def test_protocol_imports_nothing_else() -> None:
    seen = 0
    for path in (ROOT / "agui_django" / "protocol").rglob("*.py"):
        seen += 1
        for name in imported(path):
            top = name.split(".")[0]
            inside = name.startswith("agui_django.protocol")
            assert inside or top in PROTOCOL_MAY or top in sys.stdlib_module_names, f"{path.name} imports {name}"
    assert seen > 5


def test_third_parties_are_declared() -> None:
    """What the package imports at the top of a file is among its dependencies, or stands in an optional file."""
    declared = {
        "django", "asgiref", "rest_framework", "ag_ui", "pydantic", "pydantic_core", "orjson", "jsonpatch",
        "jsonpointer", "jsonschema", "referencing", "typing_extensions", "agui_django",
    }  # fmt: skip
    optional = {
        "routing.py",
        "websocket.py",
        "relay.py",
        "runners.py",
        "telemetry.py",
    }
    for path in (ROOT / "agui_django").rglob("*.py"):
        if path.name in optional or path.stem.startswith(FRAMEWORKS):
            continue
        tops = {name.split(".")[0] for name in imported(path)} - set(sys.stdlib_module_names)
        extra = {"django_filters", "drf_spectacular"} if "api" in path.parts else set()  # the extra of that name
        if "client" in path.parts or path.stem.startswith("remote"):  # the extra "remote"
            extra = {"httpx", "httpcore"}
        if path.parts[-2:] == ("testing", "fixtures.py"):  # loaded by pytest
            extra = {"pytest", "pytest_asyncio"}
        if path.parts[-2:] == ("admin", "markdown.py"):  # the extra "admin"
            extra = {"markdown_it", "nh3"}
        assert tops <= declared | extra, f"{path}: {tops - declared}"
