"""Reads that several followers ask for at once are made once: a hint wakes all of them at the same place.

Law: what a caller gets is rows that follow its cursor, or was read after it called; and it is never to be changed.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar, cast

from django.db import InterfaceError, OperationalError

from agui_django.runs.database import Patience, get_pool

P = ParamSpec("P")
T = TypeVar("T")


class _Read(NamedTuple):
    """A read that is under way, and when it was asked for."""

    number: int
    result: asyncio.Future[object]


_count = itertools.count()
_reads: dict[tuple[object, ...], _Read] = {}


async def read(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function that reads in a database thread, together with those who ask for the same meanwhile.

    Its arguments can be hashed. What it finds may be older than the call, as all of it stays true; that it finds
    nothing (None or an empty list) may not, and is asked again. Tried again while the database is away.
    """
    key = (asyncio.get_running_loop(), function, *args, *kwargs.items())
    called = next(_count)
    patience = Patience()
    while True:
        under_way = _reads.get(key)
        # One that is done may still be here for a moment: to await it would not give the loop its turn to remove it.
        if under_way is None or under_way.result.done():
            under_way = _reads[key] = _begin(key, function, *args, **kwargs)
        # A caller that is cancelled leaves the others their read.
        try:
            result = await asyncio.shield(under_way.result)
        except (OperationalError, InterfaceError) as error:
            await patience.wait(error)
            continue
        if under_way.number > called or (result is not None and result != []):
            return cast("T", result)


def _begin(key: tuple[object, ...], function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> _Read:
    result: asyncio.Future[object] = asyncio.wrap_future(get_pool().submit(function, *args, **kwargs))

    begun = _Read(next(_count), result)

    def done(future: asyncio.Future[object]) -> None:
        if _reads.get(key) is begun:
            del _reads[key]
        if not future.cancelled():
            future.exception()  # nobody may be left to meet it

    result.add_done_callback(done)
    return begun
