"""What an agent itself says that its model calls cost; whatever it says nothing of is priced by the site's setting."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Final

#: Parts of a unit of currency that costs are counted in: sums of whole numbers are exact in every database.
NANOS: Final = 1_000_000_000

_CURRENCY = re.compile(r"[A-Z]{3}", re.ASCII)


def amount_of(value: Any) -> Decimal | None:
    """A number of at least 0, below a billion, also as text; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Decimal):
        return None
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return None
    return number if number.is_finite() and 0 <= number < NANOS else None


def is_currency(value: Any) -> bool:
    """Whether it is written as ISO 4217 has it: three capital letters."""
    return isinstance(value, str) and _CURRENCY.fullmatch(value) is not None


@dataclass(frozen=True)
class Cost:
    """An agent's own figure for one report.

    Raises:
        ValueError: the amount is no number from 0 to a billion, or the currency is not three capital letters.
    """

    amount: Decimal | float | str
    currency: str

    def __post_init__(self) -> None:
        """Refuse what could not be stored."""
        if not is_currency(self.currency):
            raise ValueError("A cost needs its currency as three capital letters, such as currency='USD'.")
        if amount_of(self.amount) is None:
            raise ValueError("A cost is a number from 0 to a billion.")

    @property
    def nanos(self) -> int:
        """Billionths of the currency."""
        amount = amount_of(self.amount)
        assert amount is not None  # noqa: S101 - it was looked at
        return round(amount * NANOS)


@dataclass
class OwnCosts:
    """The figures of a run.

    Attributes:
        nanos: their sums, by currency.
        covered: the counts that they are for, by provider and model.
    """

    nanos: dict[str, int] = field(default_factory=dict)
    covered: dict[tuple[Any, Any], dict[str, int]] = field(default_factory=dict)

    def add(self, cost: Cost, entry: Mapping[str, Any]) -> None:
        """Note a figure and the usage entry that it is for."""
        self.nanos[cost.currency] = self.nanos.get(cost.currency, 0) + cost.nanos
        counts = self.covered.setdefault((entry.get("provider"), entry.get("model")), {})
        for name, value in entry.items():
            if isinstance(value, int):
                counts[name] = counts.get(name, 0) + value

    def left(self, total: Mapping[str, Any]) -> dict[str, int]:
        """The counts of a model's sum that no figure is for; empty: there are none."""
        counts = {name: value for name, value in total.items() if isinstance(value, int)}
        covered = self.covered.get((total.get("provider"), total.get("model")))
        if covered is None:
            return counts
        # A sum of other counts: what is left of it follows from them.
        counts.pop("totalTokens", None)
        left = {name: value - covered.get(name, 0) for name, value in counts.items()}
        return left if any(left.values()) else {}
