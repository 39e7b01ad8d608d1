"""Fixtures for every test: the engine's life in one process, and the parts a test needs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from tests.live import LiveServer, live_server
from tests.parts import require

__all__ = ["require"]

pytest_plugins = ["agui_django.testing.fixtures"]


#: Seconds that a test may take from which on its file counts as long.
LONG = 150


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long begin first: with several processes, the last of them ends alone otherwise."""

    def late(item: pytest.Item) -> bool:
        timeout = item.get_closest_marker("timeout")
        return not (
            item.get_closest_marker("slow")
            or item.get_closest_marker("browser")
            or (timeout is not None and timeout.args and timeout.args[0] >= LONG)
        )

    long_files = {item.path for item in items if not late(item)}
    items.sort(key=lambda item: item.path not in long_files)


#: Every connection that was opened in this process, and its thread.
_opened: list[tuple[BaseDatabaseWrapper, threading.Thread]] = []


@connection_created.connect
def _note(connection: BaseDatabaseWrapper, **_: Any) -> None:
    _opened.append((connection, threading.current_thread()))


@pytest.fixture(autouse=True)
def _closed_connections() -> Iterator[None]:
    """No thread of ours ends with an open connection; what a test's own threads left open is closed.

    Left to the garbage collector, it would be told (Python 3.13) in whichever test that happens to run in.
    """
    yield
    ended = [entry for entry in _opened if entry[0].connection is not None and not entry[1].is_alive()]
    _opened[:] = [entry for entry in _opened if entry[0].connection is not None and entry[1].is_alive()]
    for connection, _ in ended:
        connection.inc_thread_sharing()
        connection.close()
    assert [thread.name for _, thread in ended if thread.name.startswith("agui-")] == []


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
