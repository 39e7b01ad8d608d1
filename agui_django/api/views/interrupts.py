"""Questions: the inbox, and their answers."""

from __future__ import annotations

from typing import Any, ClassVar

from django.http import HttpResponseBase
from rest_framework import serializers

from agui_django.api import rows
from agui_django.api.answers import json_answer, nothing
from agui_django.api.base import ApiView, ListView
from agui_django.api.fields import Json, Members
from agui_django.api.filters import InterruptFilters
from agui_django.api.pagination import Orders
from agui_django.api.schema import operation
from agui_django.api.serializers import AnsweredShape, InterruptShape, page_of
from agui_django.models import Interrupt
from agui_django.runs.answering import aanswer, aseen
from agui_django.runs.database import get_pool


class Answer(serializers.Serializer[Any]):
    """An answer."""

    status = serializers.ChoiceField(choices=["resolved", "cancelled"], required=False)
    payload = Json(required=False, allow_null=True, help_text="What is answered; it has to fit the responseSchema.")
    metadata = Members(required=False, allow_null=True, help_text="About the answer, no part of it.")


class Interrupts(ListView):
    """Questions, the latest first."""

    shape = InterruptShape
    filters = InterruptFilters
    orders = Orders({"createdAt": "created_at"}, "-createdAt")

    @operation(operation_id="interrupts_list", responses={200: page_of(InterruptShape, "Interrupts")})
    def get(self) -> HttpResponseBase:
        """The questions that the caller sees."""
        return self.page(self.sight.questions(), prepare=rows.interrupts, shown=self.sight.shown_of_runs)


class _InterruptView(ApiView):
    def found(self, pk: int) -> Interrupt:
        """A question that the caller sees. In a database thread."""
        return self.sight.one(self.sight.questions(), pk)


class OneInterrupt(_InterruptView):
    """A question."""

    @operation(operation_id="interrupts_retrieve", responses={200: InterruptShape})
    def get(self, pk: int) -> HttpResponseBase:
        """A question, with what is known of its answer."""
        return json_answer(InterruptShape(self.found(pk)).data)


class AnswerInterrupt(_InterruptView):
    """The answer to a question."""

    bodies: ClassVar = ("POST",)

    @operation(operation_id="interrupts_answer", request=Answer, responses={200: AnsweredShape})
    async def post(self, pk: int) -> HttpResponseBase:
        """Answer a question or give it up. The last answer of a thread starts the run that carries them all."""
        interrupt = await get_pool().run(self.found, pk)
        entry = self.checked(Answer)
        answered = await aanswer(
            interrupt,
            user=self.sight.caller.user,
            status=entry.get("status", "resolved"),
            payload=entry.get("payload"),
            metadata=entry.get("metadata"),
        )
        shown = {"interrupt": answered.interrupt, "complete": answered.complete, "run": answered.run}
        return json_answer(AnsweredShape(shown).data)


class SeenInterrupt(_InterruptView):
    """Somebody looks at a question."""

    @operation(operation_id="interrupts_seen", request=None, responses={204: None})
    async def post(self, pk: int) -> HttpResponseBase:
        """Note that the caller looks at it, so that others see who does."""
        await aseen(await get_pool().run(self.found, pk), self.sight.caller.user)
        return nothing()
