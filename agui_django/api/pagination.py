"""Pages behind a cursor: rows after (or before) a row, by a column and the key.

Law: what is inserted meanwhile moves no page; a page costs its own rows, wherever it is; a cursor only says a place
in an order, so a forged one shows nothing that its sender could not see.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any, Generic, TypeVar

from django.core.exceptions import ValidationError
from django.db.models import Model, Q, QuerySet
from django.http import QueryDict
from django.utils.dateparse import parse_datetime

from agui_django.protocol.errors import InvalidCursor, InvalidInput

M = TypeVar("M", bound=Model)

LIMIT, MOST = 50, 200
#: Longer cursors are none of ours.
LONGEST = 400


@dataclass(frozen=True)
class Page(Generic[M]):
    """Rows, and the queries of the pages around them."""

    rows: list[M]
    next: str | None
    previous: str | None


@dataclass(frozen=True)
class Orders:
    """The orders that a list can have.

    Attributes:
        columns: the name in ``?ordering=`` -> the column, which is never null.
        default: the one that counts where none is named; with ``-`` the largest comes first.
    """

    columns: Mapping[str, str]
    default: str

    @property
    def choices(self) -> list[str]:
        """What ``?ordering=`` may say."""
        return [sign + name for name in self.columns for sign in ("", "-")]

    def of(self, query: QueryDict) -> str:
        """The order that a request asks for.

        Raises:
            InvalidInput: it is none of these.
        """
        asked = query.get("ordering") or self.default
        if asked not in self.choices:
            raise InvalidInput(
                "The query is malformed.", fields=[{"path": "ordering", "message": "is not an order here"}]
            )
        return asked


def limit_of(query: QueryDict, default: int = LIMIT, most: int = MOST) -> int:
    """How many rows a request asks for.

    Raises:
        InvalidInput: it is not a number, or too large a one.
    """
    text = query.get("limit", "")
    if text == "":
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        message = f"must be a number from 1 to {most}"
        raise InvalidInput("The query is malformed.", fields=[{"path": "limit", "message": message}])
    return int(text)


def paginate(rows: QuerySet[M], query: QueryDict, orders: Orders) -> Page[M]:
    """The page of rows that a request asks for. One statement.

    Raises:
        InvalidInput: the order or the limit is malformed.
        InvalidCursor: the cursor is none of this order.
    """
    asked, limit = orders.of(query), limit_of(query)
    column, descending = orders.columns[asked.removeprefix("-")], asked.startswith("-")
    place = _read(query.get("cursor", ""), asked, rows.model, column)
    backwards = place is not None and place[0]
    if place is not None:
        rows = rows.filter(_beyond(column, place[1], place[2], greater=descending == backwards))
    sign = "-" if descending != backwards else ""
    found = list(rows.order_by(f"{sign}{column}", f"{sign}pk")[: limit + 1])
    more = len(found) > limit
    found = found[:limit]
    if backwards:
        found.reverse()
    if not found:
        return Page([], None, None)
    return Page(
        found,
        _written(query, asked, found[-1], column, backwards=False) if more or backwards else None,
        _written(query, asked, found[0], column, backwards=True) if (more if backwards else place) else None,
    )


def _beyond(column: str, value: Any, pk: Any, *, greater: bool) -> Q:
    # The first condition is what an index of the column alone can use.
    op = "gt" if greater else "lt"
    return Q(**{f"{column}__{op}e": value}) & (Q(**{f"{column}__{op}": value}) | Q(**{f"pk__{op}": pk}))


# ---- cursors --------------------------------------------------------------------------------------------------------


def _written(query: QueryDict, order: str, row: Model, column: str, *, backwards: bool) -> str:
    value = getattr(row, column)
    place = [order, int(backwards), value if type(value) is int else value.isoformat(), _plain(row.pk)]
    cursor = base64.urlsafe_b64encode(json.dumps(place, separators=(",", ":")).encode()).decode().rstrip("=")
    following = query.copy()
    following["cursor"] = cursor
    return following.urlencode()


def _plain(key: Any) -> Any:
    return key if type(key) is int else str(key)


def _read(cursor: str, order: str, model: type[Model], column: str) -> tuple[bool, Any, Any] | None:
    """Whether it goes backwards, the column's value and the key; None where there is no cursor."""
    if not cursor:
        return None
    refused = InvalidCursor(fields=[{"path": "cursor", "message": "is not a cursor of this list"}])
    if len(cursor) > LONGEST or not cursor.isascii():
        raise refused
    try:
        place = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
        named, backwards, value, key = place
        whole = type(value) is int
        if named != order or backwards not in (0, 1) or type(backwards) is not int:
            raise ValueError
        field = model._meta.get_field(column)
        if field.get_internal_type() == "DateTimeField":
            at = parse_datetime(value)
            if at is None or at.tzinfo is None:
                raise ValueError
            # A moment at the edge of time has no place in another zone.
            value = at.astimezone(UTC)
        elif not whole or not 0 <= value < 2**63:
            raise ValueError
        key = model._meta.pk.to_python(key if type(key) in (int, str) else None)
        if key is None or (type(key) is int and not -(2**63) <= key < 2**63):
            raise ValueError
    except (ValueError, TypeError, AttributeError, ValidationError, RecursionError, OverflowError) as error:
        raise refused from error
    return bool(backwards), value, key


def known_only(query: QueryDict, known: Sequence[str], texts: Container[str]) -> None:
    """Refuse a query that says what nobody reads: a misspelt filter, an empty one, or the first of two.

    Args:
        query: what was sent.
        known: what can be said.
        texts: those of them that may be empty.

    Raises:
        InvalidInput: naming what can be said.
    """
    empty = [name for name in known if name not in texts and "" in query.getlist(name)]
    fields = [{"path": name, "message": "must not be empty"} for name in empty]
    fields += [{"path": name, "message": "can be given once"} for name in known if len(query.getlist(name)) > 1]
    if fields:
        raise InvalidInput("The query is malformed.", fields=fields)
    if any(name not in known for name in query):
        message = f"takes only {', '.join(sorted(known))}" if known else "takes no parameters"
        raise InvalidInput("The query is malformed.", fields=[{"path": "", "message": message}])
