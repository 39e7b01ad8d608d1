"""The fields of answers: wire values, moments, users' keys."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from django.contrib.auth import get_user_model
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from agui_django.api.answers import wire
from agui_django.protocol.codec import decode, encode


@extend_schema_field({"description": "As it is stored."})
class Wire(serializers.Field[Any, Any, Any, Any]):
    """A stored wire text, as the JSON that it is; null where there is none."""

    def __init__(self, **options: Any) -> None:
        super().__init__(read_only=True, **options)

    def to_representation(self, value: str) -> Any:
        """The text, as a part of the answer."""
        return wire(value)


@extend_schema_field({"type": "object", "additionalProperties": True})
class WireObject(Wire):
    """The same, where it is an object."""


@extend_schema_field({"type": ["object", "null"], "additionalProperties": True})
class WireObjectOrNull(Wire):
    """The same, where it may be missing."""


@extend_schema_field(
    {
        "type": ["object", "null"],
        "properties": {
            "interruptId": {"type": "string"},
            "status": {"type": "string", "enum": ["resolved", "cancelled"]},
            "payload": {},
            "metadata": {"type": "object", "additionalProperties": True},
            "by": {"type": ["integer", "string", "null"], "description": "The user who gave it; null: the site."},
            "at": {"type": "string", "format": "date-time"},
        },
    }
)
class DraftOrNull(Wire):
    """An answer that waits, with the key of who gave it and the moment as other rows have them."""

    def to_representation(self, value: str) -> Any:
        """The text, as a part of the answer."""
        if not value:
            return None
        entry = decode(value)
        by = entry["by"]
        entry["by"] = by if by is None else Key().to_representation(get_user_model()._meta.pk.to_python(by))
        entry["at"] = Moment().to_representation(datetime.fromisoformat(entry["at"]))
        return wire(encode(entry))


@extend_schema_field({"type": ["integer", "string"]})
class Key(serializers.Field[Any, Any, Any, Any]):
    """A user's key, of whatever type the site's are."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"read_only": True, "allow_null": True, **options})

    def to_representation(self, value: Any) -> Any:
        """A number as it is, anything else as text."""
        return value if isinstance(value, int) else str(value)


class Moment(serializers.DateTimeField):
    """A moment in UTC."""

    def __init__(self, **options: Any) -> None:
        super().__init__(read_only=True, default_timezone=UTC, **options)


# ---- what is read: JSON's own types, nothing that merely looks like them --------------------------------------------


class Text(serializers.CharField):
    """A text, with its spaces."""

    def __init__(self, **options: Any) -> None:
        super().__init__(trim_whitespace=False, **options)

    def to_internal_value(self, data: Any) -> str:
        """A text as it is."""
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)


class YesNo(serializers.BooleanField):
    """True or false."""

    def to_internal_value(self, data: Any) -> bool:
        """A boolean as it is."""
        if not isinstance(data, bool):
            self.fail("invalid", input="")
        return data


class Whole(serializers.IntegerField):
    """A number without a fraction."""

    def to_internal_value(self, data: Any) -> int:
        """An integer as it is."""
        if type(data) is not int:
            self.fail("invalid")
        return super().to_internal_value(data)


@extend_schema_field({})
class Json(serializers.Field[Any, Any, Any, Any]):
    """Any JSON, as it is."""

    def to_internal_value(self, data: Any) -> Any:
        """It has been read already."""
        return data


@extend_schema_field({"type": "object", "additionalProperties": True})
class Members(serializers.Field[Any, Any, Any, Any]):
    """A JSON object, as it is."""

    default_error_messages: ClassVar = {"invalid": "must be an object"}

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        """An object."""
        if not isinstance(data, dict):
            self.fail("invalid")
        return data
