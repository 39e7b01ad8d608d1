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

from agui_django.admin import live
from agui_django.admin.markdown import Words, raw, tree
from agui_django.admin.rights import Redactor
from agui_django.models import Interrupt, Run, RunEvents, Thread
from agui_django.protocol.codec import encode
from agui_django.runs.stream import Follow
from tests.admin.planted import ADDRESSES, HOSTILE, INBOX, RUN, Planted

VERBS = (
    "view_run", "view_thread", "view_interrupt", "view_content", "view_traceback", "cancel_run", "answer_interrupt",
    "review_run",
    "edit_state", "export", "prune", "change_thread", "delete_thread",
)  # fmt: skip


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
    monkeypatch.setattr(live, "AGAIN", 0.0)
    planted = Planted(ada, lambda name: f"SECRET-{name}")
    user = grant("view_run", "view_content")

    async def watch() -> list[list[int]]:
        watched = live.Watched(Follow(planted.run.pk), user.pk, await sync_to_async(Redactor)(user))
        seen = [[len(text) for _seq, text, _plain in await anext(watched)]]
        await sync_to_async(user.user_permissions.clear)()
        again = live.Watched(Follow(planted.run.pk), user.pk, watched._hide)
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
