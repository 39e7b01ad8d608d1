"""Files of messages over HTTP: taken in, referred to, given out to whoever may see the thread, and to nobody else."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.files.storage import storages

from agui_django.access import AccessPolicy
from agui_django.models import Attachment, Message, Run, Thread
from agui_django.runs.database import get_pool
from agui_django.testing import override_agent
from tests.transports.asgi import Exchange, ask, error_of

pytestmark = pytest.mark.asyncio

KEY = "aguiAttachment"


@pytest.fixture
def folder(settings: Any, tmp_path: Path) -> Path:
    """Where files are kept; those of more than 1000 bytes."""
    place = tmp_path / "files"
    backend = "django.core.files.storage.FileSystemStorage"
    settings.STORAGES = {**settings.STORAGES, "files": {"BACKEND": backend, "OPTIONS": {"location": str(place)}}}
    settings.AGUI_DJANGO = {"ATTACHMENT_STORAGE": "files", "ATTACHMENT_INLINE": 1000, "ATTACHMENT_SIZE": 5000}
    return place


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def part(data: bytes, media_type: str = "image/png", kind: str = "image", **more: Any) -> dict[str, Any]:
    source = {"type": "data", "value": base64.b64encode(data).decode(), "mimeType": media_type}
    return {"type": kind, "source": source, **more}


def message(*parts: dict[str, Any], key: str = "u1") -> dict[str, Any]:
    return {"id": key, "role": "user", "content": [{"type": "text", "text": "look"}, *parts]}


PNG = bytes(range(256)) * 8


async def sent(headers: dict[str, str], raw: bytes) -> Exchange:
    return await ask("POST", "/agui/agents/echo", raw, headers)


async def stored() -> dict[str, Any]:
    """The user's message as its row has it."""
    row = await get_pool().run(Message.objects.get, message_id="u1")
    return dict(json.loads(row.wire))


async def test_a_file_is_stored_and_referred_to_and_given_out(
    folder: Path, headers: dict[str, str], body: Callable[..., bytes]
) -> None:
    raw = body(messages=[message(part(PNG, "image/PNG; q=1", metadata={"filename": "../a b.png", "x": 1}))])
    exchange = await sent(headers, raw)
    assert exchange.status == 200
    events = [event for _, event in exchange.so_far()]
    row = await get_pool().run(Attachment.objects.select_related("user", "thread").get)
    assert (row.size, row.media_type, row.title) == (2048, "image/png", "a b.png")
    assert row.digest == hashlib.sha256(PNG).hexdigest()
    assert row.user.username == "ada"
    [path] = files(folder)
    assert path.read_bytes() == PNG
    assert path.suffix == ""
    assert str(path.relative_to(folder)) == row.name
    expected = {
        "type": "image",
        "source": {"type": "url", "value": f"/agui/attachments/{row.pk}", "mimeType": "image/png"},
        "metadata": {
            "filename": "../a b.png", "x": 1,
            KEY: {"id": str(row.pk), "size": 2048, "mediaType": "image/png", "name": "a b.png"},
        },
    }  # fmt: skip
    assert (await stored())["content"] == [{"type": "text", "text": "look"}, expected]
    assert events[0]["input"]["messages"][0]["content"][1] == expected
    run = await get_pool().run(Run.objects.get)
    assert "base64" not in run.input and "AAEC" not in run.input

    given = await ask("GET", f"/agui/attachments/{row.pk}", b"", headers)
    assert given.status == 200
    assert b"".join(given.chunks) == PNG
    told = given.headers
    assert told["content-type"] == "image/png"
    assert told["content-length"] == "2048"
    assert told["x-content-type-options"] == "nosniff"
    assert told["content-disposition"] == 'inline; filename="a b.png"'
    assert told["cache-control"] == "private, no-cache"
    assert told["etag"] == f'"{row.digest}"'
    assert "default-src 'none'" in told["content-security-policy"]
    head = await ask("HEAD", f"/agui/attachments/{row.pk}/", b"", headers)
    assert (head.status, head.chunks) == (200, [])
    assert {name: head.headers[name] for name in ("content-type", "content-length", "etag")} == {
        "content-type": "image/png", "content-length": "2048", "etag": told["etag"],
    }  # fmt: skip
    # what shows the thread again shows the reference
    feed = await ask("GET", "/agui/threads/events?threadId=t1&until=idle", b"", headers)
    hydration = await sent(headers, body(messages=[], runId="again"))
    for shown in (b"".join(feed.chunks), b"".join(hydration.chunks)):
        assert f"/agui/attachments/{row.pk}".encode() in shown
        assert b'"data"' not in shown


