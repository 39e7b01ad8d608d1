"""docs/howto/state.md: its code does what the page says."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from agui_django.models import Thread
from agui_django.protocol import errors
from agui_django.runs import supervisor
from agui_django.runs.database import get_pool
from agui_django.runs.editing import MAX_OPS
from agui_django.runs.start import astart_run
from agui_django.testing import override_agent, run_agent
from tests.parts import ROOT

PAGE = (ROOT / "docs" / "howto" / "state.md").read_text()


def samples() -> dict[str, Any]:
    names: dict[str, Any] = {}
    for sample in re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S):
        exec(sample, names)
    return names


@pytest.mark.asyncio
async def test_the_edit(agui_runtime: None, ada: Any) -> None:
    async def quiet(_: Any) -> None: ...

    with override_agent("quiet", quiet):
        run = await astart_run("quiet", None, "hi", user=ada, state={"order": {"id": 7}})
        await supervisor.settle()
    assert await samples()["parcel_sent"](run.thread, ada) == 2
    thread = await get_pool().run(Thread.objects.get, pk=run.thread_id)
    assert json.loads(thread.state) == {"order": {"id": 7, "status": "sent"}}


@pytest.mark.asyncio
async def test_the_agent() -> None:
    result = await run_agent(samples()["work"], state={"items": [{"n": 1}]})
    assert result.state == {"items": [{"n": 1, "done": True}]}


def test_the_refusals() -> None:
    rows = re.findall(r"^\| `(\w+)` \((\d+)(?:, code `(\w+)`)?\) \|", PAGE, re.M)
    assert len(rows) == 5
    for name, status, code in rows:
        answer = errors.TABLE[getattr(errors, name)]
        assert answer.status == int(status)
        assert code in ("", answer.code)
    assert f"over {MAX_OPS:,} operations" in PAGE
