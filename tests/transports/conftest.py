"""Users, tokens and run inputs for exchanges with the site."""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rest_framework.authtoken.models import Token

from agui_django.runs.store import ThreadStore
from agui_django.testing import override_agent


@pytest.fixture
def ada(agui_runtime: None, django_user_model: Any) -> Any:
    return django_user_model.objects.create_user("ada", password="lovelace")


@pytest.fixture
def bob(agui_runtime: None, django_user_model: Any) -> Any:
    return django_user_model.objects.create_user("bob", password="babbage")


@pytest.fixture
def token() -> Callable[[Any], dict[str, str]]:
    """Headers of a JSON request of a user."""

    def make(user: Any) -> dict[str, str]:
        key = Token.objects.get_or_create(user=user)[0].key
        return {"Authorization": f"Token {key}", "Content-Type": "application/json"}

    return make


@pytest.fixture
def headers(ada: Any, token: Any) -> dict[str, str]:
    """Ada's."""
    made: dict[str, str] = token(ada)
    return made


@pytest.fixture
def body() -> Callable[..., bytes]:
    """A run input with one new user message."""

    def make(thread_id: str = "t1", text: str = "hello", **members: Any) -> bytes:
        return json.dumps({
            "threadId": thread_id, "runId": uuid.uuid4().hex, "tools": [], "context": [], "forwardedProps": {},
            "messages": [{"id": uuid.uuid4().hex, "role": "user", "content": text}], **members,
        }).encode()  # fmt: skip

    return make


class Gate:
    """An agent that writes a word, waits to be let through, and writes another."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()
        self.calls = 0

    async def run(self, run: Any) -> None:
        self.calls += 1
        self.entered.set()
        async with run.message() as message:
            await message.write("before")
            await self.opened.wait()
            await message.write("after")


@pytest.fixture
def gate(agui_runtime: None) -> Iterator[Gate]:
    """Agent ``gate``."""
    made = Gate()
    with override_agent("gate", made):
        yield made


class Opening:
    """Holds every start in its database thread, until it is let go on."""

    def __init__(self) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()

    def hold(self) -> None:
        """The next start waits."""
        self.entered.clear()
        self.go_on.clear()

    async def begun(self) -> None:
        """Until a start is being opened."""
        assert await asyncio.to_thread(self.entered.wait, 20)


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> Opening:
    """Starts as a slow database opens them."""
    held, real = Opening(), ThreadStore.open_run

    def slow(self: ThreadStore, request: Any) -> Any:
        held.entered.set()
        assert held.go_on.wait(20)
        return real(self, request)

    monkeypatch.setattr(ThreadStore, "open_run", slow)
    return held
