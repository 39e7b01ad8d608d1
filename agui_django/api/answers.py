"""Answers as JSON bytes.

Law: a wire value leaves as the text that is stored: no digit, no order of keys is lost, nothing is parsed to be sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from django.http import HttpResponse

JSON = "application/json"


def wire(text: str) -> Any:
    """A stored wire text as a part of an answer; None where there is none."""
    return orjson.Fragment(text) if text else None


def json_answer(data: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpResponse:
    """A JSON answer that nobody keeps.

    Args:
        data: plain JSON with parts made by `wire`.
        status: the HTTP status.
        headers: more headers.
    """
    return HttpResponse(
        orjson.dumps(data), status=status, content_type=JSON, headers={"Cache-Control": "no-store", **(headers or {})}
    )


def nothing() -> HttpResponse:
    """An answer without a body."""
    return HttpResponse(status=204, headers={"Cache-Control": "no-store"})


def download(name: str) -> dict[str, str]:
    """The headers of a stream that is saved as a file."""
    disposition = f"attachment; filename={name}"
    # nginx would hold the stream back, GZipMiddleware would compress it chunk by chunk.
    held = {"X-Accel-Buffering": "no", "Content-Encoding": "identity"}
    return {"Cache-Control": "no-store", "Content-Disposition": disposition, **held}
