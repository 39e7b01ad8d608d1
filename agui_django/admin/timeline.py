"""A run on a time axis: steps, messages, tool calls, subagents, changes of the state, drawn as SVG on the server.

Law: geometry stands in attributes and colours in classes, for a page without inline styles; the same is there as a
list. Only the beginning of a long log is drawn, and the drawing says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from django.utils.translation import gettext as _

from agui_django.admin.rights import Redactor
from agui_django.models import Run
from agui_django.protocol.codec import decode
from agui_django.protocol.errors import CursorGone
from agui_django.runs.database import get_pool
from agui_django.runs.stream import Entry, read_entries

#: Events that are looked at, bars that are drawn, and the drawing's width.
LOOKED, BARS, WIDTH = 5_000, 500, 1000
#: Characters after which no more of a log is read.
CHARACTERS = 4 * 1024 * 1024
LANE, LEFT = 22, 90

#: A beginning -> its end, the member that ties them, and the lane.
PAIRS: Final = {
    "STEP_STARTED": ("STEP_FINISHED", "stepName", "step"),
    "SUBAGENT_STARTED": ("SUBAGENT_FINISHED", "subagentRunId", "subagent"),
    "REASONING_MESSAGE_START": ("REASONING_MESSAGE_END", "messageId", "reasoning"),
    "TEXT_MESSAGE_START": ("TEXT_MESSAGE_END", "messageId", "text"),
    "TOOL_CALL_START": ("TOOL_CALL_RESULT", "toolCallId", "tool"),
}
ENDS: Final = {end: (tie, lane) for end, tie, lane in PAIRS.values()} | {
    "SUBAGENT_ERROR": ("subagentRunId", "subagent"),
}
POINTS: Final = {"STATE_SNAPSHOT": "state", "STATE_DELTA": "state", "RUN_ERROR": "end", "RUN_FINISHED": "end"}
LANES: Final = ("step", "subagent", "reasoning", "text", "tool", "state", "end")


@dataclass
class Bar:
    """Something that took its time, or happened."""

    lane: str
    seq: int
    begin: int
    name: str
    end: int = 0
    failed: bool = False
    open: bool = True
    x: int = 0
    y: int = 0
    width: int = 0

    @property
    def took(self) -> str:
        """How long."""
        return f"{(self.end - self.begin) / 1000:.2f} s"


@dataclass
class Timeline:
    """The drawing."""

    bars: list[Bar] = field(default_factory=list)
    lanes: list[tuple[str, int]] = field(default_factory=list)
    ticks: list[tuple[int, str]] = field(default_factory=list)
    height: int = 0
    cut: int = 0


def timeline(run: Run, redactor: Redactor) -> Timeline:
    """The drawing of a run; empty where its log is gone, or tells no times."""
    entries: list[Entry] = []
    after = read = 0
    try:
        while len(entries) < LOOKED and read < CHARACTERS:
            some = get_pool().run_sync(read_entries, run.pk, after)
            if not some:
                break
            entries += some
            after = some[-1][0]
            read += sum(len(text) for _seq, text, _plain in some)
    except CursorGone:
        return Timeline()
    cut = after if after < run.last_seq else 0
    return drawn(((seq, decode(text)) for seq, text, _plain in entries[:LOOKED]), redactor, cut)


def drawn(events: Iterable[tuple[int, Any]], redactor: Redactor, cut: int = 0) -> Timeline:
    """The drawing of events.

    Args:
        events: with their numbers.
        redactor: the viewer's.
        cut: the number of the last event that is drawn, where there are more.
    """
    bars: list[Bar] = []
    held: dict[tuple[str, str], Bar] = {}
    first = last = 0
    for seq, event in events:
        at, kind = event.get("timestamp"), event.get("type")
        if not isinstance(at, int):
            continue
        first, last = first or at, max(last, at)
        if kind in PAIRS:
            _end, tie, lane = PAIRS[kind]
            held[lane, str(event.get(tie))] = bar = Bar(lane, seq, at, _name(event, lane, redactor))
            bars.append(bar)
        elif kind in ENDS:
            tie, lane = ENDS[kind]
            if (ended := held.pop((lane, str(event.get(tie))), None)) is not None:
                ended.end, ended.open, ended.failed = at, False, kind == "SUBAGENT_ERROR"
        elif kind in POINTS:
            bars.append(Bar(POINTS[kind], seq, at, str(kind), at, kind == "RUN_ERROR", False))
    if not bars:
        return Timeline()
    return _placed(bars, first, last, cut)


def _name(event: dict[str, Any], lane: str, redactor: Redactor) -> str:
    if lane == "tool":
        return str(event.get("toolCallName", ""))
    if lane in ("step", "subagent"):
        return redactor.text(str(event.get("stepName") or event.get("name") or ""))
    return str(event.get("role", lane))


def _placed(bars: list[Bar], first: int, last: int, cut: int) -> Timeline:
    if len(bars) > BARS:
        cut = bars[BARS].seq - 1
        del bars[BARS:]
    span = max(last - first, 1)
    used = [lane for lane in LANES if any(bar.lane == lane for bar in bars)]
    rows = {lane: 24 + place * LANE for place, lane in enumerate(used)}
    for bar in bars:
        if bar.open:
            bar.end = last
        bar.x = LEFT + (bar.begin - first) * (WIDTH - LEFT) // span
        bar.width = max((bar.end - bar.begin) * (WIDTH - LEFT) // span, 3)
        bar.x = min(bar.x, WIDTH - bar.width)
        bar.y = rows[bar.lane]
    names = {
        "step": _("steps"), "subagent": _("subagents"), "reasoning": _("reasoning"), "text": _("messages"),
        "tool": _("tools"), "state": _("state"), "end": _("end"),
    }  # fmt: skip
    ticks = [(LEFT + (WIDTH - LEFT) * n // 5, _tick(span * n // 5, span)) for n in range(5)]
    return Timeline(bars, [(names[lane], y) for lane, y in rows.items()], ticks, 30 + len(used) * LANE, cut)


def _tick(at: int, span: int) -> str:
    return f"{at} ms" if span < 2_000 else f"{at / 1000:.1f} s"
