"""The job of those who join a thread in the middle of a run: they leave as soon as its present is restated."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from benchmarks.load.streams import RUN_TIMEOUT, Stream, get, summary
from benchmarks.work import Order

#: RUN_STARTED, MESSAGES_SNAPSHOT, STATE_SNAPSHOT, TEXT_MESSAGE_START: what follows is live.
RESTATED = 4


class Joining(Stream):
    """One who joins."""

    def __init__(self, request: bytes) -> None:
        """Prepare to send ``request``."""
        #: Milliseconds until the thread was restated.
        self.restated: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        super().__init__(request, on_events=self._count)

    def _count(self, _new: int) -> None:
        if self.events >= RESTATED and not self.restated.done():
            self.restated.set_result((time.perf_counter() - self.opened) * 1000)


async def join(job: dict[str, Any]) -> dict[str, Any]:
    """Join the running threads in turn, so many times; note the milliseconds until each was restated."""
    loop = asyncio.get_running_loop()
    took: dict[str, list[float]] = {target["name"]: [] for target in job["targets"]}
    streams: dict[str, list[Stream]] = {name: [] for name in took}
    for _ in range(job["times"]):
        for target in job["targets"]:
            stream = Joining(get(target, target["read"]))
            transport, _ = await loop.create_connection(lambda stream=stream: stream, "127.0.0.1", target["port"])  # type: ignore[misc]
            try:
                took[target["name"]].append(await asyncio.wait_for(stream.restated, RUN_TIMEOUT))
            except TimeoutError:
                stream.status = "timeout"
            finally:
                transport.abort()
            streams[target["name"]].append(stream)
    return {
        name: {"restated_ms": took[name], **summary(found, Order(tokens=RESTATED))} for name, found in streams.items()
    }
