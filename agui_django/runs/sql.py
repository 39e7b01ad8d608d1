"""The statements of every run, as text made once: the ORM would compile each of them anew, for longer than it takes.

Law: the very rows that the ORM writes (a test compares them), on every backend it knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

import orjson
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


M = TypeVar("M", bound=models.Model)

#: Texts that are the same in any quoting.
_SIMPLE = re.compile(r"[\w {}\[\]:,.-]*", re.ASCII)

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
    clock = frozenset([name for name, value in rows[0].items() if value is NOW])
    for start in range(0, len(rows), ROWS):
        some = rows[start : start + ROWS]
        made = _insert(table, tuple(some[0]), clock, len(some))
        execute(connection, made.statement, [value for row in some for value in made.params(row)])


def can_insert_under(alias: str) -> bool:
    """Whether the database does what `insert_under` does in one statement."""
    return connections[alias].vendor in ("sqlite", "postgresql")


def insert_under(
    alias: str, model: type[models.Model], rows: Sequence[Mapping[str, Any]], parent: str, **where: Any
) -> int:
    """Insert those of at most `ROWS` rows whose parent row is as it must be, and lock that until the commit.

    Args:
        alias: the database.
        model: whose table.
        rows: as for `insert`, with all columns; of values that JSON has, and UUIDs.
        parent: the foreign key to the parent row.
        where: what the parent's columns must be.

    Returns:
        How many were inserted.
    """
    connection = connections[alias]
    as_json = connection.vendor == "postgresql"
    # One parameter for all rows, and one statement for any number of them: the driver takes apart what it has not seen.
    made = _insert_under(
        model, alias, connection.vendor, tuple(rows[0]), 0 if as_json else len(rows), parent, tuple(where)
    )
    if as_json:
        params = [orjson.dumps(rows).decode()]
    else:
        params = [made.table.param(name, value) for row in rows for name, value in row.items()]
    params += [made.parents.param(name, value) for name, value in where.items()]
    return int(execute(connection, made.statement, params).rowcount)


def insert_row(alias: str, row: models.Model, **by_clock: Clock) -> None:
    """Insert a new instance as ``save`` would, and give it the key that the database made.

    Args:
        alias: the database.
        row: the instance.
        by_clock: columns that the database's clock fills; the instance keeps what it has.
    """
    values = {name: value for name, value in row.__dict__.items() if name != "_state"}
    key = _insert_one(alias, type(row), values, frozenset(by_clock))
    if key is not None:
        row.pk = key
    row._state.adding = False
    row._state.db = alias


def create(alias: str, model: type[M], values: Mapping[str, Any], *by_clock: str) -> M:
    """Insert a row and make its instance, which costs less than to make an instance and insert that.

    Args:
        alias: the database.
        model: whose table.
        values: by ``attname``; what is left out gets its field's default.
        by_clock: columns that the database's clock fills; the instance has what `values` says.
    """
    table = _table(model, alias, connections[alias].vendor)
    given = {name: values[name] if name in values else default() for name, default in table.defaults.items()}
    # The statement knows what is constant: it takes parameters for the rest only.
    sent = {name: given[name] for name in given if name in values or name not in table.literals}
    key = _insert_one(alias, model, sent, frozenset(by_clock))
    if key is not None:
        given[table.key_name] = key
    return model.from_db(alias, table.names, [given[name] for name in table.names])


def _insert_one(alias: str, model: type[models.Model], values: Mapping[str, Any], clock: frozenset[str]) -> Any:
    """The key that the database made, None where it makes none."""
    connection = connections[alias]
    table = _table(model, alias, connection.vendor)
    returning = table.numbered and connection.vendor == "postgresql"
    made = _insert(table, tuple(values), clock, 1, returning)
    cursor = execute(connection, made.statement, made.params(values))
    if not table.numbered:
        return None
    return cursor.fetchone()[0] if returning else cursor.lastrowid


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
        #: Those of them whose default never changes, as SQL.
        self.literals: dict[str, str] = {}
        self.adapt: dict[str, Callable[[Any], Any]] = {}
        for field in model._meta.local_concrete_fields:
            self.columns[field.attname] = quote(str(field.column))
            target = field.target_field if isinstance(field, models.ForeignKey) else field
            if target.get_internal_type() not in _PLAIN:
                self.adapt[field.attname] = _remembering(partial(field.get_db_prep_save, connection=connection))
            self.defaults[field.attname] = field.get_default
            literal = None if callable(field.default) else _literal(field.get_default(), connection.vendor)
            if literal is not None:
                self.literals[field.attname] = literal
        key = model._meta.pk
        assert key is not None  # noqa: S101 - every model has one
        self.key, self.key_name = self.columns[key.attname], key.attname
        self.names = list(self.columns)
        self.numbered = isinstance(key, models.AutoField)
        if self.numbered:
            del self.defaults[key.attname]
            self.literals.pop(key.attname, None)
        self.now, _ = Query(model).get_compiler(connection=connection).compile(Now())

    def param(self, name: str, value: Any) -> Any:
        """One value as the driver takes it."""
        adapt = self.adapt.get(name)
        if adapt is not None and value is not None:
            return adapt(value)
        if isinstance(value, Enum):
            return value.value
        return value.amount if type(value) is Plus else value


def _remembering(adapt: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same moment is written into several columns."""
    last: tuple[Any, Any] = (None, None)

    def adapted(value: Any) -> Any:
        nonlocal last
        known, text = last
        if known is not value:
            text = adapt(value)
            last = value, text
        return text

    return adapted


