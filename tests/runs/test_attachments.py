"""Files of messages where no plain POST brings them: queues, code, sockets, forks, races, and starts that fail."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from agui_django.models import Attachment, Message, Run, Thread
from agui_django.protocol.attachments import inline_content, referred, take_inline
from agui_django.protocol.codec import decode
from agui_django.protocol.errors import AttachmentTooLarge, InvalidInput
from agui_django.runs import attachments
from agui_django.runs.database import get_pool
from agui_django.runs.forking import fork
from agui_django.runs.start import astart_run
from agui_django.runs.store import ThreadStore
from agui_django.testing import override_agent
from tests.transports.sockets import Socket, session

DATA = bytes(range(256)) * 8


def part(data: bytes = DATA, media_type: str = "image/png") -> dict[str, Any]:
    source = {"type": "data", "value": base64.b64encode(data).decode(), "mimeType": media_type}
    return {"type": "image", "source": source}


def message(*parts: dict[str, Any], key: str = "u1") -> dict[str, Any]:
    return {"id": key, "role": "user", "content": list(parts)}


@pytest.fixture
def folder(settings: Any, tmp_path: Path, agui_runtime: None) -> Path:
    """Where files are kept; those of more than 1000 bytes."""
    backend = "django.core.files.storage.FileSystemStorage"
    settings.STORAGES = {**settings.STORAGES, "files": {"BACKEND": backend, "OPTIONS": {"location": str(tmp_path)}}}
    settings.AGUI_DJANGO = {"ATTACHMENT_STORAGE": "files", "ATTACHMENT_INLINE": 1000, "ATTACHMENT_SIZE": 5000}
    return tmp_path


def files(folder: Path) -> list[bytes]:
    return sorted(path.read_bytes() for path in folder.rglob("*") if path.is_file())


async def rows() -> list[Attachment]:
    return await get_pool().run(lambda: list(Attachment.objects.order_by("created_at")))


@pytest.mark.asyncio
async def test_a_run_that_the_site_starts(folder: Path) -> None:
    got: list[bytes] = []

    async def reads(run: Any) -> None:
        got.append(await run.attachment(run.messages[-1].content[0]))

    with override_agent("reads", reads):
        run = await astart_run("reads", "t", [message(part())], scope="s")
        with pytest.raises(AttachmentTooLarge):
            await astart_run("reads", "t", [message(part(DATA * 3), key="u2")], scope="s")
    assert run.status == "finished"
    assert got == [DATA]
    [row] = await rows()
    wire = decode((await get_pool().run(Message.objects.get, message_id="u1")).wire)
    assert wire["content"][0]["source"]["value"] == f"/agui/attachments/{row.pk}"
    assert files(folder) == [DATA]


@pytest.mark.asyncio
async def test_a_socket(folder: Path, django_user_model: Any) -> None:
    ada = await get_pool().run(lambda: django_user_model.objects.create_user("ada"))
    page = await get_pool().run(session, ada)
    body = {
        "threadId": "t1", "runId": "r1", "tools": [], "context": [], "forwardedProps": {}, "protocolVersion": "1.1",
        "messages": [message(part())],
    }  # fmt: skip
    async with Socket("echo", headers=page) as socket:
        await socket.send(json.dumps(body))
        events = await socket.until("RUN_FINISHED")
    [row] = await rows()
    assert events[0]["input"]["messages"][0]["content"][0]["source"]["value"] == f"/agui/attachments/{row.pk}"
    assert files(folder) == [DATA]


@pytest.mark.asyncio
async def test_a_queued_run(folder: Path) -> None:
    entered, opened = asyncio.Event(), asyncio.Event()
    got: list[bytes] = []

    async def gate(run: Any) -> None:
        if run.messages[-1].id == "u1":
            got.append(await run.attachment(run.messages[-1].content[0]))
            return
        entered.set()
        await opened.wait()

    with override_agent("gate", gate, busy="queue"):
        await astart_run("gate", "t", "first", scope="s", wait=False)
        await asyncio.wait_for(entered.wait(), 20)
        run = await astart_run("gate", "t", [message(part())], scope="s", wait=False)
        row = await get_pool().run(Run.objects.get, pk=run.pk)
        assert row.status == "queued"
        [file] = await rows()
        assert str(file.pk) in row.input
        assert base64.b64encode(DATA).decode()[:100] not in row.input
        opened.set()
        async with asyncio.timeout(30):
            while not got:
                await asyncio.sleep(0.02)
    assert got == [DATA]


@pytest.mark.asyncio
async def test_a_message_that_was_known_a_moment_ago(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the thread seemed to have already turns out to be new: its file is stored then."""
    monkeypatch.setattr(attachments, "_known", lambda request: frozenset({"u1"}))
    await astart_run("echo", "t", [message(part())], scope="s")
    assert len(await rows()) == 1
    assert files(folder) == [DATA]


