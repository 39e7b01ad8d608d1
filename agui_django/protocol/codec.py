"""Wire text <-> values, and the cleaning of values that come from outside.

Law: the one place that chooses a JSON library. orjson does the work; what it refuses or would change (integers beyond
64 bits, lone surrogates in escapes) goes through the standard library, so that no digit is lost.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import Enum
from typing import Any, Final, Literal, NoReturn
from uuid import UUID

import orjson
from pydantic import BaseModel

from agui_django.protocol.errors import InvalidJson, NotJson

#: Arrays and objects inside each other; deeper documents are refused.
MAX_DEPTH: Final = 100
REPLACEMENT: Final = "\ufffd"

_OPTIONS: Final = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
#: Integers that orjson would read as floats have at least this many digits.
_MANY_DIGITS: Final = re.compile(rb"[0-9]{19}")
_DIGITS_ONLY: Final = bytes(48 if 48 <= code < 58 else 32 for code in range(256))
#: Bytes of a large document that are looked at in one go.
PIECE: Final = 1 << 18


def encode(value: Any) -> str:
    """The wire text of a value: compact, key order kept, text not escaped.

    Integers of any size keep their digits. NaN and Infinity are written as null (`clean` decides about them earlier).

    Raises:
        NotJson: for anything that is not plain JSON.
    """
    try:
        return orjson.dumps(value, option=_OPTIONS).decode()
    except TypeError:
        pass
    plain = _Strict(refuse_nan=False, default=None)(value, "", 0)
    try:
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError as exc:  # an integer with more digits than the interpreter prints
        raise NotJson("An integer is too large.") from exc


def decode(data: str | bytes) -> Any:
    """The value of a JSON text, read strictly.

    Raises:
        InvalidJson: not JSON, NaN or Infinity, numbers beyond a double, invalid UTF-8, nested over `MAX_DEPTH` levels.
    """
    try:
        raw = data.encode() if isinstance(data, str) else bytes(data)
    except UnicodeEncodeError as exc:
        raise InvalidJson("The text is not valid UTF-8.") from exc
    try:
        value = _decode_exactly(raw) if _has_many_digits(raw) else orjson.loads(raw)
    except orjson.JSONDecodeError:
        value = _decode_exactly(raw)
    if _too_deep(value):
        raise InvalidJson("The document is nested too deeply.")
    return value


def holds(raw: bytes, text: bytes) -> bool:
    """``text in raw``, of large documents piece by piece: other threads get their turn in between."""
    return any(raw.find(text, at, at + PIECE + len(text) - 1) >= 0 for at in range(0, len(raw), PIECE))


def _has_many_digits(raw: bytes) -> bool:
    if len(raw) <= PIECE:
        return _MANY_DIGITS.search(raw) is not None
    # The expression is slow on what is nearly digits, such as base64: 1.7 s for 28 MB.
    pieces = (raw[at : at + PIECE + 18] for at in range(0, len(raw), PIECE))
    return any(b"0" * 19 in piece.translate(_DIGITS_ONLY) for piece in pieces)


def _decode_exactly(raw: bytes) -> Any:
    try:
        text = raw.decode()
    except UnicodeDecodeError as exc:
        raise InvalidJson("The text is not valid UTF-8.") from exc
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError as exc:
        raise InvalidJson("The document is nested too deeply.") from exc
    except ValueError as exc:
        raise InvalidJson from exc


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise ValueError("number beyond a double")
    return number


def _too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        inside: list[Any] = []
        for item in level:
            if type(item) is dict:
                inside.extend(item.values())
            elif type(item) is list:
                inside.extend(item)
        level = [item for item in inside if type(item) is dict or type(item) is list]
        if not level:
            return False
    return True


# ---- text ----------------------------------------------------------------------------------------------------------


def clean_text(text: str) -> str:
    """The text with NUL and lone surrogates replaced by U+FFFD; a clean text is returned as it is.

    A pair of surrogates that Python holds as two characters becomes the character it means.
    """
    if "\0" in text:
        text = text.replace("\0", REPLACEMENT)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


class SurrogateJoiner:
    """Joins characters that a producer cut in two between deltas of one item.

    A high surrogate at the end of a delta waits for the next delta of the same key.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._held: dict[Any, str] = {}

    @property
    def holding(self) -> bool:
        """Whether half a character waits for its other half."""
        return bool(self._held)

    def join(self, key: Any, delta: str) -> str:
        """The clean text that may be sent now."""
        if delta.isascii() and not self._held:
            return delta if "\0" not in delta else clean_text(delta)
        if self._held and delta:
            delta = self._held.pop(key, "") + delta
        if delta and "\ud800" <= delta[-1] <= "\udbff":
            self._held[key] = delta[-1]
            delta = delta[:-1]
        return clean_text(delta)

    def flush(self, key: Any) -> str:
        """What is left when the item ends: nothing, or U+FFFD for a half character."""
        return REPLACEMENT if self._held.pop(key, "") else ""


