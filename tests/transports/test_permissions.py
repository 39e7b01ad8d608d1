"""Every address of a thread below the site's prefix, as a stranger, the owner, another user, and staff.

The list of addresses comes from the URLconf: one without a row here fails.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Permission
from django.core.files.base import ContentFile
from django.core.files.storage import storages

from agui_django.access import AccessPolicy
from agui_django.models import Attachment
from agui_django.urls import urlpatterns
from tests.api.conftest import Rows
from tests.transports.asgi import Exchange, ask

ALL = ("view_thread", "view_run", "view_runevents", "view_message", "change_run", "cancel_run", "view_attachment")


class Row(NamedTuple):
    """An address, and the permissions of which each one alone lets staff beyond their own scope."""

    method: str
    path: str
    one_of: tuple[str, ...] = ()


MATRIX: dict[str, Row] = {
    # Who looks at others' runs, or stops them, does so by the REST API or in the admin.
    "run-events": Row("GET", "runs/{run}/events"),
    "run-cancel": Row("POST", "runs/{run}/cancel"),
    "thread-events": Row("GET", "threads/events?threadId={thread}&until=idle"),
    # What they read there refers to files by this address.
    "attachment": Row("GET", "attachments/{file}", ("view_attachment", "view_message", "view_content")),
}
#: Nobody's: of the site, not of a thread; and the one that starts runs, in the scope of whoever asks.
APART = {"index", "health", "agent", "unknown"}


@pytest.fixture
def ids(ada: Any, settings: Any, tmp_path: Path) -> dict[str, Any]:
    """A thread of ada's with one of everything."""
    backend = "django.core.files.storage.FileSystemStorage"
    settings.STORAGES = {**settings.STORAGES, "files": {"BACKEND": backend, "OPTIONS": {"location": str(tmp_path)}}}
    settings.AGUI_DJANGO = {"ATTACHMENT_STORAGE": "files"}
    rows = Rows(ada, "t1")
    run = rows.run({"type": "RUN_STARTED"}, {"type": "RUN_FINISHED"})
    rows.message("m1", run=run)
    name = storages["files"].save("one", ContentFile(b"bytes"))
    file = Attachment.objects.create(
        thread=rows.thread, name=name, media_type="image/png", size=5, digest=uuid.uuid4().hex
    )
    return {"run": run.pk, "thread": "t1", "file": file.pk}


@pytest.fixture
def kim(bob: Any) -> Callable[..., Any]:
    """Makes bob staff, with permissions of this app; returns him."""

    def make(*names: str, is_staff: bool = True) -> Any:
        found = Permission.objects.filter(content_type__app_label="agui_django", codename__in=names)
        assert found.count() == len(names)
        bob.user_permissions.set(found)
        bob.is_staff = is_staff
        bob.save()
        return bob

    return make


def asked(row: Row, ids: dict[str, Any], headers: dict[str, str]) -> Exchange:
    exchange: Exchange = async_to_sync(ask)(row.method, f"/agui/{row.path.format(**ids)}", b"", headers)
    return exchange


def refused(exchange: Exchange) -> tuple[int, str]:
    return exchange.status, json.loads(b"".join(exchange.chunks))["error"]["code"]


def test_every_address_is_in_the_matrix() -> None:
    assert {pattern.name for pattern in urlpatterns} == set(MATRIX) | APART


@pytest.mark.parametrize("name", sorted(MATRIX))
def test_the_matrix(name: str, ids: dict[str, Any], ada: Any, kim: Any, token: Any) -> None:
    row = MATRIX[name]
    hidden = (404, "not_found")
    stranger = {"Content-Type": "application/json"}
    assert refused(asked(row, ids, stranger)) == (401, "not_authenticated")
    assert asked(row, ids, token(ada)).status == 200
    other = token(kim(is_staff=False))
    assert refused(asked(row, ids, other)) == hidden
    nothing = {"run": uuid.uuid4(), "file": uuid.uuid4(), "thread": "none"}
    assert refused(asked(row, nothing, other)) == hidden
    for names in ((), tuple(each for each in ALL if each not in row.one_of)):
        kim(*names)
        assert refused(asked(row, ids, other)) == hidden, names
    for permission in row.one_of:
        kim(permission)
        assert asked(row, ids, other).status == 200, permission
        kim(permission, is_staff=False)
        assert refused(asked(row, ids, other)) == hidden, permission


def test_a_site_says_who_reads_beyond_their_scope(
    ids: dict[str, Any], bob: Any, token: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AccessPolicy, "beyond_scope", lambda self, user, permission: user.username == "bob")
    exchange = asked(MATRIX["attachment"], ids, token(bob))
    assert (exchange.status, b"".join(exchange.chunks)) == (200, b"bytes")
    # What the policy hides of their own scope is no matter of others' scopes.
    monkeypatch.setattr(AccessPolicy, "may_see", lambda self, user, run: False)
    assert asked(MATRIX["attachment"], ids, token(bob)).status == 200
