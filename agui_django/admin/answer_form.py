"""A form from a question's responseSchema: plain HTML fields, read back into JSON.

Law: the form only gathers; whether an answer fits is judged where answers are taken. What no field can say (choices
between shapes, references, lists of objects) is a box of JSON, and the whole answer may be one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from django import forms
from django.core.exceptions import ValidationError
from django.forms.utils import ErrorDict
from django.utils.translation import gettext as _

from agui_django.admin.rows_field import RowsField
from agui_django.protocol.codec import decode, encode
from agui_django.protocol.errors import InvalidJson

#: Nested objects that get fields of their own, and fields of a form.
DEEP, MANY = 3, 60
#: Stands for a member that is left out.
ABSENT: Final = object()

_DATES: Final = {"date": "date", "time": "time", "date-time": "datetime-local"}


class JsonField(forms.CharField):
    """Any JSON."""

    widget = forms.Textarea

    def clean(self, value: Any) -> Any:
        """The value; `ABSENT` where the box is empty."""
        text = super().clean(value)
        if not text.strip():
            return ABSENT
        try:
            return decode(text)
        except InvalidJson:
            raise ValidationError(_("This is not JSON.")) from None


class AnswerForm(forms.Form):
    """The fields of one answer.

    Args:
        schema: the question's responseSchema; None: any answer.
    """

    def __init__(self, schema: Any, *args: Any, **kwargs: Any) -> None:
        """Fields are named by their place, never by a member's name, which may be anything."""
        super().__init__(*args, **kwargs)
        self._paths: dict[str, tuple[list[str], Callable[[Any], Any]]] = {}
        #: The field of the one member that says yes or no to it all.
        self.approval = ""
        if isinstance(schema, Mapping) and _is_object(schema):
            self._members(schema, [], "")
        elif schema:
            self._add(schema, [], _("Answer"), required=True)
        booleans = [name for name, field in self.fields.items() if isinstance(field, forms.TypedChoiceField)]
        yes_no = [
            name for name in booleans if getattr(self.fields[name], "yes_no", False) and len(self._paths[name][0]) == 1
        ]
        if len(yes_no) == 1:
            self.approval = yes_no[0]
        self.fields["raw"] = JsonField(
            label=_("Or the whole answer as JSON"), required=not self._paths, strip=False,
            widget=forms.Textarea(attrs={"rows": 4}),
        )  # fmt: skip

    def clean(self) -> dict[str, Any]:
        """Put the answer together: ``cleaned_data["answer"]``."""
        data = super().clean() or {}
        if data.get("raw", ABSENT) is not ABSENT:
            # What the fields lack is of no account then.
            self.errors.clear()
            return {"answer": data["raw"]}
        answer: Any = {} if all(path for path, _to in self._paths.values()) else None
        for name, (path, convert) in self._paths.items():
            value = data.get(name, ABSENT)
            if value is ABSENT or value in ("", None):
                continue
            try:
                value = convert(value)
            except (ValueError, InvalidJson):
                self.add_error(name, _("This does not have the expected form."))
                continue
            if not path:
                answer = value
                continue
            inner = answer
            for step in path[:-1]:
                inner = inner.setdefault(step, {})
            inner[path[-1]] = value
        return {"answer": answer}

    def add_row(self, name: str) -> None:
        """Show the form as it was filled in, unjudged, a list with one more row."""
        self._errors = ErrorDict()
        if isinstance(field := self.fields.get(name), RowsField):
            field.widget.more = 1

    # ---- fields -----------------------------------------------------------------------------------------------------

    def _members(self, schema: Mapping[str, Any], path: list[str], title: str) -> None:
        required = schema.get("required")
        wanted = required if isinstance(required, list) else []
        for name, member in schema["properties"].items():
            if len(self._paths) >= MANY:
                return
            if not isinstance(member, Mapping):
                continue
            label = title + str(member.get("title") or name)
            if _is_object(member) and len(path) < DEEP:
                self._members(member, [*path, name], f"{label}: ")
            else:
                self._add(member, [*path, name], label, required=name in wanted and not path)

    def _add(self, schema: Any, path: list[str], label: str, *, required: bool) -> None:
        name = f"f{len(self._paths)}"
        field, convert = _field(schema if isinstance(schema, Mapping) else {})
        # A null may be the answer; an empty field then says it.
        field.required = required and not _nullable(schema)
        field.label = label
        if isinstance(field, RowsField):
            field.widget.title = label
        if isinstance(schema, Mapping):
            field.help_text = str(schema.get("description", ""))[:500] or field.help_text
            if "default" in schema and (start := _start(field, schema["default"])) is not None:
                field.initial = start
        self.fields[name] = field
        self._paths[name] = path, convert