@pytest.mark.parametrize(
    ("asked", "status", "start", "end"),
    [
        ("bytes=0-9", 206, 0, 10), ("bytes=100-", 206, 100, 2048), ("bytes=-48", 206, 2000, 2048),
        ("bytes=2000-9999", 206, 2000, 2048), ("bytes=-9999", 206, 0, 2048), ("bytes=2047-2047", 206, 2047, 2048),
        ("bytes=2048-", 416, 0, 0), ("bytes=-0", 416, 0, 0), ("bytes=9-5", 200, 0, 2048),
        ("bytes=0-1,5-6", 200, 0, 2048), ("lines=0-1", 200, 0, 2048), ("bytes=-", 200, 0, 2048),
    ],
)  # fmt: skip
async def test_ranges(
    asked: str, status: int, start: int, end: int, folder: Path, headers: dict[str, str], body: Callable[..., bytes]
) -> None:
    await sent(headers, body(messages=[message(part(PNG))]))
    row = await get_pool().run(Attachment.objects.get)
    given = await ask("GET", f"/agui/attachments/{row.pk}", b"", {**headers, "Range": asked})
    assert given.status == status
    assert b"".join(given.chunks) == PNG[start:end]
    wanted = {206: f"bytes {start}-{end - 1}/2048", 416: "bytes */2048", 200: None}[status]
    assert given.headers.get("content-range") == wanted
    other = await ask("GET", f"/agui/attachments/{row.pk}", b"", {**headers, "Range": asked, "If-Range": '"other"'})
    assert (other.status, b"".join(other.chunks)) == (200, PNG)


async def test_an_etag_that_is_known(folder: Path, headers: dict[str, str], body: Callable[..., bytes]) -> None:
    await sent(headers, body(messages=[message(part(PNG))]))
    row = await get_pool().run(Attachment.objects.get)
    path = f"/agui/attachments/{row.pk}"
    for known in (f'"{row.digest}"', f'"x", W/"{row.digest}"', "*"):
        given = await ask("GET", path, b"", {**headers, "If-None-Match": known})
        assert (given.status, given.chunks) == (304, [])
        assert given.headers["etag"] == f'"{row.digest}"'
    assert (await ask("GET", path, b"", {**headers, "If-None-Match": '"x"'})).status == 200


async def test_somebody_elses_is_unknown(
    folder: Path, bob: Any, token: Any, headers: dict[str, str], body: Callable[..., bytes]
) -> None:
    await sent(headers, body(messages=[message(part(PNG))]))
    row = await get_pool().run(Attachment.objects.get)
    foreign = await get_pool().run(token, bob)
    path = f"/agui/attachments/{row.pk}"
    theirs = error_of(await ask("GET", path, b"", foreign))
    nobodys = error_of(await ask("GET", path.replace(str(row.pk)[:8], "0" * 8), b"", foreign))
    assert theirs["code"] == "not_found"
    assert theirs.pop("reference") != nobodys.pop("reference")
    assert theirs == nobodys
    assert (await ask("GET", path)).status == 401
    assert (await ask("POST", path, b"", headers)).status == 405
    # a reference to it in a thread of one's own opens no way to it
    said: list[str] = []

    async def reads(run: Any) -> None:
        for each in run.messages[-1].content:
            if each.type != "text":
                try:
                    await run.attachment(each)
                except ValueError as error:
                    said.append(str(error))

    source = {"type": "url", "value": path, "mimeType": "image/png"}
    with override_agent("echo", reads):
        stolen = message({"type": "image", "source": source, "metadata": {KEY: {"id": str(row.pk)}}})
        assert (await sent(foreign, body(messages=[stolen]))).status == 200
    assert said == ["The part refers to no file of this thread."]


class Blind(AccessPolicy):
    """Shows no run."""

    def may_see(self, user: Any, run: Run) -> bool:
        return False


async def test_a_policy_that_hides_runs_hides_their_files(
    folder: Path, settings: Any, headers: dict[str, str], body: Callable[..., bytes]
) -> None:
    await sent(headers, body(messages=[message(part(PNG))]))
    row = await get_pool().run(Attachment.objects.get)
    settings.AGUI_DJANGO = {**settings.AGUI_DJANGO, "ACCESS_POLICY": "tests.transports.test_attachments.Blind"}
    assert (await ask("GET", f"/agui/attachments/{row.pk}", b"", headers)).status == 404


