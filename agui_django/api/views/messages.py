"""The messages of a thread, and what users think of one."""

from __future__ import annotations

from django.db.models import QuerySet
from django.http import HttpResponseBase
from drf_spectacular.utils import OpenApiParameter, extend_schema

from agui_django.api import rows
from agui_django.api.base import ListView
from agui_django.api.filters import MessageFilters
from agui_django.api.pagination import Orders
from agui_django.api.serializers import MessageShape, page_of
from agui_django.models import Message
from agui_django.protocol.errors import InvalidInput

#: What ``?superseded=`` may say -> which messages are meant.
SUPERSEDED = {"false": True, "true": False, "any": None}


class Messages(ListView):
    """The messages of a thread, in their order."""

    shape = MessageShape
    filters = MessageFilters
    orders = Orders({"order": "order", "createdAt": "created_at"}, "order")
    more = ("superseded",)

    @extend_schema(
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
