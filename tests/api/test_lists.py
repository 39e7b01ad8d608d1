"""Lists: what they show, their pages, filters and orders."""

from __future__ import annotations

import base64
import json
import uuid
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from agui_django.models import Interrupt, Run, Thread
from agui_django.runs.drafts import Draft
from tests.api.conftest import Client, Rows
from tests.transports.asgi import error_of

pytestmark = pytest.mark.django_db(transaction=True)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def keys(page: Any, name: str = "threadId") -> list[Any]:
    return [row[name] for row in page["results"]]


def all_pages(api: Client, path: str, name: str = "threadId") -> list[Any]:
    found, following = [], path
    while following:
        page = api.get(following)
        found += keys(page, name)
        following = page["next"]
    return found


# ---- what is shown --------------------------------------------------------------------------------------------------


def test_a_thread_with_all_that_is_told_of_it(api: Client, ada: Any) -> None:
    made = Rows(
        ada, "t 1\u00e9", title="Order 7", last_words="where is it", input_tokens=3, output_tokens=4,
        created_at=NOON, updated_at=NOON + timedelta(microseconds=5), metadata='{"z":1,"a":12345678901234567890123}',
    )  # fmt: skip
    run = made.run(status="running")
    made.interrupt(made.run())
    made.interrupt(made.run(), expires_at=timezone.now() - timedelta(seconds=1))
    expected = {
        "id": made.thread.pk, "threadId": "t 1\u00e9", "agent": "echo", "title": "Order 7", "archived": False,
        "owner": ada.pk, "lastWords": "where is it", "stateVersion": 1, "inputTokens": 3, "outputTokens": 4,
        "activeRun": str(run.pk), "openInterrupts": 1, "forkedFrom": None,
        "metadata": {"z": 1, "a": 12345678901234567890123}, "match": None,
        "createdAt": "2026-03-01T12:00:00Z", "updatedAt": "2026-03-01T12:00:00.000005Z",
    }  # fmt: skip
    assert api.get(f"threads/{made.thread.pk}") == expected
    assert api.get("threads") == {"results": [expected], "next": None, "previous": None}


def test_messages_leave_as_they_are_stored(api: Client, ada: Any) -> None:
    made = Rows(ada)
    wire = '{"role":"assistant","id":"m1","content":"\u00e9","n":12345678901234567890123,"f":1.50,"toolCalls":[]}'
    message = made.message("m1", role="assistant", wire=wire)
    exchange = api.ask("GET", f"threads/{made.thread.pk}/messages")
    assert wire.encode() in b"".join(exchange.chunks)
    [row] = api.get(f"threads/{made.thread.pk}/messages")["results"]
    assert (row["id"], row["messageId"], row["role"], row["run"]) == (message.pk, "m1", "assistant", None)


def test_messages_that_went_out_of_play_and_the_callers_feedback(api: Client, ada: Any, bob: Any) -> None:
    made = Rows(ada)
    first, second = made.run(), made.run()
    made.message("u1", run=first)
    old = made.message("a1", run=first, superseded_by=second)
    new = made.message("a2", run=second)
    new.feedback.create(thread=made.thread, user=ada, rating=-1, text="wrong date")
    new.feedback.create(thread=made.thread, user=bob, rating=1)
    path = f"threads/{made.thread.pk}/messages"
    assert keys(api.get(path), "messageId") == ["u1", "a2"]
    assert keys(api.get(f"{path}?superseded=true"), "messageId") == ["a1"]
    assert keys(api.get(f"{path}?superseded=any"), "messageId") == ["u1", "a1", "a2"]
    assert keys(api.get(f"{path}?superseded=any&supersededBy={second.pk}"), "messageId") == ["a1"]
    gone = api.get(f"{path}?superseded=true")["results"][0]
    assert (gone["id"], gone["supersededBy"], gone["feedback"]) == (old.pk, str(second.pk), None)
    assert api.get(path)["results"][1]["feedback"] == {"rating": -1, "text": "wrong date"}


