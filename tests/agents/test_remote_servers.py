"""The remote agent against real servers: our own, an older one; for others see frameworks/test_remote_peers.py."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from django.test import Client as DjangoClient

from agui_django.agents.remote import RemoteAgent
from agui_django.client import Client
from agui_django.models import Interrupt as InterruptRow
from agui_django.models import Run, Thread
from agui_django.runs.database import get_pool
from agui_django.testing import override_agent, run_agent
from project import agents as demo
from tests.live import LiveServer, wait_until
from tests.scripted import Request as Asked
from tests.scripted import gone, scripted


def login(user: Any) -> dict[str, str]:
    session = DjangoClient()
    session.force_login(user)
    return {"Cookie": f"sessionid={session.cookies['sessionid'].value}; csrftoken={'a' * 32}", "X-CSRFToken": "a" * 32}


@pytest.fixture
def headers(ada: Any) -> dict[str, str]:
    return login(ada)


def at(server: LiveServer, agent: str, headers: dict[str, str], **options: Any) -> RemoteAgent:
    """An agent of our own server, as a remote one."""
    return RemoteAgent(f"{server.url}/agui/agents/{agent}", headers=headers, hosts=["localhost"], **options)


def shape(messages: list[dict[str, Any]]) -> list[Any]:
    """Messages without their ids."""
    return [(m["role"], m.get("content"), [call["function"] for call in m.get("toolCalls", ())]) for m in messages]


# ---- our own server --------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_the_same_as_without_a_wire(server: LiveServer, headers: dict[str, str]) -> None:
    """Reasoning, text, steps, tool calls and results, state, usage, result: as the agent itself gives them."""
    remote = at(server, "plan", headers)
    far = await run_agent(remote, "tea")
    near = await run_agent(demo.plan, "tea")
    await remote.aclose()
    assert far.outcome == near.outcome == "success"
    assert [kind for kind in far.types if "STATE" not in kind] == [kind for kind in near.types if "STATE" not in kind]
    assert far.state == near.state
    assert far.result == near.result == {"hours": 7}
    assert far.usage == near.usage
    assert shape(far.wire_messages) == shape(near.wire_messages)
    stored = await get_pool().run(lambda: [m.message_id for m in Thread.objects.get().messages.order_by("order")])
    assert [message["id"] for message in far.wire_messages] == stored  # the ids are theirs


@pytest.mark.asyncio
@pytest.mark.parametrize(("approved", "said"), [(True, "Refunded 40 €"), (False, "nothing was refunded")])
async def test_questions_in_both_directions(
    server: LiveServer, headers: dict[str, str], approved: bool, said: str
) -> None:
    remote = at(server, "refund", headers)
    asked = await run_agent(remote, "refund 7")
    assert asked.outcome == "interrupt"
    ((key, question),) = asked.interrupts.items()
    assert key == question.id
    assert question.message == "Refund 40 € for order 7 (Blue teapot)?"
    assert question.response_schema is not None
    done = await asked.resume({key: {"approved": approved}})
    await remote.aclose()
    assert done.outcome == "success"
    assert said in done.said[-1]
    assert await get_pool().run(InterruptRow.objects.get) is not None


async def paint(run: Any) -> None:
    color = run.call_frontend_tool("pick_color", {"choices": ["red", "blue"]})
    size = run.call_frontend_tool("pick_size")
    await run.say(f"Painting it {color.answer()}, {size.answer(int)}.")


@pytest.mark.asyncio
async def test_front_end_tools(server: LiveServer, headers: dict[str, str]) -> None:
    remote = at(server, "paint", headers)
    with override_agent("paint", paint):
        asked = await run_agent(remote, "paint", tools=["pick_color", "pick_size"])
        assert asked.outcome == "success"
        assert len(asked.terminal["outcome"]["pendingToolCallIds"]) == 2
        done = await asked.answer_frontend({"pick_color": "red", "pick_size": "7"})
    await remote.aclose()
    assert done.said == ["Painting it red, 7."]


def test_cancel_stops_the_remote_run(server: LiveServer, headers: dict[str, str]) -> None:
    remote = at(server, "slow", headers)
    with override_agent("far", remote), Client(f"{server.url}/agui/agents/far", headers=headers) as client:
        run = client.run("go")
        for event in run:
            if event["type"] == "TEXT_MESSAGE_CONTENT":
                assert run.cancel()
                break
        assert run.wait().outcome == "cancelled"
        wait_until(lambda: list(Run.objects.values_list("status", flat=True)) == ["cancelled"] * 2)
        asyncio.run_coroutine_threadsafe(remote.aclose(), server.loop).result(10)


async def broken(run: Any) -> None:
    await run.say("Now")
    raise RuntimeError("secret")


@pytest.mark.asyncio
async def test_a_remote_bug(server: LiveServer, headers: dict[str, str]) -> None:
    remote = at(server, "broken", headers)
    with override_agent("broken", broken):
        result = await run_agent(remote, "go")
    await remote.aclose()
    assert result.error is not None
    assert result.error["code"] == "agent_exception"
    assert result.said == ["Now"]


def test_through_two_sites(server: LiveServer, headers: dict[str, str], ada: Any, bob: Any) -> None:
    """The whole way: a page asks one agent of a site, which is an agent of another site (here the same)."""
    remote = at(server, "refund", headers)
    with override_agent("far", remote):
        with Client(f"{server.url}/agui/agents/far", thread_id="t1", headers=headers) as client:
            (question,) = client.run("refund 7").wait().interrupts
            rows = InterruptRow.objects.filter(status="open")
            assert {row.interrupt_id for row in rows} == {question["id"]}
            assert {row.thread.thread_id for row in rows} > {"t1"}
            done = client.resume({question["id"]: {"approved": True, "amount": 5}}).wait()
            assert done.text.startswith("Refunded 5 €")
            with Client(client.url, thread_id="t1", headers=headers) as other:
                other.hydrate()
                assert other.messages == client.messages
        # Another user's thread of the same name, over the same account at the remote site, is another one there.
        with Client(f"{server.url}/agui/agents/far", thread_id="t1", headers=login(bob)) as client:
            run = client.run("refund 7").wait()
            assert [message["role"] for message in run.messages].count("user") == 1
        there = Thread.objects.filter(owner=ada).exclude(thread_id="t1")
        assert len({thread.thread_id for thread in there}) == there.count() == 2
        asyncio.run_coroutine_threadsafe(remote.aclose(), server.loop).result(10)


def test_questions_that_were_dropped(server: LiveServer, headers: dict[str, str]) -> None:
    """The user writes on: the other site is told that its questions are given up, with what the user wrote."""
    remote = at(server, "refund", headers)
    with override_agent("far", remote, open_interrupts="cancel"):
        with Client(f"{server.url}/agui/agents/far", headers=headers) as client:
            client.run("refund 7").wait()
            assert client.run("never mind").wait().outcome in ("success", "interrupt")
        status = InterruptRow.objects.exclude(thread__thread_id=client.thread_id).order_by("pk").first()
        assert status is not None
        assert status.status == "cancelled"
        asyncio.run_coroutine_threadsafe(remote.aclose(), server.loop).result(10)


def test_an_id_that_is_used_again(server: LiveServer, headers: dict[str, str]) -> None:
    """Whoever numbers questions from one in each run is answered in each run."""

    async def asks(request: Asked) -> None:
        await request.begin()
        await request.started()
        answers = [entry["payload"] for entry in request.input.get("resume", ())]
        if answers:
            await request.events({"type": "TEXT_MESSAGE_CHUNK", "messageId": f"m{answers}", "delta": f"{answers}"})
            await request.finished()
        else:
            asked = {"id": "q1", "reason": "input_required"}
            await request.finished(outcome={"type": "interrupt", "interrupts": [asked]})

    with scripted(asks) as there:
        remote = RemoteAgent(there.url, hosts=["127.0.0.1"])
        with override_agent("far", remote), Client(f"{server.url}/agui/agents/far", headers=headers) as client:
            for number in (1, 2):
                assert client.run("ask").wait().outcome == "interrupt"
                assert client.resume({"q1": number}).wait().text == f"[{number}]"
        asyncio.run_coroutine_threadsafe(remote.aclose(), server.loop).result(10)


def test_files_that_are_kept_here(server: LiveServer, headers: dict[str, str]) -> None:
    """The other side cannot fetch them: they go along."""

    async def fine(request: Asked) -> None:
        await request.begin()
        await request.started()
        await request.finished()

    data = base64.b64encode(b"\x89PNG" + bytes(1 << 21)).decode()
    picture = {
        "type": "image",
        "source": {"type": "data", "value": data, "mimeType": "image/png"},
        "metadata": {"n": 1},
    }
    with scripted(fine) as there:
        remote = RemoteAgent(there.url, hosts=["127.0.0.1"])
        with (
            override_agent("far", remote),
            Client(f"{server.url}/agui/agents/far", headers=headers) as client,
        ):
            client.run([{"type": "text", "text": "look"}, picture]).wait()
        stored = Thread.objects.get().messages.get(role="user").wire
        asyncio.run_coroutine_threadsafe(remote.aclose(), server.loop).result(10)
    assert len(stored) < 1000  # it is kept beside the message
    assert there.requests[0].input["messages"][0]["content"] == [{"type": "text", "text": "look"}, picture]


# ---- others ----------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_an_older_peer() -> None:
    """0.0.39: flat texts, no version, its own run ids, nulls in optional fields, THINKING events."""

    async def old(request: Asked) -> None:
        await request.begin()
        await request.events(
            {"type": "RUN_STARTED", "threadId": "its", "runId": "own"},
            {"type": "THINKING_START", "title": "Hm"},
            {"type": "THINKING_TEXT_MESSAGE_START"},
            {"type": "THINKING_TEXT_MESSAGE_CONTENT", "delta": "Let me see."},
            {"type": "THINKING_TEXT_MESSAGE_END"},
            {"type": "THINKING_END"},
            {"type": "TEXT_MESSAGE_START", "messageId": "m1", "role": "assistant", "timestamp": None, "rawEvent": None},
            {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m1", "delta": "A cat."},
            {"type": "TEXT_MESSAGE_END", "messageId": "m1"},
            {"type": "RUN_FINISHED", "threadId": "its", "runId": "own"},
        )

    picture = {"type": "image", "source": {"type": "url", "value": "https://example.com/cat.png"}}
    ask = {"id": "u1", "role": "user", "content": [{"type": "text", "text": "What is it?"}, picture]}
    with scripted(old) as server:
        remote = RemoteAgent(server.url, hosts=["127.0.0.1"], peer="0.0.39")
        result = await run_agent(remote, [ask])
        await remote.aclose()
    assert result.outcome == "success"
    assert [m["content"] for m in result.wire_messages[1:]] == ["Let me see.", "A cat."]
    sent = server.requests[0].input
    assert "protocolVersion" not in sent
    assert sent["messages"] == [{"id": "u1", "role": "user", "content": "What is it?"}]


@pytest.mark.asyncio
async def test_earlier_runs_are_passed_over() -> None:
    """A stream may tell the thread's earlier runs first; what is new is ours."""

    async def replays(request: Asked) -> None:
        thread = request.input["threadId"]
        await request.begin()
        await request.events(
            {"type": "RUN_STARTED", "threadId": thread, "runId": "r0", "protocolVersion": "1.1"},
            {"type": "TEXT_MESSAGE_CHUNK", "messageId": "m0", "delta": "old"},
            {"type": "RUN_FINISHED", "threadId": thread, "runId": "r0"},
            {"type": "RUN_STARTED", "threadId": thread, "runId": request.input["runId"], "protocolVersion": "1.1"},
            {"type": "TEXT_MESSAGE_CHUNK", "messageId": "m1", "delta": "new"},
        )
        await request.finished()

    with scripted(replays) as server:
        remote = RemoteAgent(server.url, hosts=["127.0.0.1"])
        assert (await run_agent(remote, "hi")).said == ["new"]
        await remote.aclose()


