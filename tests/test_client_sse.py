"""Server-sent events out of bytes: the HTML standard's rules, cut anywhere."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agui_django.client.errors import StreamRefused
from agui_django.client.sse import EventStream, Frame


def read(*chunks: bytes, **limits: int) -> list[Frame]:
    stream = EventStream(**limits)
    return [frame for chunk in chunks for frame in stream.feed(chunk)]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_line_ends(end: bytes) -> None:
    lines = [b": hello", b"id: 7", b"data: one", b"data: two", b"", b"data:three", b""]
    # A lone CR at the very end is a line end at once: a server that uses it must not be waited for.
    assert read(end.join([*lines, b""])) == [
        Frame("one\ntwo", "7", True),
        Frame("three", "7", False),
    ]


CASES = [
    (b"data\n\n", [Frame("")]),  # a field without a colon
    (b"data:\n\n", [Frame("")]),
    (b"data:  x\n\n", [Frame(" x")]),  # one space only
    (b"data: x:y\n\n", [Frame("x:y")]),
    (b"data\ndata\n\n", [Frame("\n")]),
    (b"event: ping\ndata: 1\n\ndata: 2\n\n", [Frame("1", event="ping"), Frame("2")]),
    (b"event: ping\n\ndata: 2\n\n", [Frame("2")]),  # without data there is no frame, and its type is forgotten
    (b"id: 5\n\ndata: 2\n\n", [Frame("2", "5")]),  # but the id stays
    (b"id: 5\ndata: 1\n\nid\ndata: 2\n\n", [Frame("1", "5", True), Frame("2", "", True)]),
    (b"id: 5\x006\ndata: 1\n\n", [Frame("1")]),  # an id with NUL is no id
    (b"\xef\xbb\xbfdata: 1\n\n", [Frame("1")]),
    (b"\xef\xbb\xbf\xef\xbb\xbfdata: 1\n\n", []),  # one mark only
    (b"unknown: 1\ndata: 1\n: c\n\n", [Frame("1")]),
    (b"data: 1\n", []),  # cut off
    (b"data: \xff\n\n", [Frame("\ufffd")]),
    ("data: \U0001f468\u200d\U0001f469 e\u0301\n\n".encode(), [Frame("\U0001f468\u200d\U0001f469 e\u0301")]),
    ("data: a\u2028b\x85c\x0bd\n\n".encode(), [Frame("a\u2028b\x85c\x0bd")]),  # no line ends
]


@pytest.mark.parametrize(("data", "frames"), CASES)
def test_cases(data: bytes, frames: list[Frame]) -> None:
    assert read(data) == frames
    assert read(*(data[n : n + 1] for n in range(len(data)))) == frames
    for cut in range(len(data) + 1):
        assert read(data[:cut], b"", data[cut:]) == frames


def test_retry() -> None:
    stream = EventStream()
    assert list(stream.feed(b"retry: 1500\nretry: 2s\nretry:\n\n")) == []
    assert stream.retry == 1.5


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8")), max_size=6),
    end=st.sampled_from([b"\n", b"\r", b"\r\n"]),
    cuts=st.lists(st.integers(0, 400), max_size=12),
)
def test_cut_anywhere(texts: list[str], end: bytes, cuts: list[int]) -> None:
    data = b"".join(b"data: " + text.encode() + end + end for text in texts)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    chunks = [data[a:b] for a, b in pairwise(places)]
    assert [frame.data for frame in read(*chunks)] == texts


def test_limits() -> None:
    with pytest.raises(StreamRefused) as huge:
        read(*[b"x" * 100] * 11, max_frame=1000)
    assert huge.value.code == "frame_too_large"
    with pytest.raises(StreamRefused) as many:
        read(*[b"data: " + b"x" * 90 + b"\n"] * 12, max_frame=1000)
    assert many.value.code == "frame_too_large"
    with pytest.raises(StreamRefused) as long:
        read(*[b"data: x\n\n"] * 200, max_stream=1000)
    assert long.value.code == "stream_too_large"
    assert len(read(*[b"data: " + b"x" * 900 + b"\n\n"] * 100, max_frame=1000)) == 100
