"""Agents with an effect outside of the database: a line in the file that AGUI_PAYMENTS names."""

from __future__ import annotations

import os
from pathlib import Path

from agui_django import RunContext, agent
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
