"""Resume rules, response schemas and typed answers."""

from __future__ import annotations

import datetime
import time
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from agui_django.protocol.errors import InterruptExpired, ResumeConflict, ResumeIncomplete, ResumeInvalid
from agui_django.protocol.interrupts import (
    OpenInterrupt,
    Resolution,
    Resolved,
    check_response,
    flat_schema,
    plan_resume,
    resume_of,
    validate_answer,
)

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
MINUTE = datetime.timedelta(minutes=1)


def entry(interrupt_id: str, status: str = "resolved", **more: Any) -> dict[str, Any]:
    return {"interruptId": interrupt_id, "status": status, **more}


def plan(
    open: list[OpenInterrupt], resume: list[dict[str, Any]], known: dict[str, Resolution] | None = None
) -> tuple[list[Resolved], list[str]]:
    warnings: list[str] = []
    return plan_resume(open, known or {}, resume, now=NOW, warn=warnings.append), warnings


I1, I2 = OpenInterrupt("i1"), OpenInterrupt("i2")


def test_every_interrupt_answered_in_the_order_they_were_asked() -> None:
    resolved, warnings = plan(
        [I1, I2], [entry("i2", "cancelled", payload=1, metadata={"by": "x"}), entry("i1", payload={"ok": True})]
    )
    assert resolved == [
        Resolved("i1", "resolved", {"ok": True}, None),
        Resolved("i2", "cancelled", None, {"by": "x"}),
    ]
    assert warnings == []


def test_an_uncovered_interrupt_refuses_the_whole_and_is_named() -> None:
    with pytest.raises(ResumeIncomplete, match="i2") as error:
        plan([I1, I2], [entry("i1")])
    assert "i1" not in str(error.value)
    assert error.value.code == "resume_incomplete"


def test_unknown_ids_are_ignored_with_a_warning() -> None:
    resolved, warnings = plan([I1], [entry("i1"), entry("stranger")])
    assert [item.id for item in resolved] == ["i1"]
    assert len(warnings) == 1 and "stranger" in warnings[0]


def test_equal_repeats_are_one_answer_and_different_ones_a_conflict() -> None:
    resolved, warnings = plan([I1], [entry("i1", payload=[1]), entry("i1", payload=[1.0])])
    assert (len(resolved), len(warnings)) == (1, 1)
    with pytest.raises(ResumeConflict, match="i1"):
        plan([I1], [entry("i1", payload=1), entry("i1", payload=True)])


@pytest.mark.parametrize(
    ("known", "given", "error"),
    [
        (Resolution("resolved", {"a": 1}), entry("old", payload={"a": 1}), None),
        (Resolution("resolved"), entry("old"), None),
        (Resolution("cancelled"), entry("old", "cancelled"), None),
        (Resolution("expired"), entry("old", "cancelled"), None),
        (Resolution("resolved", 1), entry("old", payload=True), ResumeConflict),
        (Resolution("resolved", 1), entry("old", "cancelled"), ResumeConflict),
        (Resolution("cancelled"), entry("old"), ResumeConflict),
        (Resolution("expired"), entry("old"), InterruptExpired),
    ],
)
def test_what_was_closed_before(known: Resolution, given: dict[str, Any], error: type[Exception] | None) -> None:
    if error is None:
        assert plan([], [given], {"old": known})[0] == []
        resolved, warnings = plan([I1], [given, entry("i1")], {"old": known})
        assert [item.id for item in resolved] == ["i1"]
        assert len(warnings) == 1 and "old" in warnings[0]
    else:
        with pytest.raises(error, match="old"):
            plan([I1], [given, entry("i1")], {"old": known})


def test_an_expired_interrupt_can_be_cancelled_not_answered() -> None:
    past, future = OpenInterrupt("p", expires_at=NOW), OpenInterrupt("f", expires_at=NOW + MINUTE)
    resolved, _ = plan([past, future], [entry("p", "cancelled"), entry("f")])
    assert [item.status for item in resolved] == ["cancelled", "resolved"]
    with pytest.raises(InterruptExpired, match="p"):
        plan([past, future], [entry("p"), entry("f")])


