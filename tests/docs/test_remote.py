"""docs/howto/remote.md: its code does what the page says."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from agui_django.agents import registry
from agui_django.agents.remote import RemoteAgent
from agui_django.agents.remote_hosts import HostRefused
from agui_django.testing import run_agent
from tests.parts import ROOT
from tests.scripted import Request, scripted

PAGE = (ROOT / "docs" / "howto" / "remote.md").read_text()
SIMPLE, DESK, EDITS, INSIDE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


async def tells(request: Request) -> None:
    """Says what it was given."""
    given = request.input
    await request.begin()
    await request.started()
    said = f"{request.headers['authorization']} {given['forwardedProps']} {given.get('context')} {given['threadId']}"
    await request.events({"type": "TEXT_MESSAGE_CHUNK", "messageId": "m1", "delta": said})
    await request.finished()


def executed(code: str, port: int, **names: Any) -> dict[str, RemoteAgent]:
    """What the page registers, where its addresses lead to a server of ours."""
    code = re.sub(
        r"https?://(127\.0\.0\.1:9000|[\w.]+\.example\.com|agents\.internal:8000)", f"http://127.0.0.1:{port}", code
    )
    code = code.replace("https://{run.extra['tenant']}.agents.example.com", f"http://127.0.0.1:{port}")
    found: dict[str, Any] = {"__name__": "shop.agents", **names}
    before = {entry.name for entry in registry.all_agents()}
    exec(code, found)
    new = {entry.name: entry.target for entry in registry.all_agents() if entry.name not in before}
    for name in new:
        registry.swap(name, None)
    return new


@pytest.mark.asyncio
async def test_the_simple_one() -> None:
    with scripted(tells) as server:
        code = SIMPLE.replace("headers=", "hosts=['127.0.0.1'], headers=").replace("…", "x")
        (helper,) = executed(code, server.port).values()
        assert (await run_agent(helper, "hi")).said[0].startswith("Bearer x {}")
        await helper.aclose()


@pytest.mark.asyncio
async def test_one_that_differs_from_run_to_run() -> None:
    async def token_for(user: Any) -> str:
        return f"of {user}"

    with scripted(tells) as server:
        code = DESK.replace('hosts=["*.agents.example.com"]', 'hosts=["127.0.0.1"]')
        (desk,) = executed(code, server.port, token_for=token_for).values()
        result = await run_agent(
            desk, "hi", user="ada", extra={"tenant": "acme"}, context=[{"description": "d", "value": "v"}]
        )
        assert result.said[0].startswith("Bearer of ada {'tenant': 'acme'} []")
        await desk.aclose()
    names: dict[str, Any] = {"__name__": "shop.agents", "token_for": token_for}
    exec(DESK, names)
    entry = registry.swap("tenant_desk", None)
    assert entry is not None
    for tenant, fine in (("acme", True), ("evil.com/x?", False), ("evil.com#", False), ("a@evil.com:80/", False)):
        url = entry.target._url(type("Run", (), {"extra": {"tenant": tenant}}))
        if fine:
            entry.target._hosts.check_url(url)
        else:
            with pytest.raises(HostRefused):
                entry.target._hosts.check_url(url)


@pytest.mark.asyncio
async def test_edits_are_told() -> None:
    with scripted(tells) as server:
        options = "headers={'Authorization': 'x'}, hosts=['127.0.0.1'], forwarded_props="
        code = EDITS.replace("forwarded_props=", options)
        (twin,) = executed(code, server.port).values()
        edited = await run_agent(twin, "hi", forwarded_props={"supersedeAfter": "", "other": 1})
        assert edited.said[0].startswith("x {'supersedeAfter': ''} ")
        assert (await run_agent(twin, "hi")).said[0].startswith("x {} ")
        await twin.aclose()


@pytest.mark.asyncio
async def test_inside() -> None:
    found = executed(INSIDE, 1)
    assert set(found) == {"inside", "local"}
    assert found["inside"]._hosts.permits("10.20.3.4")
    assert not found["inside"]._hosts.permits("10.21.3.4")
    assert not found["inside"]._hosts.permits("127.0.0.1")
    assert found["local"]._hosts.permits("127.0.0.1")


def test_the_options() -> None:
    defaults = {name: each.default for name, each in inspect.signature(RemoteAgent).parameters.items()}
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)?) \| ([\w, ]+) \|", PAGE, re.M)
    said = {}
    for names, values in rows:
        said.update(zip(re.findall(r"\w+", names), values.split(", "), strict=True))
    assert len(said) == 7
    for name, value in said.items():
        factor = 1024 * 1024 if value.endswith("MB") else 1
        assert defaults[name] == int(value.split()[0]) * factor, name
