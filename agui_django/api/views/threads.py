"""Threads: listed, looked at, renamed, archived, forked, deleted; and their branches."""

from __future__ import annotations

from typing import Any, ClassVar
from uuid import UUID

from django.db.models import QuerySet
from django.http import HttpResponse, HttpResponseBase
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers

from agui_django.api import rows
from agui_django.api.answers import json_answer, nothing
from agui_django.api.base import ApiView, ListView
from agui_django.api.fields import Text, YesNo
from agui_django.api.filters import ThreadFilters
from agui_django.api.pagination import Orders
from agui_django.api.schema import operation
from agui_django.api.serializers import PointsShape, RunShape, ThreadShape, page_of
from agui_django.models import ID_LENGTH, Message, Run, Thread
from agui_django.protocol.errors import NotFound
from agui_django.runs import branches, forking, keeping
from agui_django.runs.database import get_pool, transact
from agui_django.runs.searching import search


class ThreadChange(serializers.Serializer[Any]):
    """What of a thread can be changed."""

    title = Text(max_length=ID_LENGTH, allow_blank=True, required=False)
    archived = YesNo(required=False)


class Fork(serializers.Serializer[Any]):
    """Where a thread is forked."""

    messageId = Text(help_text="The last message that the fork begins with.")
    threadId = Text(max_length=ID_LENGTH, required=False, help_text="The fork's id; a new one where it is left out.")


class Threads(ListView):
    """Threads, the ones with the latest news first."""

    shape = ThreadShape
    filters = ThreadFilters
    orders = Orders({"updatedAt": "updated_at", "createdAt": "created_at"}, "-updatedAt")
    more = ("search",)

    @operation(
        operation_id="threads_list",
        parameters=[OpenApiParameter("search", str, description="Words of the title or of a message.")],
        responses={200: page_of(ThreadShape, "Threads")},
    )
    def get(self) -> HttpResponseBase:
        """The threads that the caller sees."""
        text = self.request._request.GET.get("search", "")
        return self.page(self._searched(text), prepare=rows.threads, shown=lambda page: self._matched(page, text))

    def _searched(self, text: str) -> QuerySet[Thread]:
        threads = self.sight.rows(Thread)
        if not text:
            return threads
        if not self.sight.beyond("view", Message):
            # Whoever may not read messages must not find them by their words.
            threads = threads.filter(scope=self.sight.caller.scope)
        return search(threads, text)

    def _matched(self, page: list[Thread], text: str) -> list[Any]:
        return rows.with_matches(self.sight.shown_threads(page), text)


class _ThreadView(ApiView):
    def may(self, pk: int, action: str) -> Thread:
        """A thread that the caller may do this to. In a database thread."""
        thread = self.sight.thread(pk)
        self.sight.demand(thread, action)
        return thread

    def reason(self, thread: Thread) -> str:
        """As whom the caller acts."""
        return "user" if self.sight.owns(thread) else "staff"

    def shown(self, thread: Thread, status: int = 200) -> HttpResponse:
        """The thread as it is now. In a database thread."""
        found = rows.threads(Thread.objects.using(thread._state.db).filter(pk=thread.pk))
        if not (now := rows.with_matches(found)):
            raise NotFound  # deleted meanwhile
        return json_answer(ThreadShape(now[0]).data, status)


class OneThread(_ThreadView):
    """A thread."""

    bodies: ClassVar = ("PATCH",)

    @operation(operation_id="threads_retrieve", responses={200: ThreadShape})
    def get(self, pk: int) -> HttpResponseBase:
        """A thread."""
        return self.shown(self.sight.thread(pk))

    @operation(operation_id="threads_update", request=ThreadChange, responses={200: ThreadShape})
    def patch(self, pk: int) -> HttpResponseBase:
        """Rename it, archive it or take it out again; an empty title makes it the first message again."""
        thread = self.may(pk, "change")
        change = self.checked(ThreadChange)
        transact(_change, thread, change)
        return self.shown(thread)

    @operation(operation_id="threads_delete", responses={204: None})
    async def delete(self, pk: int) -> HttpResponseBase:
        """Delete it with everything in it; what runs is cancelled first."""
        thread = await get_pool().run(self.may, pk, "delete")
        await keeping.adelete(thread, reason=self.reason(thread))
        return nothing()


def _change(thread: Thread, change: dict[str, Any]) -> None:
    if "title" in change:
        keeping.rename(thread, change["title"])
    if "archived" in change:
        keeping.archive(thread, change["archived"])


class Branches(ApiView):
    """Where a conversation went on in several ways."""

    @operation(operation_id="threads_branches", responses={200: PointsShape})
    def get(self, pk: int) -> HttpResponseBase:
        """The messages behind which there are branches."""
        found = branches.branches(self.sight.thread(pk, Message))
        return json_answer(PointsShape({"results": found}).data)


class RestoreBranch(_ThreadView):
    """A branch that comes back."""

    @operation(operation_id="threads_branches_restore", request=None, responses={200: RunShape})
    async def post(self, pk: int, run: UUID) -> HttpResponseBase:
        """Bring a branch back into play; what stood there becomes a branch. Answers with the run that records it."""
        thread = await get_pool().run(self.may, pk, "change")
        made = await branches.arestore(thread, run, user=self.sight.caller.user)
        return await get_pool().run(_run, made)


def _run(made: Run) -> HttpResponse:
    return json_answer(RunShape(rows.runs(Run.objects.using(made._state.db).filter(pk=made.pk)).get()).data)


class ForkThread(_ThreadView):
    """A thread that begins with another one's history."""

    bodies: ClassVar = ("POST",)

    @operation(operation_id="threads_fork", request=Fork, responses={201: ThreadShape})
    def post(self, pk: int) -> HttpResponseBase:
        """Make a thread with the messages up to one of these."""
        thread = self.may(pk, "add")
        asked = self.checked(Fork)
        made = forking.fork(
            thread, asked["messageId"], user=self.sight.caller.user, thread_id=asked.get("threadId", "")
        )
        response = self.shown(made, 201)
        prefix = self.request._request.path.rpartition(f"{pk}/fork")[0]
        response["Location"] = f"{prefix}{made.pk}"
        return response
