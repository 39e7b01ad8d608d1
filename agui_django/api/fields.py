"""The fields of answers: wire values, moments, users' keys."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from agui_django.api.answers import wire


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


@extend_schema_field({"type": ["integer", "string", "null"]})
class Key(serializers.Field[Any, Any, Any, Any]):
    """A user's key, of whatever type the site's are."""

    def __init__(self, **options: Any) -> None:
        super().__init__(read_only=True, allow_null=True, **options)

    def to_representation(self, value: Any) -> Any:
        """A number as it is, anything else as text."""
        return value if isinstance(value, int) else str(value)


class Moment(serializers.DateTimeField):
    """A moment in UTC."""

    def __init__(self, **options: Any) -> None:
        super().__init__(read_only=True, default_timezone=UTC, **options)
