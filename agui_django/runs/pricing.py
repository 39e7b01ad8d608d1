"""What a run cost: computed from the prices of the day when it closes, and never again.

Law: a cost that is not known whole is none at all: an unknown price, counts that contradict each other and a second
currency leave a run "not priced", which is never 0. Parts are parts of the totals: cached tokens are paid once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, Final

from agui_django.agents.costs import NANOS, OwnCosts, amount_of, is_currency
from agui_django.conf import settings
from agui_django.models import ID_LENGTH
from agui_django.runs.setup import Wire

#: Prices are per so many tokens.
PER: Final = 1_000_000
#: A price's keys, and those that may be left out: what the tokens cost then.
AMOUNTS: Final = ("input", "output")
PARTS: Final = {"cached_input": "input", "cache_write_input": "input"}
KEYS: Final = (*AMOUNTS, *PARTS, "currency", "date")


@dataclass(frozen=True)
class Price:
    """Of a model: nanos per token, the currency, and since when it holds."""

    input: Decimal
    output: Decimal
    cached_input: Decimal
    cache_write_input: Decimal
    currency: str
    date: date

    def of(self, counts: Mapping[str, int]) -> Decimal | None:
        """The nanos of wire counts; None where they are incomplete or contradict each other."""
        given, made = counts.get("inputTokens"), counts.get("outputTokens")
        if given is None and made is None:
            return None
        given, made = given or 0, made or 0
        cached, written = counts.get("cachedInputTokens") or 0, counts.get("cacheWriteInputTokens") or 0
        if cached + written > given or counts.get("totalTokens") not in (None, given + made):
            return None
        fresh = given - cached - written
        return fresh * self.input + cached * self.cached_input + written * self.cache_write_input + made * self.output


class _Book:
    """The prices of the setting, without those that the checks complain of, and what was looked up."""

    def __init__(self, written: Mapping[str, Any] | None) -> None:
        self.written = written
        entries = written.items() if isinstance(written, Mapping) else ()
        self.prices = {name: _price(entry) for name, entry in entries if not any(problems({name: entry}))}
        self.found: dict[tuple[str, str], Price | None] = {}

    def price(self, provider: str, model: str) -> Price | None:
        key = provider, model
        try:
            return self.found[key]
        except KeyError:
            price = self._looked_up(provider, model)
        if len(self.found) >= 1000:  # names come from agents; other threads look here meanwhile
            self.found = {}
        self.found[key] = price
        return price

    def _looked_up(self, provider: str, model: str) -> Price | None:
        names = [f"{provider}/{model}", model] if provider else [model]
        for name in names:
            if name in self.prices:
                return self.prices[name]
        patterns = [key for key in self.prices if key.endswith("*")]
        fitting = [key for key in patterns if any(name.startswith(key[:-1]) for name in names)]
        return self.prices[max(fitting, key=len)] if fitting else None


_book = _Book(None)


def price_of(provider: str, model: str) -> Price | None:
    """A model's price: that of its very name (with the provider first), else that of the longest pattern."""
    global _book
    book = _book
    if book.written is not settings.PRICES:
        book = _book = _Book(settings.PRICES)
    return book.price(provider, model)


def columns(usage: Sequence[Wire], own: OwnCosts) -> dict[str, Any]:
    """The columns of a run that tell its models and its cost.

    Args:
        usage: the terminal event's usage list, not empty.
        own: what the agent said itself.
    """
    names = sorted({entry["model"] for entry in usage if entry.get("model")})
    values: dict[str, Any] = {"model": " + ".join(names)[:ID_LENGTH]}
    nanos, currencies, dates = Decimal(sum(own.nanos.values())), set(own.nanos), []
    for entry in usage:
        counts = own.left(entry)
        if not counts:
            continue
        price = price_of(entry.get("provider") or "", entry.get("model") or "")
        amount = price.of(counts) if price is not None else None
        if price is None or amount is None:
            return values
        nanos += amount
        currencies.add(price.currency)
        dates.append(price.date)
    if len(currencies) != 1:
        return values
    return {**values, "cost_nanos": round(nanos), "currency": currencies.pop(), "priced_on": min(dates, default=None)}


def problems(written: Mapping[Any, Any]) -> Iterator[str]:
    """What is wrong with the setting ``PRICES``, one sentence each; no value is shown."""
    for name, entry in written.items():
        if not isinstance(name, str) or not name.strip("*"):
            yield "a key is the name of a model, such as 'gpt-5-mini' or 'openai/gpt-5*'"
        elif "*" in name[:-1]:
            yield f"{name!r}: * stands at the end only"
        elif not isinstance(entry, Mapping):
            yield f"{name!r} must be a dict"
        else:
            yield from (f"{name!r}: {problem}" for problem in _problems(entry))


def _problems(entry: Mapping[Any, Any]) -> Iterator[str]:
    for key in entry:
        if key not in KEYS:
            yield f"there is no {key!r}; known are {', '.join(KEYS)}"
    for key in (*AMOUNTS, *PARTS):
        if (key in entry or key in AMOUNTS) and amount_of(entry.get(key)) is None:
            yield f"{key!r} must be a number of at least 0, per million tokens"
    if not is_currency(entry.get("currency")):
        yield "'currency' must be three capital letters, such as 'USD'"
    if _date(entry.get("date")) is None:
        yield "'date' must be the day of the price list, such as '2026-11-01'"


def _price(entry: Mapping[str, Any]) -> Price:
    """A price that has no problems."""
    written = {key: entry.get(key, entry.get(PARTS.get(key, key))) for key in (*AMOUNTS, *PARTS)}
    per_token: Any = {key: (amount_of(value) or 0) * Decimal(NANOS) / PER for key, value in written.items()}
    return Price(**per_token, currency=entry["currency"], date=_date(entry["date"]) or date.min)


def _date(value: Any) -> date | None:
    if type(value) is date:
        return value
    try:
        return date.fromisoformat(value)
    except (TypeError, ValueError):
        return None


def shown(nanos: int | None, currency: str) -> str:
    """An amount as people read it, such as ``0.0123 USD``; empty: there is none.

    Small amounts keep two significant digits: a cost is never shown as 0 that is none.
    """
    if nanos is None:
        return ""
    amount = Decimal(nanos) / NANOS
    digits = 2 if not nanos or amount >= 1 else min(9, max(4, 1 - amount.adjusted()))
    return f"{amount:.{digits}f} {currency}".strip()


def together(costs: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The sums of nanos by currency; amounts of two currencies are never added."""
    found: dict[str, int] = {}
    for each in costs:
        for currency, nanos in each.items():
            found[currency] = found.get(currency, 0) + nanos
    return dict(sorted(found.items()))
