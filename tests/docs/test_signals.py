"""docs/howto/signals.md: its table is whole, and its recipes do what the page says."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from django import VERSION
from django.core.cache import cache
from django.dispatch import Signal

from agui_django import RunContext, signals
from agui_django.models import Run
from agui_django.runs import supervisor
from agui_django.runs.start import astart_run
from agui_django.testing import override_agent
from tests.parts import ROOT

PAGE = (ROOT / "docs" / "howto" / "signals.md").read_text()
WEBHOOK, COST = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def executed(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "shop.receivers"}
    exec(code, names)
    return names


def test_every_signal_is_in_the_table() -> None:
    there = {name for name, value in vars(signals).items() if isinstance(value, Signal)}
    assert set(re.findall(r"^\| `(\w+)` \| `\w+` \|", PAGE, re.MULTILINE)) == there


class Service(HTTPServer):
    """Who is called."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Called)
        self.status = 200
        self.calls: list[tuple[dict[str, str], bytes]] = []


class Called(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        self.server.calls.append((dict(self.headers), self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


@pytest.mark.asyncio
async def test_a_webhook(agui_runtime: None, ada: Any, service: Service, settings: Any) -> None:
    settings.WEBHOOK_SECRET = "shared"
    settings.WEBHOOK_URL = f"http://127.0.0.1:{service.server_port}/hook"
    receiver = executed(WEBHOOK)["call_webhook"]

    async def fails(run: RunContext) -> None:
        raise OSError("secret")

    try:
        with override_agent("worker", fails):
            fine = await astart_run("echo", "t", "a secret", ada)
            await supervisor.settle()
            service.status = 500  # is logged, and changes nothing
            failed = await astart_run("worker", "u", "a secret", ada)
            await supervisor.settle()
    finally:
        signals.run_finished.disconnect(receiver)
    assert [json.loads(body) for _, body in service.calls] == [
        {"run": str(fine.pk), "thread": fine.thread_id, "agent": "echo", "status": "finished", "error": ""},
        {
            "run": str(failed.pk), "thread": failed.thread_id, "agent": "worker", "status": "failed",
            "error": "agent_exception",
        },
    ]  # fmt: skip
    for headers, body in service.calls:
        assert headers["X-Signature"] == "sha256=" + hmac.new(b"shared", body, hashlib.sha256).hexdigest()
        assert headers["Content-Type"] == "application/json"


@pytest.mark.asyncio
@pytest.mark.filterwarnings("ignore:.*default mailer")  # of coming Djangos, for sites without MAILERS
async def test_a_cost_alert(agui_runtime: None, ada: Any, bob: Any, mailoutbox: list[Any], settings: Any) -> None:
    price = {"input": 3, "output": 15, "currency": "USD", "date": "2026-11-01"}
    settings.AGUI_DJANGO = {**settings.AGUI_DJANGO, "PRICES": {"acme-large": price}}
    settings.ADMINS = ["kim@example.org"] if VERSION >= (6,) else [("Kim", "kim@example.org")]
    receiver = executed(COST)["alert_on_cost"]
    cache.clear()

    async def spends(run: RunContext) -> None:
        run.usage(model="acme-large", input_tokens=500_000, output_tokens=100_000)  # 1.5 + 1.5 dollars

    try:
        with override_agent("worker", spends):
            for user in (ada, bob, ada):
                await astart_run("worker", None, "hi", user)
                await supervisor.settle()
                assert len(mailoutbox) == (await Run.objects.filter(user=ada).acount() == 2)
            await astart_run("worker", None, "hi", ada)
            await astart_run("worker", None, "hi")
            await supervisor.settle()
    finally:
        signals.run_finished.disconnect(receiver)
        cache.clear()
    (mail,) = mailoutbox
    assert mail.body == f"User {ada.pk} is at $6.00 today, last by the agent worker."
    assert mail.to == ["kim@example.org"]


def test_the_mail_is_where_the_link_says() -> None:
    page = (ROOT / "docs" / "howto" / "interrupts.md").read_text()
    assert "(interrupts.md#signals)" in PAGE
    assert "@receiver(interrupt_opened)" in page.partition("## Signals")[2]
