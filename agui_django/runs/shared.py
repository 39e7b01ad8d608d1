"""One transaction for several calls of `transact`: they find themselves inside, and begin none of their own.

Law: a part that failed undoes the whole, whatever became of its exception.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from django.db import transaction

P = ParamSpec("P")
T = TypeVar("T")

#: Of each thread: the database whose transaction it shares, and whether a part of that failed.
_here = threading.local()


class Undone(Exception):
    """A shared transaction was not committed."""


@contextlib.contextmanager
def shared_transaction(alias: str) -> Iterator[None]:
    """Begin one; in a database thread.

    Raises:
        Undone: a part failed; nothing was written.
    """
    _here.alias, _here.failed = alias, False
    try:
        with transaction.atomic(using=alias):
            yield
            if _here.failed:
                raise Undone
    finally:
        _here.alias = None


def inside(alias: str) -> bool:
    """Whether this thread is in one."""
    return getattr(_here, "alias", None) == alias


def part(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Do a part of it."""
    try:
        return function(*args, **kwargs)
    except BaseException:
        _here.failed = True
        raise
