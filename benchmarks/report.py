"""The table: what was promised, what was measured, whether it was met."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

BEGIN, END = "<!-- benchmark: begin -->", "<!-- benchmark: end -->"


@dataclass(frozen=True)
class Row:
    """One line; ``met`` is None where nothing was promised."""

    what: str
    target: str
    measured: str
    met: bool | None = None

    @property
    def verdict(self) -> str:
        """The last column."""
        return {True: "met", False: "NOT MET", None: ""}[self.met]


@dataclass
class Report:
    """The rows in order, and notes on how they came about."""

    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def at_least(self, what: str, value: float, target: float, unit: str, detail: str = "") -> None:
        """Add a row whose value must not be lower."""
        self.rows.append(Row(what, f">= {target:g} {unit}", f"{value:.2f} {unit}{detail}", value >= target))

    def at_most(self, what: str, value: float, target: float, unit: str, detail: str = "") -> None:
        """Add a row whose value must not be higher."""
        shown = f"{value:.2f}" if value < 100 else f"{value:.0f}"
        self.rows.append(Row(what, f"<= {target:g} {unit}", f"{shown} {unit}{detail}", value <= target))

    def fact(self, what: str, measured: str) -> None:
        """Add a row that promises nothing."""
        self.rows.append(Row(what, "", measured))

    def fails(self, what: str, why: str) -> None:
        """Add a row that could not be measured."""
        self.rows.append(Row(what, "", f"not measured: {why}"))

    @property
    def missed(self) -> list[Row]:
        """The rows that were not met."""
        return [row for row in self.rows if row.met is False]

    def text(self) -> str:
        """Return the table for a terminal."""
        head = ("what", "target", "measured", "")
        lines = [head, *((row.what, row.target, row.measured, row.verdict) for row in self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(3)]
        table = [
            "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[3]]).rstrip()
            for line in lines
        ]
        table.insert(1, "  ".join("-" * width for width in widths))
        return "\n".join([*table, "", *self.notes])

    def markdown(self) -> str:
        """Return the table for the documentation."""
        lines = ["| what | target | measured | |", "|---|---|---|---|"]
        lines += [f"| {row.what} | {row.target} | {row.measured} | {row.verdict} |" for row in self.rows]
        return "\n".join([*lines, "", *(f"- {note}" for note in self.notes)])

    def write_into(self, page: Path) -> None:
        """Replace the page's part between the marks; a page without them gets it at its end."""
        text = page.read_text() if page.exists() else "# What it costs\n"
        fragment = f"{BEGIN}\n{self.markdown()}\n{END}"
        if BEGIN in text and END in text:
            before, _, rest = text.partition(BEGIN)
            text = before + fragment + rest.partition(END)[2]
        else:
            text = f"{text.rstrip()}\n\n{fragment}\n"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text)
