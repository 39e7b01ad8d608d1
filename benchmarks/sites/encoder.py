"""Peer: FastAPI with the official models and EventEncoder, as the protocol's examples do it. Stores nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ag_ui.core import (
    RunAgentInput,
    RunFinishedEvent,
    RunStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
)
from ag_ui.encoder import EventEncoder
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from benchmarks.work import MESSAGE_ID, Order

application = FastAPI()


@application.post("/run")
async def run(body: RunAgentInput) -> StreamingResponse:
    """Stream a run."""
    encoder = EventEncoder()
    order = Order.read(str(body.messages[-1].content))

    async def frames() -> AsyncIterator[str]:
        yield encoder.encode(RunStartedEvent(thread_id=body.thread_id, run_id=body.run_id))
        yield encoder.encode(TextMessageStartEvent(message_id=MESSAGE_ID, role="assistant"))
        async for text in order.deltas():
            yield encoder.encode(TextMessageContentEvent(message_id=MESSAGE_ID, delta=text))
        yield encoder.encode(TextMessageEndEvent(message_id=MESSAGE_ID))
        yield encoder.encode(RunFinishedEvent(thread_id=body.thread_id, run_id=body.run_id))

    return StreamingResponse(frames(), media_type=encoder.get_content_type())


@application.get("/health")
async def health() -> str:
    """Say that the server is up."""
    return "ok"
