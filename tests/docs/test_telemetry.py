"""docs/howto/telemetry.md: its tables name what is exported, and its sample exports it."""

from __future__ import annotations

import re
from functools import partial
from io import StringIO
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import export as metric_export
from opentelemetry.sdk.trace import export

from agui_django.runs import supervisor
from agui_django.runs.start import astart_run
from tests.parts import ROOT

PAGE = (ROOT / "docs" / "howto" / "telemetry.md").read_text()
SAMPLE = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
CODE = (ROOT / "agui_django" / "runs" / "telemetry.py").read_text()
NAME = r"(?:gen_ai|agui)\.[a-z_.]*[a-z]|error\.type"


def test_every_name_is_in_the_page_and_no_other() -> None:
    code = CODE.replace('f"gen_ai.usage.{key}_tokens"', '"gen_ai.usage.input_tokens" "gen_ai.usage.output_tokens"')
    exported = set(re.findall(rf'"({NAME})"', code))
    rows = [line.rpartition("|")[0] for line in PAGE.splitlines() if line.startswith("| `")]
    told = {name for row in rows for name in re.findall(rf"`({NAME})`", row)}
    assert told == exported - {"agui.flush"}  # the span
    assert "`agui.flush`" in PAGE


@pytest.mark.asyncio
async def test_the_sample(agui_runtime: None, monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Any] = {}
    terminal = StringIO()  # the exporters keep the stdout that they were imported with
    for module, name in ((export, "ConsoleSpanExporter"), (metric_export, "ConsoleMetricExporter")):
        monkeypatch.setattr(module, name, partial(getattr(module, name), out=terminal))
    monkeypatch.setattr(trace, "set_tracer_provider", lambda each: made.update(trace=each))
    monkeypatch.setattr(metrics, "set_meter_provider", lambda each: made.update(metrics=each))
    assert SAMPLE is not None
    exec(SAMPLE[1], {})
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: made["trace"])
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: made["metrics"])
    try:
        run = await astart_run("echo", "t", "a secret")
        await supervisor.settle()
    finally:
        made["trace"].shutdown()
        made["metrics"].shutdown()
    shown = terminal.getvalue()
    assert '"name": "agui.run echo"' in shown
    assert '"name": "agui.flush.duration"' in shown
    assert str(run.pk) in shown
    assert "a secret" not in shown