def test_a_run_is_whole_by_its_own_address_only(api: Client, ada: Any) -> None:
    made = Rows(ada)
    run = made.run(
        result='{"n":1e2}',
        outcome='{"type":"success"}',
        error_text="secret",
        traceback="secret",
        extra='{"s":"secret"}',
    )
    listed, whole = api.get("runs")["results"][0], api.get(f"runs/{run.pk}")
    assert (whole.pop("result"), whole.pop("usage"), whole.pop("input")) == ({"n": 100.0}, [], {"tools": []})
    assert whole.pop("protocolVersion") == ""
    assert whole == listed
    assert listed["outcome"] == {"type": "success"}
    assert "secret" not in json.dumps([listed, api.get(f"runs/{run.pk}")])
    assert keys(api.get(f"threads/{made.thread.pk}/runs"), "id") == [str(run.pk)]


def test_questions(api: Client, ada: Any) -> None:
    made = Rows(ada)
    run = made.run(status="interrupted")
    kept = Draft({"status": "resolved", "payload": 2**70}, ada.pk, NOON).text
    schema = '{"type":"object"}'
    asked = made.interrupt(run, response_schema=schema, tool_call_id="c", draft=kept, created_at=NOON)
    row = api.get(f"interrupts/{asked.pk}")
    assert row == api.get("interrupts")["results"][0]
    assert row["responseSchema"] == {"type": "object"}
    # Who and when as in every other column.
    assert row["draft"] == {"status": "resolved", "payload": 2**70, "by": ada.pk, "at": row["createdAt"]}
    assert (row["response"], row["metadata"], row["expired"]) == (None, None, False)
    assert (row["interruptId"], row["threadId"], row["run"], row["agent"]) == ("i1", "t1", str(run.pk), "echo")


def test_state_and_its_versions(api: Client, ada: Any) -> None:
    state = '{"z":1,"a":12345678901234567890123}'
    made = Rows(ada, state=state)
    exchange = api.ask("GET", f"threads/{made.thread.pk}/state")
    assert b"".join(exchange.chunks) == state.encode()
    assert exchange.headers["etag"] == '"1"'
    assert api.ask("GET", f"threads/{made.thread.pk}/state", If_None_Match='"1"').status == 304
    assert api.ask("GET", f"threads/{made.thread.pk}/state", If_None_Match='"0"').status == 200
    made.thread.state_versions.create(version=2, state="[]", origin="staff")
    versions = api.get(f"threads/{made.thread.pk}/state/versions")
    assert [(row["version"], row["origin"]) for row in versions["results"]] == [(2, "staff"), (1, "agent")]
    assert keys(api.get(f"threads/{made.thread.pk}/state/versions?origin=agent,client"), "version") == [1]
    assert api.get(f"threads/{made.thread.pk}/state/versions/2") == []
    assert api.ask("GET", f"threads/{made.thread.pk}/state/versions/3").status == 404


def test_agents_are_those_that_the_caller_may_run(api: Client) -> None:
    from agui_django.testing import override_agent

    async def never(user: Any) -> bool:
        return False

    async def hidden(run: Any) -> None: ...

    with override_agent("hidden", hidden, permission=never), override_agent("other", hidden, permission="x.y"):
        page = api.get("agents")
    assert "echo" in keys(page, "name")
    assert {"hidden", "other"}.isdisjoint(keys(page, "name"))
    assert {row["name"]: row["url"] for row in page["results"]}["echo"] == "/agui/agents/echo"


# ---- pages ----------------------------------------------------------------------------------------------------------


def test_pages_follow_each_other_and_lead_back(api: Client, ada: Any) -> None:
    # three have the same moment: the key decides
    moments = [NOON, NOON, NOON, NOON + timedelta(1), NOON - timedelta(1)]
    for number, moment in enumerate(moments):
        Rows(ada, f"t{number}", updated_at=moment)
    expected = ["t3", "t2", "t1", "t0", "t4"]
    for limit in (1, 2, 3, 4, 5, 6):
        assert all_pages(api, f"threads?limit={limit}") == expected
    assert all_pages(api, "threads?limit=2&ordering=updatedAt") == expected[::-1]
    first = api.get("threads?limit=2")
    second = api.get(first["next"])
    third = api.get(second["next"])
    assert (first["previous"], third["next"]) == (None, None)
    assert keys(api.get(third["previous"])) == keys(second) == ["t1", "t0"]
    assert keys(api.get(second["previous"])) == keys(first)
    assert api.get(second["previous"])["previous"] is None
    assert api.get(api.get(third["previous"])["next"]) == third


