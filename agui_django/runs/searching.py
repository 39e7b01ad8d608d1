"""Searching threads by their titles and by what was said in them.

Law: only messages in play are searched, and only in the threads that the caller may see, which is what `search` is
given. Whatever was typed is words: nothing of it reaches the database or a page as code. PostgreSQL searches a column
that it keeps itself (migration 0009), other databases read the texts.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from django.db import connections
from django.db.models import (
    BooleanField,
    Case,
    Exists,
    ExpressionWrapper,
    F,
    Func,
    Max,
    OuterRef,
    Q,
    QuerySet,
    Subquery,
    TextField,
    Value,
    When,
)
from django.db.models.functions import Greatest, Lower, StrIndex, Substr
from django.db.models.lookups import GreaterThan
from django.utils.html import escape

from agui_django.models import Message, Thread
from agui_django.protocol.codec import clean_text
from agui_django.runs.database import database_alias, get_pool

#: Characters of a query that count, and words of it that are looked for one by one.
LONGEST, WORDS = 256, 10
#: On PostgreSQL: matching messages whose threads are listed, the newest first.
NEWEST = 2_000
#: There, words are common that more than so many of so many newest messages have. The index would give them all
#: before the first of them is looked at; each thread of the page is looked into instead, where they are soon met.
COMMON, SAMPLE = 20, 2_000
#: Characters of a snippet, and of those how many stand before the first word that was found.
SNIPPET, BEFORE = 200, 60

_WORD = re.compile(r'(-?)(?:"([^"]*)"?|(\S+))')
_LAST = re.compile(r"(?:^|(?<=\s))[^\W_]{2,}$")
_OPERATORS = re.compile(r'"|(?:^|\s)-|\bor\b', re.IGNORECASE)


@dataclass(frozen=True)
class Snippet:
    """Where a thread matches; texts are HTML, with ``<mark>`` around what was looked for.

    Attributes:
        title: the thread's title.
        text: a part of the newest message that matches; empty where only the title does.
        message_id: that message.
    """

    title: str
    text: str = ""
    message_id: str = ""


def search(threads: QuerySet[Thread], text: str) -> QuerySet[Thread]:
    """The threads in whose title, or in one of whose messages, all words stand.

    The words of a query are looked for as they are, whatever their case; a phrase in quotes as a whole, and a word
    behind ``-`` must not be there. On PostgreSQL they are whole words, but for the last one, which may be the
    beginning of one, and ``or`` stands between alternatives; elsewhere they may stand inside of others. On PostgreSQL,
    where more than 2,000 messages match, the newest of them count, unless the words are common in the latest messages.

    Args:
        threads: where to search, without slices; its order stays.
        text: what was typed: anything. Without a word in it nothing is left out.
    """
    query = _Query(text)
    if query.empty:
        return threads
    matching = query.messages(threads.db)
    # A value, not EXISTS, which PostgreSQL may turn round to a list of all that match.
    own = GreaterThan(Subquery(matching.filter(thread=OuterRef("pk")).values("pk")[:1]), 0)
    if connections[threads.db].vendor != "postgresql":  # no index: what is common is met soon, what is rare is read for
        return threads.filter(query.title | Q(own))
    # It names the threads again: a limit must count what the caller may see. And not by the column itself: PostgreSQL
    # would then walk through all messages in the hope of meeting enough soon.
    seen = matching.filter(thread__in=threads.order_by().values("pk"))
    listed = Q(pk__in=seen.order_by((F("pk") + Value(0)).desc()).values("thread")[:NEWEST])
    said = Case(When(query.common(threads.db), then=_is(own)), default=_is(listed), output_field=BooleanField())
    return threads.filter(query.title | Q(said))


def _is(condition: Any) -> Any:
    return ExpressionWrapper(Q(condition), output_field=BooleanField())


def snippets(threads: Collection[Thread], text: str) -> dict[int, Snippet]:
    """Where the threads of a page match, by primary key; two statements, in a database thread."""
    query, alias = _Query(text), database_alias()
    if query.empty or not threads:
        return {}
    found = query.messages(alias, indexed=False).filter(thread__in=[thread.pk for thread in threads])
    newest = found.order_by().values("thread").annotate(newest=Max("pk")).values_list("newest", flat=True)
    place = StrIndex(Lower("search_text"), Value(query.words[0].lower())) if query.words else Value(0)
    start = Greatest(F("place") - BEFORE, 1)
    rows = Message.objects.using(alias).filter(pk__in=list(newest)).annotate(place=place)
    found = rows.annotate(part=Substr("search_text", start, SNIPPET))
    parts: dict[int, tuple[str, str, bool]] = {}
    for key, message_id, part, at in found.values_list("thread_id", "message_id", "part", "place"):
        parts[key] = message_id, part, at > BEFORE + 1
    shown = {}
    for thread in threads:
        message_id, part, cut = parts.get(thread.pk, ("", "", False))
        words = f"{'…' if cut else ''}{' '.join(part.split())}{'…' if len(part) == SNIPPET else ''}"
        shown[thread.pk] = Snippet(query.marked(thread.title), query.marked(words), message_id)
    return shown


async def asnippets(threads: Collection[Thread], text: str) -> dict[int, Snippet]:
    """`snippets`, from any event loop."""
    return await get_pool().read(snippets, threads, text)


class _Query:
    """What was typed, as conditions.

    Attributes:
        words: the words and phrases that must be there.
        unwanted: those that must not.
    """

    def __init__(self, text: str) -> None:
        self.text = " ".join(clean_text(text)[:LONGEST].split())
        self.words: list[str] = []
        self.unwanted: list[str] = []
        for minus, phrase, word in _WORD.findall(self.text)[: 2 * WORDS]:
            if found := (phrase or word).strip():
                (self.unwanted if minus else self.words).append(found)
        del self.words[WORDS:]
        self._marks = re.compile("|".join(map(re.escape, sorted(self.words, key=len, reverse=True))), re.IGNORECASE)

    @property
    def empty(self) -> bool:
        """Whether nothing is looked for."""
        return not self.words and not self.unwanted

    @property
    def title(self) -> Q:
        """The condition on a thread's title; on all databases the words may stand inside of others."""
        return self._contains("title") if self.words else Q(pk__in=[])

    def messages(self, alias: str, *, indexed: bool = True) -> QuerySet[Message]:
        """The messages in play that match; not ``indexed``: they are looked at one by one, as for few of them."""
        rows = Message.objects.using(alias).filter(superseded_by=None)
        if connections[alias].vendor != "postgresql":
            return rows.filter(self._contains("search_text"))
        # In the other form no index has it.
        form = "%(expressions)s" if indexed else "(%(expressions)s) IS TRUE"
        return rows.filter(_sql(form, _Vector(), self._tsquery(), between=" @@ ", kind=BooleanField()))

    def common(self, alias: str) -> Exists:
        """Whether many of the newest messages match; on PostgreSQL."""
        newest = Message.objects.using(alias).filter(superseded_by=None).order_by("-pk").values("pk")[:SAMPLE]
        sample = self.messages(alias, indexed=False).filter(pk__in=newest)
        return Exists(sample.order_by()[COMMON : COMMON + 1])

    def marked(self, text: str) -> str:
        """A text as HTML, with the words marked."""
        if not self.words:
            return escape(text)
        parts, end = [], 0
        for found in self._marks.finditer(text):
            parts += [escape(text[end : found.start()]), f"<mark>{escape(found[0])}</mark>"]
            end = found.end()
        return "".join([*parts, escape(text[end:])])

    def _contains(self, column: str) -> Q:
        found = Q()
        for word in self.words:
            found &= Q(**{f"{column}__icontains": word})
        for word in self.unwanted:
            found &= ~Q(**{f"{column}__icontains": word})
        return found

    def _tsquery(self) -> Func:
        last = None if _OPERATORS.search(self.text) else _LAST.search(self.text)
        if last is None:
            return _sql("websearch_to_tsquery('simple'::regconfig, %(expressions)s)", Value(self.text))
        # Letters and digits only: nothing in it has a meaning to to_tsquery.
        beginning = _sql("to_tsquery('simple'::regconfig, %(expressions)s)", Value(f"'{last[0]}':*"))
        rest = self.text[: last.start()]
        if not rest:
            return beginning
        whole = _sql("websearch_to_tsquery('simple'::regconfig, %(expressions)s)", Value(rest))
        return _sql("(%(expressions)s)", whole, beginning, between=" && ")


class _Vector(Func):
    """The column of a message's words: no field of the model, but beside one."""

    def __init__(self) -> None:
        super().__init__(F("search_text"), template="%(expressions)s", output_field=TextField())

    def as_sql(self, *args: Any, **kwargs: Any) -> tuple[str, Any]:
        sql, params = super().as_sql(*args, **kwargs)
        return sql.replace("search_text", "search_vector"), params


def _sql(template: str, *expressions: Any, between: str = ", ", kind: Any = None) -> Func:
    return Func(*expressions, template=template, arg_joiner=between, output_field=kind or TextField())
