"""Threads: listed, looked at, renamed, archived, deleted."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import HttpResponseBase
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers

from agui_django.api import rows
from agui_django.api.answers import json_answer
from agui_django.api.base import ApiView, ListView
from agui_django.api.filters import ThreadFilters
from agui_django.api.pagination import Orders
from agui_django.api.serializers import ThreadShape, page_of
from agui_django.models import ID_LENGTH, Thread


class ThreadChange(serializers.Serializer[Any]):
    """What of a thread can be changed."""

    title = serializers.CharField(max_length=ID_LENGTH, allow_blank=True, required=False)
    archived = serializers.BooleanField(required=False)


class Threads(ListView):
    """Threads, the ones with the latest news first."""

    shape = ThreadShape
    filters = ThreadFilters
    orders = Orders({"updatedAt": "updated_at", "createdAt": "created_at"}, "-updatedAt")
    more = ("search",)

    @extend_schema(
        operation_id="threads_list",
        parameters=[OpenApiParameter("search", str, description="Words of the title or of a message.")],
        responses={200: page_of(ThreadShape, "Threads")},
    )
    def get(self) -> HttpResponseBase:
        """The threads that the caller sees."""
        return self.page(self._searched(), prepare=rows.threads, shown=self.sight.shown_threads)

    def _searched(self) -> QuerySet[Thread]:
        return self.sight.rows(Thread)


class OneThread(ApiView):
    """A thread."""

    bodies: ClassVar = {"PATCH": ThreadChange}

    @extend_schema(operation_id="threads_retrieve", responses={200: ThreadShape})
    def get(self, pk: int) -> HttpResponseBase:
        """A thread."""
        return self._shown(self.sight.thread(pk))

    def _shown(self, thread: Thread) -> HttpResponseBase:
        return json_answer(ThreadShape(rows.threads(Thread.objects.using(thread._state.db)).get(pk=thread.pk)).data)