@pytest.mark.parametrize(
    ("media_type", "told", "inline"),
    [
        ("image/jpeg", "image/jpeg", True), ("application/pdf", "application/pdf", True),
        ("audio/mpeg", "audio/mpeg", True), ("text/plain", "text/plain", False), ("text/csv", "text/csv", False),
        ("image/svg+xml", "application/octet-stream", False), ("image/x-anything", "application/octet-stream", False),
        ("text/html", "application/octet-stream", False), ("application/xhtml+xml", "application/octet-stream", False),
    ],
)  # fmt: skip
async def test_nothing_that_executes_is_shown(
    media_type: str, told: str, inline: bool, folder: Path, settings: Any, headers: dict[str, str],
    body: Callable[..., bytes],
) -> None:  # fmt: skip
    settings.AGUI_DJANGO = {**settings.AGUI_DJANGO, "ATTACHMENT_TYPES": ["*"]}
    html = b"<html><script>alert(1)</script>" + b" " * 2000
    name = {"filename": 'x".html\r\nSet-Cookie: a=b'}
    await sent(headers, body(messages=[message(part(html, media_type, "document", metadata=name))]))
    row = await get_pool().run(Attachment.objects.get)
    given = await ask("GET", f"/agui/attachments/{row.pk}", b"", headers)
    assert given.headers["content-type"] == told
    assert given.headers["x-content-type-options"] == "nosniff"
    disposition = given.headers["content-disposition"]
    assert disposition.startswith("inline;" if inline else "attachment;")
    assert "set-cookie" not in given.headers
    assert "\n" not in disposition and "\r" not in disposition


WRONG: list[tuple[dict[str, Any], int, str, str]] = [
    (part(PNG, "application/x-msdownload"), 415, "attachment_type", "/messages/0/content/1/source/mimeType"),
    (part(b"tiny", "text/html"), 415, "attachment_type", "/messages/0/content/1/source/mimeType"),
    (part(PNG * 3), 413, "attachment_too_large", "/messages/0/content/1/source"),
    (part(PNG, "image"), 422, "invalid_input", "/messages/0/content/1/source/mimeType"),
    (part(PNG, "image/png\r\nX: y"), 422, "invalid_input", "/messages/0/content/1/source/mimeType"),
    *[
        ({"type": "image", "source": {"type": "data", "value": value, "mimeType": "image/png"}}, 422, "invalid_input",
         "/messages/0/content/1/source/value")
        for value in ("A" * 2001, "A" * 1998 + "=", "A" * 2000 + "====", "=" * 2000, " " * 2000, "A" * 1999 + "\n",
                      "-_" * 1000, "A" * 998 + "==" + "A" * 1000, "é" * 2000, "data:image/png;base64," + "A" * 2000)
    ],
    ({"type": "image", "source": {"type": "url", "value": "data:image/png;base64," + "A" * 2001}}, 422,
     "invalid_input", "/messages/0/content/1/source/value"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "status", "code", "path"), WRONG, ids=lambda value: repr(value)[:30])
async def test_what_is_refused_leaves_nothing(
    wrong: dict[str, Any], status: int, code: str, path: str, folder: Path, headers: dict[str, str],
    body: Callable[..., bytes],
) -> None:  # fmt: skip
    exchange = await sent(headers, body(messages=[message(wrong, part(PNG[:1500]))]))
    assert exchange.status == status
    error = error_of(exchange)
    assert error["code"] == code
    assert [field["path"] for field in error["fields"]] == [path]
    assert files(folder) == []
    assert await get_pool().run(Thread.objects.count) == 0


async def test_a_refused_type_is_told_only_to_whom_may_run(
    folder: Path, headers: dict[str, str], body: Callable[..., bytes]
) -> None:
    raw = body(messages=[message(part(PNG, "text/html"))])
    assert (await ask("POST", "/agui/agents/echo", raw, {"Content-Type": "application/json"})).status == 401
    assert (await ask("POST", "/agui/agents/nobody", raw, headers)).status == 404


async def test_a_data_url_is_a_file_too(folder: Path, headers: dict[str, str], body: Callable[..., bytes]) -> None:
    url = "data:image/gif;charset=x;base64," + base64.b64encode(PNG).decode()
    await sent(headers, body(messages=[message({"type": "image", "source": {"type": "url", "value": url}})]))
    row = await get_pool().run(Attachment.objects.get)
    assert row.media_type == "image/gif"
    assert files(folder)[0].read_bytes() == PNG
    assert (await stored())["content"][1]["source"]["value"] == f"/agui/attachments/{row.pk}"


