"""A state schema: what every state of an agent must look like.

Law: the JSON value is judged as JSON, strictly: a date is its text, and a text is no number.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from typing import Any

from jsonschema.validators import Draft202012Validator, validator_for
from pydantic import TypeAdapter, ValidationError

from agui_django.protocol.codec import encode
from agui_django.protocol.errors import StateInvalid
from agui_django.protocol.json_patch import escape
from agui_django.protocol.response_schema import described

_MOST_ERRORS = 10


class StateSchema:
    """Checks states against a TypedDict, a pydantic model (or any type pydantic takes) or a JSON Schema.

    Args:
        schema: the type or the JSON Schema.

    Raises:
        TypeError: this cannot be a schema (``typing.TypedDict`` before Python 3.12, a broken JSON Schema).
    """

    def __init__(self, schema: Any) -> None:
        self._adapter: TypeAdapter[Any] | None = None
        try:
            if isinstance(schema, dict):
                cls = validator_for(schema, default=Draft202012Validator)
                cls.check_schema(schema)
                self._validator = cls(schema)
            else:
                self._adapter = _adapter(schema)
        except Exception as error:
            raise TypeError(f"{schema!r} cannot be a state schema: {error}") from error

    def errors(self, value: Any) -> list[dict[str, str]]:
        """What is wrong where, as ``{"path": "/items/0", "message": "..."}``, without what is there; empty: valid."""
        if self._adapter is None:
            found = islice(self._validator.iter_errors(value), _MOST_ERRORS)
            return [described(error) for error in found]
        try:
            self._adapter.validate_json(encode(value), strict=True)
        except ValidationError as error:
            details = error.errors(include_url=False, include_context=False, include_input=False)[:_MOST_ERRORS]
            return [{"path": _pointer(item["loc"]), "message": item["msg"]} for item in details]
        return []

    def check(self, value: Any) -> None:
        """Refuse a state that does not fit.

        Raises:
            StateInvalid: its `fields` say what is wrong where.
        """
        if fields := self.errors(value):
            first = fields[0]
            raise StateInvalid(
                f"The state does not fit its schema at {first['path'] or 'the root'}: {first['message']}",
                fields=fields,
            )


def _pointer(steps: Any) -> str:
    return "".join("/" + escape(str(step)) for step in steps)


@lru_cache(maxsize=256)
def _adapter(schema: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema)