def test_what_comes_and_goes_meanwhile_moves_no_page(api: Client, ada: Any) -> None:
    for number in range(6):
        Rows(ada, f"t{number}", updated_at=NOON + timedelta(number))
    first = api.get("threads?limit=2")
    Rows(ada, "new", updated_at=NOON + timedelta(9))
    Thread.objects.get(thread_id="t4").delete()  # the row that the cursor names
    second = api.get(first["next"])
    assert (keys(first), keys(second)) == (["t5", "t4"], ["t3", "t2"])
    assert keys(api.get(second["previous"])) == ["t5"] or keys(api.get(second["previous"])) == ["new", "t5"]


def test_links_keep_the_query(api: Client, ada: Any) -> None:
    for number in range(3):
        Rows(ada, f"t{number}", agent="a&b")
    Rows(ada, "other")
    page = api.get("threads?limit=1&agent=a%26b&ordering=createdAt")
    assert page["next"].startswith("/api/agui/threads?")
    assert all_pages(api, "threads?limit=1&agent=a%26b&ordering=createdAt") == ["t0", "t1", "t2"]


def test_pages_of_uuids(api: Client, ada: Any) -> None:
    made = Rows(ada)
    expected = {str(made.run(created_at=NOON).pk) for _ in range(5)}
    found = all_pages(api, "runs?limit=2", "id")
    assert (len(found), set(found)) == (5, expected)


