"""The generated pages say what the code says today."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.parts import ROOT


def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_reference", ROOT / "docs" / "build_reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["settings.md", "errors.md"])
def test_page_is_current(name: str) -> None:
    written = (ROOT / "docs" / "reference" / name).read_text()
    assert written == builder().PAGES[name](), "run: python docs/build_reference.py"


def test_every_setting_is_listed() -> None:
    from agui_django.conf import KEYS

    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    assert {line[3:] for line in page.splitlines() if line.startswith("## ")} == KEYS


LINK = re.compile(r"\]\((?!https?:)([^)#]+)(#[\w-]+)?\)")


def pages() -> list[Path]:
    return [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def test_links_lead_somewhere() -> None:
    seen = 0
    for page in pages():
        for target, anchor in LINK.findall(page.read_text()):
            seen += 1
            found = page.parent / target
            assert found.exists(), f"{page.name}: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.+)$", found.read_text(), re.MULTILINE)
                assert anchor[1:] in {heading.lower().replace(" ", "-") for heading in headings}, (
                    f"{page.name}: {anchor}"
                )
    assert seen > 20


def test_python_samples_are_python() -> None:
    samples = [
        sample for page in pages() for sample in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S)
    ]
    assert len(samples) > 10
    for sample in samples:
        compile(sample, "sample", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
