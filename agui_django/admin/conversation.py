"""Messages as a conversation: what was said, with each tool's call and what it gave in one place.

Law: a page holds so many messages and of each so much; the rest is asked for. A message that is too large is not read
for a page. Every text goes through the viewer's `Redactor`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.db.models.functions import Left, Length
from django.utils.html import escape
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from agui_django.admin.markdown import CUT, Words, raw, tree
from agui_django.admin.rights import Redactor
from agui_django.models import Message
from agui_django.protocol.attachments import referred
from agui_django.protocol.codec import decode
from agui_django.protocol.errors import InvalidJson

#: Messages of a page, and characters of a message that is read for one.
MESSAGES, LARGE = 100, 64 * 1024
#: Superseded messages that are counted.
MANY = 1_000


@dataclass
class Call:
    """A tool call and what it gave."""

    name: str
    arguments: SafeString
    size: int
    result: SafeString | None = None


@dataclass
class File:
    """A file of a message; its address where it is one of ours."""

    kind: str
    title: str
    uuid: UUID | None


@dataclass
class Said:
    """A message as it is shown."""

    pk: int
    role: str
    at: datetime
    run: UUID | None
    size: int
    superseded: bool
    body: str = ""
    raw: str = ""
    calls: list[Call] = field(default_factory=list)
    files: list[File] = field(default_factory=list)
    #: Whether only its beginning is on the page.
    cut: bool = False


@dataclass
class Conversation:
    """Messages of a page, and where those before them begin."""

    said: list[Said]
    before: int | None
    #: How many were taken out of play, and whether they are among those.
    superseded: int = 0
    with_superseded: bool = False


def conversation(rows: QuerySet[Message], redactor: Redactor, before: str = "", most: int = MESSAGES) -> Conversation:
    """The latest messages of these, or those before one: two statements.

    Args:
        rows: the messages.
        redactor: the viewer's.
        before: the order number of a message, as it stands in an address.
        most: how many.
    """
    if before.isascii() and before.isdigit() and len(before) < 10:
        rows = rows.filter(order__lt=int(before))
    heads = rows.annotate(size=Length("wire"), head=Left("search_text", CUT), length=Length("search_text"))
    columns = ("pk", "role", "created_at", "run_id", "superseded_by", "order", "size", "head", "length")
    found = list(heads.order_by("-order", "-pk").values(*columns)[: most + 1])
    more, found = len(found) > most, found[:most]
    small = [row["pk"] for row in found if row["size"] <= LARGE]
    wires = dict(Message.objects.using(rows.db).filter(pk__in=small).values_list("pk", "wire"))
    view = _View(redactor)
    for row in reversed(found):
        view.add(row, wires.get(row["pk"]))
    return Conversation(view.said, found[-1]["order"] if more else None)


def played(rows: QuerySet[Message], redactor: Redactor, given: Mapping[str, str]) -> Conversation:
    """The messages in play; those that were taken out, too, where a page's address asks for them: three statements.

    Args:
        rows: the messages.
        redactor: the viewer's.
        given: the address's parameters.
    """
    gone = rows.exclude(superseded_by=None)[:MANY].count()
    asked = given.get("superseded") == "1"
    found = conversation(rows if asked else rows.filter(superseded_by=None), redactor, given.get("before", ""))
    found.superseded, found.with_superseded = gone, asked
    return found


def value(text: str, redactor: Redactor, size: int | None = None) -> SafeString:
    """A value's wire text, or any other text, as the viewer may see it.

    Args:
        text: the text, or its beginning.
        redactor: the viewer's.
        size: how long all of it is.
    """
    size = size or len(text)
    if not redactor.content:
        return escape(redactor.hidden(size))
    if size > CUT:
        return raw(text, size)
    try:
        return tree(decode(text))
    except InvalidJson:
        return raw(text)


class _View:
    def __init__(self, redactor: Redactor) -> None:
        self.said: list[Said] = []
        self._redactor = redactor
        self._words = Words()
        self._calls: dict[str, Call] = {}

    def add(self, row: dict[str, Any], wire: str | None) -> None:
        said = Said(
            row["pk"], row["role"], row["created_at"], row["run_id"], row["size"], row["superseded_by"] is not None
        )
        if wire is None:
            said.cut = True
            said.body = raw(row["head"]) if self._redactor.content else escape(self._redactor.hidden(row["length"]))
            self.said.append(said)
            return
        message = decode(wire)
        content = message.get("content")
        if said.role == "tool" and (call := self._calls.get(message.get("toolCallId", ""))) is not None:
            call.result = self._value(content)
            return
        if said.role in ("tool", "activity"):
            said.body = self._value(content)
        elif isinstance(content, str):
            self._text(said, content)
        elif isinstance(content, list):
            self._parts(said, content)
        self._made(said, message.get("toolCalls"))
        said.cut = said.size > CUT
        self.said.append(said)

    def _text(self, said: Said, text: str) -> None:
        if not self._redactor.content:
            said.body = escape(self._redactor.text(text))
            return
        said.body = raw(text) if said.role in ("system", "developer") else self._words.html(text)
        said.raw = raw(text)

    def _parts(self, said: Said, parts: Sequence[Any]) -> None:
        texts = []
        for part in parts:
            if not isinstance(part, dict):
                continue
            if part.get("type") == "text":
                texts.append(str(part.get("text", "")))
                continue
            source, about = part.get("source"), part.get("metadata")
            kind = source.get("mimeType") if isinstance(source, dict) else None
            name = about.get("filename") or about.get("name") if isinstance(about, dict) else None
            uuid = referred(part)
            shown = self._redactor.text(str(name)) if name else ""
            said.files.append(File(self._redactor.text(str(kind or part.get("type"))), shown, uuid))
        if texts:
            self._text(said, "\n\n".join(texts))

    def _made(self, said: Said, calls: Any) -> None:
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") or {}
            text = str(function.get("arguments", ""))
            made = Call(str(function.get("name", "")), value(text, self._redactor), len(text))
            said.calls.append(made)
            self._calls[str(call.get("id", ""))] = made

    def _value(self, content: Any) -> SafeString:
        if isinstance(content, str):
            return value(content, self._redactor) if content else escape(_("nothing"))
        return tree(content) if self._redactor.content else escape(self._redactor.hidden(len(str(content))))
