"""One call of CopilotKit's protocol, whichever of its transports brought it, and how its errors are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from django.http import HttpRequest, HttpResponseBase, QueryDict
from django.utils.encoding import escape_uri_path

from agui_django.access import Caller, get_policy
from agui_django.agents.registry import all_agents
from agui_django.conf import settings
from agui_django.protocol.codec import decode, encode
from agui_django.protocol.errors import AgUiError, BodyTooLarge, InvalidInput
from agui_django.runs.database import get_pool
from agui_django.transports import requests, starts

Handler = Callable[..., Coroutine[Any, Any, HttpResponseBase]]

#: The agent that CopilotKit's components ask for when they are not told another one.
DEFAULT: Final = "default"


@dataclass(frozen=True)
class Mount:
    """What one mount was told; None: the setting counts."""

    default_agent: str | None = None
    license_status: str | None = None

    def alias(self) -> str | None:
        """The registered agent that answers as ``default``, where that is another one; in a database thread.

        The one that the site names, else none where an agent has that very name, else the only one there is.
        """
        named = self.default_agent or settings.COPILOTKIT_DEFAULT_AGENT
        if named is None:
            names = [entry.name for entry in all_agents()]
            named = names[0] if len(names) == 1 else DEFAULT
        return None if named == DEFAULT else named

    async def agent(self, agent_id: str) -> str:
        """The registered name behind an id of CopilotKit's."""
        if agent_id != DEFAULT:
            return agent_id
        found: str | None = await get_pool().run(self.alias)
        return found or DEFAULT

    @property
    def licence(self) -> str | None:
        """What ``/info`` says of a licence; None: nothing."""
        found: str | None = self.license_status or settings.COPILOTKIT_LICENSE_STATUS
        return found


@dataclass(frozen=True)
class Call:
    """A call.

    Attributes:
        request: what carries it.
        mount: where it arrived.
        prefix: the mount's path, with a slash at its end.
        query: what stands behind the path's question mark.
        enveloped: whether the single-route transport brought it.
        content: the body that its envelope held; None: none.
    """

    request: HttpRequest
    mount: Mount
    prefix: str
    query: QueryDict
    enveloped: bool = False
    content: Any = None

    @property
    def attachments(self) -> str:
        """What clients find in front of an attachment's id."""
        return f"{escape_uri_path(self.prefix)}attachments/"

    async def body(self, *, required: bool = True) -> bytes:
        """The body; empty where there is none and none is required.

        Raises:
            UnsupportedMediaType: it is no JSON.
            BodyTooLarge: it is longer than ``MAX_BODY``.
        """
        if not self.enveloped:
            requests.check_content_type(self.request, required=required)
            return await starts.body_of(self.request, partial(requests.read_body, self.request))
        if self.content is None:
            return b""
        return await asyncio.get_running_loop().run_in_executor(None, lambda: encode(self.content).encode())

    async def members(self) -> dict[str, Any]:
        """The members of the body, which may be missing. The caller has been asked for.

        Raises:
            As `body`, at a smaller size; InvalidJson and InvalidInput: it is no JSON object.
        """
        body = await self.body(required=False)
        if len(body) > starts.LARGE:
            raise BodyTooLarge
        value = decode(body) if body.strip() else {}
        if not isinstance(value, dict):
            raise InvalidInput(fields=[{"path": "", "message": "must be an object"}])
        return value

    async def enter(self) -> Caller:
        """Who calls; raises as `AccessPolicy.enter`."""
        return await get_pool().run(get_policy().enter, self.request)


def told(error: AgUiError, reference: str) -> tuple[int, dict[str, Any]]:
    """What CopilotKit's clients are told of an error: ``error`` and ``message`` are texts."""
    status = error.status
    name = {400: "Invalid request body", 404: "Not found", 422: "Invalid request body"}.get(status, error.code)
    body: dict[str, Any] = {"error": name, "message": str(error.message), "code": error.code, "reference": reference}
    if error.fields:
        body["details"] = error.fields
    # The reference runtime knows 422 as "there is no such thing here", which some of its clients keep quiet about.
    return 400 if status == 422 else status, body


def refused(status: int, error: str, message: str, **more: Any) -> HttpResponseBase:
    """An answer of CopilotKit's own: what is not served here, or no envelope."""
    return requests.json_response({"error": error, "message": message, **more}, status)
