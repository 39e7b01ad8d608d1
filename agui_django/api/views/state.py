"""The shared state of a thread, and its versions."""

from __future__ import annotations

from django.http import HttpResponse, HttpResponseBase
from drf_spectacular.utils import extend_schema

from agui_django.api import rows
from agui_django.api.answers import JSON
from agui_django.api.base import ApiView, ListView
from agui_django.api.filters import VersionFilters
from agui_django.api.pagination import Orders
from agui_django.api.serializers import StateVersionShape, page_of
from agui_django.models import StateVersion
from agui_django.protocol.errors import NotFound


def state_answer(text: str, version: int) -> HttpResponse:
    """A state as it is stored; its version is the entity tag."""
    headers = {"Cache-Control": "no-cache, private", "ETag": f'"{version}"'}
    return HttpResponse(text.encode(), content_type=JSON, headers=headers)


class State(ApiView):
    """The state of a thread."""

    @extend_schema(operation_id="state_retrieve", responses={200: {"description": "The state."}})
    def get(self, pk: int) -> HttpResponseBase:
        """The state as it is now; `ETag` is its version."""
        thread = self.sight.thread(pk, StateVersion)
        return state_answer(thread.state, thread.state_version)


class StateVersions(ListView):
    """The versions of a thread's state, the latest first."""

    shape = StateVersionShape
    filters = VersionFilters
    orders = Orders({"version": "version", "createdAt": "created_at"}, "-version")

    @extend_schema(operation_id="state_versions_list", responses={200: page_of(StateVersionShape, "StateVersions")})
    def get(self, pk: int) -> HttpResponseBase:
        """The versions of a thread's state."""
        thread = self.sight.thread(pk, StateVersion)
        found = StateVersion.objects.using(thread._state.db).filter(thread=thread)
        return self.page(found, prepare=rows.versions, shown=list)


class OneStateVersion(ApiView):
    """A version of a thread's state."""

    @extend_schema(operation_id="state_versions_retrieve", responses={200: {"description": "The state."}})
    def get(self, pk: int, version: int) -> HttpResponseBase:
        """The state as it was in a version."""
        thread = self.sight.thread(pk, StateVersion)
        found = StateVersion.objects.using(thread._state.db).filter(thread=thread, version=version)
        text = found.values_list("state", flat=True).first()
        if text is None:
            raise NotFound
        return state_answer(text, version)
