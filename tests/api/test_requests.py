"""How requests are let in and how errors are told: as on all other addresses of the app."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.cache import cache
from django.test import Client as Browser
from rest_framework.exceptions import APIException, MethodNotAllowed, PermissionDenied, Throttled, ValidationError
from rest_framework.settings import api_settings

from agui_django.api.base import told
from agui_django.api.routes import urlpatterns
from agui_django.models import Thread
from tests.api.conftest import ROOT, Client, Rows
from tests.transports.asgi import ask, error_of

pytestmark = pytest.mark.django_db(transaction=True)


def test_both_with_and_without_a_slash(api: Client, ada: Any) -> None:
    key = Rows(ada).thread.pk
    for path in ("threads", "agents", "usage", "runs", f"threads/{key}", f"threads/{key}/state/versions/1"):
        assert api.get(path) == api.get(f"{path}/"), path


def test_other_methods(api: Client, ada: Any) -> None:
    key = Rows(ada).thread.pk
    for method, path, allowed in (
        ("POST", "threads", "GET, HEAD"),
        ("PUT", f"threads/{key}", "GET, HEAD, PATCH, DELETE"),
        ("OPTIONS", "threads", "GET, HEAD"),
        ("TRACE", "threads", "GET, HEAD"),
        ("GET", f"threads/{key}/fork", "POST"),
        ("FOO", f"messages/{key}/feedback", "GET, HEAD, PUT, DELETE"),
    ):
        exchange = api.ask(method, path)
        assert (exchange.status, exchange.headers["allow"]) == (405, allowed), (method, path)
        assert error_of(exchange)["code"] == "method_not_allowed"


def test_head(api: Client) -> None:
    exchange = api.ask("HEAD", "threads")  # servers leave the body out
    assert (exchange.status, exchange.headers["content-type"]) == (200, "application/json")


@pytest.mark.parametrize(
    ("body", "media", "status", "code"),
    [
        (b"{", "application/json", 400, "invalid_json"),
        (b"", "application/json", 400, "invalid_json"),
        (b'{"title": "\xff"}', "application/json", 400, "invalid_json"),
        (b'{"title": "x"}', "text/plain", 415, "unsupported_media_type"),
        (b"title=x", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
        (b"[" * 100_000, "application/json", 400, "invalid_json"),
        (b'{"title": "' + b"x" * 2000 + b'"}', "application/json", 413, "body_too_large"),
    ],
)
def test_bodies(api: Client, ada: Any, settings: Any, body: bytes, media: str, status: int, code: str) -> None:
    settings.AGUI_DJANGO = {**settings.AGUI_DJANGO, "MAX_BODY": 1024 if status == 413 else 1024 * 1024}
    key = Rows(ada).thread.pk
    exchange = api.ask("PATCH", f"threads/{key}", body, media=media)
    assert exchange.status == status
    assert error_of(exchange)["code"] == code
    # Who may not enter is not told what is wrong with it.
    assert Client().ask("PATCH", f"threads/{key}", body, media=media).status == 401
    assert Thread.objects.get().title == ""


def test_a_body_that_nobody_reads(api: Client, ada: Any) -> None:
    run = Rows(ada).run()
    assert api.ask("POST", f"runs/{run.pk}/cancel", {}).status == 200
    assert api.ask("POST", f"runs/{run.pk}/cancel", b"x=1", media="application/x-www-form-urlencoded").status == 415


def test_sessions_need_a_csrf_token(ada: Any) -> None:
    browser = Browser()
    browser.force_login(ada)
    cookies = f"sessionid={browser.cookies['sessionid'].value}; csrftoken={'a' * 32}"
    path = f"{ROOT}/threads/{Rows(ada).thread.pk}"
    headers = {"Cookie": cookies, "Content-Type": "application/json"}

    def send(**more: str) -> Any:
        sent = {**headers, **{name.replace("_", "-"): value for name, value in more.items()}}
        return async_to_sync(ask)("PATCH", path, b'{"title":"x"}', sent)

    assert (send().status, error_of(send())["code"]) == (403, "permission_denied")
    assert send(X_CSRFToken="a" * 32).status == 200
    assert async_to_sync(ask)("GET", path, b"", headers).status == 200


def test_strangers_are_challenged_as_elsewhere(ada: Any) -> None:
    mine = Client().ask("GET", "threads")
    theirs = async_to_sync(ask)("GET", "/agui/")
    assert (mine.status, mine.headers["www-authenticate"]) == (401, theirs.headers["www-authenticate"])
    bad = async_to_sync(ask)("GET", f"{ROOT}/threads", b"", {"Authorization": "Token secret"})
    assert (bad.status, error_of(bad)["code"]) == (401, "not_authenticated")
    assert b"secret" not in b"".join(bad.chunks)


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets rates as REST_FRAMEWORK does."""

    def put(**values: str) -> None:
        monkeypatch.setattr(api_settings, "DEFAULT_THROTTLE_RATES", values, raising=False)

    cache.clear()
    yield put
    cache.clear()


def test_throttles(api: Client, ada: Any, bob: Any, rates: Any) -> None:
    run = Rows(ada).run()
    for _ in range(5):
        assert api.ask("GET", "threads").status == 200
    rates(agui_reads="2/min", agui_runs="1/min")
    assert [api.ask("GET", "threads").status for _ in range(3)] == [200, 200, 429]
    exchange = api.ask("GET", "runs")
    assert (exchange.status, error_of(exchange)["code"]) == (429, "too_many_requests")
    assert 1 <= int(exchange.headers["retry-after"]) <= 60
    assert [api.ask("POST", f"runs/{run.pk}/cancel").status for _ in range(2)] == [200, 429]
    assert Client(bob).ask("GET", "threads").status == 200


def test_errors_of_rest_framework_are_told_as_ours() -> None:
    assert told(Throttled(wait=2.2)).extra == {"retryAfter": 3}
    errors = (Throttled(), PermissionDenied("x"), ValidationError("x"), MethodNotAllowed("x"), APIException("x"))
    assert [told(error).status for error in errors] == [429, 403, 400, 400, 500]
    assert "secret" not in str(told(PermissionDenied("secret"))) + str(told(ValidationError("secret")))


def test_a_site_with_its_own_rest_framework_settings(api: Client, ada: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Renderers, permissions, versions and pages of other APIs of the site do not count here."""
    from rest_framework.permissions import IsAdminUser
    from rest_framework.renderers import BrowsableAPIRenderer

    Rows(ada)
    monkeypatch.setattr(api_settings, "DEFAULT_PERMISSION_CLASSES", [IsAdminUser], raising=False)
    monkeypatch.setattr(api_settings, "DEFAULT_RENDERER_CLASSES", [BrowsableAPIRenderer], raising=False)
    assert len(api.get("threads", Accept="text/html")["results"]) == 1


def test_a_failure_is_not_told(api: Client, ada: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from agui_django.api import rows

    def broken(*_: Any) -> Any:
        raise RuntimeError("secret")

    monkeypatch.setattr(rows, "threads", broken)
    exchange = api.ask("GET", "threads")
    assert (exchange.status, error_of(exchange)["code"]) == (500, "internal_error")
    assert b"secret" not in b"".join(exchange.chunks)


def test_without_an_asgi_server(ada: Any) -> None:
    browser = Browser()
    browser.force_login(ada)
    answer = browser.get(f"{ROOT}/threads")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "asgi_required")


def test_no_view_runs_in_a_requests_transaction() -> None:
    for pattern in urlpatterns:
        assert pattern.callback._non_atomic_requests == {"default"}
        assert pattern.callback.csrf_exempt
        assert pattern.callback.login_required is False
