"""docs/howto/testing.md, followed literally: a site of its own, whose tests are the page's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.parts import ROOT

PAGE = (ROOT / "docs" / "howto" / "testing.md").read_text()
REFUND, PLUGIN, HTTP, OVERRIDE, MODEL = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)

SETTINGS = """
SECRET_KEY = "x"
USE_TZ = True
ROOT_URLCONF = "urls"
INSTALLED_APPS = [
    "django.contrib.contenttypes", "django.contrib.auth", "django.contrib.sessions", "rest_framework", "agui_django",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "site.sqlite3", "TEST": {"NAME": "test.sqlite3"}}
}
"""
INI = """[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
DJANGO_SETTINGS_MODULE = settings
pythonpath = .
filterwarnings = error
"""
URLS = """
from django.urls import include, path
urlpatterns = [path("assistant/", include("agui_django.urls"))]
"""
AGENTS = """
import pytest

@pytest.fixture
def ada():
    return "ada"

async def refund(run):
    await run.say("Let me check.", key="intro")
    decision = run.interrupt("refund", message="Refund?")
    await run.say("Refunded." if decision["approved"] else "No.")

"""
SCRIPTED = """
    import asyncio
    from agui_django import get_agent
    from agui_django.testing import run_agent
    r = asyncio.run(run_agent("support"))
    assert r.said == ["Hello"] and r.error["code"] == "agent_exception"
"""
RULES = """
import pytest
from agui_django.testing import assert_valid_run

async def test_the_other_fixtures(agui_run):
    async def says(run):
        await run.say(run.text)
    assert (await agui_run(says, "hi")).said == ["hi"]
    with pytest.raises(AssertionError, match="beginning|RUN_STARTED"):
        assert_valid_run([{"type": "RUN_FINISHED", "threadId": "t", "runId": "r"}])

async def test_nobody_is_let_in(agui_override, agui_post):
    async def says(run):
        await run.say(run.text)
    agui_override("closed", says)
    with pytest.raises(AssertionError, match="40[13]"):
        await agui_post("closed", "hi")
"""


def test_the_page(tmp_path: Path) -> None:
    with_body = OVERRIDE.replace("    ...\n", SCRIPTED)
    scripted = "def test_scripted():\n" + "".join(f"    {line}\n" for line in with_body.splitlines())
    files = {
        "settings.py": SETTINGS,
        "urls.py": URLS,
        "conftest.py": PLUGIN,
        "test_refund.py": AGENTS + REFUND,
        "test_http.py": HTTP,
        "test_scripted.py": scripted,
        "test_model.py": MODEL,
        "test_rules.py": RULES,
        "pytest.ini": INI,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AGUI_", "DJANGO_", "PYTEST_"))}
    env = {**kept, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=110, check=False)
    assert "6 passed" in done.stdout, done.stdout + done.stderr


def test_every_name_is_there() -> None:
    """What the page names of a result, a run has; the fixtures are those of the table."""
    from agui_django.testing import AgentRun, fixtures

    text = PAGE.split("The result has ")[1].split("`r.answer_frontend")[0]
    for name in re.findall(r"`\.(\w+)`", text):
        assert hasattr(AgentRun, name) or name in AgentRun.__annotations__, name
    table = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.M))
    assert table == {name for name in vars(fixtures) if name.startswith("agui_") and name != "agui_django"}
