"""Whether a stream is one that a strict client accepts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ag_ui.core import Event as OfficialEvent
from pydantic import TypeAdapter

from agui_django.protocol.codec import decode
from agui_django.protocol.consumer import Consumer

Wire = dict[str, Any]

_OFFICIAL: TypeAdapter[Any] = TypeAdapter(OfficialEvent)


def assert_valid_run(events: Iterable[Wire | str], *, messages: Sequence[Wire] = (), state: Any = None) -> None:
    """Fail unless a strict client accepts this stream: the specification's pipeline, and the official models.

    Args:
        events: wire dicts or texts, from RUN_STARTED to the terminal event.
        messages: what the client held before.
        state: as well.

    Raises:
        AssertionError: with what is wrong.
    """
    consumer = Consumer(messages, state)
    where = "the beginning"
    try:
        for number, event in enumerate(events):
            wire = decode(event) if isinstance(event, str) else event
            where = f"event {number}, {wire.get('type')}"
            _OFFICIAL.validate_python(wire)
            consumer.feed(wire)
        where = "the end"
        consumer.end()
    except Exception as error:
        raise AssertionError(f"{where}: {error}") from error
    if consumer.warnings:
        raise AssertionError(f"a client would warn: {'; '.join(consumer.warnings)}")
