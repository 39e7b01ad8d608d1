"""docs/howto/copilotkit.md: its code does what the page says, and what it names exists."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import override_settings

from agui_django import conf
from agui_django.agents import registry
from agui_django.testing import run_agent
from tests.parts import ROOT

PAGE = (ROOT / "docs" / "howto" / "copilotkit.md").read_text()


@pytest.fixture
def names() -> Any:
    """What the samples define."""
    found: dict[str, Any] = {"__name__": "sample"}
    samples = re.findall(r"^( *)```python\n(.*?)^ *```", PAGE, re.M | re.S)
    assert len(samples) == 4
    for indent, sample in samples:
        exec(re.sub(f"^{indent}", "", sample, flags=re.M), found)
    yield found
    registry.swap("support", None)


@pytest.mark.asyncio
async def test_the_agent_and_its_addresses(names: Any) -> None:
    assert (await run_agent(names["support"], "Where is it?")).said == ["You asked: Where is it?"]
    base, below = names["urlpatterns"]
    assert base.pattern.match("copilotkit") and base.pattern.match("copilotkit/")
    assert below.pattern.match("copilotkit/info")
    assert base.default_args["mount"].alias() == "support"


def test_the_settings(names: Any) -> None:
    assert set(names["AGUI_DJANGO"]) <= conf.KEYS
    with override_settings(AGUI_DJANGO=names["AGUI_DJANGO"]):
        assert names["urlpatterns"][0].default_args["mount"].licence == "unknown"
    assert set(re.findall(r"`([A-Z]{4,}_?[A-Z_]*)`", PAGE)) - conf.KEYS <= {
        "CORS_ALLOW_CREDENTIALS",
        "CORS_ALLOW_HEADERS",
        "CSRF_COOKIE_DOMAIN",
        "CSRF_TRUSTED_ORIGINS",
        "CUSTOM",
        "RUN_FINISHED",
    }
