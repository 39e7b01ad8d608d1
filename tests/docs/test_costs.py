"""docs/howto/costs.md: the sample is a setting that the checks accept, and prices what it says."""

from __future__ import annotations

import re
from typing import Any

from agui_django import checks
from agui_django.models import Run
from agui_django.runs.pricing import price_of
from tests.parts import ROOT

PAGE = (ROOT / "docs" / "howto" / "costs.md").read_text()


def test_the_sample(settings: Any) -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    settings.AGUI_DJANGO = names["AGUI_DJANGO"]
    assert checks.check_settings() == checks.check_prices() == []
    small, large = price_of("", "acme-small"), price_of("acme", "acme-large-2026-10-01")
    assert small is not None and large is not None
    # A million tokens of each kind.
    assert (
        small.of({"inputTokens": 2_000_000, "cachedInputTokens": 1_000_000, "outputTokens": 1_000_000}) == 2_275_000_000
    )
    assert large.of({"inputTokens": 1_000_000, "outputTokens": 1_000_000}) == 18_000_000_000
    assert price_of("other", "acme-large") is None


def test_the_columns_exist() -> None:
    names = {field.name for field in Run._meta.get_fields()} | {"cost"}
    (row,) = [line for line in PAGE.splitlines() if line.startswith("| `Run`")]
    assert set(re.findall(r"`([a-z_]+)`", row)) <= names
