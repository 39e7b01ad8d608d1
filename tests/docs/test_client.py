"""docs/howto/client.md: its code does what the page says."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client as DjangoClient

from agui_django.client import Client
from tests.live import LiveServer
from tests.parts import ROOT

PAGE = (ROOT / "docs" / "howto" / "client.md").read_text()
CONVERSATION, QUESTIONS, BACK, ASYNC, CAREFUL = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def headers(ada: Any) -> dict[str, str]:
    session = DjangoClient()
    session.force_login(ada)
    return {"Cookie": f"sessionid={session.cookies['sessionid'].value}; csrftoken={'a' * 32}", "X-CSRFToken": "a" * 32}


def executed(code: str, **names: Any) -> dict[str, Any]:
    found = {"Client": Client, **names}
    exec(code, found)
    return found


def test_the_conversation(server: LiveServer, headers: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "Token demo-ada" in CONVERSATION
    code = CONVERSATION.replace('{"Authorization": "Token demo-ada"}', "headers")
    executed(code.replace("http://127.0.0.1:8000", server.url), headers=headers)
    said = capsys.readouterr().out
    assert said.startswith("Here is a plan for **A quiet afternoon**.")
    assert "success {'hours': 7} [{'model': 'demo', 'inputTokens': 17, 'outputTokens': 42, 'totalTokens': 59}]" in said
    assert said.endswith("All done: 7 hours in 3 tasks. 100\n")


def test_the_rest(server: LiveServer, headers: dict[str, str]) -> None:
    url = f"{server.url}/agui/agents/refund"
    with Client(url, headers=headers) as client:
        assert executed(QUESTIONS)["refund"](client).startswith("Refunded 5 €")
    url = f"{server.url}/agui/agents/echo"
    with Client(url, headers=headers) as client:
        client.run("One").wait()
        messages = executed(BACK)["come_back"](client, url, headers)
        assert [m["content"] for m in messages] == ["One", "You said: One", "Once more", "You said: Once more"]
        careful = executed(CAREFUL)["careful"]
        assert careful(client, "hello") == "You said: hello"
    with Client(url) as stranger:
        assert careful(stranger, "hello").startswith("401 not_authenticated")
    with Client("http://127.0.0.1:1/agents/x") as nowhere:
        assert careful(nowhere, "hello") == "unreachable"


@pytest.mark.asyncio
async def test_asynchronously(server: LiveServer, headers: dict[str, str]) -> None:
    said = await executed(ASYNC)["ask"](f"{server.url}/agui/agents/echo", headers, "hello")
    assert said == "You said: And now?"
