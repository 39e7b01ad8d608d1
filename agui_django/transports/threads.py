"""Gives back the thread that Django keeps for a request's synchronous code, and its database connection.

Django would keep it as long as the response: one thread per open stream, and a connection where a middleware used the
ORM. What the request still has to run synchronously (middleware on the way out, signals at the end) runs in one thread
that all requests share.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

from asgiref.sync import SyncToAsync
from django.db import connections


class _Lane(Executor):
    """The shared thread, in the place of a request's own executor, which the request shuts down at its end."""

    def __init__(self) -> None:
        """The thread starts with the first job."""
        self.pid = os.getpid()
        self._executor = ThreadPoolExecutor(1, "agui-requests")

    def __bool__(self) -> bool:
        """False: asgiref would start a thread at the end of each request, to wait for this one's end."""
        return False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue a job; what it opened is closed behind it."""
        return self._executor.submit(_closing, fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """One request ends; the others go on."""


_lane: _Lane | None = None


def release_request_thread() -> None:
    """Let the request's thread end, with its connections; call in the request's context. Harmless when repeated."""
    context = SyncToAsync.thread_sensitive_context.get(None)
    if context is None:
        return
    held = SyncToAsync.context_to_thread_executor.get(context)
    lane = _shared()
    if held is lane:
        return
    SyncToAsync.context_to_thread_executor[context] = lane
    if held is not None:
        held.submit(connections.close_all)
        held.shutdown(wait=False)


def _closing(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    try:
        return fn(*args, **kwargs)
    finally:
        for connection in connections.all(initialized_only=True):
            connection.close()


def _shared() -> _Lane:
    global _lane
    if _lane is None or _lane.pid != os.getpid():
        _lane = _Lane()
    return _lane
