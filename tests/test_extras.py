"""Without its extras the app works; what needs one that is missing says how to install it."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib

import pytest

from tests.parts import ROOT

#: module that needs it -> (package that is missing, its extra)
NEEDS = {
    "agui_django.agents.remote": ("httpx", "remote"),
    "agui_django.client": ("httpx", "remote"),
    "agui_django.agents.pydantic_ai": ("pydantic_ai", "pydantic-ai"),
    "agui_django.testing.pydantic_ai": ("pydantic_ai", "pydantic-ai"),
    "agui_django.agents.langgraph": ("langgraph", "langgraph"),
    "agui_django.testing.langchain": ("langchain_core", "langgraph"),
    "agui_django.routing": ("channels", "channels"),
}
#: What else extras bring.
FURTHER = [
    "channels_redis", "daphne", "celery", "procrastinate", "django_filters", "drf_spectacular", "markdown_it", "nh3",
    "opentelemetry", "agents",
]  # fmt: skip

CODE = """
import asyncio, importlib, json, sys
missing, needs = json.loads(sys.argv[1])
sys.modules.update(dict.fromkeys(missing))
from django.conf import settings
apps = ["contenttypes", "auth", "sessions", "messages", "admin"]
settings.configure(
    INSTALLED_APPS=[*(f"django.contrib.{app}" for app in apps), "rest_framework", "agui_django"],
    ROOT_URLCONF="agui_django.urls", SECRET_KEY="x", USE_TZ=True,
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
import django
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
import agui_django.urls
import agui_django.admin
import agui_django.agents.openai_chat, agui_django.agents.provider_errors
from agui_django.testing import run_agent
async def echo(run):
    await run.say(run.text)
said = asyncio.run(run_agent(echo, "hello")).said
told = {}
for name in needs:
    try:
        importlib.import_module(name)
        told[name] = ""
    except ImportError as error:
        told[name] = str(error)
print(json.dumps([said, told]))
"""


@pytest.fixture(scope="module")
def bare() -> tuple[list[str], dict[str, str]]:
    """What an agent said, and what the modules said, in a process that has none of the packages."""
    missing = sorted({package for package, _ in NEEDS.values()} | set(FURTHER))
    command = [sys.executable, "-c", CODE, json.dumps([missing, list(NEEDS)])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    said, told = json.loads(done.stdout)
    return said, told


def test_the_app_works_without(bare: tuple[list[str], dict[str, str]]) -> None:
    assert bare[0] == ["hello"]


@pytest.mark.parametrize("module", sorted(NEEDS))
def test_what_is_missing_is_told(module: str, bare: tuple[list[str], dict[str, str]]) -> None:
    extra = NEEDS[module][1]
    assert f"pip install 'agui_django[{extra}]'" in bare[1][module]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extra in extras


def test_ranges() -> None:
    """An extra names what it was tried with: a lower bound everywhere, frameworks an upper one, too."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert all(">=" in requirement for each in extras.values() for requirement in each)
    assert all("<" in requirement for name in ("pydantic-ai", "langgraph", "remote") for requirement in extras[name])
