"""The only place that creates tasks: the lifetime of detached work, and its end when the process is told to stop.

Law: a task made here inherits nothing of the request that asked for it (an inherited context pins the request's
thread and connection); it is held by a strong reference; SIGTERM waits for it, within `settings.GRACE`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from types import FrameType
from typing import Any, TypeVar

from django.utils import timezone, translation

from agui_django.conf import settings
from agui_django.protocol.errors import AgUiError

logger = logging.getLogger("agui_django.runs")

T = TypeVar("T")

#: Called with a reason when the grace of a drain is over: whoever knows the running work cancels it.
stoppers: list[Callable[[str], None]] = []

#: Called in the draining loop as soon as a drain begins: feeds end, they would never do so by themselves.
on_drain: list[Callable[[], None]] = []


class _State:
    """One process's tasks; made anew after a fork."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.services: set[asyncio.Task[Any]] = set()
        self.draining = False
        self.chained = False
        self.previous: Any = None


_state = _State()


def _here() -> _State:
    global _state
    if _state.pid != os.getpid():
        _state = _State()
    return _state


def start(coro: Coroutine[Any, Any, T], *, name: str, service: bool = False) -> asyncio.Task[T]:
    """Run a coroutine in a task of its own, detached from the caller; call in the event loop.

    The task starts from an empty context; language, time zone and the trace span of the caller are attached again.

    Args:
        coro: what to run.
        name: the task's name, for logs and debuggers.
        service: a helper that may live as long as the process; a drain does not wait for it.
    """
    state = _here()
    _chain_sigterm(state)
    # A helper outlives the request that needed it first, and is no part of its trace.
    span = None if service else _trace_span()
    attached = partial(_attach, translation.get_language(), timezone.get_current_timezone(), span)
    loop = asyncio.get_running_loop()
    task = loop.create_task(_detached(attached, coro), name=name, context=Context())
    tasks = state.services if service else state.tasks
    tasks.add(task)
    task.add_done_callback(partial(_done, tasks))
    return task


async def _detached(attach: Callable[[], None], coro: Coroutine[Any, Any, T]) -> T:
    attach()
    return await coro


def _attach(language: str | None, zone: Any, span: Callable[[], None] | None) -> None:
    if language is None:
        translation.deactivate_all()
    elif language != translation.get_language():
        translation.activate(language)
    if zone != timezone.get_default_timezone():
        timezone.activate(zone)
    if span is not None:
        span()


def _trace_span() -> Callable[[], None] | None:
    """What attaches the caller's OpenTelemetry context in another one; None where the site does not use it."""
    telemetry = sys.modules.get("opentelemetry.context")
    return None if telemetry is None else partial(telemetry.attach, telemetry.get_current())


def _done(tasks: set[asyncio.Task[Any]], task: asyncio.Task[Any]) -> None:
    tasks.discard(task)
    if task.cancelled():
        return
    error = task.exception()  # also marks it as retrieved
    if error is not None and not isinstance(error, AgUiError):
        logger.error("Task %s failed", task.get_name(), exc_info=error)


# ---- the end --------------------------------------------------------------------------------------------------------


def draining() -> bool:
    """Whether this process is going away: new runs are refused, feeds end."""
    return _here().draining


def active() -> int:
    """How many supervised tasks are not done; services are not counted."""
    return len(_here().tasks)


def _chain_sigterm(state: _State) -> None:
    """Put a drain in front of the server's own SIGTERM handler.

    At the first task rather than at start-up: servers install their handlers after they import the application, and
    the lifespan protocol tells of a shutdown only when connections are already being cut.
    """
    if state.chained or threading.current_thread() is not threading.main_thread():
        return
    state.chained = True
    state.previous = signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, partial(_on_sigterm, asyncio.get_running_loop()))


def _on_sigterm(loop: asyncio.AbstractEventLoop, number: int, frame: FrameType | None) -> None:
    state = _here()
    if state.draining or loop.is_closed() or not loop.is_running():
        _stop_now(state, number)
        return
    state.draining = True
    loop.call_soon_threadsafe(_begin_drain, number)


def _begin_drain(number: int) -> None:
    loop = asyncio.get_running_loop()
    task = loop.create_task(_drain_and_stop(number), name="agui drain", context=Context())
    services = _here().services
    services.add(task)
    task.add_done_callback(partial(_done, services))


async def _drain_and_stop(number: int) -> None:
    try:
        await drain(settings.GRACE)
        # A server that stops its loop at once leaves pending tasks to the interpreter's last collection.
        await _end(_ours(_here().services))
    finally:
        _stop_now(_here(), number)


def _stop_now(state: _State, number: int) -> None:
    """Hand over to the handler that was there before."""
    signal.signal(number, state.previous if state.previous is not None else signal.SIG_DFL)
    state.chained = False
    if callable(state.previous):
        state.previous(number, None)
    else:
        os.kill(os.getpid(), number)


async def drain(grace: float) -> None:
    """Refuse new runs, let running ones go on for a while, then end the rest as cancelled.

    Args:
        grace: seconds until runs are cancelled with reason ``shutdown``.
    """
    state = _here()
    state.draining = True
    for callback in on_drain:
        callback()
    if await _wait(grace):
        return
    for stop in stoppers:
        stop("shutdown")
    # Last words, the terminal event, its commit: the agent's own grace is doubled by the second cancel.
    if await _wait(2 * settings.CANCEL_GRACE + 5.0):
        return
    for task in _ours(state.tasks):
        task.cancel()
    await _wait(1.0)


async def settle(seconds: float = 20.0) -> None:
    """Wait until all supervised work of this loop is done, and end its services; for tests.

    Raises:
        TimeoutError: something still runs after ``seconds``; it is cancelled.
    """
    state = _here()
    quiet = await _wait(seconds)
    stuck = _ours(state.tasks)
    rest = stuck + _ours(state.services)
    await _end(rest)
    if not quiet:
        raise TimeoutError(f"still running: {sorted(task.get_name() for task in stuck)}")


async def _end(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have heard of it."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=5.0)


async def _wait(seconds: float) -> bool:
    """Wait until no supervised task of this loop is left, also of those started meanwhile; False when time is up."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while tasks := _ours(_here().tasks):
        left = deadline - loop.time()
        if left <= 0:
            return False
        await asyncio.wait(tasks, timeout=left)
    return True


def _ours(tasks: set[asyncio.Task[Any]]) -> list[asyncio.Task[Any]]:
    loop = asyncio.get_running_loop()
    current = asyncio.current_task()
    return [task for task in tasks if task.get_loop() is loop and task is not current]
