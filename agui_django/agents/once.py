"""What happens once per turn, whatever dies: claimed before it is done, its value kept with the run's events.

Law: a claim is committed before the function is called. A function that raises, or asks, releases it. What was left
without an outcome (its process died, its task was cancelled) is unknown: nobody does it again.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar, overload
from uuid import NAMESPACE_OID, uuid5

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from agui_django.agents.arguments import returned_by
from agui_django.agents.asking import plain, use_key, wire_id
from agui_django.agents.sink import READY, OnceClaim, RunSink
from agui_django.protocol.codec import encode
from agui_django.protocol.errors import OnceUnknown, RunSuspended

P = ParamSpec("P")
T = TypeVar("T")


class Remembers:
    """What both run contexts have of this."""

    _sink: RunSink

    def idempotency_key(self, key: str) -> str:
        """A text for outside services that recognise repeats: the same in every pass of the turn, and only there.

        Args:
            key: what it is for; usually that of the `once` around it.
        """
        return str(uuid5(NAMESPACE_OID, wire_id(self._sink, key)))


class Once(Remembers):
    """`once` for an agent in the event loop."""

    @overload
    async def once(self, key: str, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def once(self, key: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def once(self, key: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function once per turn, and give its value in every pass.

        A synchronous function runs in the run's thread. The value is stored as JSON, and read as the type that the
        function says it returns.

        Args:
            key: names it within the turn.
            fn: what is called; it may be called again only if it raises.
            args: its arguments; not a part of the key.
            kwargs: its arguments by name.

        Raises:
            OnceUnknown: an earlier pass died in it, and nobody knows whether it was done.
            KeyReused: the key was used in this pass already.
            NotJson: the value cannot be stored; it counts as done all the same.
            RunClosed: the run was taken away from this process; the function was not called.
        """
        use_key(self._sink, key)

        async def work() -> Any:
            if inspect.iscoroutinefunction(fn):
                return await fn(*args, **kwargs)
            value = await self._sink.in_thread(functools.partial(fn, *args, **kwargs))
            return await value if inspect.isawaitable(value) else value

        return read_back(returned_by(fn), await perform(self._sink, key, work))


class SyncOnce(Remembers):
    """`once` for code in a thread."""

    @overload
    def once(self, key: str, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def once(self, key: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    def once(self, key: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function once per turn, here, and give its value in every pass. See `RunContext.once`."""
        self._sink.call(use_key, self._sink, key)

        def work() -> Any:
            if inspect.iscoroutinefunction(fn):
                return self._sink.wait(functools.partial(fn, *args, **kwargs))
            return fn(*args, **kwargs)

        return read_back(returned_by(fn), perform_here(self._sink, key, work))


def nothing(value: Any) -> Awaitable[None]:
    """Emit nothing."""
    return READY


async def perform(
    sink: RunSink, key: str, work: Callable[[], Awaitable[Any]], emit: Callable[[Any], Awaitable[None]] = nothing
) -> Any:
    """Do something for a key that was taken, unless it was done.

    Args:
        sink: the run.
        key: the key.
        work: what is done.
        emit: emits what the value means to the client; stored in the same transaction.

    Returns:
        The value as plain JSON, once it is stored.
    """
    claim = await sink.claim_once(_name(sink, key))
    if claim.state != "mine":
        await emit(value := _found(claim))
        return value
    try:
        value = await work()
    except BaseException as error:
        if _releases(error):
            await sink.settle_once(claim, None)
        raise
    value = plain(value)
    await _keep(sink, claim, value, emit)
    return value


def perform_here(
    sink: RunSink, key: str, work: Callable[[], Any], emit: Callable[[Any], Awaitable[None]] = nothing
) -> Any:
    """`perform` for code in a thread."""
    claim = sink.wait(lambda: sink.claim_once(_name(sink, key)))
    if claim.state != "mine":
        sink.call(emit, value := _found(claim))
        return value
    try:
        value = work()
    except BaseException as error:
        if _releases(error):
            sink.wait(lambda: sink.settle_once(claim, None), check=False)
        raise
    value = plain(value)
    sink.wait(lambda: _keep(sink, claim, value, emit), check=False)
    return value


async def _keep(sink: RunSink, claim: OnceClaim, value: Any, emit: Callable[[Any], Awaitable[None]]) -> None:
    kept = sink.settle_once(claim, encode(value))
    emit(value)  # without a pause between
    await kept


def read_back(type_: Any, value: Any) -> Any:
    """A stored value as the type that the function promised; as it is where that cannot be."""
    if type_ is Any:
        return value
    try:
        return TypeAdapter(type_).validate_json(encode(value))
    except (ValueError, PydanticUserError):
        return value


def _name(sink: RunSink, key: str) -> str:
    return wire_id(sink, key).removeprefix(f"{sink.setup.turn}:")


def _found(claim: OnceClaim) -> Any:
    if claim.state == "unknown":
        raise OnceUnknown(f"An earlier pass ended in the middle of {claim.key!r}; nobody knows whether it was done.")
    return claim.value


def _releases(error: BaseException) -> bool:
    """Whether a function ended by itself: by an exception of its own, or to ask; a cancel stops it anywhere."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_releases, error.exceptions))
    return isinstance(error, Exception | RunSuspended)
