"""The shared state of a thread, and its versions."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from drf_spectacular.utils import OpenApiParameter

from agui_django.agents.registry import get_agent
from agui_django.api import rows
from agui_django.api.answers import JSON
from agui_django.api.base import ApiView, ListView
from agui_django.api.filters import VersionFilters
from agui_django.api.pagination import Orders
from agui_django.api.schema import operation
from agui_django.api.serializers import StateVersionShape, page_of
from agui_django.conf import settings
from agui_django.models import StateVersion, Thread
from agui_django.protocol.errors import InvalidInput, NotFound, PermissionRefused
from agui_django.runs.database import get_pool
from agui_django.runs.editing import aedit_state

PATCH, MERGE = "application/json-patch+json", "application/merge-patch+json"

_TAG = re.compile(r'"[0-9]{1,10}"')

#: The document is the state, whatever it holds.
ANY = {"description": "The state."}

_OPERATIONS = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "op": {"type": "string", "enum": ["add", "remove", "replace", "move", "copy", "test"]},
            "path": {"type": "string"},
            "from": {"type": "string"},
            "value": {},
        },
        "required": ["op", "path"],
    },
}


def state_answer(text: str, version: int, request: HttpRequest | None = None) -> HttpResponse:
    """A state as it is stored; its version is the entity tag, and nothing is sent to who has it."""
    tag = f'"{version}"'
    headers = {"Cache-Control": "no-cache, private", "ETag": tag}
    if request is not None and tag in request.headers.get("If-None-Match", "").replace("W/", "").split(", "):
        return HttpResponse(status=304, headers=headers)
    return HttpResponse(text.encode(), content_type=JSON, headers=headers)


class State(ApiView):
    """The state of a thread."""

    bodies: ClassVar = ("PATCH",)
    media_types = (PATCH, MERGE)

    @operation(operation_id="state_retrieve", responses={200: ANY})
    def get(self, pk: int) -> HttpResponseBase:
        """The state in its latest version, which is the `ETag`; what a run has changed since is not in it yet."""
        thread = self.sight.thread(pk, StateVersion)
        return state_answer(thread.state, thread.state_version, self.request._request)

    @operation(
        operation_id="state_update",
        parameters=[OpenApiParameter("If-Match", str, "header", description="The version that it changes.")],
        request={PATCH: _OPERATIONS, MERGE: {"type": "object", "additionalProperties": True}},
        responses={200: ANY},
    )
    async def patch(self, pk: int) -> HttpResponseBase:
        """Edit the state; a run that is active takes the edit in. Answers with the state of the new version."""
        thread, origin = await get_pool().run(self._may, pk)
        seen = self._if_match()
        declared = (self.request._request.content_type or "").lower()
        given = {"patch": self.data} if declared == PATCH else {"merge": self.data}
        version = await aedit_state(
            thread, user=self.sight.caller.user, if_version=seen, origin=origin, **_checked(given)
        )
        return state_answer(version.state, version.version)

    def _may(self, pk: int) -> tuple[Thread, Literal["staff", "client"]]:
        thread = self.sight.thread(pk, StateVersion)
        if not self.sight.owns(thread):
            self.sight.demand(thread, "change")
            return thread, "staff"
        try:
            policy = settings.for_agent(get_agent(thread.agent), "STATE_POLICY")
        except NotFound:
            policy = settings.STATE_POLICY
        if policy == "server":
            raise PermissionRefused
        return thread, "client"

    def _if_match(self) -> int | None:
        """The version that has to be the current one; None: any."""
        text = self.request._request.headers.get("If-Match", "").strip()
        if text in ("", "*"):
            return None
        # A tag that is none of ours is none of the state's.
        return int(text[1:-1]) if _TAG.fullmatch(text) else -1


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    (value,) = given.values()
    if not isinstance(value, list if "patch" in given else dict):
        message = "must be a list of operations" if "patch" in given else "must be an object"
        raise InvalidInput("The body is malformed.", fields=[{"path": "", "message": message}])
    return given


class StateVersions(ListView):
    """The versions of a thread's state, the latest first."""

    shape = StateVersionShape
    filters = VersionFilters
    orders = Orders({"version": "version", "createdAt": "created_at"}, "-version")

    @operation(operation_id="state_versions_list", responses={200: page_of(StateVersionShape, "StateVersions")})
    def get(self, pk: int) -> HttpResponseBase:
        """The versions of a thread's state."""
        thread = self.sight.thread(pk, StateVersion)
        found = StateVersion.objects.using(thread._state.db).filter(thread=thread)
        return self.page(found, prepare=rows.versions, shown=list)


class OneStateVersion(ApiView):
    """A version of a thread's state."""

    @operation(operation_id="state_versions_retrieve", responses={200: ANY})
    def get(self, pk: int, version: int) -> HttpResponseBase:
        """The state as it was in a version."""
        thread = self.sight.thread(pk, StateVersion)
        found = StateVersion.objects.using(thread._state.db).filter(thread=thread, version=version)
        text = found.values_list("state", flat=True).first()
        if text is None:
            raise NotFound
        return state_answer(text, version, self.request._request)
