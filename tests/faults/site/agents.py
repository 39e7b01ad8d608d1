"""Agents with an effect outside of the database: a line in the file that AGUI_PAYMENTS names."""

from __future__ import annotations

import os
from pathlib import Path

from agui_django import RunContext, agent, approval_required
from tests.faults.site.points import reach


def pay(amount: int) -> int:
    """Pay: once, whatever dies."""
    with Path(os.environ["AGUI_PAYMENTS"]).open("a") as payments:
        payments.write(f"{amount}\n")
    reach("paying")
    return amount


@agent("payout")
async def payout(run: RunContext) -> None:
    """Ask, pay, tell."""
    answer = run.interrupt("amount", message="How much?")
    reach("answered")
    paid = await run.tool_call("pay", {"amount": answer["amount"]}, key="payment").run(pay)
    reach("paid")
    await run.say(f"Paid {paid}.")


@agent("between")
async def between(run: RunContext) -> None:
    """Pay once between two answers of the page; they may come in runs of different processes."""
    one, two = run.call_frontend_tool("one"), run.call_frontend_tool("two")
    one.answer()
    paid = await run.once("pay", pay, 7)
    reach("kept")
    two.answer()
    await run.say(f"Paid {paid}.")


@approval_required("Pay {amount}?")
def pay_allowed(amount: int) -> int:
    """Pay, once somebody has allowed it."""
    return pay(amount)


@agent("clerk")
async def clerk(run: RunContext) -> None:
    """Have a payment allowed, pay, tell."""
    run.tool_call("pay_allowed", {"amount": int(run.text)}, key="payment")
    await run.dispatch_tool_calls(pay_allowed)
    reach("paid")
    await run.say("Done.")
