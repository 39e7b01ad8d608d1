"""CopilotKit's threads: listed, named, put away, deleted, inspected; and opinions on messages.

Law: ids are the client's own, looked up inside the caller's scope: a foreign one answers as an unknown one does. What
is changed is committed before the answer begins, for clients leave behind the headers.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Q
from django.http import HttpResponse, HttpResponseBase

from agui_django.access import AccessPolicy, Caller, get_policy
from agui_django.models import Feedback, Message, Run, Thread
from agui_django.protocol.codec import clean, decode
from agui_django.protocol.errors import CursorGone, InvalidCursor, InvalidInput, NotFound
from agui_django.runs import feedback, keeping
from agui_django.runs.database import database_alias, get_pool, transact
from agui_django.runs.stream import read_entries, shaped
from agui_django.transports import requests
from agui_django.transports.copilotkit.calls import DEFAULT, Call, refused

#: Threads of a page: by default, and at most.
LIMIT, MOST = 50, 200
#: What the inspector is shown of a thread's log: the events of so many runs, the latest, and about so many characters.
RUNS, CHARACTERS = 50, 4 * 1024 * 1024
#: Opinions as pages write them.
RATINGS = {"up": 1, "thumbs_up": 1, "positive": 1, "down": -1, "thumbs_down": -1, "negative": -1}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def find(policy: AccessPolicy, caller: Caller, thread_id: str) -> Thread | None:
    """A thread of the caller's, by the client's id; None where they see none. In a database thread."""
    alias = database_alias()
    found = Thread.objects.using(alias).for_scope(caller.scope).filter(thread_id=thread_id).first()
    return found if found is not None and _sees(policy, caller, found) else None


async def listed(call: Call) -> HttpResponseBase:
    """A page of the caller's threads, the ones with the latest news first."""
    query = call.query
    agent_id = query.get("agentId", "")
    archived = query.get("includeArchived", "") in ("true", "1")

    def ask() -> tuple[list[Thread], str | None, str | None]:
        policy = get_policy()
        caller = policy.enter(call.request)
        limit, after = _limit(query.get("limit", "")), _place(query.get("cursor", ""))
        alias = call.mount.alias()
        rows = Thread.objects.using(database_alias()).for_scope(caller.scope).defer("state", "metadata")
        if agent_id:
            rows = rows.filter(agent=alias or DEFAULT if agent_id == DEFAULT else clean(agent_id))
        if not archived:
            rows = rows.filter(archived=False)
        if after is not None:
            moment, key = after
            rows = rows.filter(updated_at__lte=moment).filter(Q(updated_at__lt=moment) | Q(pk__lt=key))
        page = list(rows.order_by("-updated_at", "-pk")[: limit + 1])
        more = _written(page[limit - 1]) if len(page) > limit else None
        return [thread for thread in page[:limit] if _sees(policy, caller, thread)], more, alias

    page, more, alias = await get_pool().run(ask)
    return requests.json_response({"threads": [_record(each, agent_id, alias) for each in page], "nextCursor": more})


async def change(call: Call, thread: str) -> HttpResponseBase:
    """Rename a thread, put it away, take it out again."""
    caller = await call.enter()
    members = await call.members()
    wrong = [
        {"path": f"/{name}", "message": f"must be a {kind}"}
        for name, kind, types in (("name", "text", str | None), ("archived", "boolean", bool))
        if name in members and not isinstance(members[name], types)
    ]
    if wrong:
        raise InvalidInput(fields=wrong)

    def carry_out() -> tuple[Thread, str | None]:
        found = _found(caller, thread)

        def both() -> None:
            if "name" in members:
                keeping.rename(found, members["name"] or "")
            if "archived" in members:
                keeping.archive(found, members["archived"])

        transact(both)
        return found, call.mount.alias()

    found, alias = await get_pool().run(carry_out)
    agent_id = members.get("agentId")
    return requests.json_response(_record(found, agent_id if isinstance(agent_id, str) else "", alias))


async def archive(call: Call, thread: str) -> HttpResponseBase:
    """Put a thread away."""
    caller = await call.enter()
    await call.members()
    await get_pool().run(lambda: keeping.archive(_found(caller, thread)))
    return requests.json_response({"threadId": thread, "archived": True})


async def delete(call: Call, thread: str) -> HttpResponseBase:
    """Delete a thread with everything in it; what runs is cancelled first."""
    caller = await call.enter()
    await call.members()
    await keeping.adelete(await get_pool().run(_found, caller, thread))
    return requests.json_response({"threadId": thread, "deleted": True})


async def clear(call: Call, **_: Any) -> HttpResponseBase:
    """Delete every thread that the caller owns."""
    caller = await call.enter()
    await call.members()

    def owned() -> list[Thread]:
        owner = getattr(caller.user, "pk", None)
        rows = Thread.objects.using(database_alias()).for_scope(caller.scope)
        threads = rows.filter(owner=owner).exclude(owner=None).defer("state", "metadata")
        return [each for each in threads if _sees(get_policy(), caller, each)]

    for each in await get_pool().run(owned):
        try:
            await keeping.adelete(each)
        except NotFound:
            continue  # deleted meanwhile
    return HttpResponse(status=204)


# ---- the inspector --------------------------------------------------------------------------------------------------


async def messages(call: Call, thread: str) -> HttpResponseBase:
    """The messages in play, as CopilotKit's inspector reads them: flat calls, texts only."""

    def ask() -> list[dict[str, Any]]:
        found = _found(get_policy().enter(call.request), thread)
        rows = Message.objects.using(database_alias()).filter(thread=found).in_play()
        return [_flat(decode(wire)) for wire in rows.values_list("wire", flat=True)]

    return requests.json_response({"messages": await get_pool().run(ask)})


