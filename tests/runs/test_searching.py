"""Threads are found by title and text, among those the caller may see; whatever is typed is words."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.db import connection

from agui_django.models import Message, Thread
from agui_django.runs import searching
from agui_django.runs.database import get_pool
from agui_django.runs.searching import asnippets, search, snippets
from tests.runs.given import Given, says, user

POSTGRES = connection.vendor == "postgresql"


def talk(given: Given, thread_id: str, *texts: str, title: str = "") -> Thread:
    """A thread with a user's message and answers."""
    first, *others = texts
    given.turn(user("u", first), says=[says(f"a{n}", text) for n, text in enumerate(others)], threadId=thread_id)
    if title:
        Thread.objects.filter(thread_id=thread_id).update(title=title)
    return Thread.objects.get(thread_id=thread_id)


def found(given: Given, text: str, threads: Any = None) -> list[str]:
    rows = search(Thread.objects.all() if threads is None else threads, text)
    return sorted(rows.values_list("thread_id", flat=True))


@pytest.fixture
def three(given: Given) -> Given:
    talk(given, "kettle", "Where is my kettle?", "The parcel with your kettle is on its way.", title="Delivery")
    talk(given, "garden", "Which flowers like shade?", "Ferns do; a Kettle does not.", title="Garden")
    talk(given, "empty", "x", title="Order 4711")
    return given


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("kettle", ["garden", "kettle"]), ("KETTLE", ["garden", "kettle"]), ("kett", ["garden", "kettle"]),
        ("parcel kettle", ["kettle"]), ("kettle parcel", ["kettle"]), ("kettle ferns parcel", []),
        ('"your kettle"', ["kettle"]), ('"kettle your"', []), ("kettle -ferns", ["kettle"]), ("ferns", ["garden"]),
        ("4711", ["empty"]), ("order", ["empty"]), ("gard", ["garden"]), ("delivery", ["kettle"]), ("nowhere", []),
        ("  ", ["empty", "garden", "kettle"]), ("", ["empty", "garden", "kettle"]),
    ],
)  # fmt: skip
def test_words_phrases_and_what_must_not_be_there(three: Given, text: str, wanted: list[str]) -> None:
    assert found(three, text) == wanted


def test_or_where_the_database_knows_it(three: Given) -> None:
    if POSTGRES:
        assert found(three, "ferns or parcel") == ["garden", "kettle"]


def test_only_the_given_threads_are_searched(three: Given) -> None:
    assert found(three, "kettle", Thread.objects.filter(thread_id="garden")) == ["garden"]
    assert found(three, "kettle", Thread.objects.none()) == []
    other = three.request(messages=[user("u", "kettle")])
    other.scope, other.owner = "user:other", None
    three.do(three.store.open_run, other)
    assert found(three, "kettle", Thread.objects.for_scope(three.scope)) == ["garden", "kettle"]
    ordered = search(Thread.objects.order_by("-pk"), "kettle")
    assert [thread.thread_id for thread in ordered] == ["t1", "garden", "kettle"]


def test_only_what_is_in_play_is_searched(given: Given) -> None:
    talk(given, "t1", "hi", "a rhubarb pie")
    given.turn(user("u", "hi"), says=[says("b", "a plum pie")])
    assert (found(given, "rhubarb"), found(given, "plum")) == ([], ["t1"])


@pytest.mark.parametrize(("common", "sample"), [(0, 2000), (2, 2000), (3, 2000), (0, 1)])
def test_very_common_words(common: int, sample: int, three: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "NEWEST", 1)
    monkeypatch.setattr(searching, "COMMON", common)
    monkeypatch.setattr(searching, "SAMPLE", sample)
    # Three messages have it, none of them the last one. PostgreSQL looks into each thread where that is
    # much, other databases always do.
    anywhere = not POSTGRES or sample > 3 > common
    assert found(three, "kettle") == (["garden", "kettle"] if anywhere else ["garden"])
    assert found(three, "nowhere") == []
    # What the caller may not see counts for nothing.
    assert found(three, "kettle", Thread.objects.filter(thread_id="kettle")) == ["kettle"]


