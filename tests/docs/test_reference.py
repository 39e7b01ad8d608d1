"""The generated pages say what the code says today."""

from __future__ import annotations

import importlib.util
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
