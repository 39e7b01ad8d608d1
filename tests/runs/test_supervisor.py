"""What a detached task takes along of who started it."""

from __future__ import annotations

import contextvars

import pytest
from opentelemetry import context as telemetry

from agui_django.runs import supervisor

MINE: contextvars.ContextVar[str] = contextvars.ContextVar("mine", default="")


@pytest.mark.asyncio
async def test_the_trace_goes_on_and_nothing_else_is_inherited() -> None:
    MINE.set("the request's")
    token = telemetry.attach(telemetry.set_value("span", "of the request"))
    try:

        async def work() -> tuple[object, str]:
            seen = telemetry.get_value("span"), MINE.get()
            telemetry.attach(telemetry.set_value("span", "of the run"))
            return seen

        assert await supervisor.start(work(), name="traced") == ("of the request", "")
        assert telemetry.get_value("span") == "of the request"
    finally:
        telemetry.detach(token)
    await supervisor.settle()
