"""The OpenAPI description of the views (drf-spectacular), with what only this app knows of them.

Law: nothing here is asked at run time but by the addresses ``schema`` and ``docs``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter, extend_schema

from agui_django.api.pagination import MOST
from agui_django.api.serializers import ErrorShape

H = TypeVar("H", bound=Callable[..., Any])

_PAGE = (
    OpenApiParameter("cursor", str, description="Of another page's `next` or `previous`."),
    OpenApiParameter(
        "limit", {"type": "integer", "minimum": 1, "maximum": MOST}, description="How many; 50 where it is left out."
    ),
)


class Schema(AutoSchema):
    """Describes a view of this API: its filters, its pages, its errors."""

    def is_excluded(self) -> bool:
        """Each address is told once, without the slash at its end."""
        return bool(super().is_excluded() or self.path.endswith("/"))

    def get_serializer_name(self, serializer: Any, direction: Any) -> str:
        """`ThreadShape` is called Thread."""
        return str(super().get_serializer_name(serializer, direction)).removesuffix("Shape")

    def get_tags(self) -> list[str]:
        """The thing that a view is about."""
        return [self.view.__class__.__module__.rpartition(".")[2]]

    def get_override_parameters(self) -> list[Any]:
        """The query parameters of a list."""
        found = list(super().get_override_parameters())
        orders, filters = getattr(self.view, "orders", None), getattr(self.view, "filters", None)
        if self.method != "GET" or orders is None or filters is None:
            return found
        ordering = {"type": "string", "enum": orders.choices}
        found += [*_PAGE, OpenApiParameter("ordering", ordering, description=f"`{orders.default}` by default.")]
        for name, each in filters.base_filters.items():
            found.append(
                OpenApiParameter(
                    name,
                    each._spectacular_annotation["field"],
                    description=str(each.extra.get("help_text", "")),
                    style="form" if getattr(each, "base_field_class", None) else None,
                    explode=False if getattr(each, "base_field_class", None) else None,
                )
            )
        return found

    def _get_response_bodies(self, direction: Any = "response") -> Any:
        bodies = super()._get_response_bodies(direction)
        if direction == "response":
            told: Any = self._get_response_for_code
            bodies["4XX"] = bodies["5XX"] = told(ErrorShape, "4XX", ["application/json"])
        return bodies


def operation(**told: Any) -> Callable[[H], H]:
    """``extend_schema`` for a handler, whatever the site's ``DEFAULT_SCHEMA_CLASS`` is."""

    def decorate(handler: H) -> H:
        handler.kwargs = {"schema": Schema}  # type: ignore[attr-defined]
        return extend_schema(**told)(handler)

    return decorate
