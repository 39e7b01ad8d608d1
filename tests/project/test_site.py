"""The demo site itself: its page, its production settings."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from django.contrib.auth import get_user_model
from django.http import HttpResponse
from django.test import Client, RequestFactory
from django.urls import reverse

from project.middleware import POLICY, ContentSecurityPolicyMiddleware
from tests.parts import ROOT

INLINE = re.compile(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", re.IGNORECASE)


@pytest.mark.django_db
def test_page_logs_the_demo_user_in(client: Client) -> None:
    ada = get_user_model().objects.create_user("ada")
    page = client.get("/")
    assert page.status_code == 200
    assert client.session["_auth_user_id"] == str(ada.pk)
    assert page["Content-Security-Policy"] == POLICY
    assert not INLINE.search(page.content.decode())


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/", "/admin/login/", "/nowhere", "/agui/health", "/agui"])
def test_every_answer_has_the_policy(client: Client, path: str) -> None:
    policy = client.get(path)["Content-Security-Policy"]
    assert policy == POLICY and "unsafe" not in policy


@pytest.mark.django_db
def test_exceptions_from_the_policy(client: Client) -> None:
    get_user_model().objects.create_user("ada")
    policy = client.get("/copilotkit-demo/")["Content-Security-Policy"]
    assert "default-src 'self';" in policy and "style-src 'self' 'unsafe-inline'" in policy
    assert "script-src" not in policy and policy.count("img-src") == 1
    # What an answer says itself stays.
    own = HttpResponse(headers={"Content-Security-Policy": "default-src 'none'"})
    answered = ContentSecurityPolicyMiddleware(lambda request: own)(RequestFactory().get("/copilotkit-demo/"))
    assert answered["Content-Security-Policy"] == "default-src 'none'"


@pytest.mark.django_db
def test_page_asks_for_a_login_elsewhere(client: Client, settings) -> None:
    get_user_model().objects.create_user("ada")
    address = reverse("chat")  # the site's addresses are made now, while it is a demo
    settings.DEMO = False
    page = client.get(address)
    assert page.status_code == 302
    assert page["Location"].startswith("/admin/login/")
    assert "_auth_user_id" not in client.session


def manage(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AGUI_", "DJANGO_"))}
    return subprocess.run(
        [sys.executable, "manage.py", *arguments], cwd=ROOT, env={**inherited, **environment},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


def test_production_passes_the_deployment_checks() -> None:
    key = "k" + "abcdefghij0123456789" * 3
    done = manage("check", "--deploy", "--fail-level", "WARNING", AGUI_SECRET_KEY=key, AGUI_ALLOWED_HOSTS="example.org")
    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout


def test_production_needs_a_key() -> None:
    done = manage("check")
    assert done.returncode != 0
    assert "AGUI_SECRET_KEY" in done.stderr


def test_agents_that_are_for_the_demo_only() -> None:
    code = "import django; django.setup(); from agui_django.agents.registry import all_agents; " \
        "print(sorted(entry.name for entry in all_agents()))"  # fmt: skip
    names = {}
    for mode, environment in {"demo": {"AGUI_DEBUG": "1"}, "live": {"AGUI_SECRET_KEY": "x" * 60}}.items():
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AGUI_")}
        environment = {**inherited, **environment, "DJANGO_SETTINGS_MODULE": "project.settings"}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        names[mode] = done.stdout.strip()
    live = ["echo", "orders", "plan", "refund", "slow"]
    showcase = ["booking", "cook", "desk", "files", "fragile", "guide", "haiku", "thinker", "weather", "writer"]
    assert names["live"] == str(live)
    assert names["demo"] == str(sorted([*live, *showcase, "script"]))
