"""`start_run` and `astart_run`: a run started by the site itself, stored and executed like any other.

Law: the caller is trusted (no permission is asked), and is never part of the run's transaction or event loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections
from django.db.transaction import TransactionManagementError
from django.utils import timezone, translation

from agui_django.access import get_policy
from agui_django.agents.registry import get_agent
from agui_django.conf import settings
from agui_django.models import Run, Thread
from agui_django.protocol.codec import clean
from agui_django.protocol.consumer import PROTOCOL_VERSION
from agui_django.protocol.run_input import RunInput, build_run_input
from agui_django.runs.database import database_alias, get_pool
from agui_django.runs.engine import get_engine
from agui_django.runs.requests import StartRequest
from agui_django.runs.stream import follow

#: The tenancy scope of threads that belong to nobody.
SITE_SCOPE = "site"

Messages = str | Sequence[Any]
T = TypeVar("T")


async def astart_run(
    agent: str,
    thread: Thread | str | None,
    messages: Messages,
    user: Any = None,
    *,
    state: Any = None,
    wait: bool = True,
    scope: str | None = None,
    extra: Mapping[str, Any] | None = None,
    actor: Any = None,
) -> Run:
    """Start a run.

    Args:
        agent: the registered name.
        thread: a row, a thread's id within the scope (made where there is none), or None for a new thread.
        messages: the text of one user message, or new messages as wire dicts or official models.
        user: whom the run is for; default: the thread's owner.
        state: the shared state to start from; None: the thread's.
        wait: return when the run has ended, else as soon as it is stored.
        scope: the tenancy key; default: the thread's, the user's, or ``"site"`` without a user.
        extra: plain JSON, ``run.extra`` of the agent.
        actor: who asked for it, where that is not the user.

    Returns:
        The row: ended with ``wait`` (also as failed or cancelled), else active.

    Raises:
        NotFound: there is no such agent.
        InvalidInput: a message is malformed.
        ThreadBusy: another run of the thread is active.
        ResumeError: the thread waits for answers.
        LimitExceeded, Draining: this process takes no more runs.
    """
    entry, tenancy, owner, thread_id = await get_pool().run(_resolve, agent, thread, user, scope)
    user = user or owner
    data: dict[str, Any] = {
        "threadId": thread_id,
        "runId": str(uuid.uuid4()),
        "messages": _wire(messages),
        "tools": [],
        "context": [],
        "forwardedProps": {},
        "protocolVersion": PROTOCOL_VERSION,
    }
    if state is not None:
        data["state"] = state
    request = StartRequest(
        scope=tenancy,
        owner=owner or user,
        user=user,
        actor=actor,
        agent=entry,
        run_input=await _checked(data),
        transport="server",
        extra=dict(extra or {}),
        language=translation.get_language() or "",
        time_zone=timezone.get_current_timezone_name(),
        origin="server",
    )
    opened = await get_engine().begin(request).opened()
    if opened.error is not None:
        raise opened.error
    if opened.run is None:
        raise ValueError("A run of a thread that has messages needs a new one.")
    if not wait:
        return opened.run
    async for _ in follow(opened.run.pk):
        pass
    return await get_pool().run(_row, opened.run.pk)


def start_run(agent: str, thread: Thread | str | None, messages: Messages, user: Any = None, **options: Any) -> Run:
    """The synchronous `astart_run`, for commands, cron jobs, signals and views.

    The run is executed by a thread of this process. With ``wait=False`` the process has to live until it has ended.

    Raises:
        TransactionManagementError: called inside a transaction, which the run could not see (SQLite: which it would
            wait for); use ``transaction.on_commit``.
        SynchronousOnlyOperation: called in an event loop; await `astart_run` there.
    """
    return in_background(partial(astart_run, agent, thread, messages, user, **options), "start_run()")


def in_background(call: Callable[[], Coroutine[Any, Any, T]], name: str) -> T:
    """Run a coroutine function for a synchronous caller, in the loop of the runs that such callers start.

    Args:
        call: makes the coroutine.
        name: the synchronous function, for the errors.

    Raises:
        TransactionManagementError: called inside a transaction.
        SynchronousOnlyOperation: called in an event loop.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise SynchronousOnlyOperation(f"Await a{name} in async code.")
    if connections[database_alias()].in_atomic_block:
        raise TransactionManagementError(
            f"{name} was called inside a transaction, which the run cannot see. Use transaction.on_commit(); in "
            "tests use transaction=True or TransactionTestCase."
        )
    language, zone = translation.get_language(), timezone.get_current_timezone()

    async def start() -> T:
        if language is not None:
            translation.activate(language)
        timezone.activate(zone)
        return await call()

    return asyncio.run_coroutine_threadsafe(start(), background_loop()).result()


# ---- parts ----------------------------------------------------------------------------------------------------------


def _resolve(agent: str, thread: Thread | str | None, user: Any, scope: str | None) -> tuple[Any, str, Any, str]:
    """Agent, scope, owner and the thread's id; in a database thread."""
    entry = get_agent(agent)
    if isinstance(thread, Thread):
        return entry, thread.scope, thread.owner, thread.thread_id
    if scope is None:
        scope = SITE_SCOPE if user is None else get_policy().scope_for(user)
    return entry, scope, user, thread or str(uuid.uuid4())


def _row(run: uuid.UUID) -> Run:
    return Run.objects.using(database_alias()).select_related("thread").get(pk=run)


async def _checked(data: dict[str, Any]) -> RunInput:
    """The input; files inside of it are read in a thread."""
    read = partial(build_run_input, data, inline=settings.ATTACHMENT_INLINE)
    return await asyncio.get_running_loop().run_in_executor(None, read)


def _wire(messages: Messages) -> list[Any]:
    if isinstance(messages, str):
        return [{"id": str(uuid.uuid4()), "role": "user", "content": messages}]
    wire: list[Any] = clean(list(messages))
    return [{"id": str(uuid.uuid4()), **m} if isinstance(m, dict) else m for m in wire]


_loops: dict[int, asyncio.AbstractEventLoop] = {}
_loops_lock = threading.Lock()


def background_loop() -> asyncio.AbstractEventLoop:
    """The event loop of this process's runs that synchronous code started or executes; in a thread of its own."""
    with _loops_lock:
        loop = _loops.get(os.getpid())
        if loop is None or loop.is_closed():
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="agui-runs", daemon=True).start()
        return loop
