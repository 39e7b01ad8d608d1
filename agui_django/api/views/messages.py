"""The messages of a thread, and what users think of one."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import HttpResponseBase
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers

from agui_django.api import rows
from agui_django.api.answers import json_answer, nothing
from agui_django.api.base import ListView
from agui_django.api.fields import Text, Whole
from agui_django.api.filters import FeedbackFilters, MessageFilters
from agui_django.api.pagination import Orders
from agui_django.api.schema import operation
from agui_django.api.serializers import FeedbackShape, MessageShape, page_of
from agui_django.models import Feedback, Message
from agui_django.protocol.errors import InvalidInput
from agui_django.runs.feedback import LONGEST, give_feedback, take_back

#: What ``?superseded=`` may say -> which messages are meant.
SUPERSEDED = {"false": True, "true": False, "any": None}


class Messages(ListView):
    """The messages of a thread, in their order."""

    shape = MessageShape
    filters = MessageFilters
    orders = Orders({"order": "order", "createdAt": "created_at"}, "order")
    more = ("superseded",)

    @operation(
        operation_id="messages_list",
        parameters=[
            OpenApiParameter(
                "superseded",
                {"type": "string", "enum": list(SUPERSEDED)},
                description="false (default): the messages in play; true: those that a regenerate or an edit took out.",
            )
        ],
        responses={200: page_of(MessageShape, "Messages")},
    )
    def get(self, pk: int) -> HttpResponseBase:
        """The messages of a thread."""
        thread = self.sight.thread(pk, Message)
        found = self._chosen(Message.objects.using(thread._state.db).filter(thread=thread))
        return self.page(found, prepare=lambda each: each, shown=lambda page: rows.with_feedback(page, self.sight))

    def _chosen(self, found: QuerySet[Message]) -> QuerySet[Message]:
        asked = self.request._request.GET.get("superseded", "false")
        if asked not in SUPERSEDED:
            fields = [{"path": "superseded", "message": "must be false, true or any"}]
            raise InvalidInput("The query is malformed.", fields=fields)
        in_play = SUPERSEDED[asked]
        return found if in_play is None else found.filter(superseded_by__isnull=in_play)


class Opinion(serializers.Serializer[Any]):
    """What somebody thinks of a message."""

    rating = Whole(min_value=-1, max_value=1, help_text="1, -1, or 0 for a text without a thumb.")
    text = Text(max_length=LONGEST, allow_blank=True, required=False)


class AllFeedback(ListView):
    """What users think of messages, the latest first."""

    shape = FeedbackShape
    filters = FeedbackFilters
    orders = Orders({"createdAt": "created_at"}, "-createdAt")

    @operation(operation_id="feedback_list", responses={200: page_of(FeedbackShape, "Feedback")})
    def get(self) -> HttpResponseBase:
        """The caller's own feedback; for staff with the permission to view it, everybody's."""
        return self.page(self.seen(), prepare=lambda each: each, shown=list)

    def seen(self) -> QuerySet[Feedback]:
        """What the caller sees."""
        found, user = self.sight.rows(Feedback), self.sight.caller.user
        if self.sight.beyond("view", Feedback):
            return found
        return found.filter(user=user) if user.is_authenticated else found.none()


class MessageFeedback(AllFeedback):
    """What users think of a message."""

    bodies: ClassVar = ("PUT",)

    @operation(operation_id="messages_feedback_list", responses={200: page_of(FeedbackShape, "Feedback")})
    def get(self, pk: int) -> HttpResponseBase:  # type: ignore[override]
        """The caller's own feedback on it; for staff with the permission to view it, everybody's."""
        message = self._message(pk)
        return self.page(self.seen().filter(message=message), prepare=lambda each: each, shown=list)

    @operation(operation_id="messages_feedback_give", request=Opinion, responses={200: FeedbackShape})
    def put(self, pk: int) -> HttpResponseBase:
        """Say what the caller thinks of it; it replaces what they thought before."""
        message = self._message(pk)
        self.sight.demand(message.thread, "add", Feedback)
        given = self.checked(Opinion)
        made = give_feedback(message, self.sight.caller.user, given["rating"], given.get("text", ""))
        return json_answer(FeedbackShape(made).data)

    @operation(operation_id="messages_feedback_take_back", responses={204: None})
    def delete(self, pk: int) -> HttpResponseBase:
        """Take back what the caller thought of it; again is no error."""
        take_back(self._message(pk), self.sight.caller.user)
        return nothing()

    def _message(self, pk: int) -> Message:
        return self.sight.one(self.sight.rows(Message), pk)