@pytest.mark.asyncio
async def test_two_at_once_bring_the_same_file(folder: Path) -> None:
    started = [astart_run("echo", "t", [message(part(), key=f"u{n}")], scope="s") for n in range(2)]
    results = await asyncio.gather(*started, return_exceptions=True)
    assert any(isinstance(result, Run) for result in results)
    assert len(await rows()) == 1
    assert files(folder) == [DATA]


@pytest.mark.asyncio
async def test_a_start_that_fails_leaves_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, request: Any) -> Any:
        assert files(folder) == [DATA]
        raise RuntimeError("the database is on fire")

    monkeypatch.setattr(ThreadStore, "open_run", broken)
    with pytest.raises(RuntimeError):
        await astart_run("echo", "t", [message(part())], scope="s")
    assert files(folder) == []


@pytest.mark.asyncio
async def test_a_fork_keeps_its_files(folder: Path) -> None:
    await astart_run("echo", "t", [message(part(), part(DATA[:1500]))], scope="s")

    def forked() -> tuple[Thread, Thread]:
        source = Thread.objects.get()
        return source, fork(source, "u1")

    source, copy = await get_pool().run(forked)
    assert len(files(folder)) == 2
    mine = await get_pool().run(lambda: {row.name: row for row in Attachment.objects.filter(thread=copy)})
    assert len(mine) == 2
    wire = decode((await get_pool().run(Message.objects.get, thread=copy, message_id="u1")).wire)
    assert [await attachments.content(copy.pk, each) for each in wire["content"]] == [DATA, DATA[:1500]]
    with pytest.raises(ValueError, match="no file of this thread"):
        await attachments.content(source.pk, wire["content"][0])
    await get_pool().run(source.delete)
    assert [await attachments.content(copy.pk, each) for each in wire["content"]] == [DATA, DATA[:1500]]
    await get_pool().run(copy.delete)
    assert files(folder) == []


# ---- pure -----------------------------------------------------------------------------------------------------------


def taken(*parts: dict[str, Any], least: int = 0) -> list[Any]:
    return take_inline({"messages": [message(*parts)]}, least)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 1000, 3 * (1 << 16) - 1, 3 * (1 << 16), 3 * (1 << 16) + 1, 500_000])
def test_any_size_is_read(size: int) -> None:
    data = (DATA * 300)[:size]
    [file] = taken(part(data))
    assert (file.size, file.data.getvalue()) == (size, data)
    assert taken(part(data), least=size) == []
    assert len(taken(part(data), least=size - 1)) == 1
    assert inline_content(part(data)) == data


@pytest.mark.parametrize("where", [0, (1 << 18) - 4, (1 << 18), (1 << 18) + 4, (1 << 19) - 1])
@pytest.mark.parametrize("wrong", ["=", " ", "\n", "-", "é"])
def test_one_wrong_character(where: int, wrong: str) -> None:
    value = "A" * (1 << 19)
    bad = value[:where] + wrong + value[where + 1 :]
    if bad == value[:-1] + "=":
        return  # that is padding
    for least in (0, 1 << 20):  # taken out, or left where it is
        with pytest.raises(InvalidInput):
            taken({"type": "image", "source": {"type": "data", "value": bad, "mimeType": "image/png"}}, least=least)


@pytest.mark.parametrize(
    ("value", "ours"),
    [
        ("/agui/attachments/{}", True), ("/agui/attachments/{}/", True), ("https://x.example/a/attachments/{}", True),
        ("/agui/attachments/{}?download=1", True), ("attachments/{}", True), ("{}", False), ("/files/{}", False),
        ("/agui/myattachments/{}", False), ("https://x.example/?attachments/{}", False), ("", False),
    ],
)  # fmt: skip
def test_addresses(value: str, ours: bool) -> None:
    key = uuid4()
    source = {"type": "url", "value": value.format(key)}
    assert referred({"type": "image", "source": source}) == (key if ours else None)
    assert referred({"type": "image", "source": {**source, "type": "data"}}) is None
    assert referred({"type": "text", "text": value}) is None


def test_names(settings: Any) -> None:
    def title(metadata: Any) -> str:
        [file] = taken({**part(), "metadata": metadata})
        return str(file.title)

    assert title({"filename": "C:\\a\\b.png"}) == "b.png"
    assert title({"filename": "a/b\x00\r\n.png"}) == "b.png"
    assert title({"filename": "x" * 300}) == "x" * 255
    assert title({"filename": 7, "name": "n"}) == ""
    assert title({"name": "n"}) == "n"
    assert title("text") == ""


def test_the_address_of_the_site(settings: Any, tmp_path: Path) -> None:
    assert attachments.default_address() == "/agui/attachments/"
    settings.AGUI_DJANGO = {"ATTACHMENT_URL": "https://x.example/files"}
    assert attachments.default_address() == "https://x.example/files/"
    settings.AGUI_DJANGO = {}
    settings.ROOT_URLCONF = "tests.runs.test_attachments"
    with pytest.raises(attachments.ImproperlyConfigured):
        attachments.default_address()


urlpatterns: list[Callable[..., Any]] = []