def test_an_answer_is_checked_against_its_schema() -> None:
    asked = OpenInterrupt("i", {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    assert plan([asked], [entry("i", payload={"n": 1})])[0][0].payload == {"n": 1}
    assert plan([asked], [entry("i", "cancelled")])[0][0].status == "cancelled"
    with pytest.raises(ResumeInvalid) as error:
        plan([asked], [entry("x"), entry("i", payload={"n": "secret"})])
    assert error.value.fields == [{"path": "/resume/1/payload/n", "message": "must be a whole number"}]
    with pytest.raises(ResumeInvalid):
        plan([asked], [entry("i")])


class TestResumeOf:
    def test_the_requests_own_list(self) -> None:
        assert resume_of({"resume": [entry("i1")], "forwardedProps": {"command": {"resume": 1}}}, [I2]) == [entry("i1")]

    @pytest.mark.parametrize(
        ("answer", "expected"),
        [("yes", entry("i1", payload="yes")), (False, entry("i1", payload=False)), (None, entry("i1"))],
    )
    def test_the_older_place(self, answer: Any, expected: dict[str, Any]) -> None:
        assert resume_of({"forwardedProps": {"command": {"resume": answer}}}, [I1]) == [expected]

    @pytest.mark.parametrize(
        ("data", "open"),
        [
            ({}, [I1]),
            ({"resume": []}, [I1]),
            ({"forwardedProps": {"command": {"resume": 1}}}, []),
            ({"forwardedProps": {"command": {"resume": 1}}}, [I1, I2]),
            ({"forwardedProps": {"command": {}}}, [I1]),
            ({"forwardedProps": {"command": "resume"}}, [I1]),
            ({"forwardedProps": [1]}, [I1]),
        ],
    )
    def test_no_answer(self, data: dict[str, Any], open: list[OpenInterrupt]) -> None:
        assert resume_of(data, open) is None


class TestCheckResponse:
    @pytest.mark.parametrize(
        ("schema", "payload", "expected"),
        [
            ({"type": "string"}, 1, [("", "must be a string")]),
            ({"type": ["array", "null"]}, 1, [("", "must be a list or null")]),
            ({"type": "integer"}, True, [("", "must be a whole number")]),
            ({"enum": ["Ritz", "Ibis"]}, "x", [("", "must be one of the values offered")]),
            ({"required": ["a", "b"]}, {"a": 1}, [("", "lacks b")]),
            ({"properties": {"a/b": {"minimum": 3}}}, {"a/b": 2}, [("/a~1b", "must satisfy minimum 3")]),
            ({"items": {"maxLength": 1}}, ["a", "bb"], [("/1", "must satisfy maxLength 1")]),
            ({"additionalProperties": False}, {"secret": 1}, [("", "has members that are not expected")]),
            ({"pattern": "^[a-z]+$"}, "A", [("", "does not have the expected form")]),
            ({"patternProperties": {"^x": {"type": "string"}}}, {"xa": 1, "y": 1}, [("/xa", "must be a string")]),
            ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1, [("", "does not satisfy anyOf")]),
            ({"$defs": {"n": {"type": "number"}}, "$ref": "#/$defs/n"}, "x", [("", "must be a number")]),
        ],
    )
    def test_what_is_wrong(self, schema: dict[str, Any], payload: Any, expected: list[tuple[str, str]]) -> None:
        warnings: list[str] = []
        found = check_response(schema, payload, warnings.append)
        assert [(item["path"], item["message"]) for item in found] == expected
        assert warnings == []

    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "strnig"},
            {"properties": 1},
            {"$ref": "http://127.0.0.1:9/schema.json"},
            {"$ref": "#/$defs/nowhere"},
            {"$ref": "#"},
            {"pattern": "("},
            {"description": "x" * 70_000},
        ],
    )
    def test_a_schema_that_cannot_be_used_accepts_with_a_warning(self, schema: dict[str, Any]) -> None:
        warnings: list[str] = []
        assert check_response(schema, "anything", warnings.append) == []
        assert len(warnings) == 1 and "responseSchema" in warnings[0]

    def test_nested_references_end(self) -> None:
        definitions: dict[str, Any] = {"0": {"type": "string"}}
        for n in range(1, 40):
            definitions[str(n)] = {"allOf": [{"$ref": f"#/$defs/{n - 1}"}, {"$ref": f"#/$defs/{n - 1}"}]}
        warnings: list[str] = []
        start = time.process_time()
        assert check_response({"$defs": definitions, "$ref": "#/$defs/39"}, "x", warnings.append) == []
        assert len(warnings) == 1
        assert time.process_time() - start < 10

    @pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", "^(a*)*b", "^((a?){1,40}b)*$", r"(a)\1", "(?=a+)+"])
    def test_patterns_that_could_explode_are_not_used(self, pattern: str) -> None:
        warnings: list[str] = []
        start = time.process_time()
        assert check_response({"pattern": pattern}, "a" * 60 + "!", warnings.append) == []
        assert (
            check_response({"patternProperties": {pattern: {}}, "additionalProperties": False}, {"a" * 60 + "!": 1})
            == []
        )
        nested = {"allOf": [{"patternProperties": {pattern: {}}}], "unevaluatedProperties": False}
        assert check_response(nested, {"a" * 60 + "!": 1}) == []
        assert len(warnings) == 1
        assert time.process_time() - start < 5

    def test_a_text_too_long_for_its_pattern_is_refused(self) -> None:
        schema = {"pattern": "^[^@]+@[^@]+$"}
        assert check_response(schema, "a@b") == []
        assert check_response(schema, "a" * 10_000) == [{"path": "", "message": "is too long"}]

    def test_an_answer_too_large_to_check_is_refused(self) -> None:
        assert check_response({}, "x" * 2_000_000) == [{"path": "", "message": "is too large"}]
        assert check_response({"type": "integer"}, 2**80) == []

    def test_the_list_of_errors_is_bounded(self) -> None:
        assert len(check_response({"items": {"type": "string"}}, list(range(1000)))) == 20


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