# ---- retries, cancel, pooling ----------------------------------------------------------------------------------------


@pytest.mark.asyncio
@pytest.mark.parametrize(("retries", "code"), [(0, "provider_rate_limited"), (1, "provider_unavailable"), (2, None)])
async def test_retries_before_the_first_event(retries: int, code: str | None) -> None:
    async def busy(request: Asked) -> None:
        tries = len(server.requests)
        if tries < 3:
            await request.begin(["429 Too Many", "503 Later"][tries - 1], "application/json", Retry_After="0")
            return
        await request.begin()
        await request.started()
        await request.finished()

    with scripted(busy) as server:
        remote = RemoteAgent(server.url, hosts=["127.0.0.1"], retries=retries)
        result = await run_agent(remote, "hi")
        await remote.aclose()
    assert len(server.requests) == retries + 1
    assert (result.error or {}).get("code") == code
    assert len({request.body for request in server.requests}) == 1  # the same run, so that it can be told


@pytest.mark.asyncio
async def test_no_retry_behind_the_first_event() -> None:
    async def cut(request: Asked) -> None:
        await request.begin()
        await request.started()

    with scripted(cut) as server:
        remote = RemoteAgent(server.url, hosts=["127.0.0.1"], retries=3)
        result = await run_agent(remote, "hi")
        await remote.aclose()
    assert len(server.requests) == 1
    assert result.error is not None