def _literal(value: Any, vendor: str) -> str | None:
    """A constant as SQL; None where it had better be a parameter."""
    if value is None:
        return "NULL"
    if type(value) is bool:
        return str(value).upper() if vendor == "postgresql" else str(int(value))
    if type(value) is int:
        return str(value)
    return f"'{value}'" if type(value) is str and _SIMPLE.fullmatch(value) else None


class _Insert:
    """The statement for rows of one shape."""

    def __init__(self, table: _Table, given: frozenset[str], clock: frozenset[str], rows: int, returning: bool) -> None:
        self._table = table
        self._plan: list[tuple[str, Callable[[Any], Any] | None, Callable[[], Any] | None]] = []
        values = []
        for name, default in table.defaults.items():
            if name in clock:
                values.append(table.now)
            elif name not in given and name in table.literals:
                values.append(table.literals[name])
            else:
                values.append("%s")
                self._plan.append((name, table.adapt.get(name), None if name in given else default))
        columns = ", ".join([table.columns[name] for name in table.defaults])
        some = ", ".join([f"({', '.join(values)})"] * rows)
        self.statement = f"INSERT INTO {table.name} ({columns}) VALUES {some}"  # noqa: S608 - our names
        if returning:
            self.statement += f" RETURNING {table.key}"

    def params(self, row: Mapping[str, Any]) -> list[Any]:
        """The parameters of a row."""
        found = []
        for name, adapt, default in self._plan:
            value = row[name] if default is None else default()
            if type(value) in _AS_THEY_ARE and adapt is None:
                found.append(value)
            else:
                found.append(self._table.param(name, value))
        return found


@cache
def _table(model: type[models.Model], alias: str, vendor: str) -> _Table:
    return _Table(model, connections[alias])


@cache
def _insert(
    table: _Table, given: tuple[str, ...], clock: frozenset[str], rows: int, returning: bool = False
) -> _Insert:
    return _Insert(table, frozenset(given), clock, rows, returning)


class _Under(NamedTuple):
    table: _Table
    parents: _Table
    statement: str


@cache
def _insert_under(
    model: type[models.Model],
    alias: str,
    vendor: str,
    given: tuple[str, ...],
    rows: int,
    parent: str,
    where: tuple[str, ...],
) -> _Under:
    key = model._meta.get_field(parent)
    assert isinstance(key, models.ForeignKey)  # noqa: S101 - a mistake of ours, seen by the first call
    table, parents = _table(model, alias, vendor), _table(key.related_model, alias, vendor)
    quote = connections[alias].ops.quote_name
    fields = {field.attname: field for field in model._meta.concrete_fields}
    columns = ", ".join([table.columns[name] for name in given])
    chosen = ", ".join([f"v.{quote(name)}" for name in given])
    tests = " AND ".join([f"p.{parents.columns[name]} = %s" for name in where])
    if vendor == "postgresql":
        kinds = ", ".join([f"{quote(name)} {fields[name].db_type(connections[alias])}" for name in given])
        begin, source, lock = "", f"json_to_recordset(%s::json) AS v ({kinds})", " FOR NO KEY UPDATE OF p"
    else:
        one = ", ".join(["%s"] * len(given))
        names = ", ".join([quote(name) for name in given])
        begin, source, lock = f"WITH v ({names}) AS (VALUES {', '.join([f'({one})'] * rows)}) ", "v", ""
    return _Under(
        table,
        parents,
        # INSERT comes first: the sqlite3 module counts the rows of such statements only.
        f"INSERT INTO {table.name} ({columns}) {begin}SELECT {chosen} FROM {source} "  # noqa: S608 - our names
        f"JOIN {parents.name} p ON p.{parents.key} = v.{quote(key.attname)} WHERE {tests}{lock}",
    )


@cache
def _update(table: _Table, shape: tuple[tuple[str, Any], ...], place: tuple[tuple[str, int], ...]) -> str:
    to = {Clock: table.now, None: "%s"}
    sets = [f"{table.columns[name]} = {to.get(kind, f'{table.columns[name]} + %s')}" for name, kind in shape]
    tests = [
        f"{table.columns[name]} IN ({', '.join(['%s'] * count)})" if count else f"{table.columns[name]} = %s"
        for name, count in place
    ]
    return f"UPDATE {table.name} SET {', '.join(sets)} WHERE {' AND '.join(tests)}"  # noqa: S608 - our names
