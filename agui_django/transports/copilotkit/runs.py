"""CopilotKit's run, connect, stop and suggest.

Law: a run is started, followed and stopped as everywhere; a thread that is not the caller's is one that there is not.
Clients up to 1.75 drop the rest of a stream, silently, at the first event they cannot parse: they are sent the shape
of 0.x, unless a request says that it knows better.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from django.http import HttpResponseBase

from agui_django.access import Verdict, get_policy
from agui_django.agents.registry import get_agent
from agui_django.models import Run, RunEvents, Thread
from agui_django.protocol.codec import clean, decode
from agui_django.protocol.errors import AgUiError, Draining, InvalidInput, PermissionRefused
from agui_django.protocol.run_input import RunInput
from agui_django.runs import supervisor
from agui_django.runs.database import database_alias, get_pool
from agui_django.runs.engine import get_engine
from agui_django.runs.feed import Feed, follow_thread
from agui_django.runs.stream import Frame
from agui_django.runs.unstored import Asker, Unstored, prepare
from agui_django.transports import requests, sse, starts
from agui_django.transports.copilotkit import threads
from agui_django.transports.copilotkit.calls import Call, refused
from agui_django.transports.shown import is_terminal

#: The tool that a suggestion run is made to call.
SUGGEST = "copilotkitSuggest"
#: The CUSTOM event by which older agents ask, and in how many of the last batches of a log it is looked for.
QUESTION, BATCHES = "on_interrupt", 3


async def run(call: Call, agent: str) -> HttpResponseBase:
    """Start a run and stream it; a repeat of a known request streams the run that it started."""
    if supervisor.draining():
        raise Draining
    request, name = call.request, await call.mount.agent(agent)
    body = await _body(call, name)
    if SUGGEST.encode() in body and (response := await _suggestion(call, name, body)) is not None:
        return response
    start, run_input = await starts.begin(request, name, lambda: body, "copilotkit", attachments=call.attachments)
    opened = await start.opened()
    starts.log_warnings(opened, run_input)
    on_leave = None if opened.run is None else start.leave
    return sse.stream_response(starts.batches(opened, legacy=run_input.legacy), on_leave=on_leave)


async def connect(call: Call, agent: str) -> HttpResponseBase:
    """A thread's present, and what runs in it until nothing does; without a frame where the thread is not known."""
    if supervisor.draining():
        raise Draining  # feeds end now: the thread would look as if it were empty
    request, name = call.request, await call.mount.agent(agent)
    try:
        run_input = await starts.parsed(await call.body(), files_inside=True)
    except AgUiError:
        await starts.admit(request, name)
        raise

    def ask() -> tuple[Verdict, Any, Thread | None, tuple[str, str] | None]:
        policy = get_policy()
        caller = policy.enter(request)
        verdict = policy.may_run(caller.user, get_agent(name))
        found = threads.find(policy, caller, run_input.thread_id)
        return verdict, caller.user, found, None if found is None else _asked(found)

    verdict, user, thread, asked = await get_pool().run(ask)
    if not await starts.settled(verdict):
        raise PermissionRefused
    if thread is None:
        return sse.stream_response(_nothing())
    may_see = partial(get_policy().may_see, user)
    feed = follow_thread(thread.pk, legacy=run_input.legacy, until_idle=True, may_see=may_see)
    return sse.stream_response(feed if asked is None else Asking(feed, *asked))


async def stop(call: Call, agent: str, thread: str) -> HttpResponseBase:
    """Ask what runs in a thread to stop; that nothing does is no error. Its stream ends with the run."""
    name = await call.mount.agent(agent)
    caller = await call.enter()
    members = await call.members()
    run_id = members.get("runId")
    if set(members) - {"runId"} or not isinstance(run_id, str | None):
        return refused(400, "Invalid stop request", "A stop request may name a runId, and nothing else.")

    def ask() -> Run | None:
        policy = get_policy()
        get_agent(name)
        found = threads.find(policy, caller, clean(thread))
        if found is None:
            return None
        runs = Run.objects.using(database_alias()).filter(thread=found).select_related("thread")
        if run_id is None:
            running = runs.active().first()
        else:
            alive = runs.filter(run_id=clean(run_id), status__in=[Run.Status.QUEUED, *Run.ACTIVE])
            running = alive.order_by("-created_at").first()
        if running is None or not policy.may_see(caller.user, running):
            return None
        if not policy.may_cancel(caller.user, running):
            raise PermissionRefused
        return running

    running = await get_pool().run(ask)
    if running is None or not await get_engine().cancel(running.pk, "user"):
        which = "No active run for this thread." if run_id is None else "This run is not active in this thread."
        return requests.json_response({"stopped": False, "message": which})
    interrupt = {"type": "RUN_ERROR", "message": "Run stopped by user", "code": "STOPPED"}
    return requests.json_response({"stopped": True, "interrupt": interrupt})