async def test_an_older_clients_binary_part(folder: Path, headers: dict[str, str], body: Callable[..., bytes]) -> None:
    old = {"type": "binary", "mimeType": "audio/mpeg", "data": base64.b64encode(PNG).decode(), "filename": "a.mp3"}
    await sent(headers, body(messages=[message(old)]))
    row = await get_pool().run(Attachment.objects.get)
    assert (row.media_type, row.title) == ("audio/mpeg", "a.mp3")
    assert (await stored())["content"][1]["type"] == "audio"


async def test_small_ones_stay_where_they_are(
    folder: Path, headers: dict[str, str], body: Callable[..., bytes]
) -> None:
    small = part(PNG[:1000])
    await sent(headers, body(messages=[message(small)]))
    assert (await stored())["content"][1] == small
    assert files(folder) == []


async def test_a_repeat_and_a_client_that_sends_all_again(
    folder: Path, headers: dict[str, str], body: Callable[..., bytes]
) -> None:
    first = message(part(PNG))
    raw = body(messages=[first], runId="r1")
    one = await sent(headers, raw)
    two = await sent(headers, raw)  # the very same request: the same run
    assert one.so_far() == two.so_far()
    row = await get_pool().run(Attachment.objects.get)
    before = files(folder)
    # the client goes on with its own copy, in another metadata, or with what it was given
    for number, mine in enumerate((first, await stored(), message(part(PNG, metadata={"filename": "b"})))):
        again = body(messages=[mine, {"id": f"n{number}", "role": "user", "content": "go on"}], runId=f"n{number}")
        assert (await sent(headers, again)).status == 200
    assert await get_pool().run(Run.objects.count) == 4
    assert (await get_pool().run(Attachment.objects.get)).pk == row.pk
    assert files(folder) == before
    # the same bytes in another message of the thread are the same file; in another thread they are another one
    await sent(headers, body(messages=[message(part(PNG), part(PNG), key="u2")], runId="r2"))
    assert await get_pool().run(Attachment.objects.count) == 1
    assert files(folder) == before
    await sent(headers, body(messages=[message(part(PNG), part(PNG))], threadId="t2"))
    assert await get_pool().run(Attachment.objects.count) == 2
    assert len(files(folder)) == 2


@pytest.mark.parametrize("history", ["client", "server"])
async def test_other_histories(
    history: str, folder: Path, settings: Any, headers: dict[str, str], body: Callable[..., bytes]
) -> None:
    settings.AGUI_DJANGO = {**settings.AGUI_DJANGO, "HISTORY": history}
    await sent(headers, body(messages=[message(part(PNG))], runId="r1"))
    hydration = await sent(headers, body(messages=[], runId="h"))
    [snapshot] = [event for _, event in hydration.so_far() if event["type"] == "MESSAGES_SNAPSHOT"]
    said = snapshot["messages"][1]
    go_on = {"id": "n", "role": "user", "content": "go on"}
    for number, mine in enumerate((message(part(PNG)), snapshot["messages"][0])):
        await sent(headers, body(messages=[mine, said, {**go_on, "id": f"n{number}"}], runId=f"n{number}"))
    rows = await get_pool().run(lambda: list(Message.objects.filter(message_id="u1")))
    assert len(rows) == 1, "the message was replaced by itself"
    assert rows[0].superseded_by_id is None
    assert await get_pool().run(Attachment.objects.count) == 1
    assert len(files(folder)) == 1


async def test_the_agent_gets_bytes(folder: Path, headers: dict[str, str], body: Callable[..., bytes]) -> None:
    got: list[Any] = []

    async def reads(run: Any) -> None:
        parts = run.messages[-1].content
        got.extend([await run.attachment(each) for each in parts[1:3]])
        got.append(await run.attachment(run.input.messages[-1].content[1]))
        for each in (parts[0], parts[3], {"type": "image", "source": {"type": "file", "value": "x"}}):
            with pytest.raises(ValueError, match="holds no file"):
                await run.attachment(each)

    def reads_in_a_thread(run: Any) -> None:
        got.append(run.attachment(run.messages[-1].content[1]))

    elsewhere = {"type": "image", "source": {"type": "url", "value": "http://169.254.169.254/latest"}}
    sent_parts = [part(PNG), part(b"small"), elsewhere]
    for agent in (reads, reads_in_a_thread):
        with override_agent("echo", agent):
            exchange = await sent(headers, body(messages=[message(*sent_parts, key=agent.__name__)]))
        assert exchange.so_far()[-1][1]["type"] == "RUN_FINISHED", exchange.so_far()
    assert got == [PNG, b"small", PNG, PNG]


