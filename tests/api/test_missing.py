"""Without the packages of the extra: everything else works, and a check says what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.parts import ROOT

SCRIPT = """
import os, sys
sys.modules["drf_spectacular"] = sys.modules["django_filters"] = None
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name in ("drf_spectacular", "django_filters") else real(name, *a)
import django
from django.conf import settings
django.setup()
from django.core.checks import run_checks
found = [(each.id, each.msg) for each in run_checks() if each.id.startswith("agui_django.E")]
print(found)
from django.test import AsyncClient
import asyncio, logging
logging.disable()
async def ask():
    client = AsyncClient(raise_request_exception=False)
    answer = await client.get("/api/agui/threads")
    print(answer.status_code, answer.json()["error"]["code"])
    print((await client.get("/agui/health")).status_code)
asyncio.run(ask())
"""


def test_the_site_runs_and_the_check_names_them(tmp_path: Path) -> None:
    settings = tmp_path / "bare_settings.py"
    settings.write_text(
        "from tests.settings import *\n"
        "INSTALLED_APPS = [app for app in INSTALLED_APPS if app not in ('drf_spectacular', 'django_filters')]\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        env={"DJANGO_SETTINGS_MODULE": "bare_settings", "PYTHONPATH": f"{tmp_path}:{ROOT}", "AGUI_DEBUG": "1",
             "PATH": "/usr/bin:/bin", "AGUI_DATABASE_NAME": str(tmp_path / "x.sqlite3")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check, answer, health = done.stdout.splitlines()
    assert "agui_django.E012" in check
    assert "django-filter and drf-spectacular cannot be imported" in check
    assert answer == "500 internal_error"
    assert health == "200"
