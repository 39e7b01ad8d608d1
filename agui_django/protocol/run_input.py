"""The one message that travels to the agent: request bytes to a checked ``RunAgentInput``.

Law: what is unknown is stripped with a warning, what is malformed is refused as a whole, nothing is coerced, and no
value of the request is echoed in an error. Shapes that only 0.x clients send are upgraded first.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import orjson
from ag_ui.core import RunAgentInput

from agui_django.protocol.attachments import Inline, take_inline
from agui_django.protocol.codec import clean, decode, holds
from agui_django.protocol.enforcement import enforce_input
from agui_django.protocol.errors import InvalidInput, InvalidJson, NotJson, UnsupportedVersion

#: Longest id that is stored.
MAX_ID = 255

#: The major line of the protocol that is spoken here.
MAJOR = 1

_VERSION = re.compile(r"(\d{1,9})(?:\.\d+)*", re.ASCII)
_MEDIA_KINDS = ("image", "audio", "video")
_MEDIA_PARTS = (*_MEDIA_KINDS, "document")

Warn = Callable[[str], None]


def _ignore(_text: str) -> None:
    pass


@dataclass(frozen=True)
class RunInput:
    """A request to run an agent, checked.

    Attributes:
        data: the wire dict. ``messages``, ``tools``, ``context`` and ``forwardedProps`` are always there; ``state``
            only where the client sent one.
        digest: sha256 (hex) of the canonical JSON of `data`: two requests with one digest are the same request.
        protocol_version: what the client declared; None for a client from before 1.0.
        warnings: what was upgraded, stripped or dropped.
        inline: the files that were taken out of `data`, where their parts name them by their digests.
    """

    data: dict[str, Any]
    digest: str
    protocol_version: str | None
    warnings: list[str]
    inline: list[Inline] = field(default_factory=list)

    @property
    def thread_id(self) -> str:
        """The conversation's id, as the client gave it."""
        return str(self.data["threadId"])

    @property
    def run_id(self) -> str:
        """The run's id, as the client gave it."""
        return str(self.data["runId"])

    @property
    def legacy(self) -> bool:
        """True for a client from before 1.0: what it is sent goes through `downgrade`."""
        return is_legacy(self.protocol_version)

    @cached_property
    def model(self) -> RunAgentInput:
        """The input as the official model."""
        return RunAgentInput.model_validate({"state": {}, **self.data})


def parse_run_input(raw: bytes, warn: Warn = _ignore, *, inline: int | None = None) -> RunInput:
    """Read the body of a request.

    Args:
        raw: the body.
        warn: told what is upgraded, stripped or dropped.
        inline: bytes above which a file inside a message is taken out of it; None: none is.

    Raises:
        InvalidJson: not strict JSON, not UTF-8, or nested too deep.
        InvalidInput: a field is missing or malformed; `fields` names each by JSON Pointer.
        UnsupportedVersion: the client declared another major version.
    """
    data = decode(raw)
    if type(data) is not dict:
        raise InvalidInput(fields=[{"path": "", "message": "must be an object"}])
    # What a text cannot hold need not be looked for: NULs and halves of characters come as escapes only.
    escaped = holds(raw, b"\\") and holds(raw, b"\\u")
    return _build(data, warn, fresh=not escaped, nulls=holds(raw, b"null"), inline=inline)


def build_run_input(data: Any, warn: Warn = _ignore, *, inline: int | None = None) -> RunInput:
    """The same from a value that is already parsed; `data` is not changed. Raises as `parse_run_input`."""
    if not isinstance(data, Mapping):
        raise InvalidInput(fields=[{"path": "", "message": "must be an object"}])
    return _build(data, warn, inline=inline)


def _build(
    data: Mapping[str, Any], warn: Warn, *, fresh: bool = False, nulls: bool = True, inline: int | None = None
) -> RunInput:
    """The checked input.

    Args:
        data: the value.
        warn: told what is upgraded, stripped or dropped.
        fresh: it was just decoded and is ours, and clean as it is.
        nulls: it may hold nulls.
        inline: as for `parse_run_input`.
    """
    warnings: list[str] = []

    def note(text: str) -> None:
        warnings.append(text)
        warn(text)

    fields = list(_bad_ids(data))
    try:
        body: dict[str, Any] = data if fresh else clean(data, nan="refuse")  # type: ignore[assignment]  # a dict then
    except NotJson as error:
        raise InvalidJson(error.message) from None
    version = body.get("protocolVersion")
    if isinstance(version, str):
        _check_version(version, note)
    if nulls:
        _drop_nulls(body)
    upgrade_parts(body, note)
    try:
        body = enforce_input(body, note, nulls=nulls)
    except InvalidInput as error:
        named = {field["path"] for field in fields}
        fields += [dict(field) for field in error.fields if field["path"] not in named]
        raise InvalidInput(error.message, code=error.code, fields=fields) from None
    if fields:
        raise InvalidInput(fields=fields)
    for key in ("messages", "tools", "context"):
        body.setdefault(key, [])
    body.setdefault("forwardedProps", {})
    files = [] if inline is None else take_inline(body, inline)
    return RunInput(body, _digest(body), body.get("protocolVersion"), warnings, files)


