"""The addresses as a well-behaved client meets them: streams, cursors, cancel, methods, slashes."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connections
from django.test import Client

from agui_django import RunContext
from agui_django.access import AccessPolicy
from agui_django.conf import settings as agui_settings
from agui_django.models import Run, Thread
from agui_django.protocol.errors import Declined
from agui_django.runs import supervisor
from agui_django.runs.database import get_pool
from agui_django.testing import override_agent
from tests.transports.asgi import Exchange, ask, error_of

pytestmark = pytest.mark.asyncio

NOBODYS = "6f1c6a3e-0f6e-4a55-8b8c-5d1f3f0a9b21"
TEXT = ["RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "RUN_FINISHED"]


def types(exchange: Exchange) -> list[str]:
    return [event["type"] for _, event in exchange.so_far()]


@contextmanager
def override_atomic_requests() -> Iterator[None]:
    """``ATOMIC_REQUESTS`` as a site may have it."""
    database = connections.settings["default"]
    before, database["ATOMIC_REQUESTS"] = database["ATOMIC_REQUESTS"], True
    try:
        yield
    finally:
        database["ATOMIC_REQUESTS"] = before


def run_of(exchange: Exchange) -> str:
    """The run that the answer names."""
    location = exchange.headers["content-location"]
    match = re.fullmatch(r"/agui/runs/([0-9a-f-]{36})/events", location)
    assert match
    return match[1]


async def the_run() -> Run:
    return await get_pool().run(Run.objects.get)


@pytest.mark.parametrize("slash", ["", "/"])
async def test_a_run_streams(slash: str, headers: dict[str, str], body: Callable[..., bytes]) -> None:
    exchange = await ask("POST", f"/agui/agents/echo{slash}", body(), headers)
    assert exchange.status == 200
    assert exchange.headers["content-type"] == "text/event-stream"
    assert exchange.headers["cache-control"] == "no-store"
    assert exchange.headers["x-accel-buffering"] == "no"
    assert exchange.headers["content-encoding"] == "identity"
    assert types(exchange) == TEXT
    assert [seq for seq, _ in exchange.so_far()] == [1, 2, 3, 4, 5]
    run = await the_run()
    assert run_of(exchange) == str(run.pk)
    assert run.status == "finished"
    wire = b"".join(exchange.chunks)
    assert wire.endswith(b"\n\n")
    assert b"\r" not in wire
    for frame in wire[:-2].split(b"\n\n"):
        assert re.fullmatch(rb":[^\n]*|id: \d+\ndata: \{[^\n]*\}", frame)


async def test_headers_leave_before_the_agent_is_awaited(headers: Any, body: Any, gate: Any) -> None:
    async with Exchange("POST", "/agui/agents/gate", body(), headers) as exchange:
        await exchange.started()
        await exchange.until(lambda: exchange.chunks)
        assert exchange.chunks[0].startswith(b":")
        await exchange.events(3)
        assert types(exchange)[:3] == TEXT[:3]
        gate.opened.set()
        await exchange.read()
    assert types(exchange)[-1] == "RUN_FINISHED"


class Tenants(AccessPolicy):
    def run_context(self, request: Any) -> dict[str, Any]:
        return {"tenant": request.headers["Tenant"]}


@pytest.mark.parametrize("size", [10, 200_000])  # a large body is parsed elsewhere
async def test_what_a_run_keeps_of_its_request(size: int, headers: Any, body: Any, settings: Any) -> None:
    settings.AGUI_DJANGO = {**settings.AGUI_DJANGO, "ACCESS_POLICY": f"{__name__}.Tenants"}
    told: list[Any] = []

    async def agent(run: RunContext) -> None:
        told.append(run.extra)

    with override_agent("echo", agent):
        ran = await ask("POST", "/agui/agents/echo", body(text="x" * size), {**headers, "Tenant": "seven"})
    assert ran.status == 200
    assert told == [{"tenant": "seven"}]
    assert json.loads((await the_run()).extra) == {"tenant": "seven"}


class Blind(AccessPolicy):
    def may_see(self, user: Any, run: Run) -> bool:
        return False


class Unstoppable(AccessPolicy):
    def may_cancel(self, user: Any, run: Run) -> bool:
        return False


async def test_what_a_policy_hides_and_what_it_forbids(headers: Any, body: Any, gate: Any, settings: Any) -> None:
    async with Exchange("POST", "/agui/agents/gate", body(), headers) as exchange:
        await exchange.events(3)
        path = f"/agui/runs/{run_of(exchange)}"
        settings.AGUI_DJANGO = {"ACCESS_POLICY": f"{__name__}.Blind"}
        for method, what in (("GET", "events"), ("POST", "cancel")):
            hidden = await ask(method, f"{path}/{what}", b"", headers)
            assert (hidden.status, error_of(hidden)["code"]) == (404, "not_found")
        settings.AGUI_DJANGO = {"ACCESS_POLICY": f"{__name__}.Unstoppable"}
        forbidden = await ask("POST", f"{path}/cancel", b"", headers)
        assert (forbidden.status, error_of(forbidden)["code"]) == (403, "permission_denied")
        gate.opened.set()
        await exchange.read()
    assert (await the_run()).status == "finished"
    assert (await ask("GET", f"{path}/events", b"", headers)).status == 200


async def test_habits_of_the_site_do_not_reach_it(headers: Any, body: Any, settings: Any) -> None:
    """A page for people to log in at, and a transaction around each request, are for other views."""
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
    with override_atomic_requests():
        refused = await ask("GET", "/agui/", b"", {"Content-Type": "application/json"})
        ran = await ask("POST", "/agui/agents/echo", body(), headers)
    assert refused.status == 401
    assert error_of(refused)["code"] == "not_authenticated"
    assert (ran.status, types(ran)) == (200, TEXT)


async def test_the_list_of_agents_with_and_without_a_slash(headers: Any) -> None:
    told = [await ask("GET", path, b"", headers) for path in ("/agui", "/agui/")]
    assert [answer.status for answer in told] == [200, 200]
    listed = [json.loads(b"".join(answer.chunks)) for answer in told]
    assert listed[0] == listed[1]
    assert "/agui/agents/echo" in [agent["url"] for agent in listed[0]["agents"]]


async def test_what_is_ready_is_one_chunk(headers: Any, body: Any) -> None:
    exchange = await ask("POST", "/agui/agents/echo", body(text="tokens:200 delay_ms:0 size:24"), headers)
    assert len(exchange.so_far()) == 204
    again = await ask("GET", f"/agui/runs/{run_of(exchange)}/events", b"", headers)
    assert again.so_far() == exchange.so_far()
    assert len(again.chunks) == 2  # the opening comment, and everything


async def test_cursors_at_every_position(headers: Any, body: Any) -> None:
    exchange = await ask("POST", "/agui/agents/echo", body(text="tokens:20 size:3"), headers)
    whole = exchange.so_far()
    path = f"/agui/runs/{run_of(exchange)}/events"
    for position in range(len(whole)):
        by_query = await ask("GET", f"{path}?after={position}", b"", headers)
        by_header = await ask("GET", path, b"", {**headers, "Last-Event-ID": str(position)})
        assert by_query.so_far() == by_header.so_far() == whole[position:]
    # EventSource comes back to the same address with the header: it counts
    both = await ask("GET", f"{path}?after=1", b"", {**headers, "Last-Event-ID": "4"})
    assert both.so_far() == whole[4:]
    end = await ask("GET", f"{path}/?after={len(whole)}", b"", headers)
    assert (end.status, end.chunks) == (204, [])


async def test_a_state_that_the_agents_schema_does_not_allow(headers: Any, body: Any) -> None:
    async def never(run: RunContext) -> None:
        raise AssertionError("it must not run")

    with override_agent("echo", never, state_schema={"type": "object", "properties": {"n": {"type": "integer"}}}):
        refused = await ask("POST", "/agui/agents/echo", body(state={"n": "secret"}), headers)
    assert refused.status == 422
    error = error_of(refused)
    assert error["code"] == "invalid_input"
    assert error["fields"] == [{"path": "/state/n", "message": "must be a whole number"}]
    assert await Run.objects.acount() == await Thread.objects.acount() == 0


@pytest.mark.parametrize("cursor", ["-1", "x", "1.0", "1e3", "٣", "99999999999", "0x1", " 1"])
async def test_bad_cursors(cursor: str, headers: Any, body: Any) -> None:
    exchange = await ask("POST", "/agui/agents/echo", body(), headers)
    path = f"/agui/runs/{run_of(exchange)}/events"
    quoted = cursor.encode().decode("latin1")
    for refused in (
        await ask("GET", f"{path}?after={cursor}", b"", headers),
        await ask("GET", path, b"", {**headers, "Last-Event-ID": quoted}),
    ):
        assert refused.status == 422
        assert error_of(refused)["code"] == "invalid_input"


async def test_a_cursor_beyond_the_end(headers: Any, body: Any) -> None:
    exchange = await ask("POST", "/agui/agents/echo", body(), headers)
    refused = await ask("GET", f"/agui/runs/{run_of(exchange)}/events?after=6", b"", headers)
    assert refused.status == 422


async def test_joining_a_running_run(headers: Any, body: Any, gate: Any) -> None:
    async with Exchange("POST", "/agui/agents/gate", body(), headers) as first:
        await first.events(3)
        path = f"/agui/runs/{run_of(first)}/events"
        async with Exchange("GET", f"{path}?after=2", b"", headers) as second:
            await second.events(1)
            assert second.so_far() == first.so_far()[2:3]
            gate.opened.set()
            await first.read()
            await second.read()
    assert second.so_far() == first.so_far()[2:]


async def test_the_shape_for_clients_before_1_0(headers: Any, body: Any, gate: Any) -> None:
    async with Exchange("POST", "/agui/agents/gate", body(), headers) as first:  # declares no version: 0.x
        await first.events(3)
        path = f"/agui/runs/{run_of(first)}"
        assert (await ask("POST", f"{path}/cancel", b"", headers)).status == 200
        await first.read()
    assert "outcome" not in first.so_far()[-1][1]
    for version, outcome in (("", True), ("?protocolVersion=1.1", True), ("?protocolVersion=1.7", True),
                             ("?protocolVersion=0.x", False), ("?protocolVersion=0.0.59", False)):  # fmt: skip
        seen = await ask("GET", f"{path}/events{version}", b"", headers)
        assert ("outcome" in seen.so_far()[-1][1]) is outcome
    refused = await ask("GET", f"{path}/events?protocolVersion=2.0", b"", headers)
    assert refused.status == 422
    assert error_of(refused)["code"] == "unsupported_version"


async def test_cancel(headers: Any, body: Any, gate: Any) -> None:
    async with Exchange("POST", "/agui/agents/gate", body(protocolVersion="1.1"), headers) as exchange:
        await exchange.events(3)
        path = f"/agui/runs/{run_of(exchange)}/cancel"
        answers = [await ask("POST", path, b"{}", headers) for _ in range(2)]
        await exchange.read()
    assert [answer.status for answer in answers] == [200, 200]
    first = json.loads(answers[0].chunks[0])
    assert first["run"] == run_of(exchange)
    assert first["cancelling"] is True
    assert exchange.so_far()[-1][1]["outcome"] == {"type": "cancelled"}
    assert types(exchange)[-2:] == ["TEXT_MESSAGE_END", "RUN_FINISHED"]
    run = await the_run()
    assert (run.status, run.end_reason) == ("cancelled", "user")
    late = await ask("POST", f"{path}/", b"", headers)
    assert (late.status, json.loads(late.chunks[0])["cancelling"]) == (200, False)


async def test_cancel_takes_no_form(headers: Any, body: Any, gate: Any) -> None:
    async with Exchange("POST", "/agui/agents/gate", body(), headers) as exchange:
        await exchange.events(1)
        form = {**headers, "Content-Type": "application/x-www-form-urlencoded"}
        refused = await ask("POST", f"/agui/runs/{run_of(exchange)}/cancel", b"a=b", form)
        assert refused.status == 415
        gate.opened.set()
        await exchange.read()
    assert (await the_run()).status == "finished"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "agents/echo", "POST"), ("PUT", "agents/echo/", "POST"), ("OPTIONS", "agents/echo", "POST"),
        ("POST", f"runs/{NOBODYS}/events", "GET"), ("HEAD", f"runs/{NOBODYS}/events", "GET"),
        ("GET", f"runs/{NOBODYS}/cancel", "POST"), ("DELETE", f"runs/{NOBODYS}/cancel", "POST"),
        ("POST", "", "GET, HEAD"), ("POST", "health", "GET, HEAD"), ("BREW", "health/", "GET, HEAD"),
    ],
)  # fmt: skip
async def test_wrong_methods(method: str, path: str, allowed: str, headers: Any) -> None:
    exchange = await ask(method, f"/agui/{path}", b"", headers)
    assert exchange.status == 405
    assert exchange.headers["allow"] == allowed
    assert error_of(exchange)["code"] == "method_not_allowed"


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize(
    "path", ["nothing", "nothing/", "agents", "agents/", "agents/a/b", "runs", f"runs/{NOBODYS}", "runs/1/events",
             f"runs/{NOBODYS}/events", f"runs/{NOBODYS}/cancel", "health/x", "%00", "threads/x"],
)  # fmt: skip
async def test_unknown_addresses(method: str, path: str, headers: Any) -> None:
    exchange = await ask(method, f"/agui/{path}", b"", headers)
    known = path.endswith(("/events", "/cancel")) and not path.startswith("runs/1/")
    wrong_method = known and method != ("GET" if path.endswith("events") else "POST")
    assert exchange.status == (405 if wrong_method else 404)
    error_of(exchange)


async def test_the_agents_one_may_use(headers: Any, ada: Any) -> None:
    async def secret(run: Any) -> None:
        raise Declined

    async def yes(user: Any) -> bool:
        return bool(user.username == "ada")

    with (
        override_agent("zz-hidden", secret, permission="auth.delete_user"),
        override_agent("zz-shown", secret, permission=yes, title="Shown", description="To Ada"),
    ):
        exchange = await ask("GET", "/agui/", b"", headers)
    listed = json.loads(exchange.chunks[0])
    assert listed["protocolVersion"] == "1.1"
    by_name = {agent["name"]: agent for agent in listed["agents"]}
    assert "echo" in by_name
    assert "zz-hidden" not in by_name
    assert by_name["zz-shown"] == {
        "name": "zz-shown", "title": "Shown", "description": "To Ada", "url": "/agui/agents/zz-shown",
    }  # fmt: skip


async def test_health_and_draining(headers: Any, body: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = await ask("GET", "/agui/health")
    assert (exchange.status, json.loads(exchange.chunks[0])) == (200, {"status": "ok"})
    monkeypatch.setattr(supervisor, "draining", lambda: True)
    exchange = await ask("GET", "/agui/health/")
    assert (exchange.status, json.loads(exchange.chunks[0])) == (503, {"status": "draining"})
    refused = await ask("POST", "/agui/agents/echo", body(), headers)
    assert refused.status == 503
    assert error_of(refused)["code"] == "draining"
    assert int(refused.headers["retry-after"]) > 0


def wsgi(method: str, path: str) -> Any:
    return getattr(Client(raise_request_exception=False), method)(path, content_type="application/json")


@pytest.mark.parametrize(
    ("method", "path"), [("post", "/agui/agents/echo"), ("get", "/agui/health"), ("get", "/agui/nothing")]
)
async def test_under_wsgi(method: str, path: str, agui_runtime: None) -> None:
    response = await asyncio.to_thread(wsgi, method, path)
    assert response.status_code == 503
    assert response.headers["Content-Type"] == "application/json"
    assert response.json()["error"]["code"] == "asgi_required"


async def test_heartbeats(headers: Any, body: Any, gate: Any, settings: Any) -> None:
    settings.AGUI_DJANGO = {"HEARTBEAT": 0.05}
    assert agui_settings.HEARTBEAT == 0.05
    async with Exchange("POST", "/agui/agents/gate", body(), headers) as exchange:
        await exchange.events(3)
        await exchange.until(lambda: exchange.comments() >= 4)
        gate.opened.set()
        await exchange.read()
    assert types(exchange)[-1] == "RUN_FINISHED"


async def test_busy(headers: Any, body: Any, gate: Any) -> None:
    async with Exchange("POST", "/agui/agents/gate", body(), headers) as exchange:
        await exchange.events(1)
        refused = await ask("POST", "/agui/agents/gate", body(), headers)
        assert refused.status == 409
        assert error_of(refused)["code"] == "thread_busy"
        other = await ask("POST", "/agui/agents/echo", body("t2"), headers)
        assert other.status == 200
        gate.opened.set()


async def test_a_repeat_attaches(headers: Any, body: Any, gate: Any) -> None:
    same = body()
    async with Exchange("POST", "/agui/agents/gate", same, headers) as first:
        await first.events(3)
        async with Exchange("POST", "/agui/agents/gate", same, headers) as second:
            await second.events(3)
            gate.opened.set()
            await first.read()
            await second.read()
    third = await ask("POST", "/agui/agents/gate", same, headers)
    assert first.so_far() == second.so_far() == third.so_far()
    assert run_of(first) == run_of(second) == run_of(third)
    assert gate.calls == 1


async def test_hydration(headers: Any, body: Any) -> None:
    await ask("POST", "/agui/agents/echo", body(text="one"), headers)
    exchange = await ask("POST", "/agui/agents/echo", body(messages=[], protocolVersion="1.1"), headers)
    assert types(exchange) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT", "RUN_FINISHED"]
    assert {seq for seq, _ in exchange.so_far()} == {0}
    assert b"\nid: " not in b"".join(exchange.chunks)
    [snapshot] = [event for _, event in exchange.so_far() if event["type"] == "MESSAGES_SNAPSHOT"]
    assert [message["role"] for message in snapshot["messages"]] == ["user", "assistant"]
    started, finished = exchange.so_far()[0][1], exchange.so_far()[-1][1]
    assert (started["threadId"], started["runId"]) == (finished["threadId"], finished["runId"])
    assert (await the_run()).status == "finished"


async def test_hydration_joins_an_active_run(headers: Any, body: Any, gate: Any) -> None:
    await ask("POST", "/agui/agents/echo", body(text="one"), headers)
    async with Exchange("POST", "/agui/agents/gate", body(text="two"), headers) as first:
        await first.events(3)
        async with Exchange("POST", "/agui/agents/gate", body(messages=[]), headers) as second:
            await second.events(5)
            assert types(second)[0] == "RUN_STARTED"
            assert "MESSAGES_SNAPSHOT" in types(second)
            gate.opened.set()
            await second.read()
            await first.read()
    assert types(second)[-1] == "RUN_FINISHED"
    assert second.so_far()[-1][1]["runId"] == first.so_far()[0][1]["runId"]
    assert types(second).count("RUN_STARTED") == 1


async def test_refused_resumes_are_streams(headers: Any, body: Any) -> None:
    async def asks(run: Any) -> None:
        run.interrupt("sure", message="Sure?")

    with override_agent("asks", asks):
        await ask("POST", "/agui/agents/asks", body(), headers)
        for members, code in (
            ({}, "interrupts_open"),
            ({"messages": [], "resume": [{"interruptId": "no", "status": "cancelled"}]}, "resume_incomplete"),
        ):
            exchange = await ask("POST", "/agui/agents/asks", body(protocolVersion="1.1", **members), headers)
            assert exchange.status == 200
            [(_, event)] = exchange.so_far()
            assert (event["type"], event["code"]) == ("RUN_ERROR", code)
    assert (await the_run()).status == "interrupted"


async def test_limits(headers: Any, body: Any, gate: Any, settings: Any) -> None:
    for limit in ({"MAX_RUNS": 1}, {"MAX_RUNS_PER_USER": 1}):
        settings.AGUI_DJANGO = limit
        gate.opened.clear()
        async with Exchange("POST", "/agui/agents/gate", body(uuid.uuid4().hex), headers) as exchange:
            await exchange.events(3)
            refused = await ask("POST", "/agui/agents/gate", body(uuid.uuid4().hex), headers)
            assert refused.status == 429
            assert error_of(refused)["code"] == "too_many_runs"
            assert int(refused.headers["retry-after"]) > 0
            gate.opened.set()
            await exchange.read()
        # the place is free again, also after requests that made no run
        await supervisor.settle()
        for _ in range(3):
            assert (await ask("POST", "/agui/agents/gate", body(messages=[]), headers)).status == 200
            await supervisor.settle()


async def test_a_failing_agent_ends_in_order(headers: Any, body: Any) -> None:
    async def fails(run: Any) -> None:
        async with run.message() as message:
            await message.write("half")
            raise ValueError("secret-host")

    with override_agent("fails", fails):
        exchange = await ask("POST", "/agui/agents/fails", body(protocolVersion="1.1"), headers)
    assert types(exchange) == [*TEXT[:4], "RUN_ERROR"]
    assert b"secret-host" not in b"".join(exchange.chunks)
    assert (await the_run()).status == "failed"


async def test_three_hundred_starts_at_once(headers: Any, body: Any) -> None:
    answers = await asyncio.gather(
        *(ask("POST", "/agui/agents/echo", body(f"t{number}"), headers) for number in range(300))
    )
    assert {answer.status for answer in answers} == {200}
    assert all(types(answer) == TEXT for answer in answers)
    statuses = await get_pool().run(lambda: list(Run.objects.values_list("status", flat=True)))
    assert statuses == ["finished"] * 300
