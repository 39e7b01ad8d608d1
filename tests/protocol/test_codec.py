"""Wire text and cleaning."""

from __future__ import annotations

import datetime
import enum
import json
import math
import uuid
from decimal import Decimal
from typing import Any

import pytest
from ag_ui.core import UserMessage
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from agui_django.protocol.codec import MAX_DEPTH, SurrogateJoiner, clean, clean_text, decode, encode
from agui_django.protocol.errors import InvalidJson, NotJson

HIGH, LOW = "\ud83d", "\ude00"
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


# ---- encode and decode ---------------------------------------------------------------------------------------------


@given(value=json_values)
def test_round_trip_loses_nothing(value: Any) -> None:
    text = encode(value)
    assert decode(text) == value
    assert decode(text.encode()) == value
    assert json.loads(text) == value
    assert "\n" not in text


def test_wire_text_is_compact_ordered_and_unescaped() -> None:
    assert encode({"b": 1, "a": ["é", "\u4e2d", "\u2028", "/"]}) == '{"b":1,"a":["é","\u4e2d","\u2028","/"]}'


@pytest.mark.parametrize("number", [2**53 + 1, 2**63, 2**64, -(2**64), 10**40])
def test_integers_keep_their_digits(number: int) -> None:
    assert encode({"n": [number]}) == f'{{"n":[{number}]}}'
    assert decode(f'{{"n":[{number}]}}') == {"n": [number]}
    assert type(decode(str(number))) is int


def test_a_dict_subclass_is_an_object() -> None:
    class Live(dict[str, Any]):
        pass

    assert encode(Live(a=Live(b=2**70))) == f'{{"a":{{"b":{2**70}}}}}'
    assert encode(Live(a=Live(b=1))) == '{"a":{"b":1}}'


@pytest.mark.parametrize(
    "value",
    [object(), {1: 2}, {"a": {3: 4}}, {1, 2}, b"x", datetime.datetime(2026, 1, 1), {"d": datetime.date(2026, 1, 1)},
     HIGH, {"k": "a" + LOW}, {HIGH: 1}, nested(2000), 10**5000],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_encode_refuses_what_is_not_json(value: Any) -> None:
    with pytest.raises(NotJson):
        encode(value)


@pytest.mark.parametrize(
    "text",
    ["", "nul", "{", "[1,]", '{"a":1,}', "{'a':1}", "NaN", "[Infinity]", '{"a":-Infinity}', "1e400", "-1e400",
     "1" * 5000,
     "01", "1 2", '"\n"', b"\xff", b'"\xed\xa0\x80"', b"\xef\xbb\xbf{}", HIGH, "//x\n1"],
    ids=lambda text: repr(text)[:20],
)  # fmt: skip
def test_decode_refuses_what_is_not_json(text: str | bytes) -> None:
    with pytest.raises(InvalidJson) as caught:
        decode(text)
    assert caught.value.status == 400


def test_nesting_is_bounded() -> None:
    assert decode("[" * MAX_DEPTH + "]" * MAX_DEPTH) == nested(MAX_DEPTH)
    for depth in (MAX_DEPTH + 1, 1000, 1025, 100_000):
        for opening, closing in (("[", "]"), ('{"a":', "}")):
            with pytest.raises(InvalidJson):
                decode(opening * depth + ("1" if closing == "}" else "") + closing * depth)


def test_escaped_surrogates() -> None:
    assert decode(r'"\ud83d\ude00"') == "\U0001f600"
    # Lone halves are JSON by its grammar; cleaning decides about them.
    assert decode(r'["\ud83d"]') == [HIGH]


# ---- text ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dirty", "clear"),
    [("a\0b", "a\ufffdb"), (HIGH, "\ufffd"), ("x" + LOW + "y", "x\ufffdy"), (HIGH + LOW, "\U0001f600"),
     (LOW + HIGH, "\ufffd\ufffd"), (HIGH + HIGH + LOW, "\ufffd\U0001f600"), ("\0" + HIGH, "\ufffd\ufffd"),
     ("é" + HIGH + "é", "é\ufffdé")],
    ids=ascii,
)  # fmt: skip
def test_clean_text(dirty: str, clear: str) -> None:
    assert clean_text(dirty) == clear


@pytest.mark.parametrize("text", ["", "plain", "é\u4e2d\U0001f600", "e\u0301", "a\u200db", "\ufffd", "\x01\x7f\u2028"])
def test_clean_text_returns_clean_text_itself(text: str) -> None:
    assert clean_text(text) is text


@given(text=st.text(alphabet=st.characters() | st.sampled_from([HIGH, LOW, "\0"])))
def test_cleaned_text_can_be_sent_and_stored(text: str) -> None:
    cleaned = clean_text(text)
    assert cleaned.encode().decode() == cleaned
    assert "\0" not in cleaned
    assert clean_text(cleaned) is cleaned


def test_a_character_cut_in_two_is_joined() -> None:
    joiner = SurrogateJoiner()
    assert not joiner.holding
    assert joiner.join("m", "a" + HIGH) == "a"
    assert joiner.holding
    assert joiner.join("other", LOW) == "\ufffd"
    assert joiner.join("m", "") == ""
    assert joiner.join("m", LOW + "b") == "\U0001f600b"
    assert joiner.flush("m") == ""
    assert joiner.join("m", HIGH) == ""
    assert joiner.join("m", "c" + HIGH) == "\ufffdc"
    assert joiner.flush("m") == "\ufffd"
    assert joiner.flush("m") == ""
    assert not joiner.holding


