"""A run's page while it runs: its events as they come, as far as their viewer may read them.

Law: every event goes through the viewer's `Redactor`, and a stream ends when its viewer may not watch any more.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.contrib.auth import get_user_model
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse

from agui_django.admin.rights import Redactor
from agui_django.protocol.errors import InvalidInput
from agui_django.runs.database import get_pool
from agui_django.runs.stream import Entry, Follow
from agui_django.transports import requests, sse

#: Seconds after which a stream asks again whether its viewer may still watch.
AGAIN = 30.0


async def live(request: HttpRequest, run: UUID) -> HttpResponseBase:
    """The run's events as they come, as far as its viewer may read them."""
    if not isinstance(request, ASGIRequest):
        return HttpResponse(status=503)
    try:
        after = requests.cursor_of(request)
    except InvalidInput:
        return HttpResponse(status=400)
    user: Any = request.user
    body: Any = sse.Body(Watched(Follow(run, after), user.pk, Redactor(user)))
    return StreamingHttpResponse(body, content_type="text/event-stream", headers=sse.HEADERS)


class Watched:
    """A run's batches for one viewer of the admin; they end when the viewer may not watch any more.

    Args:
        source: the run.
        user: the viewer's key.
        hide: the viewer's redactor.
    """

    def __init__(self, source: Follow, user: Any, hide: Redactor) -> None:
        """The viewer was asked just now."""
        self._source, self._user, self._hide = source, user, hide
        self._asked = time.monotonic()

    def __aiter__(self) -> Watched:
        """Batches are taken once."""
        return self

    async def __anext__(self) -> Sequence[Entry]:
        """The next batch."""
        batch = await anext(self._source)
        if time.monotonic() - self._asked >= AGAIN:
            hide = await get_pool().read(_still, self._user)
            if hide is None:
                self.close()
                raise StopAsyncIteration
            self._hide, self._asked = hide, time.monotonic()
        return batch if self._hide.content else [(seq, self._hide.event(text), plain) for seq, text, plain in batch]

    def close(self) -> None:
        """The viewer has gone."""
        self._source.close()


def _still(key: Any) -> Redactor | None:
    """What a viewer may read by now; None where they may not watch. In a database thread."""
    user: Any = get_user_model()._default_manager.filter(pk=key, is_active=True).first()
    if user is None or not user.is_staff or not user.has_perm("agui_django.view_run"):
        return None
    return Redactor(user)
