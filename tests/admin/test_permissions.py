"""Who may open which address, what of the texts they are sent, and what a text can do in a page: nothing."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib import admin
from django.contrib.auth.models import Permission
from django.test import AsyncClient, Client
from django.urls import URLPattern
from django.utils import timezone

from agui_django.admin import run_page
from agui_django.admin.markdown import Words, raw, tree
from agui_django.admin.rights import Redactor
from agui_django.models import Attachment, Feedback, Interrupt, Run, RunEvents, StateVersion, Thread
from agui_django.protocol.codec import encode
from agui_django.runs.stream import Follow
from tests.api.conftest import Rows

VERBS = (
    "view_run", "view_thread", "view_interrupt", "view_content", "view_traceback", "cancel_run", "answer_interrupt",
    "review_run",
    "edit_state", "export", "prune", "change_thread", "delete_thread",
)  # fmt: skip
RUN, THREAD, INBOX = ("/admin/agui_django/run/", "/admin/agui_django/thread/", "/admin/agui_django/interrupt/")

#: The name of an address -> the address, and the sets of permissions of which one is needed; none: nobody.
ADDRESSES: dict[str, tuple[str, list[set[str]]]] = {
    "run_changelist": (RUN, [{"view_run"}]),
    "run_change": (f"{RUN}<run>/change/", [{"view_run"}]),
    "run_history": (f"{RUN}<run>/history/", [{"view_run"}]),
    "run_add": (f"{RUN}add/", []),
    "run_delete": (f"{RUN}<run>/delete/", []),
    "run_cancel": (f"{RUN}cancel/?run=<run>", [{"view_run", "cancel_run"}]),
    "run_status": (f"{RUN}status/?run=<run>", [{"view_run"}]),
    "run_review": (f"{RUN}review/?run=<run>", [{"view_run", "review_run"}]),
    "run_export": (f"{RUN}export/?run=<run>", [{"view_run", "export"}]),
    "run_zone": (f"{RUN}zone/", [set()]),
    "run_panel": (f"{RUN}panel/errors/", [{"view_run"}]),
    "run_live": (f"{RUN}<run>/live/", [{"view_run"}]),
    "run_events": (f"{RUN}<run>/events/", [{"view_run"}]),
    "run_download": (f"{RUN}<run>/events.ndjson", [{"view_run", "view_content", "export"}]),
    "run_part": (f"{RUN}<run>/input.txt", [{"view_run", "view_content"}]),
    "run_message": (f"{RUN}message/<message>/", [{"view_content"}]),
    "run_file": (f"{RUN}file/<file>/", [{"view_content"}]),
    "thread_changelist": (THREAD, [{"view_thread"}]),
    "thread_change": (f"{THREAD}<thread>/change/", [{"view_thread"}]),
    "thread_history": (f"{THREAD}<thread>/history/", [{"view_thread"}]),
    "thread_add": (f"{THREAD}add/", []),
    "thread_delete": (f"{THREAD}<thread>/delete/", []),
    "thread_prune": (f"{THREAD}prune/", [{"view_thread", "prune"}]),
    "thread_state": (f"{THREAD}<thread>/state/", [{"view_thread", "view_content", "edit_state"}]),
    "thread_archive": (f"{THREAD}<thread>/archive/", [{"view_thread", "change_thread"}]),
    "thread_restore": (f"{THREAD}<thread>/restore/", [{"view_thread", "change_thread"}]),
    "thread_export": (f"{THREAD}<thread>/export/", [{"view_thread", "view_content", "export"}]),
    "thread_remove": (f"{THREAD}<thread>/remove/", [{"view_thread", "delete_thread"}]),
    "interrupt_changelist": (INBOX, [{"view_interrupt"}, {"answer_interrupt"}]),
    "interrupt_change": (f"{INBOX}<interrupt>/change/", [{"view_interrupt"}, {"answer_interrupt"}]),
    "interrupt_history": (f"{INBOX}<interrupt>/history/", [{"view_interrupt"}, {"answer_interrupt"}]),
    "interrupt_add": (f"{INBOX}add/", []),
    "interrupt_delete": (f"{INBOX}<interrupt>/delete/", []),
    "interrupt_dismiss": (f"{INBOX}dismiss/?q=<interrupt>", [{"answer_interrupt"}]),
}  # fmt: skip


class Planted:
    """A thread with a secret in every place that a user or an agent fills."""

    def __init__(self, owner: Any, plant: Callable[[str], str]) -> None:
        rows = Rows(
            owner, title=plant("title"), last_words=plant("last-words"), metadata=encode({"a": plant("metadata")}),
            state=encode({plant("state-key"): plant("state")}),
        )  # fmt: skip
        self.thread = rows.thread
        events = [
            {"type": "RUN_STARTED", "threadId": "t1", "runId": "r1", "timestamp": 1000, "input": plant("e-input")},
            {"type": "STEP_STARTED", "stepName": plant("e-step"), "timestamp": 1000},
            {
                "type": "TEXT_MESSAGE_START", "messageId": "m2", "role": "assistant", "name": plant("e-name"),
                "timestamp": 1001,
            },
            {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m2", "delta": plant("e-text")},
            {"type": "REASONING_MESSAGE_CONTENT", "messageId": "m4", "delta": plant("e-reasoning")},
            {"type": "TOOL_CALL_START", "toolCallId": "c1", "toolCallName": "lookup", "timestamp": 1002},
            {"type": "TOOL_CALL_ARGS", "toolCallId": "c1", "delta": plant("e-args")},
            {
                "type": "TOOL_CALL_RESULT", "toolCallId": "c1", "messageId": "m3", "content": plant("e-result"),
                "timestamp": 1003,
            },
            {"type": "STATE_SNAPSHOT", "snapshot": {plant("e-state-key"): plant("e-state")}, "timestamp": 1004},
            {"type": "STATE_DELTA", "delta": [{"op": "add", "path": plant("e-path"), "value": plant("e-patch")}]},
            {"type": "CUSTOM", "name": plant("e-custom"), "value": plant("e-value"), "metadata": plant("e-meta")},
            {
                "type": "ACTIVITY_SNAPSHOT", "messageId": "m5", "activityType": plant("e-activity"),
                "content": {"a": plant("e-card")},
            },
            {"type": "SUBAGENT_STARTED", "subagentRunId": "s1", "name": plant("e-subagent"), "timestamp": 1005},
            {"type": "RAW", "event": plant("e-raw"), "source": plant("e-source")},
            {"type": "RUN_ERROR", "message": plant("e-error"), "timestamp": 1006},
        ]  # fmt: skip
        run = self.run = rows.run(
            *events, status="failed", error_code="tool_error", error_reference="a1f3a1f3", error_text=plant("error"),
            traceback=plant("traceback"), review_note=plant("note"),
            reviewed_by=owner, reviewed_at=timezone.now(), outcome=encode({"a": plant("outcome")}), duration_ms=6,
            result=encode(plant("result")), extra=encode({"a": plant("extra")}),
            usage=encode([{"model": plant("usage")}]),
        )  # fmt: skip
        Run.objects.filter(pk=run.pk).update(input=encode({"forwardedProps": {"a": plant("input")}}))
        self.file = Attachment.objects.create(
            thread=rows.thread, user=owner, name="none", title=plant("file"), media_type="text/html", size=1, digest="x"
        )
        part = {"type": "document", "source": {"type": "url", "value": f"/agui/attachments/{self.file.pk}",
                "mimeType": "text/html"}, "metadata": {"filename": plant("part")}}  # fmt: skip
        self.message = rows.message("m1", plant("user"), run=run)
        parts = [{"type": "text", "text": plant("text-part")}, part]
        rows.message("m1b", plant("parts"), run=run, wire=encode({"id": "m1b", "role": "user", "content": parts}))
        call = {
            "id": "c1",
            "type": "function",
            "function": {"name": "lookup", "arguments": encode({"a": plant("args")})},
        }
        wire = {"id": "m2", "role": "assistant", "content": plant("assistant"), "toolCalls": [call]}
        rows.message("m2", "", "assistant", run=run, wire=encode(wire))
        tool = {"id": "m3", "role": "tool", "toolCallId": "c1", "content": plant("tool")}
        rows.message("m3", "", "tool", run=run, wire=encode(tool))
        rows.message("m4", plant("reasoning"), "reasoning", run=run)
        activity = {"id": "m5", "role": "activity", "activityType": "card", "content": {"a": plant("activity")}}
        rows.message("m5", "", "activity", run=run, wire=encode(activity))
        large = plant("large") + "x" * 70_000
        rows.message("m6", large, run=run)
        gone = rows.message("m7", plant("superseded"), run=run)
        type(gone).objects.filter(pk=gone.pk).update(superseded_by=run, behind=self.message.pk)
        for number, state in enumerate((plant("version"), plant("version-after")), start=2):
            StateVersion.objects.create(
                thread=rows.thread, run=run, version=number, state=encode({"a": state}), origin="agent"
            )
        Feedback.objects.create(thread=rows.thread, message=self.message, user=owner, rating=1, text=plant("feedback"))
        self.interrupt = rows.interrupt(
            run, message=plant("question"), tool_call_id="c1", metadata=encode({"a": plant("q-metadata")}),
            response_schema=encode({"type": "object", "properties": {plant("q-key"): {"title": plant("q-title")}}}),
            draft=encode({"payload": plant("draft")}),
        )  # fmt: skip
        self.answered = rows.interrupt(run, "i2", status="resolved", response=encode({"payload": plant("answer")}),
                                       message=plant("answered"))  # fmt: skip

    def at(self, address: str) -> str:
        values = {"run": self.run.pk, "thread": self.thread.pk, "message": self.message.pk, "file": self.file.pk,
                  "interrupt": self.interrupt.pk}  # fmt: skip
        return re.sub("<([a-z]+)>", lambda found: str(values[found[1]]), address)

    def addresses(self) -> list[str]:
        """Every address that is read, with the variants that show something else."""
        plain = [self.at(address) for address, _needed in ADDRESSES.values()]
        return [
            *plain, f"{RUN}?window=all", f"{RUN}?q=SECRET", f"{RUN}?q=a1f3a1f3", f"{THREAD}?q=SECRET",
            f"{THREAD}?window=all", f"{RUN}{self.run.pk}/change/?superseded=1",
            f"{THREAD}{self.thread.pk}/change/?superseded=1", f"{RUN}?reviewed=yes",
            f"{RUN}{self.run.pk}/change/?_changelist_filters=q%3DSECRET",
            f"{INBOX}?state=answered", f"{INBOX}{self.answered.pk}/change/", f"{RUN}{self.run.pk}/events/?type=CUSTOM",
            "/admin/", "/admin/agui_django/",
            "/admin/autocomplete/?app_label=agui_django&model_name=run&field_name=thread&term=SECRET",
        ]  # fmt: skip


def got(user: Any, address: str) -> tuple[int, bytes]:
    """What somebody is answered by an ASGI server, streams to their end."""

    async def ask() -> tuple[int, bytes]:
        client = AsyncClient()
        await client.aforce_login(user)
        response = await client.get(address)
        if not response.streaming:
            return response.status_code, response.content
        body = b""
        async with asyncio.timeout(60):
            async for part in response:
                body += part
        response.close()
        return response.status_code, body

    return async_to_sync(ask)()


@pytest.fixture
def grant(agui_runtime: None, django_user_model: Any) -> Callable[..., Any]:
    """Makes staff with permissions."""
    made = iter(range(1000))

    def make(*permissions: str) -> Any:
        user = django_user_model.objects.create_user(f"staff{next(made)}", password="x", is_staff=True)
        user.user_permissions.set(
            Permission.objects.filter(content_type__app_label="agui_django", codename__in=permissions)
        )
        return user

    return make


def test_every_address_is_in_the_table() -> None:
    names = set()
    for model in (Run, Thread, Interrupt):
        for pattern in admin.site._registry[model].get_urls():
            if isinstance(pattern, URLPattern) and pattern.name:
                names.add(pattern.name.removeprefix("agui_django_"))
    assert names == set(ADDRESSES)
    ours = {model for model in admin.site._registry if model._meta.app_label == "agui_django"}
    assert ours == {Run, Thread, Interrupt}


@pytest.mark.timeout(300)
def test_the_matrix(ada: Any, grant: Callable[..., Any]) -> None:
    planted = Planted(ada, lambda name: f"SECRET-{name}")
    held: list[set[str]] = [set(), *({verb} for verb in VERBS)]
    for _address, needed in ADDRESSES.values():
        for wanted in needed:
            # All of them, and each but one.
            held += [wanted, *(wanted - {verb} for verb in wanted)]
    for permissions in {frozenset(each) for each in held}:
        client = Client()
        client.force_login(grant(*permissions))
        for name, (address, needed) in ADDRESSES.items():
            if name == "run_live":
                continue  # below, over ASGI
            allowed = any(wanted <= permissions for wanted in needed)
            status = client.get(planted.at(address)).status_code
            # The file of the test is in no storage.
            expected = ((404,) if name == "run_file" else (200, 302)) if allowed else (403,)
            assert status in expected, (name, permissions, status)


def test_who_is_no_staff_is_sent_to_the_login(ada: Any) -> None:
    planted = Planted(ada, lambda name: f"SECRET-{name}")
    client = Client()
    for name, (address, _needed) in ADDRESSES.items():
        response = client.get(planted.at(address))
        assert response.status_code == 302 and "/admin/login/" in response["Location"], name
    assert got(ada, planted.at(ADDRESSES["run_live"][0]))[0] == 302


def test_the_live_stream(ada: Any, grant: Callable[..., Any]) -> None:
    planted = Planted(ada, lambda name: f"SECRET-{name}")
    address = planted.at(ADDRESSES["run_live"][0])
    assert got(grant("view_thread", "view_content"), address)[0] == 403
    status, body = got(grant("view_run"), address)
    events = [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: ")]
    assert status == 200
    assert [event["type"] for event in events][::14] == ["RUN_STARTED", "RUN_ERROR"]
    assert [event.get("toolCallName") for event in events if event["type"] == "TOOL_CALL_START"] == ["lookup"]
    assert all(event["hidden"] > 0 for event in events)
    status, body = got(grant("view_run", "view_content"), address)
    assert b"SECRET-e-text" in body
    assert b"id: 15\n" in got(grant("view_run"), f"{address}?after=14")[1]
    assert Client().get(address).status_code == 302


def test_the_live_stream_ends_with_the_permission(
    ada: Any, grant: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_page, "AGAIN", 0.0)
    planted = Planted(ada, lambda name: f"SECRET-{name}")
    user = grant("view_run", "view_content")

    async def watch() -> list[list[int]]:
        watched = run_page.Watched(Follow(planted.run.pk), user.pk, await sync_to_async(Redactor)(user))
        seen = [[len(text) for _seq, text, _plain in await anext(watched)]]
        await sync_to_async(user.user_permissions.clear)()
        again = run_page.Watched(Follow(planted.run.pk), user.pk, watched._hide)
        seen += [[len(text) for _seq, text, _plain in batch] async for batch in again]
        return seen

    assert [len(batch) for batch in async_to_sync(watch)()] == [15]


def test_without_an_asgi_server_nothing_is_streamed(ada: Any, grant: Callable[..., Any]) -> None:
    planted = Planted(ada, lambda name: f"SECRET-{name}")
    client = Client()
    client.force_login(grant("view_run"))
    assert client.get(planted.at(ADDRESSES["run_live"][0])).status_code == 503


def _without_our_words(body: bytes) -> bytes:
    """A page without what the addresses of these tests say themselves."""
    for own in (b"?q=SECRET", b'value="SECRET"', b'value="q=SECRET"', b"q%3DSECRET"):
        body = body.replace(own, b"")
    return body


@pytest.mark.timeout(300)
def test_planted_secrets_stay_hidden(ada: Any, grant: Callable[..., Any]) -> None:
    planted_names: list[str] = []

    def plant(name: str) -> str:
        planted_names.append(name)
        return f"SECRET-{name}"

    planted = Planted(ada, plant)
    assert len(planted_names) >= 40
    # All that can be held without reading what was written. Who may answer is shown the question, and only that.
    user = grant(*(verb for verb in VERBS if verb not in ("view_content", "view_traceback", "answer_interrupt")))
    for address in planted.addresses():
        status, body = got(user, address)
        assert b"SECRET-" not in _without_our_words(body), (address, status)
    shown = "".join(got(grant(*VERBS), address)[1].decode() for address in planted.addresses())
    # Otherwise the test would prove nothing. A draft is not shown, of a member its title is.
    unseen = {name for name in planted_names if f"SECRET-{name}" not in shown}
    assert unseen <= {"draft", "q-key"}, unseen


def test_who_may_answer_sees_the_question_only(ada: Any, grant: Callable[..., Any]) -> None:
    planted = Planted(ada, lambda name: f"SECRET-{name}")
    body = got(grant("answer_interrupt"), planted.at(f"{INBOX}<interrupt>/change/"))[1].decode()
    assert set(re.findall(r"SECRET-[a-z-]+", body)) == {
        f"SECRET-{name}" for name in ("question", "args", "q-metadata", "q-title")
    }


def test_tracebacks_have_their_own_permission(ada: Any, grant: Callable[..., Any]) -> None:
    planted = Planted(ada, lambda name: f"SECRET-{name}")
    page = planted.at(f"{RUN}<run>/change/")
    assert b"SECRET-traceback" not in got(grant("view_run", "view_content"), page)[1]
    body = got(grant("view_run", "view_traceback"), page)[1]
    assert set(re.findall(rb"SECRET-[a-z-]+", body)) == {b"SECRET-traceback"}


# ---- hostile texts --------------------------------------------------------------------------------------------------

HOSTILE = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "[x](javascript:alert(1))",
    "![x](http://evil.test/x.png)",
    "<svg onload=alert(1)>", "</textarea><script>alert(1)</script>", "</pre><script>alert(1)</script>",
    "<style>*{display:none}</style>", "[x](/admin/logout/)",
    "<a href='data:text/html,<script>alert(1)</script>'>x</a>",
    "{{ 7|add:7 }}{% csrf_token %}", "\"><script>alert(1)</script>", "' onmouseover='alert(1)",
    "<iframe src=//evil.test>",
    "[x](JaVaScRiPt:alert(1))", "<!--<script>-->", "[x]: javascript:alert(1)\n[x]",
    "<http://evil.test/\"onclick=alert(1)>",
]  # fmt: skip


def dangers(html: str) -> Iterator[str]:
    """What of a page is not the admin's own."""
    for tag in re.findall(r"<[a-zA-Z][^>]*>", html):
        name = tag[1:].split()[0].split(">")[0].lower().strip("/")
        if (
            name == "script"
            and re.search(r'src="/static/|type="application/json"', tag) is None
            and "jsi18n" not in tag
        ):
            yield tag
        if name in ("style", "iframe", "object", "embed", "base") or re.search(
            r"\s(on\w+|style|srcdoc)\s*=", _bare(tag)
        ):
            yield tag
        if re.search(r"""(href|src|action)\s*=\s*["']?\s*(javascript|data|vbscript):""", tag, re.IGNORECASE):
            yield tag
        if name == "img" and "/static/" not in tag:
            yield tag


