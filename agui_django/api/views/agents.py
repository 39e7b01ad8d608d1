"""The agents that a caller may run."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponseBase
from django.urls import NoReverseMatch, reverse

from agui_django.agents.registry import AgentEntry, all_agents
from agui_django.api.answers import json_answer
from agui_django.api.base import ApiView
from agui_django.api.schema import operation
from agui_django.api.serializers import AgentShape, page_of
from agui_django.runs.database import get_pool
from agui_django.transports.starts import settled
from agui_django.transports.views import described


class Agents(ApiView):
    """The agents."""

    @operation(operation_id="agents_list", responses={200: page_of(AgentShape, "Agents")})
    async def get(self) -> HttpResponseBase:
        """The agents that the caller may run."""
        policy, user = self.sight.policy, self.sight.caller.user
        asked = await get_pool().run(lambda: [(entry, policy.may_run(user, entry)) for entry in all_agents()])
        found = [_shown(entry) for entry, verdict in asked if await settled(verdict)]
        return json_answer({"results": found, "next": None, "previous": None})


def _shown(entry: AgentEntry) -> dict[str, Any]:
    try:
        url = reverse("agui_django:agent", args=[entry.name])
    except NoReverseMatch:  # the site does not include the agents' own addresses, or with parameters
        url = None
    return described(entry, url)
