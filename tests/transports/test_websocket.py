"""Runs, followers and stops over a socket, by the rules of docs/reference/websocket.md."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from agui_django.models import Run, RunEvents
from agui_django.protocol import codec
from agui_django.runs import supervisor
from agui_django.runs.database import get_pool
from agui_django.testing import override_agent
from tests.cases.checks import client_after
from tests.cases.seed import store
from tests.transports.sockets import Socket, session, types

pytestmark = pytest.mark.asyncio

WORDS = ["RUN_STARTED", "TEXT_MESSAGE_START", *["TEXT_MESSAGE_CONTENT"] * 3, "TEXT_MESSAGE_END", "RUN_FINISHED"]


async def words(run: Any) -> None:
    async with run.message() as message:
        for word in ("one ", "two ", "three"):
            await message.write(word)
            await asyncio.sleep(0)


@pytest.fixture
def page(ada: Any) -> dict[str, str]:
    """Ada's browser, on a page of the site."""
    return session(ada)


async def log() -> list[dict[str, Any]]:
    """The events of the latest run, as stored."""

    def read() -> list[str]:
        run = Run.objects.latest("created_at")
        return list(RunEvents.objects.filter(run=run).order_by("first_seq").values_list("text", flat=True))

    return [codec.decode(line) for text in await get_pool().run(read) for line in text.split("\n")]


async def latest() -> Run:
    return await get_pool().run(lambda: Run.objects.select_related("thread").latest("created_at"))


async def test_a_run_is_a_stream_of_bare_events(page: Any, body: Callable[..., bytes]) -> None:
    with override_agent("words", words):
        async with Socket("words", headers=page) as socket:
            assert socket.accepted
            await socket.send(body())
            events = await socket.events()
            assert await socket.asgi.receive_nothing(0.05)
    assert events == await log()
    assert "".join(e.get("delta", "") for e in events) == "one two three"
    assert (events[0]["type"], events[-1]["type"]) == ("RUN_STARTED", "RUN_FINISHED")
    run = await latest()
    assert (run.transport, run.status, run.thread.thread_id) == ("websocket", "finished", "t1")


async def test_one_run_after_the_other(page: Any, body: Callable[..., bytes]) -> None:
    with override_agent("words", words):
        async with Socket("words", headers=page) as socket:
            for turn in range(20):
                await socket.send(body(text=f"turn {turn}"))
                # The next frame leaves as soon as the terminal event is here.
                assert (await socket.events())[-1]["type"] == "RUN_FINISHED"
    assert await get_pool().run(Run.objects.filter(status="finished").count) == 20


async def test_hydration_and_join(page: Any, body: Callable[..., bytes], gate: Any) -> None:
    empty = body(messages=[])
    async with Socket("gate", headers=page) as first, Socket("gate", headers=page) as second:
        await first.send(body())
        await first.events(3)
        await second.send(empty)
        joined = await second.until("TEXT_MESSAGE_CONTENT")
        gate.opened.set()
        await first.events()
        joined += await second.events()
        client = client_after(joined, [], {})
        assert [m.get("content") for m in client.messages if m["role"] == "assistant"] == ["beforeafter"]
        await second.send(body(messages=[]))
        restated = await second.events()
    assert types(restated) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT", "RUN_FINISHED"]
    assert [m["role"] for m in restated[1]["messages"]] == ["user", "assistant"]


async def test_a_stop_is_answered_by_the_terminal_event(page: Any, body: Callable[..., bytes], gate: Any) -> None:
    async with Socket("gate", headers=page) as socket:
        await socket.send({"type": "cancel"})  # nothing is under way: harmless
        await socket.send(body(protocolVersion="1.1"))
        await socket.events(3)
        await socket.send({"type": "cancel"})
        await socket.send({"type": "cancel"})
        events = await socket.events()
        assert types(events) == ["TEXT_MESSAGE_END", "RUN_FINISHED"]
        assert events[-1]["outcome"] == {"type": "cancelled"}
        await socket.send({"type": "cancel"})  # late: harmless
        await socket.send(body(protocolVersion="1.1", text="again"))
        await socket.events(3)
        gate.opened.set()
        assert "outcome" not in (await socket.events())[-1]
    run = await get_pool().run(lambda: Run.objects.earliest("created_at"))
    assert (run.status, run.end_reason) == ("cancelled", "user")


