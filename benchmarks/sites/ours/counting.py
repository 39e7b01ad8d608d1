"""Counts every statement that goes through any of Django's database connections of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from django.db import connections
from django.db.backends.signals import connection_created

_lock = threading.Lock()
_statements = 0


def total() -> int:
    """Return the number of statements so far (BEGIN and COMMIT are not statements of a cursor)."""
    return _statements


def switch_on() -> None:
    """Count from now on, in all threads."""
    connection_created.connect(_watch, dispatch_uid="benchmarks.counting")
    for connection in connections.all(initialized_only=True):
        _watch(None, connection)


def _watch(sender: Any, connection: Any, **kwargs: Any) -> None:
    if _count not in connection.execute_wrappers:
        connection.execute_wrappers.append(_count)


def _count(execute: Callable[..., Any], statement: Any, params: Any, many: bool, context: Any) -> Any:
    global _statements
    # SQLite's BEGIN goes through a cursor, PostgreSQL's does not: neither counts.
    if not str(statement).startswith("BEGIN"):
        with _lock:
            _statements += 1
    return execute(statement, params, many, context)
