"""Which hosts a remote agent may be at: names, networks, and the addresses that names turn out to be."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import httpcore
import pytest

from agui_django.agents.remote import RemoteAgent
from agui_django.agents.remote_hosts import GuardedBackend, HostRefused, Hosts
from agui_django.testing import run_agent
from tests.scripted import Request, scripted

NOT_PUBLIC = [
    "127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
    "255.255.255.255", "192.0.2.1", "::1", "::", "fe80::1", "fe80::1%1", "fc00::1", "ff02::1", "::ffff:127.0.0.1",
    "::ffff:10.0.0.1", "2002:7f00:1::", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2001:db8::1",
]  # fmt: skip


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_not_public(address: str) -> None:
    assert not Hosts(["agent.example.com"]).permits(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "64:ff9b::5db8:d822"])
def test_public(address: str) -> None:
    assert Hosts().permits(address)


def test_named_networks() -> None:
    hosts = Hosts(["10.1.0.0/16", "192.168.1.7", "localhost", "[fd00::1]"])
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "192.168.1.7", "127.0.0.1", "127.8.0.1", "::1", "fd00::1"):
        assert hosts.permits(address), address
    for address in ("10.2.0.1", "192.168.1.8", "fd00::2", "169.254.169.254"):
        assert not hosts.permits(address), address


def test_names() -> None:
    hosts = Hosts(["agent.example.com", "*.tenants.example.org", "10.0.0.0/8"])
    for url in (
        "https://agent.example.com/x",
        "https://AGENT.example.com./x",
        "http://a.tenants.example.org:8000/",
        "http://a.b.tenants.example.org/",
        "http://10.3.4.5/",
    ):
        hosts.check_url(url)
    for url in (
        "https://example.com/",
        "https://tenants.example.org/",
        "https://evil.com/agent.example.com",
        "https://agent.example.com@evil.com/",
        "https://agent.example.com.evil.com/",
        "http://11.0.0.1/",
        "http://[::1]/",
        "file:///etc/passwd",
        "gopher://agent.example.com/",
        "//agent.example.com/",
    ):
        with pytest.raises(HostRefused):
            hosts.check_url(url)
    for wrong in ("http://x.example.com", "x/y", ""):
        with pytest.raises(ValueError, match="hosts"):
            Hosts([wrong])


def test_a_function_needs_hosts() -> None:
    with pytest.raises(TypeError):
        RemoteAgent(lambda run: "https://example.com/")


class Resolver:
    """A name server that answers differently each time, as one that rebinds does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked = 0
        real = socket.getaddrinfo

        def answer(host: Any, port: Any, *args: Any, **more: Any) -> Any:
            if host not in ("rebinding.example.com", b"rebinding.example.com"):
                return real(host, port, *args, **more)
            self.asked += 1
            addresses = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            return [entry for address in addresses for entry in real(address, port, type=socket.SOCK_STREAM)]

        monkeypatch.setattr(socket, "getaddrinfo", answer)


@pytest.mark.asyncio
async def test_a_name_that_leads_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(request: Request) -> None:
        raise AssertionError("it was connected to")

    with scripted(never) as server:
        resolver = Resolver(monkeypatch, ["127.0.0.1", "::1"])
        remote = RemoteAgent(f"http://rebinding.example.com:{server.port}/agent")
        result = await run_agent(remote, "hi")
        await remote.aclose()
    assert resolver.asked == 1
    assert server.requests == []
    assert result.error is not None
    assert result.error["code"] == "agent_exception"
    assert "127.0.0.1" not in result.error["message"]
    assert result.failure is not None
    assert "HostRefused" in result.failure.text


@pytest.mark.asyncio
async def test_rebinding(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was judged is what is connected to: the name is asked once, and a second answer has no effect."""

    async def never(request: Request) -> None:
        raise AssertionError("it was connected to")

    with scripted(never) as server:
        Resolver(monkeypatch, ["203.0.113.1"], ["127.0.0.1"])
        connected: list[str] = []

        class Wire(httpcore.AsyncNetworkBackend):
            async def connect_tcp(self, host: str, *_: Any, **__: Any) -> Any:
                connected.append(host)
                raise httpcore.ConnectError("nobody")

        backend = GuardedBackend(Hosts(["203.0.113.0/24"]))  # of the documentation's networks, so not public itself
        backend._backend = Wire()
        with pytest.raises(httpcore.ConnectError):
            await backend.connect_tcp("rebinding.example.com", server.port, 1)
        assert connected == ["203.0.113.1"]
        with pytest.raises(HostRefused):
            await backend.connect_tcp("rebinding.example.com", server.port, 1)
        assert connected == ["203.0.113.1"]


@pytest.mark.asyncio
async def test_of_several_addresses_only_those_that_may(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fine(request: Request) -> None:
        await request.begin()
        await request.started()
        await request.finished()

    with scripted(fine) as server:
        Resolver(monkeypatch, ["10.0.0.1", "127.0.0.1"])
        remote = RemoteAgent(f"http://rebinding.example.com:{server.port}/agent", hosts=["127.0.0.1"])
        result = await asyncio.wait_for(run_agent(remote, "hi"), 10)
        await remote.aclose()
    assert result.outcome == "success"
    assert server.requests[0].headers["host"] == f"rebinding.example.com:{server.port}"


@pytest.mark.asyncio
async def test_no_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fine(request: Request) -> None:
        await request.begin()
        await request.started()
        await request.finished()

    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    with scripted(fine) as server:
        remote = RemoteAgent(server.url, hosts=["127.0.0.1"])
        assert (await run_agent(remote, "hi")).outcome == "success"
        await remote.aclose()
