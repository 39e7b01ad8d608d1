"""Run input: what is upgraded, stripped and refused, and that nothing of a refused request is repeated."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ag_ui.core import RunAgentInput

from agui_django.protocol.errors import InvalidInput, InvalidJson, UnsupportedVersion
from agui_django.protocol.run_input import RunInput, build_run_input, check_version, is_legacy, parse_run_input


def body(**more: Any) -> dict[str, Any]:
    return {"threadId": "t", "runId": "r", "messages": [], **more}


def parse(**more: Any) -> RunInput:
    return parse_run_input(json.dumps(body(**more)).encode())


def paths(error: pytest.ExceptionInfo[InvalidInput]) -> list[str]:
    return [field["path"] for field in error.value.fields]


def test_the_least_input() -> None:
    run_input = parse()
    assert run_input.data == {
        "threadId": "t",
        "runId": "r",
        "messages": [],
        "tools": [],
        "context": [],
        "forwardedProps": {},
    }
    assert (run_input.thread_id, run_input.run_id, run_input.protocol_version) == ("t", "r", None)
    assert run_input.legacy
    assert run_input.warnings == []


def test_a_whole_input_is_kept_and_is_the_official_model() -> None:
    whole = body(
        protocolVersion="1.1",
        parentRunId="p",
        state={"n": None, "big": 2**70},
        messages=[
            {"id": "u", "role": "user", "content": [{"type": "text", "text": "see"}]},
            {
                "id": "a",
                "role": "assistant",
                "toolCalls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}],
            },
            {"id": "o", "role": "tool", "toolCallId": "c", "content": "done"},
        ],
        tools=[{"name": "f", "description": "d", "parameters": {"type": "object"}}],
        context=[{"description": "d", "value": "v"}],
        forwardedProps={"x": [None]},
        resume=[{"interruptId": "i", "status": "resolved", "payload": False}],
    )
    run_input = build_run_input(whole)
    assert run_input.data == whole
    assert run_input.warnings == []
    assert not run_input.legacy
    model = run_input.model
    assert isinstance(model, RunAgentInput)
    assert model is run_input.model
    assert model.model_dump(by_alias=True, exclude_none=True)["messages"][2]["toolCallId"] == "c"
    assert parse().model.state == {}


def test_a_falsy_state_that_is_not_null_is_sent_on() -> None:
    assert parse(state={}).data["state"] == {}
    assert parse(state=0).data["state"] == 0


def test_whole_nulls_of_older_clients_mean_absent() -> None:
    image = {"type": "image", "source": {"type": "url", "value": "u"}}
    run_input = parse(
        state=None,
        forwardedProps=None,
        tools=[{"name": "f", "description": "d", "parameters": None}],
        resume=[{"interruptId": "i", "status": "cancelled", "payload": None}],
        messages=[{"id": "u", "role": "user", "content": [{**image, "metadata": None}]}],
    )
    assert "state" not in run_input.data
    assert run_input.data["forwardedProps"] == {}
    assert run_input.data["tools"] == [{"name": "f", "description": "d"}]
    assert run_input.data["resume"] == [{"interruptId": "i", "status": "cancelled"}]
    assert run_input.data["messages"][0]["content"] == [image]


@pytest.mark.parametrize(
    ("part", "typed"),
    [
        (
            {"mimeType": "image/png", "data": "aGk="},
            {"type": "image", "source": {"type": "data", "value": "aGk=", "mimeType": "image/png"}},
        ),
        (
            {"mimeType": "audio/mpeg", "url": "https://x/a.mp3", "data": ""},
            {"type": "audio", "source": {"type": "url", "value": "https://x/a.mp3", "mimeType": "audio/mpeg"}},
        ),
        (
            {"mimeType": "video/mp4", "id": "file-1", "filename": "a.mp4"},
            {
                "type": "video",
                "source": {"type": "file", "value": "file-1", "mimeType": "video/mp4"},
                "metadata": {"filename": "a.mp4"},
            },
        ),
        (
            {"mimeType": "application/pdf", "data": "aGk=", "url": "u", "id": "i"},
            {"type": "document", "source": {"type": "data", "value": "aGk=", "mimeType": "application/pdf"}},
        ),
    ],
)
def test_binary_parts_become_typed_parts(part: dict[str, Any], typed: dict[str, Any]) -> None:
    run_input = parse(messages=[{"id": "u", "role": "user", "content": [{"type": "binary", **part}]}])
    assert run_input.data["messages"][0]["content"] == [typed]
    assert any("/messages/0/content/0" in text for text in run_input.warnings)


def test_a_binary_part_without_bytes_is_dropped_like_any_unknown_part() -> None:
    content = [{"type": "binary", "mimeType": "image/png"}, {"type": "text", "text": "x"}]
    run_input = parse(messages=[{"id": "u", "role": "user", "content": content}])
    assert run_input.data["messages"][0]["content"] == [{"type": "text", "text": "x"}]


def test_unknown_material_is_stripped_with_a_warning() -> None:
    told: list[str] = []
    raw = body(
        extra=1,
        messages=[
            {"id": "x", "role": "narrator", "content": "dropped"},
            {"id": "u", "role": "user", "content": [{"type": "hologram"}, {"type": "text", "text": "x"}], "mood": 1},
        ],
    )
    run_input = parse_run_input(json.dumps(raw).encode(), told.append)
    assert "extra" not in run_input.data
    assert run_input.data["messages"] == [{"id": "u", "role": "user", "content": [{"type": "text", "text": "x"}]}]
    assert run_input.warnings == told
    for named in ("/extra", "/messages/0", "/messages/1/content/0", "/messages/1/mood"):
        assert any(named in text for text in told), (named, told)


def test_text_is_cleaned() -> None:
    raw = '{"threadId":"t","runId":"r","messages":[{"id":"u","role":"user","content":"x\\u0000y\\ud800z"}]}'
    assert parse_run_input(raw.encode()).data["messages"][0]["content"] == "x\ufffdy\ufffdz"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b'{"threadId": NaN}',
        b'{"threadId": Infinity}',
        b'{"threadId": "\xff"}',
        b"[" * 100_000,
        b'{"state":' + b"[" * 120 + b"]" * 120 + b"}",
    ],
)
def test_not_json(raw: bytes) -> None:
    with pytest.raises(InvalidJson) as error:
        parse_run_input(raw)
    assert error.value.status == 400


@pytest.mark.parametrize("value", [[], "x", 1, None, True])
def test_not_an_object(value: Any) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_run_input(json.dumps(value).encode())
    assert error.value.status == 422
    assert paths(error) == [""]


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"threadId": 1}, "/threadId"),
        ({"threadId": ""}, "/threadId"),
        ({"runId": "x" * 256}, "/runId"),
        ({"runId": "a\0b"}, "/runId"),
        ({"runId": None}, "/runId"),
        ({"parentRunId": "\0"}, "/parentRunId"),
        ({"messages": {}}, "/messages"),
        ({"messages": [1]}, "/messages/0"),
        ({"messages": [{"id": "", "role": "user", "content": "x"}]}, "/messages/0/id"),
        ({"messages": [{"id": "\0", "role": "user", "content": "x"}]}, "/messages/0/id"),
        ({"messages": [{"id": "x" * 256, "role": "user", "content": "x"}]}, "/messages/0/id"),
        ({"messages": [{"id": 1, "role": "user", "content": "x"}]}, "/messages/0/id"),
        ({"messages": [{"id": "u", "role": "user", "content": 1}]}, "/messages/0/content"),
        ({"tools": [{"name": "f"}]}, "/tools/0/description"),
        ({"context": "x"}, "/context"),
        ({"resume": [{"interruptId": "i", "status": "maybe"}]}, "/resume/0/status"),
        ({"protocolVersion": 1}, "/protocolVersion"),
    ],
)
def test_malformed(more: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidInput) as error:
        parse(**more)
    assert error.value.status == 422
    assert path in paths(error)


def test_everything_wrong_is_named_once_and_no_value_is_repeated() -> None:
    secret = "hunter2"
    with pytest.raises(InvalidInput) as error:
        parse(threadId="", runId="\0" + secret, context=secret, tools=[{"name": secret, "description": 7}])
    named = paths(error)
    assert sorted(named) == ["/context", "/runId", "/threadId", "/tools/0/description"]
    assert secret not in json.dumps([error.value.message, error.value.fields])


def test_missing_ids_are_named() -> None:
    with pytest.raises(InvalidInput) as error:
        parse_run_input(b'{"messages": []}')
    assert {"/threadId", "/runId"} <= set(paths(error))


def test_ids_of_255_characters_are_served() -> None:
    assert len(parse(threadId="x" * 255).thread_id) == 255


@pytest.mark.parametrize(
    ("version", "legacy", "warned"),
    [("1.0", False, 0), ("1.1", False, 0), ("1.99", False, 0), ("0.0.59", True, 0), ("newest", False, 1)],
)
def test_versions_that_are_served(version: str, legacy: bool, warned: int) -> None:
    run_input = parse(protocolVersion=version)
    assert run_input.protocol_version == version
    assert run_input.legacy is legacy
    assert len(run_input.warnings) == warned


@pytest.mark.parametrize("version", ["2.0", "2", "10.1"])
def test_another_major_is_refused(version: str) -> None:
    with pytest.raises(UnsupportedVersion) as error:
        parse(protocolVersion=version)
    assert (error.value.code, error.value.status) == ("unsupported_version", 422)
    with pytest.raises(UnsupportedVersion):
        check_version(version)
    assert not is_legacy(version)


def test_the_digest_is_of_the_meaning_not_of_the_text() -> None:
    one = parse_run_input(b'{"threadId":"t","runId":"r","messages":[],"state":{"a":1,"b":[2]}}')
    two = parse_run_input(b'{"state": {"b": [2], "a": 1}, "messages": [], "unknown": 1, "runId": "r", "threadId": "t"}')
    assert one.digest == two.digest
    assert len(one.digest) == 64
    assert one.digest != parse(state={"a": 1, "b": [3]}).digest
    assert parse(state={"a": 2**70}).digest != parse(state={"a": 2**70 + 1}).digest


def test_a_dict_is_not_changed() -> None:
    given = body(state=None, messages=[{"id": "u", "role": "user", "content": [{"type": "binary"}]}])
    before = json.dumps(given)
    build_run_input(given)
    assert json.dumps(given) == before
