"""Questions: the inbox, and their answers."""

from __future__ import annotations

from django.http import HttpResponseBase
from drf_spectacular.utils import extend_schema

from agui_django.api import rows
from agui_django.api.answers import json_answer
from agui_django.api.base import ApiView, ListView
from agui_django.api.filters import InterruptFilters
from agui_django.api.pagination import Orders
from agui_django.api.serializers import InterruptShape, page_of
from agui_django.models import Interrupt


class Interrupts(ListView):
    """Questions, the latest first."""

    shape = InterruptShape
    filters = InterruptFilters
    orders = Orders({"createdAt": "created_at"}, "-createdAt")

    @extend_schema(operation_id="interrupts_list", responses={200: page_of(InterruptShape, "Interrupts")})
    def get(self) -> HttpResponseBase:
        """The questions that the caller sees."""
        return self.page(self.sight.rows(Interrupt), prepare=rows.interrupts, shown=self.sight.shown_of_runs)


class OneInterrupt(ApiView):
    """A question."""

    @extend_schema(operation_id="interrupts_retrieve", responses={200: InterruptShape})
    def get(self, pk: int) -> HttpResponseBase:
        """A question, with what is known of its answer."""
        return json_answer(InterruptShape(self.sight.one(self.sight.rows(Interrupt), pk)).data)
