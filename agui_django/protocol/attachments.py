"""Files inside message parts: taken out of a request and named by their digest, and the reference that stands for one.

Law: pure; base64 is read strictly and in slices, so that other threads get their turn; nothing is guessed from bytes.
"""

from __future__ import annotations

import binascii
import hashlib
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from agui_django.protocol.errors import InvalidInput

Part = dict[str, Any]

#: Where a part's metadata says what its reference stands for.
KEY: Final = "aguiAttachment"

#: Characters of base64 that are read at once: a multiple of four.
SLICE: Final = 1 << 18

#: Length of a file's name and of a media type.
MAX_TITLE, MAX_MEDIA_TYPE = 255, 127

_MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]*/[a-z0-9][a-z0-9!#$&^_.+-]*")
_DATA_URL = re.compile(r"data:([^,;]*)(?:;[^,;]*)*?;base64,", re.IGNORECASE)
_ADDRESS = re.compile(r"(?:^|/)attachments/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/?", re.IGNORECASE)


@dataclass(eq=False)
class Inline:
    """A file that came inside a message part.

    Attributes:
        path: JSON Pointer of the part's source in the request.
        message_id: the message that it is in.
        part: the part in the request's body; its source names the file by its digest, until it is told otherwise.
        metadata: the part's own metadata, as it was sent; None without.
        media_type: as declared, in lower case and without parameters.
        title: the file name that the client gave; may be empty.
        size: bytes.
        digest: sha256 (hex) of the bytes.
        data: the bytes; None once they are stored, or where an equal file of the request has them.
    """

    path: str
    message_id: str
    part: Part
    metadata: Any
    media_type: str
    title: str
    size: int
    digest: str
    data: io.BytesIO | None


def take_inline(body: Mapping[str, Any], least: int) -> list[Inline]:
    """Take the files above a size out of a request's messages.

    Args:
        body: an enforced RunAgentInput, ours to change.
        least: bytes up to which a file stays where it is.

    Raises:
        InvalidInput: base64, also of a file that stays, or a media type is malformed; `fields` names each.
    """
    found: list[Inline] = []
    wrong: list[dict[str, str]] = []
    held: set[str] = set()
    for path, message, part in _parts(body):
        source = part["source"]
        media_type, start = _inline(source)
        if start < 0:
            continue
        try:
            data, digest = _read(source["value"], start)
        except ValueError:
            wrong.append({"path": f"{path}/value", "message": "must be base64"})
            continue
        size = data.seek(0, io.SEEK_END)
        if size <= least:
            continue
        name = media_type_of(media_type)
        if name is None:
            wrong.append({"path": f"{path}/mimeType", "message": "must be a media type"})
            continue
        kept = data if digest not in held else None
        held.add(digest)
        part["source"] = {"type": "url", "value": f"sha256:{digest}", "mimeType": name}
        metadata = part.get("metadata")
        found.append(Inline(path, message["id"], part, metadata, name, _title(metadata), size, digest, kept))
    if wrong:
        raise InvalidInput(fields=wrong)
    return found


def refer(file: Inline, address: str, uuid: UUID) -> None:
    """Make a file's part a reference to where it is kept.

    Args:
        file: whose part it is.
        address: where clients find it.
        uuid: its id.
    """
    about: Part = {"id": str(uuid), "size": file.size, "mediaType": file.media_type}
    if file.title:
        about["name"] = file.title
    own = file.metadata
    given = {} if own is None else dict(own) if isinstance(own, dict) else {"metadata": own}
    file.part["source"] = {"type": "url", "value": address, "mimeType": file.media_type}
    file.part["metadata"] = {**given, KEY: about}


def referred(part: Mapping[str, Any]) -> UUID | None:
    """The id of the file that a part refers to by an address of ours; None where it does not."""
    source = part.get("source")
    if not isinstance(source, Mapping) or source.get("type") != "url":
        return None
    found = _ADDRESS.search(str(source.get("value")).partition("?")[0])
    return UUID(found[1]) if found is not None else None


def inline_content(part: Mapping[str, Any]) -> bytes | None:
    """The bytes that a part holds itself; None where it holds none.

    Raises:
        ValueError: they are not base64.
    """
    source = part.get("source")
    if not isinstance(source, Mapping) or not isinstance(source.get("value"), str):
        return None
    _, start = _inline(source)
    return None if start < 0 else _read(source["value"], start)[0].getvalue()


def inline_types(message: Mapping[str, Any]) -> Iterator[tuple[int, str | None]]:
    """The places of a message's parts that hold their bytes themselves, and the media types they declare."""
    content = message.get("content")
    for position, part in enumerate(content if isinstance(content, list) else ()):
        source = part.get("source")
        if source is not None:
            media_type, start = _inline(source)
            if start >= 0:
                yield position, media_type_of(media_type)


def media_type_of(text: str) -> str | None:
    """A media type in lower case and without parameters; None where it is none."""
    name = text.partition(";")[0].strip().lower()
    return name if len(name) <= MAX_MEDIA_TYPE and _MEDIA_TYPE.fullmatch(name) else None


def _parts(body: Mapping[str, Any]) -> Iterator[tuple[str, Part, Part]]:
    for number, message in enumerate(body["messages"]):
        content = message.get("content")
        for position, part in enumerate(content if isinstance(content, list) else ()):
            if "source" in part:
                yield f"/messages/{number}/content/{position}/source", message, part


def _inline(source: Mapping[str, Any]) -> tuple[str, int]:
    """The media type of what a source holds, and where its base64 begins; -1 where it holds nothing."""
    if source.get("type") == "data":
        return source["mimeType"], 0
    if source.get("type") == "url" and source["value"][:5].lower() == "data:":
        found = _DATA_URL.match(source["value"][:1024])
        if found is not None:
            return found[1] or source.get("mimeType") or "text/plain", found.end()
    return "", -1


def _read(text: str, start: int) -> tuple[io.BytesIO, str]:
    """The bytes of a base64 text and their digest.

    Raises:
        ValueError: it is not strict base64: other characters, white space, missing or surplus padding.
    """
    data, digest = io.BytesIO(), hashlib.sha256()
    # Padding is looked for here: slices do not see all of it, and the decoder overlooks some that is surplus.
    if (len(text) - start) % 4 or 0 <= text.find("=", start) < len(text) - 2:
        raise ValueError("incomplete, or padding in the middle")
    for position in range(start, len(text), SLICE):
        raw = binascii.a2b_base64(text[position : position + SLICE], strict_mode=True)
        data.write(raw)
        digest.update(raw)
    return data, digest.hexdigest()


def _title(metadata: Any) -> str:
    """The file name in a part's metadata, without folders and what does not print."""
    name = metadata.get("filename") or metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str):
        return ""
    plain = "".join(character for character in name[-1024:] if character.isprintable())
    return re.split(r"[/\\]", plain)[-1].strip()[:MAX_TITLE]
