"""The dashboard's charts: stacked bars as plain geometry, which a template writes as SVG. No style, no script."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

#: In units of the view box; what stands left of and below the bars.
WIDTH, HEIGHT, LEFT, BELOW, ABOVE = 1000, 180, 70, 20, 8
#: Labels below the bars, at most.
LABELS: Final = 12


@dataclass(frozen=True)
class Part:
    """A piece of a bar.

    Attributes:
        value: how long it is.
        kind: the end of its class, which colours it.
        title: what is said of it.
        url: where it leads; empty: nowhere.
    """

    value: float
    kind: str
    title: str
    url: str = ""


@dataclass(frozen=True)
class Piece:
    """A part with its place, in hundredths of a unit at most."""

    part: Part
    x: float
    y: float
    width: float
    height: float


@dataclass
class Chart:
    """Bars from left to right.

    Attributes:
        name: what a reader without eyes is told.
        top: the label of the highest value.
        labels: place, text.
    """

    name: str
    top: str
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    bottom: int = HEIGHT - BELOW
    ceiling: int = ABOVE
    pieces: list[Piece] = field(default_factory=list)
    labels: list[tuple[float, str]] = field(default_factory=list)


def highest(bars: Sequence[Sequence[Part]]) -> float:
    """The highest bar's value."""
    return max((sum(part.value for part in bar) for bar in bars), default=0)


def stacked(name: str, bars: Sequence[Sequence[Part]], labels: Sequence[str], top: str) -> Chart:
    """A chart of stacked bars.

    Args:
        name: what it shows.
        bars: of each bucket its parts, from the bottom.
        labels: of each bucket.
        top: the highest bar's value as people read it.
    """
    chart = Chart(name, top)
    _fill(chart, bars)
    every = -(-len(labels) // LABELS)
    slot = (chart.width - chart.left) / max(1, len(bars))
    chart.labels = [
        (round(chart.left + (number + 0.5) * slot, 2), text)
        for number, text in enumerate(labels)
        if number % every == 0
    ]
    return chart


def spark(name: str, values: Sequence[int]) -> Chart:
    """A small chart without words: how often something was."""
    chart = Chart(name, "", width=120, height=20, left=0, bottom=20, ceiling=0)
    _fill(chart, [[Part(value, "failed", "")] for value in values])
    return chart


def _fill(chart: Chart, bars: Sequence[Sequence[Part]]) -> None:
    most = highest(bars) or 1
    slot = (chart.width - chart.left) / max(1, len(bars))
    gap = min(4.0, slot / 5)
    for number, bar in enumerate(bars):
        base = float(chart.bottom)
        for part in bar:
            if part.value <= 0:
                continue
            # What is there is seen, however little it is.
            height = max(1.0, part.value / most * (chart.bottom - chart.ceiling))
            base -= height
            x = chart.left + number * slot + gap / 2
            chart.pieces.append(Piece(part, round(x, 2), round(base, 2), round(slot - gap, 2), round(height, 2)))
