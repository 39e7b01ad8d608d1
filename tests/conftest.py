"""Fixtures for every test: the engine's life in one process, and the parts a test needs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from tests.live import LiveServer, live_server
from tests.parts import require

__all__ = ["agui_runtime", "require"]


@pytest_asyncio.fixture
async def agui_runtime(transactional_db: None) -> AsyncIterator[None]:
    """A database the writer's thread may share; afterwards no run, thread or connection is left of the test."""
    yield
    from agui_django.runs import database, supervisor

    await supervisor.settle()
    await database.shutdown()


@pytest.fixture
def server(agui_runtime: None) -> Iterator[LiveServer]:
    """The demo site behind real HTTP, in this process."""
    from project.asgi import application

    with live_server(application) as running:
        yield running


@pytest.fixture
def ada(transactional_db: None, django_user_model: Any) -> Any:
    """A user."""
    return django_user_model.objects.create_user("ada", password="x")


@pytest.fixture
def bob(transactional_db: None, django_user_model: Any) -> Any:
    """Another user."""
    return django_user_model.objects.create_user("bob", password="x")