async def events(call: Call, thread: str) -> HttpResponseBase:
    """The events of the latest runs, in order, as far as their logs are kept."""

    def ask() -> list[str]:
        policy = get_policy()
        caller = policy.enter(call.request)
        rows = Run.objects.using(database_alias()).filter(thread=_found(caller, thread)).select_related("thread")
        logs: list[list[str]] = []
        size = 0
        for run in rows.order_by("-created_at")[:RUNS]:
            if size > CHARACTERS or not policy.may_see(caller.user, run):
                break
            logs.append(_log(run))
            size += sum(map(len, logs[-1]))
        return [text for log in reversed(logs) for text in log]

    # Ready texts: nothing of a long log is parsed to be written again.
    content = f'{{"events":[{",".join(await get_pool().run(ask))}]}}'
    return HttpResponse(content, content_type="application/json", headers={"Cache-Control": "no-store"})


async def state(call: Call, thread: str) -> HttpResponseBase:
    """The shared state."""

    def ask() -> Any:
        return decode(_found(get_policy().enter(call.request), thread).state)

    return requests.json_response({"state": await get_pool().run(ask)})


# ---- opinions -------------------------------------------------------------------------------------------------------


async def annotate(call: Call) -> HttpResponseBase:
    """Store an annotation of a message as feedback; others are not kept here, and that is told."""
    caller = await call.enter()
    members = await call.members()
    payload = members.get("payload")
    payload = payload if isinstance(payload, dict) else {}
    thread_id, message_id = members.get("threadId"), payload.get("messageId")
    if not isinstance(thread_id, str) or not isinstance(message_id, str):
        message = "Only what is said of a message can be annotated: name threadId and payload.messageId."
        return refused(422, "Not available", message)
    rating = payload.get("rating", 0)
    rating = RATINGS.get(rating, rating) if isinstance(rating, str) else rating
    text: Any = payload.get("text", payload.get("comment", ""))

    def store() -> tuple[int, bool]:
        found = _found(caller, thread_id)
        alias = database_alias()
        message = Message.objects.using(alias).filter(thread=found, message_id=clean(message_id)).order_by("pk").last()
        if message is None:
            raise NotFound
        before = Feedback.objects.using(alias).filter(message=message, user=getattr(caller.user, "pk", None)).first()
        given = feedback.give_feedback(message, caller.user, rating, text)
        same = before is not None and (before.rating, before.text) == (given.rating, given.text)
        return given.pk, same

    key, duplicate = await get_pool().run(store)
    return requests.json_response({"id": str(key), "duplicate": duplicate})


# ---- parts ----------------------------------------------------------------------------------------------------------


def _found(caller: Caller, thread_id: str) -> Thread:
    found = find(get_policy(), caller, clean(thread_id))
    if found is None:
        raise NotFound("There is no such thread.")
    return found


def _sees(policy: AccessPolicy, caller: Caller, thread: Thread) -> bool:
    """Whether the policy lets them see the run that says how the thread stands."""
    if type(policy).may_see is AccessPolicy.may_see:
        return True
    runs = Run.objects.using(database_alias()).filter(thread=thread).select_related("thread")
    latest = runs.defer("input", "traceback").order_by("-created_at")[:1]
    return all(policy.may_see(caller.user, run) for run in latest)


def _record(thread: Thread, agent_id: str, alias: str | None) -> dict[str, Any]:
    """A thread as CopilotKit's client knows it, under the agent's id that it asked for."""
    answers = agent_id == DEFAULT and thread.agent == alias
    moment = _moment(thread.updated_at)
    return {
        "id": thread.thread_id,
        "organizationId": "",
        "agentId": DEFAULT if answers else thread.agent,
        "createdById": "" if thread.owner_id is None else str(thread.owner_id),
        "name": thread.title or None,
        "archived": thread.archived,
        "createdAt": _moment(thread.created_at),
        "updatedAt": moment,
        "lastRunAt": moment,
    }


def _moment(at: datetime) -> str:
    """One form for all: the client compares them as texts."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _flat(message: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {"id": message["id"], "role": message["role"]}
    content = message.get("content")
    if isinstance(content, list):
        flat["content"] = "".join(part["text"] for part in content if part["type"] == "text")
    elif isinstance(content, str):
        flat["content"] = content
    if calls := message.get("toolCalls"):
        flat["toolCalls"] = [
            {"id": call["id"], "name": call["function"]["name"], "args": call["function"]["arguments"]}
            for call in calls
        ]
    if "toolCallId" in message:
        flat["toolCallId"] = message["toolCallId"]
    return flat


def _log(run: Run) -> list[str]:
    """A run's events as clients from before 1.0 know them; none where they are not kept any more."""
    try:
        return [text for _, text, _ in shaped(read_entries(run.pk, 0))]
    except CursorGone:
        return []


def _limit(text: str) -> int:
    if text == "":
        return LIMIT
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
        raise InvalidInput(fields=[{"path": "limit", "message": "must be a number from 1 on"}])
    return min(int(text), MOST)


def _written(thread: Thread) -> str:
    """The place behind a thread in the list."""
    since = thread.updated_at - _EPOCH
    return f"{(since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds}.{thread.pk}"


def _place(cursor: str) -> tuple[datetime, int] | None:
    """The moment and the key of the thread that a page begins behind; a forged one shows nothing more."""
    if not cursor:
        return None
    moment, _, key = cursor.partition(".")
    if not all(part.isascii() and part.isdigit() and len(part) < 18 for part in (moment, key)):
        raise InvalidCursor
    return _EPOCH + timedelta(microseconds=int(moment)), int(key)
