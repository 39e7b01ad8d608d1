"""A thread as server-sent events: its present, then whatever runs in it. A browser's EventSource reads it as it is.

Law: the thread is looked up inside the caller's scope; a foreign one answers as an unknown one does.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse

from agui_django.access import get_policy
from agui_django.models import Run, Thread
from agui_django.protocol.codec import clean
from agui_django.protocol.errors import InvalidInput, NotFound
from agui_django.runs.database import database_alias, get_pool
from agui_django.runs.feed import follow_thread, nothing_comes
from agui_django.runs.reading import MaySee
from agui_django.transports import requests, sse

#: Milliseconds after which an EventSource comes back, in front of everything else.
RETRY = b": follow\nretry: 1000\n\n"


class Body(sse.Body):
    """The chunks of a feed."""

    async def __anext__(self) -> bytes:
        """The next chunk."""
        chunk = await super().__anext__()
        return RETRY if chunk is sse.OPENING else chunk


@requests.endpoint("GET")
async def thread_events(request: HttpRequest, **_: Any) -> HttpResponseBase:
    """Follow the thread ``?threadId=``, behind the cursor ``Last-Event-ID`` or ``?after=``.

    With ``?until=idle`` the stream ends when nothing runs; 204 where it would have nothing to tell, which also stops an
    EventSource from coming back.
    """
    thread_id = _thread_id(request)
    until_idle = _until_idle(request)
    legacy = requests.wants_legacy(request)
    after = request.headers.get("Last-Event-ID", "") or request.GET.get("after", "")

    def ask() -> tuple[int, MaySee, bool]:
        policy = get_policy()
        caller = policy.enter(request)
        alias = database_alias()
        threads = Thread.objects.using(alias).for_scope(caller.scope).filter(thread_id=thread_id)
        thread = threads.values_list("pk", flat=True).first()
        if thread is None:
            raise NotFound
        may_see = partial(policy.may_see, caller.user)
        latest = Run.objects.using(alias).filter(thread=thread).defer("input", "traceback").order_by("-created_at")
        if not all(map(may_see, latest[:1])):
            raise NotFound
        return thread, may_see, until_idle and bool(after) and nothing_comes(thread, after, may_see)

    thread, may_see, over = await get_pool().run(ask)
    if over:
        response = HttpResponse(status=204)
        response["Cache-Control"] = "no-store"
        return response
    feed = follow_thread(thread, after, legacy=legacy, until_idle=until_idle, may_see=may_see)
    body: Any = Body(feed)
    return StreamingHttpResponse(body, content_type="text/event-stream", headers=sse.HEADERS)


def _thread_id(request: HttpRequest) -> str:
    """The client's id of the thread, cleaned as it was when the thread was stored."""
    value = request.GET.get("threadId")
    if value is None:
        raise InvalidInput("Which thread?", fields=[{"path": "threadId", "message": "is required"}])
    cleaned: str = clean(value)
    return cleaned


def _until_idle(request: HttpRequest) -> bool:
    value = request.GET.get("until", "")
    if value not in ("", "idle"):
        raise InvalidInput("The stream cannot end there.", fields=[{"path": "until", "message": "must be idle"}])
    return value == "idle"