def _start(field: forms.Field, default: Any) -> Any:
    if isinstance(field, forms.TypedChoiceField):
        return encode(default)
    if isinstance(field, JsonField):
        return encode(default)
    if isinstance(field, RowsField):
        return [str(item) for item in default] if isinstance(default, list) else None
    return default if isinstance(default, str | int | float) and not isinstance(default, bool) else None


def _is_object(schema: Mapping[str, Any]) -> bool:
    plain = not {"$ref", "oneOf", "anyOf", "allOf", "if"} & set(schema)
    properties = schema.get("properties")
    return plain and isinstance(properties, Mapping) and bool(properties) and schema.get("type", "object") == "object"


def _nullable(schema: Any) -> bool:
    return isinstance(schema, Mapping) and isinstance(schema.get("type"), list) and "null" in schema["type"]


def _field(schema: Mapping[str, Any]) -> tuple[Any, Callable[[Any], Any]]:
    """The field of a schema, and what makes JSON of its value."""
    if {"$ref", "oneOf", "anyOf", "allOf", "if"} & set(schema):
        return JsonField(strip=False, widget=forms.Textarea(attrs={"rows": 3})), _same
    if isinstance(choices := schema.get("enum"), list) and 0 < len(choices) <= 200:
        return forms.TypedChoiceField(choices=[("", "---------"), *_choices(choices)]), decode
    kinds = schema.get("type")
    kind = next((each for each in kinds if each != "null"), None) if isinstance(kinds, list) else kinds
    if kind == "boolean":
        # Unticked is not "no".
        pairs = [("true", _("Yes")), ("false", _("No"))]
        field = forms.TypedChoiceField(choices=pairs, widget=forms.RadioSelect)
        field.yes_no = True  # type: ignore[attr-defined]
        return field, decode
    if kind in ("number", "integer"):
        step = {"step": "1" if kind == "integer" else "any", "inputmode": "decimal"}
        return forms.CharField(widget=forms.NumberInput(attrs=step), max_length=400), _number
    if kind == "string":
        return _string(schema), _same
    if kind == "array" and isinstance(items := schema.get("items"), Mapping):
        inner = items.get("type")
        if inner in ("string", "integer", "number") and "enum" not in items:
            kind = "text" if inner == "string" else "number"
            return RowsField(kind, ABSENT), _same if inner == "string" else _numbers
    return JsonField(strip=False, widget=forms.Textarea(attrs={"rows": 3})), _same


def _string(schema: Mapping[str, Any]) -> forms.CharField:
    kind = _DATES.get(str(schema.get("format")))
    if kind in ("date", "time"):
        return forms.CharField(widget=forms.TextInput(attrs={"type": kind}))
    longest = schema.get("maxLength")
    short = isinstance(longest, int) and longest <= 100
    return forms.CharField(strip=False, widget=forms.TextInput() if short else forms.Textarea(attrs={"rows": 3}))


def _choices(values: list[Any]) -> Iterator[tuple[str, str]]:
    """By their JSON: ``1``, ``"1"`` and ``true`` are three values."""
    for value in values:
        yield encode(value), value if isinstance(value, str) else encode(value)


def _same(value: Any) -> Any:
    return value


def _number(text: str) -> Any:
    value = json.loads(text.strip())
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("no number")
    return value


def _numbers(texts: list[str]) -> list[Any]:
    return [_number(text) for text in texts]
