"""docs/howto/agents.md: its code on questions and approvals runs as it stands, on every Python."""

from __future__ import annotations

import re
from typing import Any

import pytest

import agui_django
from tests.parts import ROOT
from tests.running import checked, run

pytestmark = pytest.mark.asyncio

PAGE = (ROOT / "docs" / "howto" / "agents.md").read_text()


class Order:
    """What the page's shop is about."""

    refunds: list[int]

    def refund(self, amount: int) -> str:
        self.refunds.append(amount)
        return f"{amount} € are on their way."


def section(title: str, **names: Any) -> dict[str, Any]:
    """What the Python of a section defines, with what the page's first sample imports and what is the reader's."""
    text = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    names["RunContext"] = agui_django.RunContext
    for sample in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
        exec(sample, names)
    return names


@pytest.mark.parametrize(("approved", "said"), [(True, "Refunded."), (False, "Nothing was refunded.")])
async def test_asking_a_person(approved: bool, said: str) -> None:
    first = await run(section("Asking a person")["refund"])
    last = checked(await first.resume({"refund": {"approved": approved}}))
    assert [message["content"] for message in last.wire_messages if message["role"] == "assistant"] == [
        "Let me check.",
        said,
    ]


async def test_approvals() -> None:
    order = Order()
    order.refunds = []
    order.objects = order  # type: ignore[attr-defined]
    order.get = lambda pk: order  # type: ignore[attr-defined]
    first = await run(section("Approvals", Order=order)["support"])
    (question,) = first.terminal["outcome"]["interrupts"]
    assert (question["message"], order.refunds) == ("Refund 40 € for order 7?", [])
    answer = {"approved": True, "editedArgs": {"order_id": 7, "amount": 25}}
    last = checked(await first.resume({question["id"].partition(":")[2]: answer}))
    assert order.refunds == [25]
    assert last.wire_messages[-1]["content"] == "25 € are on their way."