async def test_files_go_with_their_thread(folder: Path, headers: dict[str, str], body: Callable[..., bytes]) -> None:
    await sent(headers, body(messages=[message(part(PNG), part(PNG[:1500]))]))
    await sent(headers, body(messages=[message(part(PNG))], threadId="t2"))
    assert len(files(folder)) == 3

    def shared() -> None:
        # what a fork does: a row of its own for the same file
        one, other = Thread.objects.get(thread_id="t1"), Thread.objects.get(thread_id="t2")
        row = Attachment.objects.get(thread=one, size=1500)
        Attachment.objects.create(thread=other, name=row.name, media_type="image/png", size=1500, digest=row.digest)
        one.delete()

    await get_pool().run(shared)
    assert sorted(path.stat().st_size for path in files(folder)) == [1500, 2048]
    await get_pool().run(lambda: Thread.objects.all().delete())
    assert files(folder) == []


async def test_a_run_that_is_refused_leaves_no_file(
    folder: Path, gate: Any, headers: dict[str, str], body: Callable[..., bytes]
) -> None:
    async with Exchange("POST", "/agui/agents/gate", body(), headers) as running:
        await running.events(2)
        refused = await sent(headers, body(messages=[message(part(PNG))], runId="second"))
        assert refused.status == 409
        assert files(folder) == []
        gate.opened.set()
        await running.read()
    assert await get_pool().run(Attachment.objects.count) == 0


async def test_a_client_that_leaves_while_its_file_is_stored(
    folder: Path, headers: dict[str, str], body: Callable[..., bytes], opening: Any
) -> None:
    opening.hold()
    async with Exchange("POST", "/agui/agents/echo", body(messages=[message(part(PNG))]), headers):
        await opening.begun()
        assert len(files(folder)) == 1
    opening.go_on.set()
    for _ in range(200):
        if await get_pool().run(lambda: Run.objects.filter(status="finished").exists()):
            break
        await asyncio.sleep(0.05)
    row = await get_pool().run(Attachment.objects.get)
    assert row.name == str(files(folder)[0].relative_to(folder))


async def test_a_storage_that_fails(
    folder: Path, headers: dict[str, str], body: Callable[..., bytes], caplog: pytest.LogCaptureFixture
) -> None:
    folder.write_text("no folder")
    exchange = await sent(headers, body(messages=[message(part(PNG))]))
    assert exchange.status == 500
    assert str(folder).encode() not in b"".join(exchange.chunks)
    assert await get_pool().run(Thread.objects.count) == 0


async def test_a_file_that_is_gone(folder: Path, headers: dict[str, str], body: Callable[..., bytes]) -> None:
    await sent(headers, body(messages=[message(part(PNG))]))
    row = await get_pool().run(Attachment.objects.get)
    await get_pool().run(storages["files"].delete, row.name)
    assert error_of(await ask("GET", f"/agui/attachments/{row.pk}", b"", headers))["code"] == "not_found"


async def test_a_reader_that_leaves_closes_the_file(
    folder: Path, settings: Any, headers: dict[str, str], body: Callable[..., bytes]
) -> None:
    settings.AGUI_DJANGO = {**settings.AGUI_DJANGO, "ATTACHMENT_SIZE": 10**7}
    data = os.urandom(4_000_000)
    await sent(headers, body(messages=[message(part(data))]))
    row = await get_pool().run(Attachment.objects.get)
    async with Exchange("GET", f"/agui/attachments/{row.pk}", b"", headers) as reading:
        await reading.started()
    path = str(files(folder)[0])
    held = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    ]
    assert path not in held


async def test_the_address_of_another_origin(
    folder: Path, settings: Any, headers: dict[str, str], body: Callable[..., bytes]
) -> None:
    settings.AGUI_DJANGO = {**settings.AGUI_DJANGO, "ATTACHMENT_URL": "https://api.example.org/x/attachments"}
    await sent(headers, body(messages=[message(part(PNG))]))
    row = await get_pool().run(Attachment.objects.get)
    assert (await stored())["content"][1]["source"]["value"] == f"https://api.example.org/x/attachments/{row.pk}"


async def test_a_user_that_is_deleted_leaves_files(
    folder: Path, ada: Any, headers: dict[str, str], body: Callable[..., bytes]
) -> None:
    await sent(headers, body(messages=[message(part(PNG))]))
    await get_pool().run(lambda: get_user_model().objects.filter(pk=ada.pk).delete())
    assert (await get_pool().run(Attachment.objects.get)).user_id is None
    assert len(files(folder)) == 1
