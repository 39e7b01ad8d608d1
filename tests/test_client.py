"""The Python client against our own server: the conversation it keeps, and connections that break."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from typing import Any

import httpx
import pytest
from django.test import Client as DjangoClient

from agui_django import RunContext
from agui_django.client import AsyncClient, Client, Refused, RunFailed, StreamRefused, Unreachable
from agui_django.client.exchange import Limits
from agui_django.models import Run
from agui_django.testing import override_agent
from tests.cutting import CuttingProxy
from tests.live import LiveServer, wait_until
from tests.parts import ROOT
from tests.scripted import Request, gone, scripted


def login(user: Any) -> dict[str, str]:
    session = DjangoClient()
    session.force_login(user)
    return {
        "Cookie": f"sessionid={session.cookies['sessionid'].value}; csrftoken={'a' * 32}",
        "X-CSRFToken": "a" * 32,
    }


@pytest.fixture
def headers(ada: Any) -> dict[str, str]:
    return login(ada)


def address(server: LiveServer, agent: str) -> str:
    return f"{server.url}/agui/agents/{agent}"


async def desk(run: RunContext) -> dict[str, int]:
    """Text, state, a front-end call, usage, a result."""
    async with run.message() as message:
        for word in ("Grüße ", "👋🏽 ", "done"):
            await message.write(word)
            await run.flush()
    run.state["visits"] = run.state.get("visits", 0) + 1
    run.usage(model="m", input_tokens=2, output_tokens=3)
    color = run.call_frontend_tool("pick_color")
    if color.done:
        await run.say(f"It is {color.answer()}.")
    return {"visits": run.state["visits"]}


def test_a_conversation(server: LiveServer, headers: dict[str, str]) -> None:
    tool = {"name": "pick_color", "description": "", "parameters": {}}
    with override_agent("desk", desk), Client(address(server, "desk"), tools=[tool], headers=headers) as client:
        run = client.run("hello").wait()
        assert run.outcome == "success"
        assert [message["role"] for message in client.messages] == ["user", "assistant", "assistant"]
        assert client.messages[1]["content"] == run.text == "Grüße 👋🏽 done"
        assert client.state == {"visits": 1}
        assert run.result == {"visits": 1}
        assert run.usage == [{"model": "m", "inputTokens": 2, "outputTokens": 3, "totalTokens": 5}]
        (call_id,) = run.pending_calls
        second = client.run(tool_results={call_id: "blue"}).wait()
        assert second.text.endswith("It is blue.")
        assert client.state == {"visits": 2}
        client.state = {"visits": 40}
        assert client.run("again").wait().state == {"visits": 41}


def test_questions(server: LiveServer, headers: dict[str, str]) -> None:
    with Client(address(server, "refund"), headers=headers) as client:
        asked = client.run("refund 7").wait()
        assert asked.outcome == "interrupt"
        (question,) = asked.interrupts
        assert question["message"] == "Refund 40 € for order 7 (Blue teapot)?"
        with pytest.raises(RunFailed) as early:
            client.run("hurry").wait()
        assert early.value.code == "interrupts_open"
        assert client.resume({question["id"]: {"approved": True, "amount": 5}}).wait().text.startswith("Refunded 5 €")
        (question,) = client.run("once more").wait().interrupts
        assert "nothing was refunded" in client.resume({}, cancel=[question["id"]]).wait().text


def test_refusals(server: LiveServer, headers: dict[str, str], bob: Any) -> None:
    with Client(address(server, "echo")) as stranger, pytest.raises(Refused) as refused:
        stranger.run("hello").wait()
    assert (refused.value.code, refused.value.status) == ("not_authenticated", 401)
    with Client(address(server, "echo"), headers=headers) as client:
        with pytest.raises(Refused) as refused:
            client.run("x", run_id="n" * 300).wait()
        assert (refused.value.code, refused.value.status) == ("invalid_input", 422)
        assert [field["path"] for field in refused.value.fields] == ["/runId"]
        assert client.messages == []  # what was refused is no part of the conversation
        with pytest.raises(Refused) as refused:
            client.hydrate()
        assert (refused.value.code, refused.value.status) == ("not_found", 404)
        client.run("hello").wait()
        with (
            Client(client.url, thread_id=client.thread_id, headers=login(bob)) as other,
            pytest.raises(Refused) as foreign,
        ):
            other.hydrate()
        assert foreign.value.code == "not_found"


async def broken(run: RunContext) -> None:
    await run.say("Now")
    raise RuntimeError("secret")


def test_a_run_that_fails(server: LiveServer, headers: dict[str, str]) -> None:
    with override_agent("broken", broken), Client(address(server, "broken"), headers=headers) as client:
        run = client.run("go")
        assert [event["type"] for event in run][-1] == "RUN_ERROR"  # events are told, and raise nothing
        assert run.outcome == "error"
        with pytest.raises(RunFailed) as failed:
            run.raise_for_error()
        assert failed.value.code == "agent_exception"
        assert "secret" not in str(failed.value)
        assert client.messages[-1]["content"] == "Now"


def test_hydrate_and_follow(server: LiveServer, headers: dict[str, str]) -> None:
    with Client(address(server, "echo"), headers=headers) as client:
        client.run("one").wait()
        url, thread = client.url, client.thread_id
        with Client(url, thread_id=thread, headers=headers) as other:
            assert other.hydrate().outcome == "success"
            assert other.messages == client.messages
            place = other.cursor
            assert place
            client.run("two").wait()
            missed = other.follow(after=place, until_idle=True)
            assert [event["type"] for event in missed] == [
                "RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "RUN_FINISHED",
            ]  # fmt: skip
            assert other.messages == client.messages
            assert list(other.follow(after=other.cursor, until_idle=True)) == []
            with other.follow(after=other.cursor) as live:
                client.run("three").wait()
                for event in live:
                    if event["type"] == "RUN_FINISHED":
                        break
            assert other.messages == client.messages
            assert [m["content"] for m in other.messages if m["role"] == "user"] == ["one", "two", "three"]


def test_cancel(server: LiveServer, headers: dict[str, str]) -> None:
    with Client(address(server, "slow"), headers=headers) as client:
        run = client.run("go")
        for event in run:
            if event["type"] == "TEXT_MESSAGE_CONTENT":
                assert run.cancel()
                break
        run.wait()
        assert run.outcome == "cancelled"
        assert run.cancel()  # again is no error


def head(server: LiveServer, headers: dict[str, str]) -> int:
    """How long the head of an answer is: a connection that ends in it is one that gave none."""
    body = {"threadId": "of the head", "runId": "r", "tools": [], "context": [], "messages": [], "forwardedProps": {}}
    with httpx.stream("POST", address(server, "desk"), headers=headers, json=body) as response:
        assert response.status_code == 200
        lines = sum(len(name) + len(value) + len(": \r\n") for name, value in response.headers.raw)
        return len("HTTP/1.1 200 OK\r\n") + lines + len("\r\n")


def test_every_cut(server: LiveServer, headers: dict[str, str]) -> None:
    """Cut behind any number of bytes, again and again: no event is lost, none comes twice."""
    with override_agent("desk", desk), CuttingProxy([server.socket.getsockname()[1]]) as proxy:
        with Client(f"http://127.0.0.1:{proxy.port}/agui/agents/desk", headers=headers) as whole:
            before = list(whole.run("hello"))
        types = [event["type"] for event in before]
        behind = head(server, headers)
        # From the first byte behind the head to the end, in steps that meet frames at every place.
        for start in range(behind + 80, behind + 2200, 197):
            with Client(f"http://127.0.0.1:{proxy.port}/agui/agents/desk", headers=headers) as client:
                proxy.cuts = [start, behind, behind + 31, behind + 200]
                run = client.run("hello")
                got = list(run)
                assert [event["type"] for event in got] == types, start
                assert run.text == "Grüße 👋🏽 done"
                assert run.state == {"visits": 1}
    assert proxy.connections > 25


def test_a_feed_that_is_cut(server: LiveServer, headers: dict[str, str]) -> None:
    with (
        CuttingProxy([server.socket.getsockname()[1]]) as proxy,
        Client(address(server, "echo"), headers=headers) as own,
    ):
        own.run("one").wait()
        far = f"http://127.0.0.1:{proxy.port}/agui/agents/echo"
        with Client(far, thread_id=own.thread_id, headers=headers) as client:
            proxy.cuts = [700]  # in the middle of the restatement
            client.hydrate()
            assert client.messages == own.messages
            own.run("two").wait()
            proxy.cuts = [620]
            types = [event["type"] for event in client.follow(after=client.cursor, until_idle=True)]
            assert types.count("RUN_STARTED") == types.count("TEXT_MESSAGE_CONTENT") == types.count("RUN_FINISHED") == 1
            assert client.messages == own.messages


def test_cursor_is_exact_inside_a_chunk(server: LiveServer, headers: dict[str, str]) -> None:
    with Client(address(server, "echo"), headers=headers) as client:
        places = []
        run = client.run("hi")
        for _ in run:
            places.append(run.cursor)
        assert places == [str(number) for number in range(1, len(places) + 1)]


@pytest.mark.asyncio
async def test_async(server: LiveServer, headers: dict[str, str]) -> None:
    async with AsyncClient(address(server, "refund"), headers=lambda: headers) as client:
        asked = await client.run("refund 7").wait()
        (question,) = asked.interrupts
        assert (await client.resume({question["id"]: {"approved": False}}).wait()).outcome == "success"
        async with AsyncClient(client.url, thread_id=client.thread_id, headers=headers) as other:
            await other.hydrate()
            assert other.messages == client.messages
    async with AsyncClient(address(server, "slow"), headers=headers) as client:
        run = client.run("go")
        async for event in run:
            if event["type"] == "TEXT_MESSAGE_CONTENT":
                assert await run.cancel()
                break
        assert (await run.wait()).outcome == "cancelled"


@pytest.mark.asyncio
async def test_async_cut(server: LiveServer, headers: dict[str, str]) -> None:
    with override_agent("desk", desk), CuttingProxy([server.socket.getsockname()[1]]) as proxy:
        behind = await asyncio.to_thread(head, server, headers)
        for start in (behind + 80, behind + 480, behind + 880):
            async with AsyncClient(f"http://127.0.0.1:{proxy.port}/agui/agents/desk", headers=headers) as client:
                proxy.cuts = [start, behind + 80]
                run = client.run("hello")
                types = [event["type"] async for event in run]
                assert types.count("RUN_STARTED") == types.count("RUN_FINISHED") == 1
                assert run.text == "Grüße 👋🏽 done"
        async with AsyncClient(address(server, "desk"), headers=headers) as client:
            leaving = client.run("again")
            await anext(leaving)
            await leaving.aclose()
    await asyncio.to_thread(wait_until, lambda: not Run.objects.exclude(status="finished").exists())


# ---- servers that are not ours --------------------------------------------------------------------------------------


def asked(handler: Any, **options: Any) -> Any:
    """What a run at such a server gives: the exception, or the run."""
    with scripted(handler) as server, Client(f"{server.url}/agent", timeout=5, **options) as client:
        run = client.run("hi")
        try:
            return run.wait()
        except Exception as error:
            return error


def test_a_cut_stream_is_no_success() -> None:
    async def cut(request: Request) -> None:
        await request.begin()
        await request.started()
        await request.send(b'data: {"type": "RUN_FINISHED", "threadId"')

    error = asked(cut)
    assert isinstance(error, StreamRefused)
    assert error.code == "truncated"


def test_a_reset_stream() -> None:
    async def reset(request: Request) -> None:
        await request.begin()
        await request.started()
        request.reset()

    error = asked(reset)
    assert isinstance(error, Unreachable | StreamRefused)
    assert error.code in ("unreachable", "truncated")


def test_numbers_of_others_mean_nothing() -> None:
    """A server that numbers its frames as it likes loses no event."""

    async def numbered(request: Request) -> None:
        await request.begin()
        await request.send(b"id: 9\n")
        await request.started()
        await request.send(b"id: 3\n")
        await request.finished()

    assert asked(numbered).outcome == "success"


def test_another_host_gets_no_credentials() -> None:
    seen = threading.Event()

    async def other(request: Request) -> None:
        seen.set()

    async def cut(request: Request) -> None:
        await request.begin(Content_Location=f"{stranger.url}/runs/1/events")
        await request.send(b"id: 1\n")
        await request.started()
        request.reset()

    with scripted(other) as stranger:
        assert isinstance(asked(cut, headers={"Authorization": "Bearer x"}), Unreachable | StreamRefused)
    assert not seen.is_set()


@pytest.mark.parametrize(
    ("head", "code"),
    [
        (("302 Found", "text/plain"), "redirect"),
        (("200 OK", "text/html"), "invalid_response"),
        (("418 I'm a teapot", "text/plain"), "http_418"),
    ],
)
def test_answers_that_are_no_stream(head: tuple[str, str], code: str) -> None:
    async def answer(request: Request) -> None:
        await request.begin(*head, Location="http://127.0.0.1:1/")
        await request.send(b"x" * 100_000)

    assert asked(answer).code == code


def test_compressed_streams_are_refused() -> None:
    async def compressed(request: Request) -> None:
        assert request.headers["accept-encoding"] == "identity"
        await request.begin(Content_Encoding="gzip")
        await gone(request)

    assert asked(compressed).code == "invalid_response"


def test_limits() -> None:
    async def endless(request: Request) -> None:
        await request.begin()
        await request.started()
        while True:
            await request.send(b"data: " + b"x" * 65536)

    assert asked(endless, limits=Limits(max_frame=1 << 20)).code == "frame_too_large"


def test_halves_of_characters_meet() -> None:
    async def halves(request: Request) -> None:
        await request.begin()
        await request.started()
        await request.send(
            b'data: {"type":"TEXT_MESSAGE_CHUNK","messageId":"m","delta":"\\ud83d"}\n\n',
            b'data: {"type":"TEXT_MESSAGE_CHUNK","delta":"\\udc4b"}\n\n',
        )
        await request.finished()

    assert asked(halves).text == "👋"


def test_nobody_is_there() -> None:
    with Client("http://127.0.0.1:1/agent", limits=Limits(reconnects=1)) as client, pytest.raises(Unreachable) as error:
        client.run("hi").wait()
    assert error.value.code == "unreachable"


def test_silence() -> None:
    async def silent(request: Request) -> None:
        await request.begin()
        await request.started()
        await gone(request)

    with scripted(silent) as server, Client(f"{server.url}/agent", timeout=httpx.Timeout(0.3)) as client:
        with pytest.raises(Unreachable) as error:
            client.run("hi").wait()
        assert error.value.code == "timeout"


def test_it_needs_no_django() -> None:
    code = "import sys; from agui_django.client import Client; sys.exit('django' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("module", ["agui_django.client", "agui_django.agents.remote"])
def test_without_httpx_it_says_what_to_install(module: str) -> None:
    """The app itself works without."""
    code = (
        "import sys; sys.modules['httpx'] = None\n"
        "import django; django.setup()\n"
        "import agui_django.urls, agui_django.checks\n"
        f"import {module}"
    )
    command = [sys.executable, "-W", "ignore", "-c", code]
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.stderr.splitlines()[-1].endswith("httpx: pip install 'agui_django[remote]'"), done.stderr