def is_legacy(version: str | None) -> bool:
    """Whether this declaration (or its absence) is that of a client from before 1.0."""
    if version is None:
        return True
    match = _VERSION.fullmatch(version)
    return match is not None and int(match[1]) == 0


def check_version(version: str) -> None:
    """Refuse another major version; a newer minor and what cannot be interpreted are served (basic/versioning).

    Raises:
        UnsupportedVersion: a major line that is not spoken here. ``0.x`` is spoken, as a downgrade.
    """
    match = _VERSION.fullmatch(version)
    if match is not None and int(match[1]) not in (0, MAJOR):
        raise UnsupportedVersion(fields=[{"path": "/protocolVersion", "message": f"only major version {MAJOR}"}])


def _check_version(version: str, warn: Warn) -> None:
    check_version(version)
    if _VERSION.fullmatch(version) is None:
        warn("/protocolVersion cannot be interpreted; served as the current version")


def _digest(data: dict[str, Any]) -> str:
    try:
        text = orjson.dumps(data, option=orjson.OPT_SORT_KEYS)
    except TypeError:  # integers beyond 64 bits
        text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return hashlib.sha256(text).hexdigest()


def _bad_ids(data: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Ids that cannot be stored as they are. They are judged raw: cleaning would hide a NUL."""
    ids: list[tuple[str, Any]] = [(f"/{name}", data.get(name)) for name in ("threadId", "runId", "parentRunId")]
    messages = data.get("messages")
    if isinstance(messages, list):
        ids += [(f"/messages/{n}/id", item.get("id")) for n, item in enumerate(messages) if isinstance(item, Mapping)]
    for path, value in ids:
        if not isinstance(value, str):
            continue
        if not value:
            yield {"path": path, "message": "must not be empty"}
        elif len(value) > MAX_ID:
            yield {"path": path, "message": f"must not be longer than {MAX_ID} characters"}
        elif "\0" in value:
            yield {"path": path, "message": "must not hold a NUL character"}


# ---- what only clients from before 1.0 send -------------------------------------------------------------------------


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        for item in value:
            if isinstance(item, dict):
                yield item


def _drop_nulls(body: dict[str, Any]) -> None:
    """Remove the whole nulls that parsers before 1.0 took for an absent field; nulls inside data stay."""
    for name in ("state", "forwardedProps"):
        _drop_null(body, name)
    for tool in _objects(body.get("tools")):
        _drop_null(tool, "parameters")
    for entry in _objects(body.get("resume")):
        _drop_null(entry, "payload")
    for message in _objects(body.get("messages")):
        for part in _objects(message.get("content")):
            if part.get("type") in _MEDIA_PARTS:
                _drop_null(part, "metadata")


def _drop_null(value: dict[str, Any], name: str) -> None:
    if name in value and value[name] is None:
        del value[name]


def upgrade_parts(body: dict[str, Any], warn: Warn = _ignore) -> None:
    """Turn the ``binary`` parts of a run input's messages into typed ones, in place."""
    for number, message in enumerate(body["messages"] if isinstance(body.get("messages"), list) else ()):
        content = message.get("content") if isinstance(message, dict) else None
        if not isinstance(content, list):
            continue
        for position, part in enumerate(content):
            if isinstance(part, dict) and part.get("type") == "binary":
                typed = _typed_part(part)
                if typed is not None:
                    content[position] = typed
                    warn(f"/messages/{number}/content/{position}: a binary part is read as {typed['type']}")


def _typed_part(part: dict[str, Any]) -> dict[str, Any] | None:
    """The typed part for a 0.x binary part; None where it says neither what it is nor where its bytes are."""
    mime = part.get("mimeType")
    if not isinstance(mime, str):
        return None
    kind = mime.partition("/")[0]
    typed: dict[str, Any] = {"type": kind if kind in _MEDIA_KINDS else "document"}
    # The first of these that is not empty, in the order of the official upgrade.
    for name, source in (("data", "data"), ("url", "url"), ("id", "file")):
        value = part.get(name)
        if isinstance(value, str) and value:
            typed["source"] = {"type": source, "value": value, "mimeType": mime}
            break
    else:
        return None
    filename = part.get("filename")
    if isinstance(filename, str) and filename:
        typed["metadata"] = {"filename": filename}
    return typed
