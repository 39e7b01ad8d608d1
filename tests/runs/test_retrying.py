"""A run that failed before it showed anything is tried again, where its agent says so; never what was seen or done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from agui_django import AgentError, Retry, RunContext, SyncRunContext
from agui_django.agents.registry import AgentEntry, AgentOptions
from agui_django.protocol.errors import ProviderError
from tests.running import run

pytestmark = pytest.mark.asyncio

QUICK = Retry(wait=0)
AWAY = ProviderError("Away.")


class Flaky:
    """Fails so many times, then answers."""

    def __init__(self, *errors: BaseException, first: Callable[[RunContext], Any] = lambda run: None) -> None:
        self.errors = list(errors)
        self.first = first
        self.calls = 0

    async def __call__(self, run: RunContext) -> None:
        self.calls += 1
        done = self.first(run)
        if done is not None:
            await done
        if self.errors:
            raise self.errors.pop(0)
        await run.say("Here.", key="said")


def entry(target: Any, retry: Retry | None = QUICK) -> AgentEntry:
    return AgentEntry("retried", target, AgentOptions(retry=retry))


async def test_until_it_goes_well() -> None:
    agent = Flaky(AWAY, ProviderError("Busy.", "provider_rate_limited"))
    r = await run(entry(agent))
    assert (agent.calls, r.outcome, r.said) == (3, "success", ["Here."])
    assert r.types == ["RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "RUN_FINISHED"]


async def test_not_for_ever() -> None:
    agent = Flaky(*[AWAY] * 5)
    r = await run(entry(agent))
    assert agent.calls == 3
    assert r.error is not None and r.error["code"] == "provider_unavailable"


@pytest.mark.parametrize(
    ("error", "retry"),
    [
        (AWAY, None),
        (RuntimeError("a bug"), QUICK),
        (AgentError("No such order."), QUICK),
        (ProviderError("Busy.", "provider_rate_limited"), Retry(on=["provider_unavailable"], wait=0)),
        (AWAY, Retry(attempts=1, wait=0)),
        (AWAY, Retry(wait=60)),
    ],
    ids=["nobody said so", "a bug", "an error for the user", "another code", "one attempt", "too long"],
)
async def test_what_is_not_tried_again(error: BaseException, retry: Retry | None) -> None:
    agent = Flaky(error)
    r = await run(entry(agent, retry))
    assert (agent.calls, r.outcome) == (1, "error")


async def test_any_code_may_be_named() -> None:
    agent = Flaky(RuntimeError("a bug"), AgentError("No.", code="no_order"))
    r = await run(entry(agent, Retry(on=["agent_exception", "no_order"], wait=0)))
    assert (agent.calls, r.outcome) == (3, "success")


def _thinks(run: RunContext) -> Any:
    return run.say("Let me see.")


def _counts(run: RunContext) -> Any:
    run.state["n"] = run.state.get("n", 0) + 1


def _pays(run: RunContext) -> Any:
    return run.once("pay", lambda: 1)


@pytest.mark.parametrize("first", [_thinks, _counts, _pays], ids=["said", "state", "claimed"])
async def test_what_was_seen_or_done_is_not_done_again(first: Callable[[RunContext], Any]) -> None:
    agent = Flaky(AWAY, first=first)
    r = await run(entry(agent))
    assert (agent.calls, r.outcome) == (1, "error")
    assert r.state in ({}, {"n": 1})


async def test_what_a_failed_call_asked_and_used() -> None:
    def asks(run: RunContext) -> None:
        run.usage(model="m", input_tokens=1, output_tokens=2)
        run.ask("sure")
        run.result = "half"

    agent = Flaky(AWAY, first=lambda run: asks(run) if agent.calls == 1 else None)
    r = await run(entry(agent))
    assert (r.outcome, r.result, r.interrupts) == ("success", None, {})
    assert [(used["inputTokens"], used["outputTokens"]) for used in r.usage] == [(1, 2)]


async def test_every_shape() -> None:
    calls: list[str] = []

    def fails_first(name: str) -> None:
        calls.append(name)
        if calls.count(name) == 1:
            raise AWAY

    async def events(run: RunContext) -> AsyncIterator[str]:
        fails_first("events")
        yield "Here."

    def function(run: SyncRunContext) -> None:
        fails_first("function")
        run.say("Here.")

    def pieces(run: SyncRunContext) -> Iterator[str]:
        fails_first("pieces")
        yield "Here."

    class Made:
        retry = QUICK

        async def run(self, run: RunContext) -> None:
            fails_first("class")
            await run.say("Here.")

    for agent in (events, function, pieces):
        assert (await run(entry(agent))).said == ["Here."]
    assert (await run(AgentEntry("retried", Made))).said == ["Here."]
    assert calls == [name for name in ("events", "function", "pieces", "class") for _ in range(2)]


async def test_the_option_wins_over_the_attribute() -> None:
    class Made(Flaky):
        retry = QUICK

    agent = Made(AWAY, AWAY)
    r = await run(AgentEntry("retried", agent, AgentOptions(retry=Retry(attempts=2, wait=0))))
    assert (agent.calls, r.outcome) == (2, "error")


async def test_how_long_it_waits() -> None:
    told = ProviderError("Busy.", "provider_rate_limited")
    told.retry_after = 0.2
    began = time.monotonic()
    assert (await run(entry(Flaky(told), Retry(wait=0)))).outcome == "success"
    assert time.monotonic() - began >= 0.2
    retry = Retry(attempts=9)
    assert [retry.pause(n, "provider_unavailable", AWAY) for n in (1, 2, 3, 7)] == [0.5, 1.0, 2.0, None]
    assert Retry(wait=lambda failed: failed * 3).pause(2, "provider_unavailable", AWAY) == 6


async def test_a_cancel_ends_the_wait() -> None:
    agent = Flaky(AWAY)
    began = time.monotonic()
    r = await run(entry(agent, Retry(wait=25)), cancel_after=0.1)
    assert (agent.calls, r.outcome) == (1, "cancelled")
    assert time.monotonic() - began < 20


async def test_groups() -> None:
    async def grouped(run: RunContext) -> None:
        calls.append(1)
        if len(calls) == 1:
            async with asyncio.TaskGroup() as group:
                group.create_task(Flaky(AWAY)(run))
        await run.say("Here.")

    calls: list[int] = []
    assert (await run(entry(grouped))).said == ["Here."]


async def test_mistakes() -> None:
    with pytest.raises(TypeError, match="codes"):
        Retry(on="timeout")
    with pytest.raises(ValueError, match="attempts"):
        Retry(attempts=0)
