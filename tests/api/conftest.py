"""Callers of the API, and rows for them to see."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Permission
from rest_framework.authtoken.models import Token

from agui_django.models import Interrupt, Message, Run, RunEvents, StateVersion, Thread
from agui_django.protocol.codec import encode
from tests.transports.asgi import Exchange, ask
from tests.transports.conftest import gate

__all__ = ["gate"]

ROOT = "/api/agui"


class Client:
    """Asks the API as a user; nobody: as a stranger."""

    def __init__(self, user: Any = None) -> None:
        self.headers: dict[str, str] = {}
        if user is not None:
            self.headers["Authorization"] = f"Token {Token.objects.get_or_create(user=user)[0].key}"

    def ask(
        self, method: str, path: str, body: Any = None, *, media: str = "application/json", **headers: str
    ) -> Exchange:
        """A whole exchange."""
        sent = {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        content = b""
        if body is not None:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            sent["Content-Type"] = media
        where = path if path.startswith(ROOT) else f"{ROOT}/{path}"
        exchange: Exchange = async_to_sync(ask)(method, where, content, sent)
        return exchange

    def get(self, path: str, status: int = 200, **headers: str) -> Any:
        """The JSON of a GET."""
        exchange = self.ask("GET", path, **headers)
        assert exchange.status == status, b"".join(exchange.chunks)
        return json.loads(b"".join(exchange.chunks))

    def send(self, method: str, path: str, body: Any = None, status: int = 200, **options: Any) -> Any:
        """The JSON of anything else; None where there is no body."""
        exchange = self.ask(method, path, body, **options)
        content = b"".join(exchange.chunks)
        assert exchange.status == status, content
        return json.loads(content) if content else None


@pytest.fixture
def client_of() -> Callable[..., Client]:
    """Makes a client."""
    return Client


@pytest.fixture
def ada(agui_runtime: None, django_user_model: Any) -> Any:
    return django_user_model.objects.create_user("ada", password="x")


@pytest.fixture
def bob(agui_runtime: None, django_user_model: Any) -> Any:
    return django_user_model.objects.create_user("bob", password="x")


@pytest.fixture
def api(ada: Any) -> Client:
    """Ada's client."""
    return Client(ada)


@pytest.fixture
def staff(agui_runtime: None, django_user_model: Any) -> Callable[..., Any]:
    """Makes a member of staff with permissions of this app."""

    def make(*permissions: str, name: str = "kim") -> Any:
        user = django_user_model.objects.create_user(name, password="x", is_staff=True)
        found = Permission.objects.filter(content_type__app_label="agui_django", codename__in=permissions)
        assert found.count() == len(permissions)
        user.user_permissions.set(found)
        return user

    return make


class Rows:
    """Makes rows of a user's thread as runs leave them."""

    def __init__(self, owner: Any, thread_id: str = "t1", **fields: Any) -> None:
        values = {"agent": "echo", "state": '{"a": 1}', "state_version": 1, **fields}
        self.owner = owner
        self.thread = Thread.objects.create(scope=f"user:{owner.pk}", thread_id=thread_id, owner=owner, **values)
        StateVersion.objects.create(thread=self.thread, version=1, state=self.thread.state, origin="agent")

    def run(self, *events: dict[str, Any], **fields: Any) -> Run:
        """A run with its log."""
        address = uuid.uuid4()
        values = {"status": "finished", "run_id": "r1", "agent": self.thread.agent, "user": self.owner, **fields}
        run = Run.objects.create(
            uuid=address, thread=self.thread, digest="", turn=address.hex, input='{"tools":[]}',
            last_seq=len(events), **values,
        )  # fmt: skip
        if events:
            text = "\n".join(encode(event) for event in events)
            RunEvents.objects.create(run=run, first_seq=1, last_seq=len(events), text=text)
        return run

    def message(self, message_id: str, content: str = "hello", role: str = "user", **fields: Any) -> Message:
        """A message at the end."""
        order = self.thread.messages.count() + 1
        wire = encode({"id": message_id, "role": role, "content": content})
        values = {"wire": wire, "search_text": content, **fields}
        return Message.objects.create(thread=self.thread, message_id=message_id, role=role, order=order, **values)

    def interrupt(self, run: Run, interrupt_id: str = "i1", **fields: Any) -> Interrupt:
        """A question that a run ended with."""
        values = {"reason": "input_required", "key": interrupt_id, "message": "ok?", **fields}
        wire = encode({"id": interrupt_id, "reason": values["reason"]})
        return Interrupt.objects.create(thread=self.thread, run=run, interrupt_id=interrupt_id, wire=wire, **values)


@pytest.fixture
def rows() -> type[Rows]:
    """Makes rows."""
    return Rows
