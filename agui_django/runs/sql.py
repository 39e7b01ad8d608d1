"""The statements of every run, as text made once: the ORM would compile each of them anew, for longer than it takes.

Law: the very rows that the ORM writes (a test compares them), on every backend it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from typing import Any

from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.functions import Now
from django.db.models.sql import Query

from agui_django.statements import execute


class Clock(Enum):
    """`NOW` as a value: the database's clock."""

    NOW = "now"


NOW = Clock.NOW

#: Rows in one statement: SQLite takes a limited number of parameters.
ROWS = 100

#: Kinds of columns whose values drivers take as they are.
_PLAIN = {
    "AutoField", "BigAutoField", "BigIntegerField", "BooleanField", "CharField", "IntegerField", "SmallAutoField",
    "PositiveBigIntegerField", "PositiveIntegerField", "PositiveSmallIntegerField", "TextField",
}  # fmt: skip


@dataclass(frozen=True)
class Plus:
    """Add to a column's value."""

    amount: int


_SPECIAL = frozenset({Clock, Plus})
#: Types whose values need no look.
_AS_THEY_ARE = frozenset({str, int, bool, type(None)})


def insert(alias: str, model: type[models.Model], rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows; a column that a row leaves out gets its field's default.

    Args:
        alias: the database.
        model: whose table.
        rows: column values by ``attname``; all with the same keys.
    """
    if not rows:
        return
    connection = connections[alias]
    table = _table(model, alias, connection.vendor)
    for start in range(0, len(rows), ROWS):
        some = rows[start : start + ROWS]
        params = [value for row in some for value in table.params(row)]
        execute(connection, _insert(table, len(some), _by_clock(some[0])), params)


def insert_row(alias: str, row: models.Model, **by_clock: Clock) -> None:
    """Insert a new instance as ``save`` would, and give it the key that the database made.

    Args:
        alias: the database.
        row: the instance.
        by_clock: columns that the database's clock fills; the instance keeps what it has.
    """
    model, connection = type(row), connections[alias]
    table = _table(model, alias, connection.vendor)
    statement = _insert(table, 1, frozenset(by_clock), table.numbered and connection.vendor == "postgresql")
    cursor = execute(connection, statement, table.params({**row.__dict__, **by_clock}))
    if table.numbered:
        row.pk = cursor.fetchone()[0] if connection.vendor == "postgresql" else cursor.lastrowid
    row._state.adding = False
    row._state.db = alias


def update(alias: str, model: type[models.Model], values: Mapping[str, Any], **where: Any) -> int:
    """Update the rows that match; a list in ``where`` means any of it. Returns how many."""
    connection = connections[alias]
    table = _table(model, alias, connection.vendor)
    shape = tuple([(name, type(value) if type(value) in _SPECIAL else None) for name, value in values.items()])
    place = tuple([(name, len(value) if isinstance(value, list) else 0) for name, value in where.items()])
    params = [table.param(name, value) for name, value in values.items() if value is not NOW]
    for name, value in where.items():
        wanted = value if isinstance(value, list) else [value]
        params += [table.param(name, item) for item in wanted]
    return int(execute(connection, _update(table, shape, place), params).rowcount)


class _Table:
    """Names and conversions of one table on one backend."""

    def __init__(self, model: type[models.Model], connection: BaseDatabaseWrapper) -> None:
        quote = connection.ops.quote_name
        self.name = quote(model._meta.db_table)
        self.columns: dict[str, str] = {}
        #: The columns of an insert, and what makes the value of one that a row leaves out.
        self.defaults: dict[str, Callable[[], Any]] = {}
        self._adapt: dict[str, Callable[[Any], Any]] = {}
        for field in model._meta.local_concrete_fields:
            self.columns[field.attname] = quote(str(field.column))
            target = field.target_field if isinstance(field, models.ForeignKey) else field
            if target.get_internal_type() not in _PLAIN:
                self._adapt[field.attname] = partial(field.get_db_prep_save, connection=connection)
            self.defaults[field.attname] = field.get_default
        key = model._meta.pk
        assert key is not None  # noqa: S101 - every model has one
        self.key = self.columns[key.attname]
        self.numbered = isinstance(key, models.AutoField)
        if self.numbered:
            del self.defaults[key.attname]
        self.now, _ = Query(model).get_compiler(connection=connection).compile(Now())

    def params(self, row: Mapping[str, Any]) -> list[Any]:
        """The parameters of a row, in the table's order."""
        found = []
        for name, default in self.defaults.items():
            value = row[name] if name in row else default()
            if type(value) in _AS_THEY_ARE and name not in self._adapt:
                found.append(value)
            elif value is not NOW:
                found.append(self.param(name, value))
        return found

    def param(self, name: str, value: Any) -> Any:
        """One value as the driver takes it."""
        adapt = self._adapt.get(name)
        if adapt is not None and value is not None:
            return adapt(value)
        if isinstance(value, Enum):
            return value.value
        return value.amount if type(value) is Plus else value


@cache
def _table(model: type[models.Model], alias: str, vendor: str) -> _Table:
    return _Table(model, connections[alias])


def _by_clock(row: Mapping[str, Any]) -> frozenset[str]:
    return frozenset([name for name, value in row.items() if value is NOW])


@cache
def _insert(table: _Table, rows: int, by_clock: frozenset[str], returning: bool = False) -> str:
    values = ", ".join([table.now if name in by_clock else "%s" for name in table.defaults])
    columns = ", ".join([table.columns[name] for name in table.defaults])
    key = f" RETURNING {table.key}" if returning else ""
    return f"INSERT INTO {table.name} ({columns}) VALUES {', '.join([f'({values})'] * rows)}{key}"  # noqa: S608 - our names


@cache
def _update(table: _Table, shape: tuple[tuple[str, Any], ...], place: tuple[tuple[str, int], ...]) -> str:
    to = {Clock: table.now, None: "%s"}
    sets = [f"{table.columns[name]} = {to.get(kind, f'{table.columns[name]} + %s')}" for name, kind in shape]
    tests = [
        f"{table.columns[name]} IN ({', '.join(['%s'] * count)})" if count else f"{table.columns[name]} = %s"
        for name, count in place
    ]
    return f"UPDATE {table.name} SET {', '.join(sets)} WHERE {' AND '.join(tests)}"  # noqa: S608 - our names