def _bare(tag: str) -> str:
    """A tag without the values of its attributes."""
    return re.sub(r"\"[^\"]*\"|'[^']*'", '""', tag)


@pytest.mark.timeout(300)
def test_nothing_that_was_written_acts(ada: Any, grant: Callable[..., Any]) -> None:
    texts = iter(range(10_000))
    planted = Planted(ada, lambda name: HOSTILE[next(texts) % len(HOSTILE)])
    everything = "\n\n".join(HOSTILE)
    type(planted.message).objects.filter(pk=planted.message.pk).update(
        wire=encode({"id": "m1", "role": "user", "content": everything})
    )
    RunEvents.objects.filter(run=planted.run).update(
        text="\n".join(encode({"type": "CUSTOM", "name": text, "value": {text: text}}) for text in HOSTILE)
    )
    client = Client()
    client.force_login(grant(*VERBS))
    for address in planted.addresses():
        if (
            address.endswith(("/live/", ".ndjson", "/export/", ".txt"))
            or "/message/" in address
            or "/status/" in address
        ):
            continue  # not HTML
        response = client.get(address)
        if response.status_code == 200 and "html" in response["Content-Type"]:
            assert list(dangers(response.content.decode())) == [], address


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_words(text: str) -> None:
    for html in (Words().html(text), raw(text), tree({text: [text]})):
        assert list(dangers(html)) == []
    assert "evil.test/x.png" not in Words().html(text)
    assert 'href="/' not in Words().html(text)


def test_links_say_where_they_lead() -> None:
    html = Words().html("[x](https://evil.test/a) <b>bold</b> ![cat](http://pics.test/c.png)")
    assert 'href="https://evil.test/a"' in html and "(evil.test)" in html and 'target="_blank"' in html
    assert "noopener" in html and "&lt;b&gt;" in html
    assert "image from pics.test (not loaded)" in html and "<img" not in html


def test_nothing_is_swallowed() -> None:
    for text in (">" * 500 + " word " * 50, "* " * 800 + "word " * 50):
        assert "word" in Words().html(text)
    assert "<pre" in Words().html("**x** " * 10_000)
    spent = Words(budget=100)
    assert "<strong>" in spent.html("**x**" + "y" * 80) and "<pre" in spent.html("**x**" + "y" * 80)
    assert "U+202E" in raw("a\u202eb") and "\u202e" not in raw("a\u202eb")
