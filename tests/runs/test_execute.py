"""A run that was opened elsewhere, executed here: what its row says counts, not what this process is about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.utils import timezone, translation

from agui_django import RunContext
from agui_django.models import Run
from agui_django.runs.database import get_pool
from agui_django.runs.engine import get_engine
from agui_django.runs.store import ThreadStore
from agui_django.testing import override_agent
from tests.runs.given import Given, user


@pytest.mark.asyncio
async def test_language_time_zone_and_extra_come_with_the_row(agui_runtime: None, ada: Any) -> None:
    seen: list[Any] = []

    async def agent(run: RunContext) -> None:
        seen.append((translation.get_language(), timezone.get_current_timezone_name(), run.extra, run.user, run.text))
        await run.say("done")

    given = await get_pool().run(Given, ada)
    request = replace(
        given.request(messages=[user("u1", "hallo")], claim=""),
        language="de", time_zone="Europe/Berlin", extra={"tenant": 7},
    )  # fmt: skip
    with override_agent("echo", agent):
        opened = await ThreadStore().aopen_run(request)
        assert opened.run is not None
        assert opened.run.status == "pending"
        assert await get_engine().execute(opened.run.pk) is True
        assert await get_engine().execute(opened.run.pk) is False
    assert seen == [("de", "Europe/Berlin", {"tenant": 7}, ada, "hallo")]
    assert translation.get_language() != "de"
    assert (await Run.objects.aget(pk=opened.run.pk)).status == "finished"
