"""Calls an agent, whatever its shape: coroutine, async generator, function, generator, and what wrappers give.

Law: an async agent runs in the caller's task from its first line to its last; what goes wrong with a yielded event is
raised at its yield.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from agui_django.agents.registry import shape_of
from agui_django.agents.sink import READY
from agui_django.runs.session import RunSession

#: Threads' tasks that outlived their run: held until they end.
_waiting: set[asyncio.Task[Any]] = set()


class AgentCall:
    """One call of one agent.

    Args:
        session: its run.
        cancels: how often the agent was told to stop.
    """

    def __init__(self, session: RunSession, cancels: Callable[[], int]) -> None:
        self.session = session
        self.cancels = cancels

    async def __call__(self, target: Callable[..., Any]) -> Any:
        """Run it to its end; gives what it returns."""
        context = self.session.context
        match shape_of(target):
            case "coroutine":
                return await self._finish(await target(context))
            case "async generator":
                return await self._finish(target(context))
            case "generator":
                return await self._in_thread(lambda: self._pull_here(target(context.sync)))
            case _:
                return await self._finish(await self._in_thread(lambda: self._plain(target(context.sync))))

    async def _finish(self, value: Any) -> Any:
        """The result of what a function gave: one that is wrapped may give a coroutine or a generator."""
        if inspect.isawaitable(value):
            value = await value
        return await self._pull(value) if hasattr(value, "__anext__") or hasattr(value, "__aiter__") else value

    def _plain(self, value: Any) -> Any:
        return self._pull_here(value) if inspect.isgenerator(value) else value

    async def _pull(self, source: Any) -> None:
        """Drive an async generator: what goes wrong with an event is thrown in at its yield."""
        events = source.__aiter__()
        session = self.session
        throw = getattr(events, "athrow", None)
        try:
            event = await anext(events)
            while True:
                try:
                    pause = session.yielded(event)
                    if pause is not READY:
                        await pause
                except BaseException as error:
                    if throw is None:
                        raise
                    event = await throw(error)
                else:
                    event = await anext(events)
        except StopAsyncIteration:
            return
        finally:
            if hasattr(events, "aclose"):
                await events.aclose()

    def _pull_here(self, events: Iterator[Any]) -> Any:
        """Drive a generator in the run's thread; gives what it returns."""
        session = self.session
        throw = getattr(events, "throw", None)
        try:
            event = next(events)
            while True:
                try:
                    kind = event.get("type") if type(event) is dict else None
                    if type(event) is str or (type(kind) is str and kind.endswith(("_CONTENT", "_ARGS"))):
                        session.post(session.yielded, event)
                    else:
                        session.call(session.yielded, event)
                except BaseException as error:
                    if throw is None:
                        raise
                    event = throw(error)
                else:
                    event = next(events)
        except StopIteration as stop:
            return stop.value
        finally:
            if hasattr(events, "close"):
                events.close()

    async def _in_thread(self, fn: Callable[[], Any]) -> Any:
        """Run a synchronous agent; a cancel reaches its thread at its next call, and this task waits for that."""
        work = _carried(self.session.in_thread(fn))
        pending = self.session.loop.create_task(work, name=f"agui thread {self.session.setup.address}")
        _waiting.add(pending)
        pending.add_done_callback(_forget)
        while True:
            try:
                value, error = await asyncio.shield(pending)
            except asyncio.CancelledError:
                if pending.done() or self.cancels() != 1:
                    raise
            else:
                if error is not None:
                    raise error
                return value


async def _carried(work: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """What would leave a task through the loop, and end the server's process, is carried beside the value."""
    try:
        return await work, None
    except (SystemExit, KeyboardInterrupt) as error:
        return None, error


def _forget(task: asyncio.Task[Any]) -> None:
    _waiting.discard(task)
    if not task.cancelled():
        task.exception()  # told where it was awaited, or the run is over
