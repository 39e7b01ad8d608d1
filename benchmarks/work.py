"""The work every server does: one run of 200 text deltas of 24 characters, at full speed or on a fixed schedule.

Standard library only: the peers import it in their own virtual environment.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

SIZE = 24
FRAMING_EVENTS = 4  # RUN_STARTED, TEXT_MESSAGE_START, TEXT_MESSAGE_END, RUN_FINISHED

# Prose of its own for each delta: a log of one repeated text would be compressed to nothing by PostgreSQL.
_WORDS = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an
they which one you were all her she there would their we him been has when who will no more if out
so up said what its about than into them can only other time new some could these two may first then
do any like my now over such our man me even most made after also did many off before must well back
through years where much your way down should because long each just state those people too how
little good world make very year still see work life being day streaming token
""".split()  # noqa: SIM905 - as prose it can be read


def _prose(count: int) -> tuple[str, ...]:
    choose = random.Random(31)
    text = " ".join(choose.choice(_WORDS) for _ in range(count * SIZE // 2))
    return tuple(text[start : start + SIZE] for start in range(0, count * SIZE, SIZE))


TEXTS = _prose(997)

_ORDER = re.compile(r"tokens:(\d+) delay_ms:(\d+) stamp:([01])")


@dataclass(frozen=True)
class Order:
    """What a run is asked to do; it travels as the text of the user's message.

    Attributes:
        tokens: number of deltas.
        delay_ms: milliseconds between two deltas, on a fixed schedule; 0: one ``sleep(0)`` per delta.
        stamp: each delta's text is the clock (monotonic, nanoseconds) when it was handed over.
    """

    tokens: int = 200
    delay_ms: int = 0
    stamp: bool = False

    @property
    def events(self) -> int:
        """Number of events of the whole run."""
        return self.tokens + FRAMING_EVENTS

    @property
    def text(self) -> str:
        """The user's message."""
        return f"tokens:{self.tokens} delay_ms:{self.delay_ms} stamp:{int(self.stamp)}"

    @classmethod
    def read(cls, text: str) -> Order:
        """Read an order from a message, or from a whole request body.

        Raises:
            ValueError: there is none in it.
        """
        found = _ORDER.search(text)
        if found is None:
            raise ValueError("no order in the request")
        return cls(int(found[1]), int(found[2]), found[3] == "1")

    async def deltas(self) -> AsyncIterator[str]:
        """Yield the texts, as a model would stream them."""
        start = time.monotonic()
        for index in range(self.tokens):
            if self.delay_ms:
                await asyncio.sleep(max(0.0, start + (index + 1) * self.delay_ms / 1000 - time.monotonic()))
            else:
                await asyncio.sleep(0)
            yield f"{time.monotonic_ns():0{SIZE}d}" if self.stamp else TEXTS[index % len(TEXTS)]


def user(text: str) -> dict[str, str]:
    """Return a user's message."""
    return {"id": str(uuid.uuid4()), "role": "user", "content": text}


def run_input(order: Order, **members: object) -> bytes:
    """Return the body of a request for a new run, on a new thread unless ``members`` say otherwise."""
    body = {
        "threadId": str(uuid.uuid4()), "runId": str(uuid.uuid4()), "protocolVersion": "1.1", "state": {},
        "messages": [user(order.text)], "tools": [], "context": [], "forwardedProps": {}, **members,
    }  # fmt: skip
    return json.dumps(body).encode()


def event(type_: str, **members: object) -> dict[str, object]:
    """Return an event as a wire dict of the size that a recorded one has."""
    return {"type": type_, **members, "timestamp": 1700000000000}


def frame(wire: dict[str, object]) -> bytes:
    """Return an event as one SSE frame."""
    return b"data: " + json.dumps(wire, separators=(",", ":")).encode() + b"\n\n"


MESSAGE_ID = "5b0f0a52-5d4c-4b0e-9a6b-0d7c3f1f2a11"
IDS = {"threadId": "f7a0e9a4-0b1f-4c38-8f5e-0a4c8d7a2b10", "runId": "0c7c1a8e-3f0d-4e2b-8a0f-1f2e3d4c5b6a"}

HEAD = (event("RUN_STARTED", **IDS), event("TEXT_MESSAGE_START", messageId=MESSAGE_ID, role="assistant"))
DELTA = event("TEXT_MESSAGE_CONTENT", messageId=MESSAGE_ID, delta="")
TAIL = (
    event("TEXT_MESSAGE_END", messageId=MESSAGE_ID),
    event("RUN_FINISHED", **IDS, outcome={"type": "success"}),
)

HEAD_FRAMES = tuple(frame(wire) for wire in HEAD)
DELTA_FRAMES = {text: frame({**DELTA, "delta": text}) for text in TEXTS}
TAIL_FRAMES = tuple(frame(wire) for wire in TAIL)


HEAD_TEXTS, TAIL_TEXTS = ([json.dumps(wire, separators=(",", ":")) for wire in part] for part in (HEAD, TAIL))
DELTA_TEXTS = {text: json.dumps({**DELTA, "delta": text}, separators=(",", ":")) for text in TEXTS}


async def ready_frames(order: Order) -> AsyncIterator[bytes]:
    """Yield the run as ready frames: no model, no encoding, nothing stored."""
    for head in HEAD_FRAMES:
        yield head
    async for text in order.deltas():
        yield frame({**DELTA, "delta": text}) if order.stamp else DELTA_FRAMES[text]
    for tail in TAIL_FRAMES:
        yield tail


async def ready_texts(order: Order) -> AsyncIterator[str]:
    """Yield the run as ready texts, one per event: what a WebSocket frame carries."""
    for head in HEAD_TEXTS:
        yield head
    async for text in order.deltas():
        yield DELTA_TEXTS[text]
    for tail in TAIL_TEXTS:
        yield tail