# ---- values --------------------------------------------------------------------------------------------------------


def clean(value: Any, *, nan: Literal["null", "refuse"] = "null", default: Callable[[Any], Any] | None = None) -> Any:
    """A plain JSON copy of a value; exact, clean strings and numbers are passed on.

    Takes what `DjangoJSONEncoder` takes (dates, times, durations, decimals, UUIDs), tuples, enums and pydantic models
    (by alias).

    Args:
        value: what an agent or a client gave.
        nan: what becomes of NaN and Infinity: null, or `NotJson`.
        default: asked for values of other types (lazy texts, say); returns a replacement or raises TypeError.

    Raises:
        NotJson: with the JSON pointer of the value.
    """
    return _Cleaner(nan == "refuse", default)(value, "", 0)


class _Cleaner:
    __slots__ = ("default", "refuse_nan")

    text = staticmethod(clean_text)

    def __init__(self, refuse_nan: bool, default: Callable[[Any], Any] | None) -> None:
        self.refuse_nan = refuse_nan
        self.default = default

    def __call__(self, value: Any, path: str, depth: int) -> Any:
        kind = type(value)
        if kind is str:
            return self.text(value)
        if value is None or kind is bool or kind is int:
            return value
        if kind is float:
            return self.number(value, path)
        if isinstance(value, Mapping):
            return self.mapping(value, path, self.deeper(path, depth))
        if isinstance(value, list | tuple):
            depth = self.deeper(path, depth)
            return [self(item, f"{path}/{index}", depth) for index, item in enumerate(value)]
        return self.other(value, path, depth)

    def mapping(self, value: Mapping[Any, Any], path: str, depth: int) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise _not_json(path, "a key is not a string")
            name = self.text(str.__str__(key))
            out[name] = self(item, f"{path}/{_token(name)}", depth)
        return out

    def number(self, value: float, path: str) -> float | None:
        if value - value == 0.0:  # false for NaN and both infinities
            return value
        if self.refuse_nan:
            raise _not_json(path, "NaN and Infinity are not JSON")
        return None

    def deeper(self, path: str, depth: int) -> int:
        if depth >= MAX_DEPTH:
            raise _not_json(path, "nested too deeply")
        return depth + 1

    def other(self, value: Any, path: str, depth: int) -> Any:
        if isinstance(value, str):
            return self.text(str.__str__(value))
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return self.number(float(value), path)
        if isinstance(value, BaseModel):
            return self(value.model_dump(by_alias=True), path, self.deeper(path, depth))
        try:
            plain = _plain(value) if self.default is None else self.default(value)
        except TypeError:
            try:
                plain = _plain(value)
            except TypeError:
                raise _not_json(path, f"a {type(value).__name__} is not JSON") from None
        return self(plain, path, self.deeper(path, depth))


class _Strict(_Cleaner):
    """Takes JSON's own types (and their subclasses) only, and leaves texts as they are."""

    __slots__ = ()

    @staticmethod
    def text(text: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise NotJson("A text holds a lone surrogate.") from None
        return text

    def other(self, value: Any, path: str, depth: int) -> Any:
        if isinstance(value, str | int | float):
            return super().other(value, path, depth)
        raise _not_json(path, f"a {type(value).__name__} is not JSON")


def _plain(value: Any) -> Any:
    """The text of a date, time, duration, decimal, UUID or enum member, as `DjangoJSONEncoder` writes it."""
    if isinstance(value, datetime.datetime):
        text = value.isoformat()
        if value.microsecond:
            text = text[:23] + text[26:]
        return text.removesuffix("+00:00") + "Z" if text.endswith("+00:00") else text
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, datetime.time) and value.tzinfo is None:
        return value.isoformat()[:12]
    if isinstance(value, datetime.timedelta):
        return _duration(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Decimal | UUID):
        return str(value)
    raise TypeError(type(value).__name__)


def _duration(value: datetime.timedelta) -> str:
    sign = "-" if value < datetime.timedelta(0) else ""
    value = abs(value)
    minutes, seconds = divmod(value.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    fraction = f".{value.microseconds:06d}" if value.microseconds else ""
    return f"{sign}P{value.days}DT{hours:02d}H{minutes:02d}M{seconds:02d}{fraction}S"


def _token(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _not_json(path: str, what: str) -> NotJson:
    return NotJson(f"Not JSON at {path or 'the root'}: {what}.", fields=[{"path": path, "message": what}])
