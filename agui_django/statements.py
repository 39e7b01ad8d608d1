"""Statements that are compiled once: the ORM would do it anew for each query, for longer than most of them take.

Law: the very rows that the ORM reads (a test compares them), seen by whoever looks on as any other statement.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from sqlite3 import Cursor as SQLiteCursor
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.sql.compiler import SQLCompiler

M = TypeVar("M", bound=models.Model)

_PLACE = re.compile(r"(?<!%)%s")

#: The cursor of each connection, and the driver's connection that it belongs to.
_cursors: WeakKeyDictionary[BaseDatabaseWrapper, tuple[Any, Any]] = WeakKeyDictionary()


def execute(connection: BaseDatabaseWrapper, statement: str, params: Sequence[Any]) -> Any:
    """Execute a statement; gives the cursor, which is good until the next one of this connection: read all of it.

    What is saved is a new cursor for each statement, and Django's own way to the driver's while nobody looks on.
    """
    driver, cursor = _cursors.get(connection, (None, None))
    if driver is None or driver is not connection.connection or connection.queries_logged:
        cursor = connection.cursor()
        if not connection.queries_logged:
            if connection.vendor == "postgresql":
                cursor = _binding(connection, cursor)
            _cursors[connection] = connection.connection, cursor
    if connection.queries_logged or connection.execute_wrappers:
        cursor.execute(statement, params)
        return cursor
    connection.validate_no_broken_transaction()
    with connection.wrap_database_errors:
        if connection.vendor == "sqlite":
            SQLiteCursor.execute(cursor.cursor, _question_marks(statement), params)
        else:
            cursor.cursor.execute(statement, params)
    return cursor


def _binding(connection: Any, cursor: Any) -> Any:
    """A cursor whose parameters travel beside the statement: Django's writes them into it, in Python and slowly.

    Nothing is prepared beyond one execution unless the site's ``prepare_threshold`` says so: a pooler may be between.
    """
    base: Any = import_module("django.db.backends.postgresql.base")
    if not base.is_psycopg3:
        return cursor
    loader = connection.connection.adapters.get_loader(base.TIMESTAMPTZ_OID, base.Format.TEXT)
    if loader.timezone != connection.timezone:  # moments would be read in another time zone
        return cursor
    return connection.make_cursor(base.ServerBindingCursor(connection.connection))


@cache
def _question_marks(statement: str) -> str:
    """A statement as SQLite takes it."""
    return _PLACE.sub("?", statement).replace("%%", "%")


class _Compiled(NamedTuple):
    statement: str
    compiler: SQLCompiler
    converters: dict[int, tuple[list[Any], Any]]
    names: list[str]
    related: list[str]


class Select(Generic[M]):
    """A query of whole rows; what it is asked for are its parameters.

    Args:
        query: makes the query for a database, with any value in the place of each parameter.
        related: the foreign key that it joins with ``select_related``, if any; it is never null.
    """

    def __init__(self, query: Callable[[str], models.QuerySet[M]], *, related: Any = None) -> None:
        self._query = query
        self._related = related
        self._compiled: dict[tuple[str, str], _Compiled] = {}
        self._model: type[M] | None = None

    def __call__(self, alias: str, *params: Any) -> list[M]:
        """The rows.

        Args:
            alias: the database.
            params: the values, in the statement's order.
        """
        connection = connections[alias]
        made = self._compiled.get((alias, connection.vendor))
        if made is None:
            made = self._compiled[alias, connection.vendor] = self._compile(alias, len(params))
        rows = execute(connection, made.statement, params).fetchall()
        if not rows:
            return []
        if made.converters:
            rows = made.compiler.apply_converters(rows, made.converters)
        model, count = self._model, len(made.names)
        assert model is not None  # noqa: S101 - it is compiled
        found = []
        for row in rows:
            instance = model.from_db(alias, made.names, row[:count])
            if self._related is not None:
                other = self._related.related_model.from_db(alias, made.related, row[count:])
                self._related.set_cached_value(instance, other)
            found.append(instance)
        return found

    def _compile(self, alias: str, count: int) -> _Compiled:
        query = self._query(alias)
        compiler = query.query.get_compiler(alias)
        statement, params = compiler.as_sql()
        assert len(params) == count  # noqa: S101 - a mistake of ours, seen by the first call
        self._model = query.model
        fields = list(query.model._meta.concrete_fields)
        others = [] if self._related is None else list(self._related.related_model._meta.concrete_fields)
        converters = compiler.get_converters([field.cached_col for field in [*fields, *others]])
        return _Compiled(
            str(statement), compiler, converters, [each.attname for each in fields], [each.attname for each in others]
        )
