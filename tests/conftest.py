"""Fixtures for every test: the engine's life in one process, and the parts a test needs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.parts import require

__all__ = ["agui_runtime", "require"]


@pytest_asyncio.fixture
async def agui_runtime(transactional_db: None) -> AsyncIterator[None]:
    """A database the writer's thread may share; afterwards no run, thread or connection is left of the test."""
    yield
    from agui_django.runs import database, supervisor

    await supervisor.settle()
    await database.shutdown()