HOSTILE = [
    "'", '"', "\\", "%", "_", "';DROP TABLE agui_django_thread;--", "a\0b", "\ud800", "& | ! ( ) : * <->", "foo:*",
    "!!", "-", "--", '-"', "''", '"" ""', "x" * 10_240, "kettle " * 1_500, '"' * 10_000, "(" * 5_000, "-a " * 3_000,
    "or", "or or or", "not and", "<b>", "\u202e", "😀", "\uff2b\uff25", "a'b", "'a':*", "x'):*", "%s %(x)s {}",
    "\n\t\r",
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_whatever_is_typed_is_words(three: Given, text: str) -> None:
    threads = list(search(Thread.objects.all(), text))
    for snippet in three.do(snippets, list(Thread.objects.all()), text).values():
        plain = f"{snippet.title}{snippet.text}".replace("<mark>", "").replace("</mark>", "")
        assert "<" not in plain
    assert {thread.thread_id for thread in threads} <= {"kettle", "garden", "empty"}
    assert Thread.objects.count() == 3


def test_wildcards_stand_for_themselves(given: Given) -> None:
    talk(given, "t1", "x", title="100% sure")
    talk(given, "t2", "x", title="1000 sure")
    assert found(given, "100%") == ["t1"]


def test_a_message_that_is_too_long_for_an_index_is_stored(given: Given) -> None:
    words = " ".join(f"{n:x}word" for n in range(200_000))
    talk(given, "t1", "hi", words)
    assert found(given, "7word") == ["t1"]
    assert Message.objects.get(message_id="a0").search_text == words
    talk(given, "t2", "hi", "w" * 3_000_000)
    assert found(given, "wwww") == (["t2"] if not POSTGRES else [])


# ---- snippets -------------------------------------------------------------------------------------------------------


def test_a_snippet_is_marked_and_escaped(given: Given) -> None:
    thread = talk(given, "t1", "<script>alert('kettle')</script> & Kettles", title="<i>kettle</i>")
    (snippet,) = given.do(snippets, [thread], "kettle").values()
    assert snippet.title == "&lt;i&gt;<mark>kettle</mark>&lt;/i&gt;"
    assert snippet.text == (
        "&lt;script&gt;alert(&#x27;<mark>kettle</mark>&#x27;)&lt;/script&gt; &amp; <mark>Kettle</mark>s"
    )
    assert snippet.message_id == "u"


def test_a_snippet_is_of_the_newest_message_and_begins_before_the_word(given: Given) -> None:
    long = f"{'before ' * 50}the\n\nkettle {'after ' * 50}"
    thread = talk(given, "t1", "a kettle", long, "nothing")
    (snippet,) = given.do(snippets, [thread], "kettle").values()
    assert snippet.message_id == "a0"
    assert snippet.text.startswith("…") and snippet.text.endswith("…")
    assert "before the <mark>kettle</mark> after" in snippet.text
    assert len(snippet.text) < 230


def test_a_thread_that_matches_by_its_title_alone(three: Given) -> None:
    (snippet,) = three.do(snippets, [Thread.objects.get(thread_id="empty")], "order").values()
    assert (snippet.title, snippet.text, snippet.message_id) == ("<mark>Order</mark> 4711", "", "")


def test_nothing_typed_and_nothing_found(three: Given) -> None:
    assert three.do(snippets, list(Thread.objects.all()), " ") == {}
    assert three.do(snippets, [], "kettle") == {}


@pytest.mark.asyncio
async def test_twin(given: Given) -> None:
    thread = await get_pool().run(talk, given, "t1", "a kettle")
    assert (await asnippets([thread], "kettle"))[thread.pk].text == "a <mark>kettle</mark>"


# ---- what it costs --------------------------------------------------------------------------------------------------


def test_a_page_costs_the_same_however_many_threads_it_has(three: Given) -> None:
    from tests.runs.given import counted

    def page() -> None:
        rows = list(search(Thread.objects.all(), "kettle"))
        snippets(rows, "kettle")

    with counted() as few:
        three.do(page)
    for number in range(10):
        talk(three, f"more{number}", "another kettle")
    with counted() as many:
        three.do(page)
    assert len(few) == len(many) == 3


def test_the_index_is_used(given: Given) -> None:
    if not POSTGRES:
        return
    thread = talk(given, "t1", "hi")
    Message.objects.bulk_create(
        Message(thread=thread, message_id=f"m{n}", role="user", wire="{}", order=n, search_text=f"word{n} common")
        for n in range(20_000)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE agui_django_message")
        cursor.execute("SET enable_seqscan = off")  # a small table is read as quickly
        try:
            assert "agui_message_search" in search(Thread.objects.all(), '"word777"').explain()
            assert "agui_message_search" in search(Thread.objects.all(), "word777").explain()
        finally:
            cursor.execute("RESET enable_seqscan")
    began = time.monotonic()
    assert len(search(Thread.objects.all(), "common")) == 1
    assert time.monotonic() - began < 10