@given(text=st.text(alphabet=st.sampled_from(["a", "é", "\U0001f600", "\U0001f1e9"])), data=st.data())
def test_joined_pieces_are_the_text(text: str, data: st.DataObject) -> None:
    codes = text.encode("utf-16-le")
    split = [codes[i : i + 2].decode("utf-16-le", "surrogatepass") for i in range(0, len(codes), 2)]
    joiner = SurrogateJoiner()
    out = ""
    while split:
        size = data.draw(st.integers(1, len(split)))
        out += joiner.join("m", "".join(split[:size]))
        del split[:size]
    assert out + joiner.flush("m") == text


# ---- values --------------------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"


class Loud(enum.StrEnum):
    YES = "yes"


class Model(BaseModel):
    some_name: Any = Field(alias="someName")


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ((1, [2.5, None, True]), [1, [2.5, None, True]]),
        ({"k\0": "v" + HIGH}, {"k\ufffd": "v\ufffd"}),
        ([math.nan, math.inf, -math.inf, 1e300], [None, None, None, 1e300]),
        (datetime.datetime(2026, 1, 2, 3, 4, 5, 678901), "2026-01-02T03:04:05.678"),
        (datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC), "2026-01-02T03:04:05Z"),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (datetime.time(3, 4, 5, 678901), "03:04:05.678"),
        (datetime.timedelta(days=1, hours=2, seconds=3), "P1DT02H00M03S"),
        (datetime.timedelta(seconds=-1.5), "-P0DT00H00M01.500000S"),
        (Decimal("1.10"), "1.10"),
        (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        ([Colour.RED, Loud.YES], ["red", "yes"]),
        (Model(someName=(1, datetime.date(2026, 1, 2))), {"someName": [1, "2026-01-02"]}),
        (2**70, 2**70),
    ],
    ids=lambda value: type(value).__name__,
)
def test_clean(value: Any, plain: Any) -> None:
    cleaned = clean(value)
    assert cleaned == plain
    assert type(cleaned) is type(plain)
    assert encode(cleaned)


def test_clean_agrees_with_djangos_encoder() -> None:
    django_json = pytest.importorskip("django.core.serializers.json")
    zone = datetime.timezone(datetime.timedelta(hours=2))
    values = [
        datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.UTC), datetime.datetime(2026, 1, 2, tzinfo=zone),
        datetime.date(2026, 1, 2), datetime.time(1, 2), datetime.time(1, 2, 3, 4), datetime.timedelta(days=-3, hours=1),
        datetime.timedelta(weeks=9, microseconds=7), Decimal("0.10"), uuid.uuid4(),
    ]  # fmt: skip
    assert encode(clean(values)) == json.dumps(values, cls=django_json.DjangoJSONEncoder, separators=(",", ":"))


def test_official_models_are_dumped_by_alias() -> None:
    message = UserMessage(id="m", content="hi", role="user")
    cleaned = clean({"message": message})
    assert cleaned["message"]["role"] == "user"
    assert "encrypted_value" not in cleaned["message"]


def test_clean_makes_a_copy_and_keeps_clean_texts() -> None:
    text = "é" * 20
    value = {"a": [text]}
    cleaned = clean(value)
    assert cleaned == value
    assert cleaned is not value
    assert cleaned["a"] is not value["a"]
    assert cleaned["a"][0] is text


def test_default_is_asked_first() -> None:
    class Lazy:
        def __str__(self) -> str:
            return "Hallo"

    def default(value: Any) -> Any:
        if isinstance(value, Lazy):
            return str(value)
        raise TypeError

    assert clean([Lazy(), Decimal(1)], default=default) == ["Hallo", "1"]


@pytest.mark.parametrize(
    ("value", "path"),
    [({"a": [0, object()]}, "/a/1"), ({"a/b": {"~": {1}}}, "/a~1b/~0"), ({"a": {1: 2}}, "/a"), (b"x", ""),
     ([datetime.time(1, tzinfo=datetime.UTC)], "/0")],
)  # fmt: skip
def test_clean_names_the_place_of_what_is_not_json(value: Any, path: str) -> None:
    with pytest.raises(NotJson) as caught:
        clean(value)
    assert caught.value.fields[0]["path"] == path
    assert (path or "root") in str(caught.value)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_nan_can_be_refused(number: float) -> None:
    with pytest.raises(NotJson) as caught:
        clean({"x": [number]}, nan="refuse")
    assert caught.value.fields[0]["path"] == "/x/0"


def test_clean_bounds_nesting_and_circles() -> None:
    assert clean(nested(MAX_DEPTH)) == nested(MAX_DEPTH)
    with pytest.raises(NotJson):
        clean(nested(MAX_DEPTH + 1))
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(NotJson):
        clean(circle)


@given(value=json_values)
def test_cleaning_is_stable(value: Any) -> None:
    once = clean(value)
    assert clean(once) == once
    assert decode(encode(once)) == once
