"""Plain columns made from wire values, and where a new message stands."""

from __future__ import annotations

from datetime import UTC, datetime
from textwrap import dedent, indent

import pytest

from agui_django.runs.endings import Ending
from agui_django.runs.ledger import (
    LAST_WORDS,
    STEP,
    TITLE,
    Ledger,
    expiry,
    fingerprint,
    last_words,
    readable,
    state_digest,
    title,
    token_totals,
)
from agui_django.runs.setup import Failure
from tests.runs.given import calls, says, tool, user


def failing(source: str, *, file: str = "/srv/site/shop/agents.py", code: str = "agent_exception") -> Failure:
    """The failure of a function ``refund`` in a file, whose lines are given."""
    names: dict[str, object] = {}
    exec(compile(f"def refund():\n{indent(dedent(source), '    ')}\n", file, "exec"), names)
    try:
        names["refund"]()  # type: ignore[operator]
    except Exception as error:
        found = Ending("failed", code, error=error).failure("r")
        assert found is not None
        return found
    raise AssertionError("it does not fail")


def test_an_error_keeps_its_fingerprint_while_code_moves_and_texts_vary() -> None:
    one = failing("raise ValueError('order 1')")
    assert (one.kind, one.place) == ("ValueError", "shop/agents.py refund")
    several = "raise ValueError('order 2\\nof another: customer')"
    # Libraries raise it for what our function hands them.
    inside = "import json\n\njson.loads('{') if False else int('x')"
    for same in (failing(several), failing(f"1 + 1\n{several}"), failing(inside)):
        assert fingerprint(same) == fingerprint(one)
    library = failing("import json\njson.loads('{')")
    assert (library.kind, library.place) == ("JSONDecodeError", one.place)
    others = [
        one, library, failing("raise KeyError(1)"), failing("raise ValueError", file="/srv/site/shop/b.py"),
        failing("raise ValueError", code="timeout"),
    ]  # fmt: skip
    assert len({fingerprint(each) for each in others}) == 5
    assert fingerprint(Failure("abandoned", "a", "x")) == fingerprint(Failure("abandoned", "b", "y"))


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ({"a": 1, "b": 2}, {"b": 2.0, "a": 1}, True),
        ([1e20], [100000000000000000000], True),
        ([True], [1], False),
        ([None], [], False),
        ({"a": 10**30}, {"a": 10**30}, True),
        ({"a": 10**30, "b": [1.0]}, {"b": [1], "a": 10**30}, True),
        ([[1], 2], [[1, 2]], False),
    ],
)
def test_equal_states_have_equal_digests(one: object, other: object, equal: bool) -> None:
    assert (state_digest(one) == state_digest(other)) is equal


def test_titles_and_last_words_are_one_short_line() -> None:
    parts = [{"type": "text", "text": "Look\n at"}, {"type": "image", "source": {}}, {"type": "text", "text": "this"}]
    assert readable(user("u", parts)) == "Look\n at\nthis"
    assert title([says("a", "Hello"), user("u", parts), user("u2", "later")]) == "Look at this"
    assert len(title([user("u", "x" * 999)])) == TITLE
    assert title([user("u", "  ")]) == ""
    assert last_words([user("u", "one"), says("a", "two  three"), tool("t", "c", "no")]) == "two three"
    assert len(last_words([says("a", "y" * 5000)])) == LAST_WORDS
    assert last_words([calls("a", "c")]) == ""


def test_parts_of_a_total_are_not_added_to_it() -> None:
    usage = [{"inputTokens": 10, "cachedInputTokens": 9, "outputTokens": 5, "reasoningTokens": 4}, {"outputTokens": 1}]
    assert token_totals(usage) == {"input_tokens": 10, "cached_tokens": 9, "output_tokens": 6, "reasoning_tokens": 4}


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2030-01-02T03:04:05Z", datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2030-01-02T03:04:05+02:00", datetime(2030, 1, 2, 1, 4, 5, tzinfo=UTC)),
        ("2030-01-02", datetime(2030, 1, 2, tzinfo=UTC)),
        ("soon", None),
        (None, None),
        ("9999-12-31T23:59:59-23:59", None),
    ],
)
def test_expiry_is_read_where_it_is_a_date(text: object, moment: datetime | None) -> None:
    assert expiry(text) == moment


def placed(*messages: tuple[dict[str, object], int]) -> Ledger:
    ledger = Ledger(thread=1)
    for message, order in messages:
        ledger.note(message, order)
    return ledger


def test_a_message_goes_to_the_end_and_a_result_behind_its_call() -> None:
    ledger = placed((user("u1"), STEP), (calls("a1", "c", "d"), 2 * STEP), (user("u2"), 3 * STEP))
    assert ledger.place(user("u3")) == (4 * STEP, False)
    assert ledger.place(tool("t1", "c")) == (2 * STEP + 1, False)
    assert ledger.place(tool("t2", "d")) == (2 * STEP + 2, False)
    assert ledger.place(tool("t3", "unknown")) == (5 * STEP, False)


def test_rows_move_up_where_there_is_no_gap() -> None:
    ledger = placed((calls("a1", "c"), 1), (user("u2"), 2), (user("u3"), 3))
    assert ledger.place(tool("t1", "c")) == (2, True)
    assert ledger.orders == {"a1": 1, "t1": 2, "u2": 2 + STEP, "u3": 3 + STEP}
    assert ledger.place(user("u4")) == (3 + 2 * STEP, False)
