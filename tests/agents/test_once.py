"""What happens once per turn: claimed, kept, released, unknown."""

from __future__ import annotations

import asyncio
import datetime
import threading
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from agui_django import RunContext, SyncRunContext
from agui_django.protocol.errors import KeyReused, OnceUnknown
from tests.running import checked, run

pytestmark = pytest.mark.asyncio


class Paid(BaseModel):
    amount: int
    on: datetime.date


class Payments:
    """Something in the world, told in passes."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)
        self.made: list[Any] = []
        self.threads: list[str] = []

    def pay(self, amount: int, *, to: str = "ada") -> Any:
        self.threads.append(threading.current_thread().name)
        self.made.append((amount, to))
        outcome = self.outcomes.pop(0) if self.outcomes else amount
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def apay(self, amount: int, *, to: str = "ada") -> Any:
        await asyncio.sleep(0)
        return self.pay(amount, to=to)


@pytest.mark.parametrize("how", ["pay", "apay"])
@pytest.mark.parametrize("shape", ["async", "sync"])
async def test_a_later_pass_gets_the_value_of_the_first(shape: str, how: str):
    shop = Payments({"paid": 4})

    async def waits(run: RunContext) -> Any:
        return [await run.once("pay", getattr(shop, how), 4, to="bob"), run.interrupt("q")]

    def blocks(run: SyncRunContext) -> Any:
        return [run.once("pay", getattr(shop, how), 4, to="bob"), run.interrupt("q")]

    first = await run(waits if shape == "async" else blocks)
    second = checked(await first.resume({"q": 1}))
    assert second.result == [{"paid": 4}, 1]
    assert shop.made == [(4, "bob")]
    in_thread = how == "pay" or shape == "neither"
    assert shop.threads[0].startswith("agui-run") is in_thread


async def test_a_sync_lambda_that_gives_an_awaitable_is_awaited():
    shop = Payments()

    async def agent(run: RunContext) -> Any:
        return await run.once("pay", lambda: shop.apay(3))

    assert (await run(agent)).result == 3


async def test_both_passes_get_the_type_that_the_function_promises():
    def pay() -> Paid:
        return Paid(amount=4, on=datetime.date(2026, 1, 2))

    def plainly():
        return {"on": datetime.date(2026, 1, 2)}

    def wrongly() -> int:
        return "no number"  # type: ignore[return-value]

    got: list[Any] = []

    async def agent(run: RunContext) -> None:
        got.append([await run.once(fn.__name__, fn) for fn in (pay, plainly, wrongly)])
        run.interrupt("q")

    await (await run(agent)).resume({"q": 1})
    assert got[0] == [Paid(amount=4, on=datetime.date(2026, 1, 2)), {"on": "2026-01-02"}, "no number"]
    assert got[1] == got[0]


async def test_a_function_that_raises_may_be_called_again():
    shop = Payments(ValueError("closed"), "paid")

    async def agent(run: RunContext) -> Any:
        try:
            return await run.once("pay", shop.pay, 4)
        except ValueError:
            run.interrupt("again")

    first = await run(agent)
    assert first.outcome == "interrupt"
    assert (await first.resume({"again": True})).result == "paid"
    assert len(shop.made) == 2


@pytest.mark.parametrize("shape", ["async", "sync"])
async def test_a_function_that_asks_is_called_again_with_the_answer(shape: str):
    calls: list[str] = []

    async def waits(run: RunContext) -> Any:
        async def decide() -> str:
            calls.append("called")
            return str(run.interrupt("sure"))

        return await run.once("decide", decide)

    def blocks(run: SyncRunContext) -> Any:
        def decide() -> str:
            calls.append("called")
            return str(run.interrupt("sure"))

        return run.once("decide", decide)

    first = await run(waits if shape == "async" else blocks)
    assert first.outcome == "interrupt"
    assert (await first.resume({"sure": "yes"})).result == "yes"
    assert calls == ["called", "called"]


async def test_what_is_cancelled_in_the_middle_stays_unknown():
    began = asyncio.Event()
    calls: list[int] = []

    async def pay() -> None:
        calls.append(1)
        began.set()
        await asyncio.Event().wait()

    async def agent(run: RunContext) -> None:
        if run.resumed:
            await run.once("pay", pay)
        try:
            async with asyncio.timeout(0.05):
                await run.once("pay", pay)
        except TimeoutError:
            run.interrupt("go on")

    first = await run(agent)
    assert began.is_set()
    second = checked(await first.resume({"go on": True}))
    assert second.error is not None
    assert second.error["code"] == "outcome_unknown"
    assert "pay" not in second.error["message"]
    assert "pay" in second.failure.text
    assert calls == [1]


async def test_a_value_that_cannot_be_stored_counts_as_done():
    calls: list[int] = []

    def pay() -> object:
        calls.append(1)
        return object()

    async def agent(run: RunContext) -> Any:
        if not run.resumed:
            with pytest.raises(Exception, match="JSON"):
                await run.once("pay", pay)
            run.interrupt("q")
        with pytest.raises(OnceUnknown):
            await run.once("pay", pay)

    second = checked(await (await run(agent)).resume({"q": 1}))
    assert second.outcome == "success"
    assert calls == [1]


async def test_a_key_is_used_once_per_pass():
    async def agent(run: RunContext) -> None:
        await run.once("k", int)
        with pytest.raises(KeyReused):
            await run.once("k", int)
        await run.say("x", key="s")
        with pytest.raises(KeyReused):
            await run.once("s", int)

    assert (await run(agent)).outcome == "success"


async def test_keys_are_concurrent():
    gate = asyncio.Barrier(3)

    async def work(n: int) -> int:
        await gate.wait()
        return n

    async def agent(run: RunContext) -> Any:
        return await asyncio.gather(*(run.once(f"k{n}", work, n) for n in range(3)))

    assert (await run(agent)).result == [0, 1, 2]


async def test_another_turn_does_it_again():
    shop = Payments()

    async def agent(run: RunContext) -> Any:
        return [await run.once("pay", shop.pay, 4), run.idempotency_key("pay")]

    first = await run(agent)
    again = await first.say("once more")
    assert len(shop.made) == 2
    assert first.result[1] != again.result[1]


async def test_an_idempotency_key_is_the_same_in_every_pass():
    keys: list[Any] = []

    async def agent(run: RunContext) -> None:
        keys.append([run.idempotency_key("päy"), run.idempotency_key("x"), run.sync.idempotency_key("päy")])
        run.interrupt("q")

    await (await run(agent)).resume({"q": 1})
    assert keys[0] == keys[1]
    assert keys[0][0] == keys[0][2] != keys[0][1]
    assert UUID(keys[0][0])


async def test_arguments_may_be_called_key_and_fn():
    def f(key: str, fn: str) -> str:
        return key + fn

    async def agent(run: RunContext) -> Any:
        return await run.once("k", f, key="a", fn="b")

    assert (await run(agent)).result == "ab"


async def test_a_claim_means_that_the_run_has_acted():
    async def agent(run: RunContext) -> None:
        await run.once("pay", lambda: 1)
        raise ValueError

    async def idle(run: RunContext) -> None:
        raise ValueError

    assert (await run(agent)).closing.spent
    assert not (await run(idle)).closing.spent
