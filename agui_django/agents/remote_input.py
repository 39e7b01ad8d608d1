"""Our run as the input of a remote one."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from agui_django.agents.context import RunContext
from agui_django.protocol.attachments import KEY, referred

Wire = dict[str, Any]


def thread_id_of(run: RunContext[Any]) -> str:
    """The remote name of a run's thread: its own for each thread of each scope.

    A client chooses its thread ids; under one account at the remote server two users who choose the same would
    otherwise share what that keeps.
    """
    given = str(run._setup.thread_id)
    scope = getattr(run.thread, "scope", None)
    return given if scope is None else thread_name(scope, given)


def thread_name(scope: str, thread_id: str) -> str:
    """What `thread_id_of` gives for a stored thread."""
    return hashlib.sha256(f"{scope}\0{thread_id}".encode()).hexdigest()[:32]


def answers_for(run: RunContext[Any]) -> list[Wire]:
    """The resume entries: what was answered now, and what has been dropped or has expired meanwhile."""
    entries = [dict(entry) for entry in run._setup.resume]
    named = {entry["interruptId"] for entry in entries}
    # Of an earlier pass the remote agent was told already.
    lapsed = ("expired",) if entries else () if run.resumed else ("cancelled", "expired")
    return entries + [
        {"interruptId": answer.interrupt_id, "status": "cancelled"}
        for answer in run.answers.values()
        if answer.status in lapsed and answer.interrupt_id not in named
    ]


async def messages_for(run: RunContext[Any], *, files: bool) -> list[Wire]:
    """The conversation as it stands, without activities.

    Args:
        run: whose.
        files: files that are kept here go along: the remote agent could not fetch them.
    """
    messages = [message for message in run._sink.messages() if message["role"] != "activity"]
    return [await _with_files(run, message) if files else message for message in messages]


async def _with_files(run: RunContext[Any], message: Wire) -> Wire:
    content = message.get("content")
    if not isinstance(content, list) or not any(map(referred, content)):
        return message
    return {**message, "content": [await _with_bytes(run, part) for part in content]}


async def _with_bytes(run: RunContext[Any], part: Wire) -> Wire:
    if referred(part) is None:
        return part
    try:
        data = await run.attachment(part)
    except (ValueError, FileNotFoundError):  # somebody else's address, or gone: as it is
        return part
    about = part.get("metadata")
    source = {"type": "data", "value": base64.b64encode(data).decode(), "mimeType": part["source"]["mimeType"]}
    own: Mapping[str, Any] = about if isinstance(about, dict) else {}
    kept = {name: value for name, value in own.items() if name != KEY}
    inlined = {**part, "source": source, "metadata": kept}
    if not kept:
        del inlined["metadata"]
    return inlined