class Decision(BaseModel):
    approved: bool
    note: str | None = None
    title: Literal["mr", "ms"] = Field(default="mr", title="Title", description="How to call you")


class Trip(TypedDict):
    day: datetime.date
    size: Size
    decision: Decision
    tags: list[str]


@dataclass
class Tree:
    children: list[Tree]


class TestTypes:
    def test_a_flat_schema(self) -> None:
        decision = {
            "type": "object",
            "properties": {
                "approved": {"type": "boolean"},
                "note": {"type": "string"},
                "title": {
                    "type": "string",
                    "enum": ["mr", "ms"],
                    "default": "mr",
                    "description": "How to call you",
                },
            },
            "required": ["approved"],
        }
        assert flat_schema(Decision) == decision
        assert flat_schema(Trip) == {
            "type": "object",
            "properties": {
                "day": {"type": "string", "format": "date"},
                "size": {"type": "string", "enum": ["s", "l"]},
                "decision": decision,
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["day", "size", "decision", "tags"],
        }

    def test_plain_types_and_schemas(self) -> None:
        assert flat_schema(int) == {"type": "integer"}
        assert flat_schema(str | None) == {"type": "string"}
        assert flat_schema(int | str) == {"anyOf": [{"type": "integer"}, {"type": "string"}]}
        schema = {"enum": ["Ritz"], "title": "Hotel"}
        assert flat_schema(schema) is schema

    def test_a_type_that_contains_itself_ends(self) -> None:
        assert flat_schema(Tree) == {
            "type": "object",
            "properties": {"children": {"type": "array", "items": {}}},
            "required": ["children"],
        }

    def test_typed_answers(self) -> None:
        answer = validate_answer(
            Trip, {"day": "2026-05-01", "size": "l", "decision": {"approved": True}, "tags": ["x"]}
        )
        assert answer == {
            "day": datetime.date(2026, 5, 1),
            "size": Size.LARGE,
            "decision": Decision(approved=True),
            "tags": ["x"],
        }
        assert validate_answer(int, 3) == 3
        assert validate_answer(int, 2**80) == 2**80
        assert validate_answer({"enum": ["Ritz"]}, "Ritz") == "Ritz"

    @pytest.mark.parametrize(
        ("type", "value", "path"),
        [
            (int, "3", ""),
            (int, True, ""),
            (bool, 1, ""),
            (str, 1, ""),
            (Decision, {"approved": "yes"}, "/approved"),
            (Decision, {}, "/approved"),
            (Trip, {"day": "soon", "size": "l", "decision": {"approved": True}, "tags": []}, "/day"),
            ({"enum": ["Ritz"]}, "Ibis", ""),
        ],
    )
    def test_answers_are_strict(self, type: Any, value: Any, path: str) -> None:
        with pytest.raises(ResumeInvalid) as error:
            validate_answer(type, value)
        assert [field["path"] for field in error.value.fields] == [path]
