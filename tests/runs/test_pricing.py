"""What runs cost: by the prices of the day they closed, or by their agents' own figures; or it is not known."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from agui_django import checks
from agui_django.agents.context import RunContext
from agui_django.agents.costs import OwnCosts
from agui_django.runs import pricing
from agui_django.runs.pricing import columns, price_of, problems, shown, together
from agui_django.testing import override_agent
from tests.runs.conftest import given
from tests.runs.given import Given, counted

__all__ = ["given"]

SMALL = {"input": "0.25", "cached_input": "0.025", "output": 2, "currency": "USD", "date": "2026-11-01"}
LARGE = {"input": 3.0, "output": Decimal(15), "currency": "USD", "date": date(2026, 10, 1)}
PRICES = {"small": SMALL, "acme/large": LARGE}


@pytest.fixture
def prices(settings: Any) -> None:
    settings.AGUI_DJANGO = {**settings.AGUI_DJANGO, "PRICES": PRICES}


def cost(*usage: dict[str, Any]) -> tuple[int | None, str, date | None]:
    made = columns(usage, OwnCosts())
    return made.get("cost_nanos"), made.get("currency", ""), made.get("priced_on")


def entry(model: str = "small", **counts: int) -> dict[str, Any]:
    return {"model": model, **counts}


DAY = date(2026, 11, 1)


@pytest.mark.usefixtures("prices")
@pytest.mark.parametrize(
    ("counts", "nanos"),
    [
        # A token of input is 250 nanos, a cached one 25, one of output 2000.
        ({"inputTokens": 1000, "outputTokens": 10}, 270_000),
        ({"inputTokens": 1000, "outputTokens": 10, "totalTokens": 1010}, 270_000),
        ({"inputTokens": 1000, "cachedInputTokens": 800, "outputTokens": 10}, 200 * 250 + 800 * 25 + 20_000),
        ({"inputTokens": 1000, "cachedInputTokens": 1000}, 25_000),
        # Parts that have no price of their own cost what all of it costs.
        ({"inputTokens": 1000, "cacheWriteInputTokens": 500}, 250_000),
        ({"outputTokens": 10, "reasoningTokens": 9}, 20_000),
        ({"inputTokens": 0, "outputTokens": 0}, 0),
    ],
    ids=["both", "with a total", "cached", "all cached", "written to the cache", "reasoning", "nothing"],
)
def test_a_price(counts: dict[str, int], nanos: int) -> None:
    assert cost(entry(**counts)) == (nanos, "USD", DAY)


@pytest.mark.usefixtures("prices")
@pytest.mark.parametrize(
    "usage",
    [
        [entry("other", inputTokens=1)],
        [entry("large", inputTokens=1)],  # its price is acme's
        [{"inputTokens": 1}],
        [entry(inputTokens=1), entry("other", inputTokens=1)],
        [entry(totalTokens=10)],
        [entry(inputTokens=4, outputTokens=4, totalTokens=10)],
        [entry(inputTokens=4, cachedInputTokens=5)],
        [entry(inputTokens=4, cachedInputTokens=3, cacheWriteInputTokens=2)],
    ],
    ids=["unknown", "another's", "nameless", "one of two", "total only", "wrong total", "more cached", "parts"],
)
def test_what_is_not_known_is_no_cost(usage: list[dict[str, Any]]) -> None:
    assert cost(*usage) == (None, "", None)


@pytest.mark.usefixtures("prices")
def test_several_models() -> None:
    usage = [entry(inputTokens=4), {"provider": "acme", **entry("large", outputTokens=2)}]
    assert columns(usage, OwnCosts()) == {
        "model": "large + small", "cost_nanos": 1000 + 30_000, "currency": "USD", "priced_on": date(2026, 10, 1),
    }  # fmt: skip


def test_two_currencies_are_no_sum(settings: Any) -> None:
    settings.AGUI_DJANGO = {"PRICES": {"a": SMALL, "b": {**SMALL, "currency": "EUR"}}}
    assert cost(entry("a", inputTokens=4)) == (1000, "USD", DAY)
    assert cost(entry("a", inputTokens=4), entry("b", inputTokens=4)) == (None, "", None)


def test_the_nearest_name_counts(settings: Any) -> None:
    def priced(amount: int) -> dict[str, Any]:
        return {**SMALL, "input": amount}

    settings.AGUI_DJANGO = {
        "PRICES": {"m": priced(1), "acme/m": priced(2), "m-*": priced(3), "m-2*": priced(4), "acme/*": priced(5)}
    }
    for provider, model, amount in (
        ("", "m", 1), ("other", "m", 1), ("acme", "m", 2), ("", "m-1", 3), ("", "m-2026-11-01", 4),
        ("acme", "n", 5), ("acme", "m-1", 5), ("", "n", None),
    ):  # fmt: skip
        price = price_of(provider, model)
        assert (price.input / 1000 if price else None) == amount, (provider, model)
    settings.AGUI_DJANGO = {"PRICES": None}
    assert price_of("", "m") is None


def test_many_names_take_no_memory(settings: Any) -> None:
    settings.AGUI_DJANGO = {"PRICES": {"m*": SMALL}}
    for number in range(2500):
        assert price_of("", f"m{number}") is not None
    assert len(pricing._book.found) <= 1000


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("", {}, "a key is the name of a model"),
        ("*", {}, "a key is the name of a model"),
        ("m*l", {}, "* stands at the end only"),
        ("m", None, "must be a dict"),
        ("m", {"output": None}, "'output' must be a number of at least 0"),
        ("m", {"input": "much"}, "'input' must be a number of at least 0"),
        ("m", {"input": -1}, "'input' must be a number of at least 0"),
        ("m", {"input": float("nan")}, "'input' must be a number of at least 0"),
        ("m", {"input": True}, "'input' must be a number of at least 0"),
        ("m", {"cached_input": ""}, "'cached_input' must be a number of at least 0"),
        ("m", {"cached": 1}, "there is no 'cached'"),
        ("m", {"currency": "usd"}, "'currency' must be three capital letters"),
        ("m", {"currency": None}, "'currency' must be three capital letters"),
        ("m", {"date": "1.11.2026"}, "'date' must be the day"),
        ("m", {"date": None}, "'date' must be the day"),
    ],
)
def test_settings_that_are_wrong_are_told_and_price_nothing(
    settings: Any, name: str, change: Mapping[str, Any] | None, said: str
) -> None:
    written = {name: "x" if change is None else {**SMALL, **change}}
    settings.AGUI_DJANGO = {"PRICES": written}
    (message,) = checks.check_prices()
    assert message.id == "agui_django.E013" and said in message.msg and message.hint
    assert price_of("", name) is None


def test_settings_that_are_right(settings: Any) -> None:
    assert list(problems(PRICES)) == []
    settings.AGUI_DJANGO = {"PRICES": {**PRICES, "acme/*": {**LARGE, "cache_write_input": 0}}}
    assert checks.check_prices() == checks.check_settings() == []
    settings.AGUI_DJANGO = {"PRICES": ["small"]}
    assert [message.msg for message in checks.check_settings()] == ["AGUI_DJANGO['PRICES'] must be a dict or None."]


def test_amounts_as_people_read_them() -> None:
    for nanos, text in (
        (None, ""), (0, "0.00 USD"), (1, "0.000000001 USD"), (20_000_000, "0.0200 USD"), (123_456, "0.00012 USD"),
        (1_234_567_890, "1.23 USD"),
    ):  # fmt: skip
        assert shown(nanos, "USD" if nanos is not None else "") == text
    assert together([{"USD": 1}, {"USD": 2, "EUR": 3}]) == {"EUR": 3, "USD": 3}


# ---- at the end of a run ---------------------------------------------------------------------------------------------


async def figure(run: RunContext) -> None:
    """An agent that knows what half of its calls cost."""
    run.usage(model="free", input_tokens=1000, output_tokens=10, cost="0.5", currency="USD")
    run.usage(model="small", input_tokens=1000, output_tokens=10, cost=0.25, currency="USD")
    run.usage(model="small", input_tokens=2000, output_tokens=20)
    for wrong in ({"cost": 1}, {"cost": 1, "currency": "$"}, {"cost": -1, "currency": "USD"}):
        with pytest.raises(ValueError, match="A cost"):
            run.usage(model="small", **wrong)  # type: ignore[arg-type]


@pytest.mark.usefixtures("prices", "agui_runtime")
@pytest.mark.asyncio
async def test_an_agents_own_figure_comes_first(ada: Any) -> None:
    from agui_django.models import Run
    from agui_django.runs import supervisor
    from agui_django.runs.start import astart_run

    with override_agent("echo", figure):
        await astart_run("echo", None, "hi", ada)
        await supervisor.settle()
    run = await Run.objects.aget()
    # 0.75 of its own; the rest of the small model's tokens by the price list.
    assert (run.status, run.cost, run.currency) == ("finished", Decimal("0.75054"), "USD")
    assert (run.model, run.priced_on, run.input_tokens) == ("free + small", DAY, 4000)
    assert "cost" not in run.usage and "0.5" not in run.usage


def test_a_cost_is_fixed_by_the_statement_that_closes_the_run(given: Given, settings: Any) -> None:
    settings.AGUI_DJANGO = {**settings.AGUI_DJANGO, "PRICES": PRICES}
    usage = [entry(inputTokens=1000, outputTokens=10)]
    counts = []
    for told in ([], usage):
        opened = given.open()
        with counted() as statements:
            assert given.finish(opened, usage=told)
        counts.append(len(statements))
    assert counts[0] == counts[1]
    run = given.run(opened)
    assert (run.cost_nanos, run.currency, run.priced_on) == (270_000, "USD", DAY)
    settings.AGUI_DJANGO = {**settings.AGUI_DJANGO, "PRICES": {"small": {**SMALL, "input": 100}}}
    run.refresh_from_db()
    assert run.cost == Decimal("0.00027")
