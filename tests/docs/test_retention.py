"""docs/howto/retention.md and attachments.md: the commands run as printed, and the samples do what they say."""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command

from agui_django.runs.database import get_pool
from agui_django.testing import run_agent
from tests.parts import ROOT
from tests.runs.given import Given, user

PAGE = (ROOT / "docs" / "howto" / "retention.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


@pytest.fixture
def given(transactional_db: None) -> Iterator[Given]:
    yield Given(get_user_model().objects.create_user("ada"))
    get_pool().close_sync()


def test_there_are_commands() -> None:
    assert {line.split()[2] for line in COMMANDS} == {"agui_prune", "agui_export", "agui_forget"}


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command(line: str, given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given.turn(user("u1"))
    python, manage, *arguments = shlex.split(line)
    assert (python, manage) == ("python", "manage.py")
    if "--thread" in arguments:
        arguments[arguments.index("--thread") + 1] = str(given.thread.pk)
    out = StringIO()
    call_command(*arguments, stdout=out, stderr=out)
    assert out.getvalue()
    if "--output" in arguments:
        assert (tmp_path / arguments[arguments.index("--output") + 1]).exists()


def test_the_export_in_code(given: Given, capsys: pytest.CaptureFixture[str]) -> None:
    given.turn(user("u1"))
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(code.replace("pk=7", f"pk={given.thread.pk}"), {})
    assert capsys.readouterr().out.split() == ["export", "thread", "run", "message"]


@pytest.mark.asyncio
async def test_the_agent_that_looks() -> None:
    page = (ROOT / "docs" / "howto" / "attachments.md").read_text()
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[-1]
    names: dict[str, Any] = {"__name__": "sample"}
    exec(code.replace('@agent("looker")\n', ""), names)
    source = {"type": "data", "value": base64.b64encode(b"12345").decode(), "mimeType": "image/png"}
    message = {
        "id": "u",
        "role": "user",
        "content": [{"type": "text", "text": "?"}, {"type": "image", "source": source}],
    }
    run = await run_agent(names["looker"], [message])
    assert run.said == ["5 bytes of image/png"]