def cursor(*place: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


HOSTILE = [
    "x", "%00", "=", "e30", "bnVsbA", "W10", "\u00e9", "..", "a" * 100_000, "[" * 399,
    base64.urlsafe_b64encode(b"[" * 250).decode(),
    cursor("-updatedAt", 0, "2026-01-01T00:00:00Z"),
    cursor("updatedAt", 0, "2026-01-01T00:00:00Z", 1),  # of another order
    cursor("-createdAt", 0, "2026-01-01T00:00:00Z", 1),
    cursor("-updatedAt", 2, "2026-01-01T00:00:00Z", 1),
    cursor("-updatedAt", True, "2026-01-01T00:00:00Z", 1),
    cursor("-updatedAt", 0, "2026-01-01T00:00:00", 1),  # without a zone
    cursor("-updatedAt", 0, "0001-01-01T00:00:00+14:00", 1),
    cursor("-updatedAt", 0, "99999-01-01T00:00:00Z", 1),
    cursor("-updatedAt", 0, "2026-13-01T00:00:00Z", 1),
    cursor("-updatedAt", 0, 5, 1),
    cursor("-updatedAt", 0, None, 1),
    cursor("-updatedAt", 0, {"x": 1}, 1),
    cursor("-updatedAt", 0, "2026-01-01T00:00:00Z", 2**70),
    cursor("-updatedAt", 0, "2026-01-01T00:00:00Z", "x"),
    cursor("-updatedAt", 0, "2026-01-01T00:00:00Z", None),
    cursor("-updatedAt", 0, "2026-01-01T00:00:00Z", [1]),
    cursor("-updatedAt", 0, "2026-01-01T00:00:00Z", 1.5),
    cursor("-updatedAt", 0, "2026-01-01T00:00:00Z", True),
]  # fmt: skip


def test_hostile_cursors(api: Client, ada: Any) -> None:
    from urllib.parse import quote

    Rows(ada)
    for each in HOSTILE:
        exchange = api.ask("GET", f"threads?cursor={quote(each)}")
        assert exchange.status == 400, (each[:60], exchange.chunks)
        assert error_of(exchange)["code"] == "invalid_cursor"
    for each in (cursor("order", 0, 2**63, 1), cursor("order", 0, -1, 1), cursor("order", 0, "1", 1)):
        thread = Thread.objects.get().pk
        assert api.ask("GET", f"threads/{thread}/messages?cursor={each}").status == 400
    assert api.ask("GET", f"runs?cursor={cursor('-createdAt', 0, '2026-01-01T00:00:00Z', 2**200)}").status == 400
    # A forged one that could be ours says a place, and shows nothing that its sender could not see.
    assert api.get(f"threads?cursor={cursor('-updatedAt', 0, '9000-01-01T00:00:00Z', 2**63 - 1)}")["results"]


# ---- filters --------------------------------------------------------------------------------------------------------


def test_filters_of_threads(api: Client, ada: Any) -> None:
    Rows(ada, "plain", created_at=NOON, updated_at=NOON + timedelta(1))
    Rows(ada, " spaced ", archived=True, agent="other", created_at=NOON + timedelta(2))
    asked = Rows(ada, "asked", created_at=NOON + timedelta(3))
    asked.interrupt(asked.run(status="interrupted"))
    expired = Rows(ada, "expired", created_at=NOON + timedelta(4), forked_from=asked.thread)
    expired.interrupt(expired.run(status="failed"), expires_at=timezone.now() - timedelta(seconds=1))
    Rows(ada, "busy", created_at=NOON + timedelta(5)).run(status="pending")

    def found(query: str) -> set[str]:
        return set(keys(api.get(f"threads?{query}")))

    everything = {"plain", " spaced ", "asked", "expired", "busy"}
    assert found("") == everything
    assert found("archived=true") == {" spaced "}
    assert found("archived=false") == everything - {" spaced "}
    assert found("agent=other") == {" spaced "}
    assert found("threadId=+spaced+") == {" spaced "}
    assert found("threadId=spaced") == set()
    assert found("active=true") == {"busy"}
    assert found("active=false&archived=false") == everything - {"busy", " spaced "}
    assert found("hasOpenInterrupts=true") == {"asked"}
    assert found("hasError=true") == {"expired"}
    assert found(f"forkedFrom={asked.thread.pk}") == {"expired"}
    assert found(f"owner={ada.pk}") == everything
    assert found(f"owner={ada.pk + 1}") == set()
    assert found("createdAfter=2026-03-04T12:00:00Z") == {"asked", "expired", "busy"}
    assert found("createdBefore=2026-03-02") == {"plain"}
    assert found("updatedBefore=2026-03-03T00:00:00%2B01:00") == {"plain"}
    # What a script made of a variable that is not set is no wish to see everything.
    assert found("agent=") == found("threadId=") == set()


def test_filters_of_runs(api: Client, ada: Any) -> None:
    made, other = Rows(ada, "t1"), Rows(ada, "t2", agent="other")
    asked = made.run(run_id="asked", status="interrupted", created_at=NOON)
    made.interrupt(asked)
    made.run(
        run_id="failed", status="failed", error_code="timeout", error_reference="abc", created_at=NOON + timedelta(1)
    )
    other.run(run_id="done", status="finished", resumed_run=asked, user=None, created_at=NOON + timedelta(2))

    def found(query: str) -> list[str]:
        return keys(api.get(f"runs?{query}"), "runId")

    assert found("") == ["done", "failed", "asked"]
    assert found("ordering=createdAt") == ["asked", "failed", "done"]
    assert found("status=failed,interrupted") == ["failed", "asked"]
    assert found("status=finished") == ["done"]
    assert found("agent=other") == ["done"]
    assert found(f"thread={made.thread.pk}") == ["failed", "asked"]
    assert found("threadId=t2") == ["done"]
    assert found("runId=asked") == ["asked"]
    assert found(f"user={ada.pk}") == ["failed", "asked"]
    assert found("hasError=true") == ["failed"]
    assert found("hasError=false") == ["done", "asked"]
    assert found("errorCode=timeout") == found("errorReference=abc") == ["failed"]
    assert found("hasOpenInterrupts=true") == ["asked"]
    assert found(f"resumedRun={asked.pk}") == ["done"]
    assert found("createdAfter=2026-03-02&createdBefore=2026-03-03") == ["failed"]


def test_filters_of_questions(api: Client, ada: Any) -> None:
    made = Rows(ada)
    run = made.run(status="interrupted")
    made.interrupt(run, "open", expires_at=timezone.now() + timedelta(hours=1), reason="tool_call")
    made.interrupt(run, "over", expires_at=timezone.now() - timedelta(seconds=1))
    made.interrupt(run, "done", status=Interrupt.Status.RESOLVED, answered_by=ada)

    def found(query: str) -> set[str]:
        return set(keys(api.get(f"interrupts?{query}"), "interruptId"))

    assert found("") == {"open", "over", "done"}
    assert found("open=true") == {"open"}
    assert found("open=false") == {"over", "done"}
    assert found("status=open") == {"open", "over"}
    assert found("reason=tool_call") == {"open"}
    assert found(f"answeredBy={ada.pk}") == {"done"}
    assert found(f"run={run.pk}&agent=echo&threadId=t1&thread={made.thread.pk}") == {"open", "over", "done"}
    assert found("agent=other") == set()
    soon = (timezone.now() + timedelta(hours=2)).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert found(f"expiresBefore={soon}") == {"open", "over"}


def test_search(api: Client, ada: Any, bob: Any, staff: Any) -> None:
    found = Rows(ada, "t1")
    found.message("m1", "Where is my <b>parcel</b>?")
    Rows(ada, "t2", title="A parcel for you")
    Rows(ada, "t3").message("m1", "something else")
    Rows(bob, "t4").message("m1", "bob's parcel")
    page = api.get("threads?search=parcel")
    assert set(keys(page)) == {"t1", "t2"}
    matches = {row["threadId"]: row["match"] for row in page["results"]}
    assert matches["t1"] == {
        "title": "", "text": "Where is my &lt;b&gt;<mark>parcel</mark>&lt;/b&gt;?", "messageId": "m1",
    }  # fmt: skip
    assert matches["t2"]["title"] == "A <mark>parcel</mark> for you"
    assert keys(api.get("threads?search=parcel&archived=true")) == []
    # Who may not read others' messages does not find them by their words.
    assert keys(Client(staff("view_thread")).get("threads?search=parcel")) == []
    both = Client(staff("view_thread", "view_message", name="both"))
    assert set(keys(both.get("threads?search=parcel"))) == {"t1", "t2", "t4"}


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("threads?archived=maybe", "archived"),
        ("threads?archived=True", "archived"),
        ("threads?archived=", "archived"),
        ("threads?limit=", "limit"),
        ("usage?until=", "until"),
        ("threads?owner=x", "owner"),
        ("threads?createdAfter=yesterday", "createdAfter"),
        ("threads?createdAfter=0001-01-01T00:00:00%2B14:00", "createdAfter"),
        ("threads?createdAfter=2026-02-30", "createdAfter"),
        ("threads?forkedFrom=-1", "forkedFrom"),
        ("threads?forkedFrom=1e3", "forkedFrom"),
        ("threads?threadId=" + "x" * 256, "threadId"),
        ("threads?ordering=title", "ordering"),
        ("threads?ordering=--updatedAt", "ordering"),
        ("threads?limit=0", "limit"),
        ("threads?limit=201", "limit"),
        ("threads?limit=1.5", "limit"),
        ("threads?limit=\u0665", "limit"),
        ("threads?staus=open", ""),
        ("threads?thread__state__contains=x", ""),
        ("runs?status=failed,sleeping", "status"),
        ("runs?resumedRun=1", "resumedRun"),
        ("interrupts?status=secret", "status"),
        ("threads?archived=true&archived=false", "archived"),
        ("runs?status=failed&status=finished", "status"),
        ("threads/1?x=1", ""),
        ("usage?by=day,agents", "by"),
        ("usage?since=2026-02-30", "since"),
        ("usage?since=0001-01-01", "since"),
        ("usage?since=2026-02-02&until=2026-02-01", "since"),
        ("usage?since=2020-01-01&until=2026-01-01", "since"),
        ("usage?timeZone=../../etc/passwd", "timeZone"),
        ("usage?timeZone=Mars", "timeZone"),
    ],
)
def test_malformed_queries(api: Client, path: str, place: str) -> None:
    from urllib.parse import quote

    exchange = api.ask("GET", quote(path, safe="?=&%/,:"))
    assert exchange.status == 422, exchange.chunks
    error = error_of(exchange)
    assert [field["path"] for field in error["fields"]] == [place]
    # What was sent is not given back.
    for sent in ("maybe", "yesterday", "secret", "sleeping", "staus", "Mars", "passwd"):
        assert sent not in json.dumps(error)