@pytest.mark.asyncio
@pytest.mark.parametrize("early", [True, False])
async def test_cancel_closes_the_connection(early: bool) -> None:
    waiting = threading.Event()

    async def waits(request: Asked) -> None:
        if not early:
            await request.begin()
            await request.started()
        waiting.set()
        await gone(request)

    with scripted(waits) as server:
        remote = RemoteAgent(server.url, hosts=["127.0.0.1"])

        async def leaving(run: Any) -> None:
            async def read() -> None:
                async for _ in remote.run(run):
                    pass

            reading = asyncio.create_task(read())
            assert await asyncio.to_thread(waiting.wait, 20)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading

        assert (await run_agent(leaving, "hi", timeout=60)).outcome == "success"
        assert await asyncio.to_thread(server.left.wait, 20)
        await remote.aclose()


@pytest.mark.asyncio
async def test_a_slow_log_slows_the_remote_agent() -> None:
    """Nothing is read ahead of what is handed on: the remote side's writes wait."""
    written = 0

    async def fast(request: Asked) -> None:
        nonlocal written
        await request.begin()
        await request.started()
        for _ in range(1000):
            await request.events({"type": "CUSTOM", "name": "x", "value": "x" * 65536})
            written += 1
        await request.finished()

    with scripted(fast) as server:
        remote = RemoteAgent(server.url, hosts=["127.0.0.1"])

        async def dawdling(run: Any) -> AsyncIterator[Any]:
            events = remote.run(run)
            yield await anext(events)
            for _ in range(20):
                await asyncio.sleep(0.05)
            assert written < 300  # what fits into the sockets' buffers
            async for event in events:
                yield event

        result = await run_agent(dawdling, "hi", timeout=60)
        await remote.aclose()
    assert result.outcome == "success"
    assert written == 1000


@pytest.mark.asyncio
async def test_connections_are_used_again_and_bounded(server: LiveServer, headers: dict[str, str]) -> None:
    remote = at(server, "echo", headers, connections=2)
    results = await asyncio.gather(*(run_agent(remote, f"n{n}") for n in range(6)))
    assert [result.said for result in results] == [[f"You said: n{n}"] for n in range(6)]
    pool = remote._pool()._transport._pool  # type: ignore[attr-defined]
    assert 1 <= len(pool.connections) <= 2
    await remote.aclose()
