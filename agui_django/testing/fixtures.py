"""pytest fixtures for sites: ``pytest_plugins = ["agui_django.testing.fixtures"]``.

Needs pytest-django and pytest-asyncio. Law: what a test started has ended when it ends, and its connections are closed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from asgiref.sync import sync_to_async
from django.db import connections
from django.test import AsyncClient
from django.urls import reverse

from agui_django.agents.registry import AgentEntry
from agui_django.protocol.codec import decode, encode
from agui_django.runs import database, supervisor
from agui_django.testing.doubles import override_agent
from agui_django.testing.running import AgentRun, run_agent
from agui_django.testing.streams import assert_valid_run

Wire = dict[str, Any]


@pytest.fixture
def agui_run() -> Callable[..., Awaitable[AgentRun]]:
    """`run_agent`, and a failed test where a strict client would not take its events."""

    async def run(agent: Any, text: Any = "hello", **options: Any) -> AgentRun:
        result = await run_agent(agent, text, **options)
        assert_valid_run(result.wire, messages=result.setup.messages, state=result.setup.input["state"])
        return result

    return run


@pytest.fixture
def agui_override() -> Iterator[Callable[..., AgentEntry]]:
    """`override_agent` until the test ends: ``agui_override("support", agent)``."""
    with ExitStack() as stack:
        yield lambda name, agent, **options: stack.enter_context(override_agent(name, agent, **options))


@pytest_asyncio.fixture
async def agui_runtime(transactional_db: None) -> AsyncIterator[None]:
    """A database that runs may share; afterwards no run and no connection is left of the test."""
    yield
    await supervisor.settle()
    await database.shutdown()
    await sync_to_async(connections.close_all)()  # of the thread in which the ORM's own ``a`` methods run


@pytest.fixture
def agui_post(agui_runtime: None) -> Callable[..., Awaitable[list[Wire]]]:
    """Run a registered agent through the site's own address, middleware and access policy.

    ``await agui_post("support", "hello", user=ada, thread="t1", headers={}, tools=[…])`` gives the events; what is not
    named here is a member of the run input. A user is logged in by a session. Refused, it raises an AssertionError with
    the answer.
    """

    async def post(
        agent: str,
        text: str | None = None,
        *,
        user: Any = None,
        thread: str = "thread",
        headers: dict[str, str] | None = None,
        **members: Any,
    ) -> list[Wire]:
        client = AsyncClient(headers=headers or {})
        if user is not None:
            await client.aforce_login(user)
        body: Wire = {"threadId": thread, "runId": uuid4().hex, "tools": [], "context": [], "forwardedProps": {}}
        body["messages"] = [] if text is None else [{"id": uuid4().hex, "role": "user", "content": text}]
        address = reverse("agui_django:agent", args=[agent])
        answer: Any = await client.post(address, encode({**body, **members}), content_type="application/json")
        if answer.status_code != 200:
            raise AssertionError(f"{answer.status_code}: {answer.content.decode()}")
        frames = b"".join([chunk async for chunk in answer]).decode().split("\n\n")
        return [decode(frame.partition("data: ")[2]) for frame in frames if "data: " in frame]

    return post
