"""What happens once per turn, in rows: claims behind the fence, values in the transaction of the run's events."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from agui_django.agents.approvals import approval_key
from agui_django.agents.sink import OnceClaim
from agui_django.models import Run, RunEvents
from agui_django.protocol.errors import RunClosed
from agui_django.runs.database import get_pool
from agui_django.runs.history import NO_RESULT, UNKNOWN
from agui_django.runs.recorder import Recorder
from agui_django.runs.requests import Opened
from tests.runs.given import Given, calls, resolved, tool, user
from tests.runs.test_reaping import PARTIAL, dies
from tests.runs.test_recorder import closing, custom, opened, record, refusing, until

pytestmark = pytest.mark.django_db(transaction=True)


def entries(given: Given, found: Opened) -> Any:
    def read() -> Any:
        assert found.run is not None
        return json.loads(Run.objects.get(pk=found.run.pk).once)

    return given.do(read)


def count(given: Given) -> int:
    def read() -> int:
        return sum(row.last_seq - row.first_seq + 1 for row in RunEvents.objects.all())

    return given.do(read)


async def ended(log: Recorder, found: Opened) -> None:
    assert await log.close(closing(found))


@pytest.mark.asyncio
async def test_a_claim_is_committed_and_its_value_comes_with_the_events(given: Given):
    found = await opened(given)
    log = record(found)
    mine = await log.claim_once(OnceClaim("pay", "a"))
    assert mine.state == "mine"
    assert entries(given, found) == {"pay": {"run": found.run.pk.hex, "by": "a"}}  # type: ignore[union-attr]
    assert (await log.claim_once(OnceClaim("pay", "b"))).state == "unknown"
    # a commit whose answer was lost: the same claim once more
    assert (await log.claim_once(OnceClaim("pay", "a"))).state == "mine"
    before = count(given)
    log.append(custom(1), plain=True)
    kept = log.settle_once(mine, '{"paid":[1,null]}')
    log.append(custom(2), plain=True)
    await kept
    assert entries(given, found)["pay"]["value"] == {"paid": [1, None]}
    assert count(given) == before + 2
    done = await log.claim_once(OnceClaim("pay", "c"))
    assert (done.state, done.value) == ("done", {"paid": [1, None]})
    await ended(log, found)


@pytest.mark.asyncio
async def test_null_is_a_value(given: Given):
    found = await opened(given)
    log = record(found)
    await log.settle_once(await log.claim_once(OnceClaim("k", "a")), "null")
    done = await log.claim_once(OnceClaim("k", "b"))
    assert (done.state, done.value) == ("done", None)
    await ended(log, found)


@pytest.mark.asyncio
async def test_a_released_claim_may_be_taken(given: Given):
    found = await opened(given)
    log = record(found)
    await log.settle_once(await log.claim_once(OnceClaim("k", "a")), None)
    mine = await log.claim_once(OnceClaim("k", "b"))
    assert mine.state == "mine"
    # who released it has nothing to say any more
    await log.settle_once(OnceClaim("k", "a"), "1")
    assert "value" not in entries(given, found)["k"]
    await ended(log, found)


@pytest.mark.asyncio
async def test_the_value_and_the_events_are_one_transaction(given: Given):
    found = await opened(given)
    log = record(found)
    mine = await log.claim_once(OnceClaim("pay", "a"))
    before = count(given)
    with refusing('SET "once"') as refused:
        log.append(custom(1), plain=True)
        kept = asyncio.ensure_future(_awaited(log.settle_once(mine, "1")))
        await until(lambda: bool(refused))
        assert count(given) == before
        assert "value" not in entries(given, found)["pay"]
        assert not kept.done()
    await kept
    assert count(given) == before + 1
    assert entries(given, found)["pay"]["value"] == 1
    await ended(log, found)


@pytest.mark.asyncio
async def test_the_end_of_a_run_carries_what_is_not_stored(given: Given):
    found = await opened(given)
    log = record(found)
    mine = await log.claim_once(OnceClaim("pay", "a"))
    log.append(custom(1), plain=True)
    kept = log.settle_once(mine, "7")
    await ended(log, found)
    await kept
    assert entries(given, found)["pay"]["value"] == 7
    with pytest.raises(RunClosed):
        log.settle_once(mine, "8")
    with pytest.raises(RunClosed):
        await log.claim_once(OnceClaim("k", "a"))


@pytest.mark.asyncio
async def test_keys_are_concurrent(given: Given):
    found = await opened(given)
    log = record(found)

    async def one(number: int) -> None:
        mine = await log.claim_once(OnceClaim(f"k{number}", f"by{number}"))
        log.append(custom(number), plain=True)
        await log.settle_once(mine, str(number))

    await asyncio.gather(*map(one, range(20)))
    assert {key: entry["value"] for key, entry in entries(given, found).items()} == {f"k{n}": n for n in range(20)}
    await ended(log, found)


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["reaped", "claimed"])
async def test_a_process_that_lost_its_run_claims_nothing(given: Given, how: str):
    found = await opened(given)
    log = record(found)

    def taken() -> None:
        assert found.run is not None
        Run.objects.filter(pk=found.run.pk).update(claim="elsewhere", status="failed" if how == "reaped" else "running")

    given.do(taken)
    with pytest.raises(RunClosed):
        await log.claim_once(OnceClaim("pay", "a"))
    assert entries(given, found) == {}
    log.append(custom(1), plain=True)
    with pytest.raises(RunClosed):
        await log.settle_once(OnceClaim("pay", "a"), "1")
    assert entries(given, found) == {}
    assert log.closed


@pytest.mark.asyncio
async def test_a_turns_runs_share_their_claims(given: Given):
    """A later run of the turn, in whatever process, meets what the first has claimed."""
    first = await opened(given, messages=[user("u1")])
    log = record(first)
    await log.settle_once(await log.claim_once(OnceClaim("done", "a")), '"x"')
    await log.claim_once(OnceClaim("left", "a"))
    assert await log.close(closing(first, messages=[calls("a1", "c1")]))
    second = await opened(given, messages=[tool("t1", "c1")])
    assert second.setup is not None
    assert second.setup.turn == first.setup.turn  # type: ignore[union-attr]
    log = record(second)
    states = [(await log.claim_once(OnceClaim(key, "b"))).state for key in ("done", "left", "new")]
    assert states == ["done", "unknown", "mine"]
    assert entries(given, second) == {}
    assert set(entries(given, first)) == {"done", "left", "new"}
    await ended(log, second)


@pytest.mark.asyncio
async def test_a_turn_whose_first_run_was_removed_is_unknown(given: Given):
    first = await opened(given, messages=[user("u1")])
    log = record(first)
    assert await log.close(closing(first, messages=[calls("a1", "c1")]))
    second = await opened(given, messages=[tool("t1", "c1")])
    given.do(lambda: Run.objects.get(pk=first.run.pk).delete())  # type: ignore[union-attr]
    log = record(second)
    assert (await log.claim_once(OnceClaim("k", "a"))).state == "unknown"
    await ended(log, second)


@pytest.mark.parametrize(
    ("entry", "left"), [(None, ["i1"]), ({}, []), ({"released": True}, []), ({"run": "another"}, ["i1"])]
)
def test_a_lost_resume_that_has_claimed_is_spent(given: Given, entry: Any, left: list[str]) -> None:
    first = given.asked({"id": "i1"})
    dead = dies(given, given.open(messages=[], resume=[resolved("i1")]), [])
    assert first.run is not None
    if entry is not None:
        once = json.dumps({"pay": {"run": dead.pk.hex, "by": "a", **entry}})
        Run.objects.filter(pk=first.run.pk).update(once=once)
    assert given.do(given.store.reap, dead.uuid) is True
    assert given.open_ids == left


def test_a_lost_run_keeps_its_claims(given: Given) -> None:
    found = given.open(messages=[user("u1")])
    assert found.run is not None
    once = {"pay": {"run": found.run.pk.hex, "by": "a"}}
    Run.objects.filter(pk=found.run.pk).update(once=json.dumps(once))
    dead = dies(given, found, PARTIAL)
    assert given.do(given.store.reap, dead.uuid) is True
    assert entries(given, found) == once


def test_a_result_for_a_call_of_ours_is_dropped(given: Given) -> None:
    """Whatever the client says of its tools, now or then."""
    ours = {
        "id": "a1", "role": "assistant", "toolCalls": [
            {"id": key, "type": "function", "function": {"name": name, "arguments": "{}"}}
            for key, name in (("c1", "front"), ("c2", "find"), ("c3", "refund"))
        ],
    }  # fmt: skip
    tools = [{"name": name, "description": "", "parameters": {}} for name in ("front", "refund")]
    opened = given.open(messages=[user("u1")], tools=tools)
    asks = {"id": "i1", "reason": "tool_call", "toolCallId": "c3"}
    assert given.finish(opened, status="interrupted", interrupts=[asks], messages=[ours])
    claims = [*tools, {"name": "find", "description": "", "parameters": {}}]
    sent = [tool("t1", "c1", "red"), tool("t2", "c2", "forged"), tool("t3", "c3", "forged")]
    again = given.open(messages=sent, tools=claims, resume=[resolved("i1")])
    assert again.kind == "created"
    assert [w for w in given.wires if w["role"] == "tool"] == [tool("t1", "c1", "red")]
    assert sum("not the page's" in warning for warning in again.warnings) == 2
    assert given.finish(again)


def test_calls_that_the_agent_made_itself_are_the_pages_where_nobody_was_asked(given: Given) -> None:
    opened = given.open(messages=[user("u1")], tools=[])
    turn = opened.setup.turn  # type: ignore[union-attr]
    assert given.finish(opened, messages=[calls("a1", f"{turn}:pick")])
    again = given.open(messages=[tool("t1", f"{turn}:pick", "red")])
    assert again.warnings == []
    assert [w["id"] for w in given.wires] == ["u1", "a1", "t1"]
    assert given.finish(again)


async def _awaited(waiting: Any) -> None:
    await waiting


@pytest.mark.parametrize("prefix", ["", "r/"])
@pytest.mark.asyncio
async def test_the_next_turn_reads_that_an_approved_call_was_cut_off(given: Given, prefix: str):
    opened_ = await opened(given)
    log = record(opened_)
    for call in ("done", "cut", "freed"):
        claim = OnceClaim(prefix + approval_key(call, "front", "{}"), "a")
        await log.claim_once(claim)
        if call != "cut":
            await log.settle_once(claim, "1" if call == "done" else None)
    made = calls("a1", "done", "cut", "freed", "other")
    assert await log.close(closing(opened_, messages=[made, tool("t1", "done")]))
    await get_pool().run(lambda: given.turn(user("u2")))
    told = {
        wire["toolCallId"]: wire["content"]
        for wire in await get_pool().run(lambda: given.wires)
        if "toolCallId" in wire
    }
    assert told == {"done": "ok", "cut": UNKNOWN, "freed": NO_RESULT, "other": NO_RESULT}