async def suggest(call: Call, agent: str) -> HttpResponseBase:
    """Run an agent for suggestions; nothing of it is stored."""
    if supervisor.draining():
        raise Draining
    name = await call.mount.agent(agent)
    body = await _body(call, name)
    response = await _suggestion(call, name, body)
    if response is None:
        await starts.admit(call.request, name)
        message = f"must hold {SUGGEST}, and nothing else"
        raise InvalidInput(fields=[{"path": "/tools", "message": message}])
    return response


class Asking:
    """A thread's feed with a question of the older kind in front of the end of the run that asked it.

    Args:
        feed: the feed.
        run: that run's address.
        question: wire text of its CUSTOM event, which nothing but the run's log knows.
    """

    def __init__(self, feed: Feed, run: str, question: str) -> None:
        self._feed = feed
        self._run = run
        self._question = question

    def close(self) -> None:
        """Stop watching."""
        self._feed.close()

    def __aiter__(self) -> Asking:
        """Batches are taken once."""
        return self

    async def __anext__(self) -> Sequence[Frame]:
        """The next batch."""
        batch = await anext(self._feed)
        if self._question and batch:
            # Restated at rest, the last frame is the run's end and names its place. In any other case it has gone on.
            if str(batch[-1][0]).startswith(self._run) and is_terminal(batch[-1][1]):
                batch = [*batch[:-1], (0, self._question, True), batch[-1]]
            self._question = ""
        return batch


# ---- parts ----------------------------------------------------------------------------------------------------------


async def _body(call: Call, name: str) -> bytes:
    """The body; what is wrong with it is told only to those who may run the agent."""
    try:
        return await call.body()
    except AgUiError:
        await starts.admit(call.request, name)
        raise


async def _suggestion(call: Call, name: str, body: bytes) -> HttpResponseBase | None:
    """The answer to a request for suggestions; None where it is none."""
    try:
        run_input = await starts.parsed(body, files_inside=True)
    except AgUiError:
        await starts.admit(call.request, name)
        raise
    if not _wants_suggestions(run_input):
        return None
    caller, entry = await starts.admit(call.request, name)
    may_see = partial(get_policy().may_see, caller.user)
    user = caller.user if getattr(caller.user, "is_authenticated", False) else None
    asker = Asker(user, caller.scope, dict(caller.extra), may_see)
    setup = await get_pool().run(prepare, entry, run_input, asker)
    return sse.stream_response(Unstored(entry, setup, legacy=run_input.legacy))


def _wants_suggestions(run_input: RunInput) -> bool:
    """Whether a request is CopilotKit's for suggestions, which older clients send as a run of a throw-away thread."""
    return [tool["name"] for tool in run_input.data["tools"]] == [SUGGEST]


def _asked(thread: Thread) -> tuple[str, str] | None:
    """The question of the older kind that a thread's latest run ended with: its address and the event's wire text."""
    runs = Run.objects.using(database_alias()).filter(thread=thread).order_by("-created_at")
    key, status = runs.values_list("pk", "status").first() or (None, "")
    if status != Run.Status.FINISHED:
        return None
    # What asks ends: it stands in one of the last batches of the log.
    last = RunEvents.objects.using(database_alias()).filter(run=key).order_by("-first_seq")
    for text in last.values_list("text", flat=True)[:BATCHES]:
        for line in reversed(text.split("\n")):
            if QUESTION in line and (event := decode(line))["type"] == "CUSTOM" and event.get("name") == QUESTION:
                return str(key), line
    return None


async def _nothing() -> AsyncIterator[Sequence[Frame]]:
    none: tuple[Sequence[Frame], ...] = ()
    for batch in none:
        yield batch
