"""A thread that begins with the history of another one.

Law: a fork owes its source nothing: it has rows of its own for messages, state and files, and stays whole when the
source changes or goes. Messages keep their ids, which mean something only inside a thread; runs, logs, questions and
feedback stay with the source.
"""

from __future__ import annotations

import uuid
from typing import Any

from django.db.models import Q
from django.utils import timezone

from agui_django.access import get_policy
from agui_django.models import ID_LENGTH, Message, StateVersion, Thread
from agui_django.protocol.codec import clean_text, decode, encode
from agui_django.protocol.errors import InvalidInput, NotAuthenticated, NotFound
from agui_django.runs import sql
from agui_django.runs.attachments import copy_attachments
from agui_django.runs.database import database_alias, get_pool, transact
from agui_django.runs.ledger import STEP, last_words, state_digest


def fork(thread: Thread, message_id: str, *, user: Any = None, thread_id: str = "") -> Thread:
    """Make a thread that begins with another one's messages up to one of them; in a database thread.

    Results that stand directly behind the calls of that message come along. The shared state is the one of that
    moment, as far as its versions tell; title, agent and metadata are those of the source.

    Args:
        thread: the source.
        message_id: the last message to take over; one that is in play.
        user: who asks. In a scope of theirs the fork is theirs; in anybody else's it belongs to the source's owner.
        thread_id: the fork's id in the source's scope; empty: a new one.

    Raises:
        NotFound: the thread is gone, or has no such message in play.
        InvalidInput: the id is taken, or too long.
    """
    if clean_text(thread_id) != thread_id or len(thread_id) > ID_LENGTH:
        raise _invalid(f"must be a text of at most {ID_LENGTH} characters")
    return transact(_fork, thread.pk, message_id, user, thread_id)


async def afork(thread: Thread, message_id: str, *, user: Any = None, thread_id: str = "") -> Thread:
    """`fork`, from any event loop."""
    return await get_pool().run(fork, thread, message_id, user=user, thread_id=thread_id)


def _invalid(message: str) -> InvalidInput:
    return InvalidInput(fields=[{"path": "/threadId", "message": message}])


def _fork(source_key: int, message_id: str, user: Any, thread_id: str) -> Thread:
    alias = database_alias()
    # Locked, so that neither its files nor the end of a run come in between.
    source = Thread.objects.using(alias).select_for_update(no_key=True).filter(pk=source_key).first()
    if source is None:
        raise NotFound
    if thread_id and Thread.objects.using(alias).filter(scope=source.scope, thread_id=thread_id).exists():
        raise _invalid("is the id of another thread")
    messages, last = _up_to(alias, source, message_id)
    state, version = _state(alias, source, messages[-1], last=last)
    now = timezone.now()
    values = {
        "scope": source.scope,
        "thread_id": thread_id or str(uuid.uuid4()),
        "owner_id": _owner(source, user),
        "agent": source.agent,
        "title": source.title,
        "titled_by": source.titled_by,
        "metadata": source.metadata,
        "state": state,
        "state_version": 0 if state == "{}" else 1,
        "forked_from_id": source.pk,
        "created_at": now,
        "updated_at": now,
    }
    made = sql.create(alias, Thread, values)
    wires = copy_attachments(alias, source, made, [message.wire for message in messages])
    words = last_words(map(decode, wires))
    if words:
        sql.update(alias, Thread, {"last_words": words}, id=made.pk)
        made.last_words = words
    rows = [
        {
            "thread_id": made.pk,
            "message_id": message.message_id,
            "role": message.role,
            "wire": wire,
            "search_text": message.search_text,
            "order": number * STEP,
            "created_at": message.created_at,
        }
        for number, (message, wire) in enumerate(zip(messages, wires, strict=True), start=1)
    ]
    sql.insert(alias, Message, rows)
    if made.state_version:
        first = StateVersion(
            thread=made, version=1, state=state, digest=state_digest(decode(state)), origin=StateVersion.Origin.AGENT
        )
        if version is not None:
            first.origin, first.user_id = version.origin, version.user_id
        sql.insert_row(alias, first)
    return made


def _up_to(alias: str, source: Thread, message_id: str) -> tuple[list[Message], bool]:
    """The messages up to one and the results of its calls; and whether they are all there are.

    Raises:
        NotFound: it is not in play.
    """
    messages = list(Message.objects.using(alias).filter(thread=source).in_play().select_related("run"))
    end = next((n for n, message in enumerate(messages, start=1) if message.message_id == message_id), 0)
    if not end:
        raise NotFound
    calls = {call["id"] for call in decode(messages[end - 1].wire).get("toolCalls") or ()}
    while end < len(messages) and messages[end].role == "tool" and decode(messages[end].wire)["toolCallId"] in calls:
        end += 1
    return messages[:end], end == len(messages)


def _state(alias: str, source: Thread, message: Message, *, last: bool) -> tuple[str, StateVersion | None]:
    """The shared state when a message had come: a user's with what its request brought, an agent's with its run."""
    versions = StateVersion.objects.using(alias).filter(thread=source).order_by("-version")
    if last:
        return source.state, versions.first()
    run = message.run
    moment = message.created_at
    if message.role == "user" or run is None or run.finished_at is None:
        brought = Q(run=run, origin=StateVersion.Origin.CLIENT) if run is not None else Q(pk=None)
        found = versions.filter(Q(created_at__lte=moment) | brought).first()
    else:
        found = versions.filter(Q(created_at__lte=run.finished_at) | Q(run=run)).first()
    return (encode({}) if found is None else found.state), found


def _owner(source: Thread, user: Any) -> Any:
    try:
        mine = user is not None and get_policy().scope_for(user) == source.scope
    except NotAuthenticated:
        mine = False
    return user.pk if mine else source.owner_id