async def test_a_stop_is_heard_while_the_run_is_being_opened(
    page: Any, body: Callable[..., bytes], gate: Any, opening: Any
) -> None:
    for stop in ({"type": "cancel"}, {"type": "cancel", "runId": "r1"}):
        opening.hold()
        async with Socket("gate", headers=page) as socket:
            await socket.send(body(protocolVersion="1.1", runId="r1", text=str(stop)))
            await opening.begun()
            await socket.send(stop)
            await asyncio.sleep(0.05)  # heard, and nothing to see of it yet
            opening.go_on.set()
            events = await socket.events()
            assert events[-1]["outcome"] == {"type": "cancelled"}
        await supervisor.settle()


async def test_a_stop_by_name(page: Any, body: Callable[..., bytes], gate: Any) -> None:
    async with Socket("gate", headers=page) as runs, Socket(headers=page) as other:
        await runs.send(body(runId="r1", protocolVersion="1.1"))
        await runs.events(3)
        await other.send({"type": "cancel", "threadId": "t1", "runId": "r1"})
        assert (await runs.events())[-1]["outcome"] == {"type": "cancelled"}
        # a run that has ended is not an error, one that there never was is
        await other.send({"type": "cancel", "run": str((await latest()).pk)})
        await other.send({"type": "cancel", "run": str(uuid.uuid4())})
        assert (await other.event())["code"] == "not_found"
        assert await other.closed() == 4404


async def test_follow_after_a_number(page: Any, body: Callable[..., bytes], gate: Any) -> None:
    async with Socket("gate", headers=page) as first, Socket(headers=page) as second:
        await first.send(body(runId="r1"))
        seen = await first.events(3)
        await second.send({"type": "follow", "threadId": "t1", "runId": "r1", "after": 2})
        assert await second.events(1) == seen[2:]
        gate.opened.set()
        assert await second.events() == await first.events()
        run = str((await latest()).pk)
        for after, expected in ((0, await log()), (2, (await log())[2:])):
            await second.send({"type": "follow", "run": run, "after": after})
            assert await second.events() == expected
        # nothing is behind the end, and nothing will be
        await second.send({"type": "follow", "run": run, "after": len(await log())})
        assert await second.closed() == 1000


async def test_cursors_are_what_a_follow_frame_says(page: Any, body: Callable[..., bytes], gate: Any) -> None:
    async with Socket("gate", "cursors=1", headers=page) as socket:
        await socket.send(body())
        first = await socket.until("CUSTOM")
        place = first[-1]
        assert place["name"] == "agui_django.cursor"
        assert place["value"]["after"] == len(first) - 1
    seen = [event for event in first if event["type"] != "CUSTOM"]
    gate.opened.set()
    async with Socket(headers=page) as socket:
        await socket.send({"type": "follow", **place["value"]})
        rest = await socket.events()
    assert seen + rest == await log()


async def test_a_thread_is_followed_through_several_runs(page: Any, body: Callable[..., bytes]) -> None:
    with override_agent("words", words):
        async with Socket("words", headers=page) as runs, Socket(query="cursors=1", headers=page) as watcher:
            await runs.send(body())
            await runs.events()
            await watcher.send({"type": "follow", "threadId": "t1"})
            present = await watcher.events()
            assert types(present) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT", "RUN_FINISHED"]
            place = (await watcher.event())["value"]
            assert place["threadId"] == "t1"
            for turn in range(2):
                await runs.send(body(text=f"turn {turn}"))
                told = await runs.events()
                seen: list[dict[str, Any]] = []
                while len(seen) < len(told):
                    event = await watcher.event()
                    seen += [event] if event["type"] != "CUSTOM" else []
                assert seen == told
        async with Socket(headers=page) as later:
            await later.send({"type": "follow", **place, "until": "idle"})
            assert types(await later.events())[-1] == "RUN_FINISHED"
            assert await later.events() == await log()
            assert await later.closed() == 1000


