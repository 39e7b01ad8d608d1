from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agui_django import conf
from agui_django.conf import UNSET, Defaults, settings


def test_defaults_of_the_design() -> None:
    assert settings.HISTORY == "verified"
    assert settings.ON_DISCONNECT == "continue"
    assert settings.BUSY == "reject"
    assert settings.OPEN_INTERRUPTS == "reject"
    assert settings.CLIENT_ROLES == ("user", "tool")
    assert settings.FLUSH_INTERVAL == 0.05
    assert settings.WRITE_DEADLINE == 30.0
    assert settings.MAX_BODY == 40 * 1024 * 1024
    assert settings.HEARTBEAT == 15.0
    assert settings.CANCEL_GRACE == 5.0
    assert settings.AUTHENTICATION_CLASSES is None


def test_the_sites_values_count_and_are_read_again(settings: Any) -> None:
    settings.AGUI_DJANGO = {"TIMEOUT": 3, "CLIENT_ROLES": ["user"]}
    assert conf.settings.TIMEOUT == 3
    assert conf.settings.CLIENT_ROLES == ("user",)
    settings.AGUI_DJANGO = {}
    assert conf.settings.TIMEOUT == 600.0


def test_unknown_keys_and_no_dict_do_not_break_reading(settings: Any) -> None:
    settings.AGUI_DJANGO = {"TIMEOUTS": 3}
    assert conf.settings.TIMEOUT == 600.0
    settings.AGUI_DJANGO = ["TIMEOUT"]
    assert conf.settings.TIMEOUT == 600.0
    with pytest.raises(AttributeError):
        _ = conf.settings.TIMEOUTS  # type: ignore[attr-defined]


def test_options_of_an_agent_before_settings(settings: Any) -> None:
    settings.AGUI_DJANGO = {"TIMEOUT": 3, "BUSY": "cancel"}
    entry = SimpleNamespace(options=SimpleNamespace(timeout=None, busy=UNSET))
    assert conf.settings.for_agent(entry, "TIMEOUT") is None
    assert conf.settings.for_agent(entry, "BUSY") == "cancel"


def test_every_setting_is_documented() -> None:
    source = Path(conf.__file__).read_text()
    for field in fields(Defaults):
        assert re.search(rf'\n    {field.name}: .*(?:\n        .*)*(?:\n    \).*)?\n    """', source), field.name