def test_nul_and_broken_text_in_a_query(api: Client, ada: Any) -> None:
    Rows(ada, "a\ufffdb")
    assert api.ask("GET", "threads?threadId=a%00b").status in (200, 422)
    assert keys(api.get("threads?threadId=a%ff" + "b")) == ["a\ufffdb"]
    assert api.ask("GET", "threads?search=%00").status == 200


# ---- what a site's policy hides -------------------------------------------------------------------------------------


def test_hidden_runs_hide_their_threads_messages_and_questions(
    api: Client, ada: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.AGUI_DJANGO = {**settings.AGUI_DJANGO, "ACCESS_POLICY": "tests.api.test_lists.HidesSecrets"}
    shown, hidden = Rows(ada, "shown"), Rows(ada, "hidden")
    shown.interrupt(shown.run(run_id="old-secret", created_at=NOON), "i0")
    shown.run(run_id="plain")
    run = hidden.run({"type": "RUN_STARTED"}, run_id="secret")
    message = hidden.message("m1", run=run)
    question = hidden.interrupt(run)
    assert keys(api.get("threads")) == ["shown"]
    assert keys(api.get("runs"), "runId") == ["plain"]
    assert keys(api.get("interrupts"), "interruptId") == []
    key = hidden.thread.pk
    for path in (
        f"threads/{key}", f"threads/{key}/messages", f"threads/{key}/runs", f"threads/{key}/state", f"runs/{run.pk}",
        f"runs/{run.pk}/events", f"interrupts/{question.pk}", f"messages/{message.pk}/feedback",
    ):  # fmt: skip
        assert api.ask("GET", path).status == 404, path


from agui_django.access import AccessPolicy  # noqa: E402


class HidesSecrets(AccessPolicy):
    def may_see(self, user: Any, run: Run) -> bool:
        return "secret" not in run.run_id


# ---- usage ----------------------------------------------------------------------------------------------------------


def test_usage(api: Client, ada: Any, bob: Any, staff: Any) -> None:
    made, other = Rows(ada, "t1"), Rows(bob, "t1", agent="other")
    used = {"input_tokens": 10, "cached_tokens": 4, "output_tokens": 5, "reasoning_tokens": 1, "tool_calls": 2}
    made.run(created_at=NOON, duration_ms=100, **used)
    made.run(created_at=NOON + timedelta(hours=11, minutes=30), status="failed", **used)
    made.run(created_at=NOON + timedelta(days=1), **used)
    made.run(created_at=NOON - timedelta(days=40), **used)
    other.run(created_at=NOON, **used)
    window = "since=2026-02-20&until=2026-03-10"
    told = api.get(f"usage?{window}")
    assert told["results"] == [
        {"day": "2026-03-02", "runs": 1, "failed": 0, "inputTokens": 10, "cachedTokens": 4, "outputTokens": 5,
         "reasoningTokens": 1, "toolCalls": 2, "durationMs": 0, "cost": {}, "notPriced": 1},
        {"day": "2026-03-01", "runs": 2, "failed": 1, "inputTokens": 20, "cachedTokens": 8, "outputTokens": 10,
         "reasoningTokens": 2, "toolCalls": 4, "durationMs": 100, "cost": {}, "notPriced": 2},
    ]  # fmt: skip
    assert told["total"]["runs"] == 3
    assert (told["since"], told["until"], told["timeZone"], told["by"]) == ("2026-02-20", "2026-03-10", "UTC", ["day"])
    # 23:30 in London is another day in Berlin
    berlin = api.get(f"usage?{window}&timeZone=Europe/Berlin")
    assert [(row["day"], row["runs"]) for row in berlin["results"]] == [("2026-03-02", 2), ("2026-03-01", 1)]
    # In a long window SQLite finds the days in another way.
    for zone, expected in (("UTC", told["results"]), ("Europe/Berlin", berlin["results"])):
        long = api.get(f"usage?since=2025-10-01&until=2026-03-10&timeZone={zone}")
        assert [*expected, {**long["results"][-1], "runs": 1}] == long["results"]
    everything = Client(staff("view_run"))
    by_both = everything.get(f"usage?{window}&by=user,agent")
    assert [(row["agent"], row["user"], row["runs"]) for row in by_both["results"]] == [
        ("echo", ada.pk, 3), ("other", bob.pk, 1),
    ]  # fmt: skip
    assert everything.get(f"usage?{window}&agent=other")["total"]["runs"] == 1
    assert everything.get(f"usage?{window}&user={bob.pk}")["total"]["inputTokens"] == 10
    assert api.get(f"usage?{window}&user={bob.pk}")["results"] == []
    assert api.get("usage")["results"] == []


def test_costs(api: Client, ada: Any) -> None:
    made = Rows(ada)
    used = {"created_at": NOON, "input_tokens": 10, "model": "small"}
    run = made.run(cost_nanos=1_500_000_001, currency="USD", priced_on=date(2026, 2, 1), **used)
    made.run(cost_nanos=2_000_000_000, currency="USD", **{**used, "model": "large"})
    made.run(cost_nanos=7, currency="EUR", **used)
    made.run(cost_nanos=0, currency="USD", **used)
    made.run(**used)  # nobody knows its price
    made.run(created_at=NOON)  # there is nothing to pay
    told = api.get("usage?since=2026-03-01&until=2026-03-01&by=day,model")
    assert [(row["model"], row["cost"], row["notPriced"]) for row in told["results"]] == [
        ("", {}, 0), ("large", {"USD": "2.000000000"}, 0),
        ("small", {"EUR": "0.000000007", "USD": "1.500000001"}, 1),
    ]  # fmt: skip
    assert told["total"]["cost"] == {"EUR": "0.000000007", "USD": "3.500000001"}
    assert told["total"]["notPriced"] == 1
    row = api.get(f"runs/{run.pk}")
    assert [row[name] for name in ("cost", "currency", "pricedOn", "model")] == [
        "1.500000001", "USD", "2026-02-01", "small",
    ]  # fmt: skip
    assert [each["cost"] for each in api.get("runs")["results"]].count(None) == 2


def test_the_day_that_a_clock_is_put_forward(api: Client, ada: Any) -> None:
    made = Rows(ada)
    made.run(created_at=datetime(2026, 3, 28, 23, tzinfo=UTC))  # the first moment of 29 March in Berlin
    made.run(created_at=datetime(2026, 3, 29, 21, 59, tzinfo=UTC))  # its last minute
    made.run(created_at=datetime(2026, 3, 29, 22, tzinfo=UTC))
    told = api.get("usage?since=2026-03-29&until=2026-03-29&timeZone=Europe/Berlin")
    assert [(row["day"], row["runs"]) for row in told["results"]] == [("2026-03-29", 2)]


def test_no_such_thing(api: Client) -> None:
    for path in ("threads/1", f"runs/{uuid.uuid4()}", "interrupts/1", "messages/1/feedback", f"threads/{10**30}",
                 "threads/-1", "threads/x", "runs/x", "", "nothing"):  # fmt: skip
        exchange = api.ask("GET", path)
        assert exchange.status == 404
        assert error_of(exchange)["code"] == "not_found"