async def test_a_thread_without_runs_has_no_place_to_go_on_behind(page: Any, ada: Any) -> None:
    await get_pool().run(lambda: store({}, ada, agent="words"))
    async with Socket(query="cursors=1", headers=page) as watcher:
        await watcher.send({"type": "follow", "threadId": "t1"})
        assert types(await watcher.events()) == ["RUN_STARTED", "STATE_SNAPSHOT", "RUN_FINISHED"]
        assert (await watcher.event())["value"] == {"threadId": "t1"}


async def test_a_second_stream_is_refused_behind_the_first(page: Any, body: Callable[..., bytes], gate: Any) -> None:
    async with Socket("gate", headers=page) as socket:
        await socket.send(body())
        await socket.events(3)
        await socket.send(body(text="me too"))
        gate.opened.set()
        assert types(await socket.events())[-1] == "RUN_FINISHED"
        assert (await socket.event())["code"] == "thread_busy"
        assert await socket.closed() == 4409
    assert gate.calls == 1
    assert (await latest()).status == "finished"


async def test_a_second_stream_beside_a_thread_closes(page: Any, body: Callable[..., bytes], gate: Any) -> None:
    async with Socket("gate", headers=page) as socket:
        await socket.send(body())
        await socket.events(3)
        async with Socket("gate", headers=page) as watcher:
            await watcher.send({"type": "follow", "threadId": "t1"})
            await watcher.until("TEXT_MESSAGE_START")
            await watcher.send(body(text="me too"))
            assert await watcher.closed() == 4409
        gate.opened.set()
        assert types(await socket.events())[-1] == "RUN_FINISHED"


@pytest.mark.parametrize(
    ("frame", "code", "close"),
    [
        ("nonsense", "invalid_json", 4400),
        ("[1]", "invalid_input", 4422),
        ('{"threadId": 5}', "invalid_input", 4422),
        ('{"type": "follow"}', "invalid_input", 4422),
        ('{"type": "follow", "run": "five"}', "invalid_input", 4422),
        ('{"type": "follow", "runId": "r1"}', "invalid_input", 4422),
        ('{"type": "follow", "threadId": "t1", "runId": "r1", "after": "x"}', "not_found", 4404),
        ('{"type": "follow", "threadId": "never"}', "not_found", 4404),
        (b"\x00binary", "unsupported_media_type", 4415),
    ],
)
async def test_refused_frames(page: Any, frame: Any, code: str, close: int) -> None:
    with override_agent("words", words):
        async with Socket("words", headers=page) as socket:
            await socket.send(frame)
            refused = await socket.event()
            assert (refused["type"], refused["code"]) == ("RUN_ERROR", code)
            assert await socket.closed() == close
    assert await get_pool().run(Run.objects.count) == 0


async def test_refused_starts(page: Any, body: Callable[..., bytes], settings: Any, gate: Any) -> None:
    async def refused(agent: str, frame: bytes) -> tuple[str, int]:
        async with Socket(agent, headers=page) as socket:
            await socket.send(frame)
            return (await socket.event())["code"], await socket.closed()

    assert await refused("nobody", body()) == ("not_found", 4404)
    assert await refused("", body()) == ("not_found", 4404)
    assert await refused("gate", body(protocolVersion="2.0")) == ("unsupported_version", 4422)
    async with Socket("gate", headers=page) as socket:
        await socket.send(body())
        await socket.events(3)
        assert await refused("gate", body(text="another tab")) == ("thread_busy", 4409)
        gate.opened.set()
        await socket.events()
    settings.AGUI_DJANGO = {**settings.AGUI_DJANGO, "MAX_BODY": 2048}
    assert await refused("gate", body(text="x" * 3000)) == ("body_too_large", 4413)


async def test_a_resume_that_is_not_taken_leaves_the_socket_open(page: Any, body: Callable[..., bytes]) -> None:
    async def asks(run: Any) -> None:
        await run.say(f"You said {run.interrupt('name', message='Who?')}.")

    with override_agent("asks", asks):
        async with Socket("asks", headers=page) as socket:
            await socket.send(body(protocolVersion="1.1"))
            [question] = (await socket.events())[-1]["outcome"]["interrupts"]
            await socket.send(body(protocolVersion="1.1", text="never mind"))
            assert (await socket.events())[0]["code"] == "interrupts_open"
            answer = {"interruptId": question["id"], "status": "resolved", "payload": "Ada"}
            await socket.send(body(protocolVersion="1.1", messages=[], resume=[answer]))
            events = await socket.events()
    assert "You said Ada." in [event.get("delta") for event in events]


async def test_one_socket_is_one_thread(page: Any, body: Callable[..., bytes]) -> None:
    with override_agent("words", words):
        async with Socket("words", headers=page) as socket:
            await socket.send(body("t1"))
            await socket.events()
            await socket.send(body("t2"))
            assert (await socket.event())["code"] == "invalid_input"
            assert await socket.closed() == 4422
    assert await get_pool().run(Run.objects.count) == 1


async def test_old_clients_are_sent_what_they_read(page: Any, body: Callable[..., bytes], gate: Any) -> None:
    async with Socket("gate", "protocolVersion=0.x", headers=page) as socket:
        await socket.send(body(runId="r1"))  # declares no version
        await socket.events(3)
        await socket.send({"type": "cancel"})
        assert "outcome" not in (await socket.events())[-1]
        await socket.send({"type": "follow", "threadId": "t1", "runId": "r1"})
        assert "outcome" not in (await socket.events())[-1]
    async with Socket(headers=page) as socket:
        await socket.send({"type": "follow", "threadId": "t1", "runId": "r1"})
        assert (await socket.events())[-1]["outcome"] == {"type": "cancelled"}
    async with Socket(query="protocolVersion=3", headers=page) as socket:
        assert (await socket.event())["code"] == "unsupported_version"
        assert await socket.closed() == 4422


@pytest.mark.parametrize(("policy", "ends"), [("continue", ("finished", "")), ("cancel", ("cancelled", "disconnect"))])
async def test_leaving(page: Any, body: Callable[..., bytes], gate: Any, policy: str, ends: Any) -> None:
    with override_agent("gate", gate, on_disconnect=policy, disconnect_grace=0):
        async with Socket("gate", headers=page) as socket:
            await socket.send(body())
            await socket.events(3)
        if policy == "continue":
            gate.opened.set()
        await supervisor.settle()
    run = await latest()
    assert (run.status, run.end_reason) == ends


async def test_a_watcher_that_leaves_takes_nothing_along(page: Any, body: Callable[..., bytes], gate: Any) -> None:
    with override_agent("gate", gate, on_disconnect="cancel", disconnect_grace=0):
        async with Socket("gate", headers=page) as socket:
            await socket.send(body(runId="r1"))
            await socket.events(3)
            async with Socket("gate", headers=page) as watcher:
                await watcher.send({"type": "follow", "threadId": "t1", "runId": "r1"})
                await watcher.events(3)
            gate.opened.set()
            assert types(await socket.events())[-1] == "RUN_FINISHED"
    assert (await latest()).status == "finished"


async def test_nothing_is_left_of_a_socket(page: Any, body: Callable[..., bytes]) -> None:
    before = asyncio.all_tasks()
    with override_agent("words", words):
        for number in range(20):
            async with Socket("words", headers=page) as socket:
                await socket.send(body(f"t{number}"))
                await asyncio.sleep(number * 0.002)
        await supervisor.settle()
    assert asyncio.all_tasks() == before
    assert supervisor.active() == 0


async def test_an_error_of_ours_is_not_told(
    page: Any, body: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from agui_django.runs.store import ThreadStore

    def broken(*_: Any) -> Any:
        raise RuntimeError("the database password is hunter2")

    monkeypatch.setattr(ThreadStore, "open_run", broken)
    with override_agent("words", words):
        async with Socket("words", headers=page) as socket:
            await socket.send(body())
            refused = await socket.event()
            assert refused["code"] == "internal_error"
            assert "hunter2" not in json.dumps(refused)
            assert await socket.closed() == 4500
    assert "hunter2" in caplog.text
    assert refused["message"].rpartition("reference ")[2].rstrip(")") in caplog.text
