"""Asking outside: interrupts and their answers, and the keys that make things happen once per turn.

Law: asked means open. A question without an answer ends the run, whatever the function does with the exception; the
resume calls the function from the top, and the question finds its answer under its key.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Generic, TypedDict, TypeVar, Unpack, cast, overload

from django.core.serializers.json import DjangoJSONEncoder
from django.utils import timezone

from agui_django.agents.sink import Answer, RunSink, Wire
from agui_django.protocol.codec import clean
from agui_django.protocol.errors import Declined, KeyReused
from agui_django.protocol.interrupts import flat_schema, validate_answer

T = TypeVar("T")

_encoder = DjangoJSONEncoder()


def json_default(value: Any) -> Any:
    """What `DjangoJSONEncoder` makes of a value; the ``default`` of everything that agents hand over."""
    return _encoder.default(value)


def plain(value: Any) -> Any:
    """A method's argument as plain JSON.

    Raises:
        NotJson: it is none, or holds NaN or Infinity; with the path.
    """
    return clean(value, nan="refuse", default=json_default)


def use_key(sink: RunSink, key: str) -> str:
    """Take a key for this pass; gives the wire id that it stands for.

    Raises:
        KeyReused: it was used in this pass already: a loop would read its first answer for ever.
        TypeError: not a text.
    """
    if not isinstance(key, str) or not key:
        raise TypeError("A key is a text that is not empty.")
    wire = wire_id(sink, key)
    if wire in sink.keys:
        raise KeyReused(f"The key {key!r} was used twice in one pass; number it.")
    sink.keys.add(wire)
    return wire


def wire_id(sink: RunSink, key: str) -> str:
    """The id of a keyed thing on the wire: the same in every pass of the turn."""
    return f"{sink.setup.turn}:{sink.prefix}{key}"


class Question(Generic[T]):
    """A question that was asked; its answer is there now or in a later pass."""

    __slots__ = ("_answer", "_schema", "_sink", "key")

    def __init__(self, sink: RunSink, key: str, schema: Any, answer: Answer | None) -> None:
        self.key = key
        self._sink = sink
        self._schema = schema
        self._answer = answer

    @property
    def answered(self) -> bool:
        """Whether `answer` has something to say, if only that it was declined."""
        return self._answer is not None

    @property
    def status(self) -> str:
        """``resolved``, ``cancelled`` or ``expired``; "" where nothing is known yet."""
        return "" if self._answer is None else self._answer.status

    def answer(self) -> T:
        """The answer, as a value of the type that was asked for.

        Raises:
            RunSuspended: there is none yet; the run ends here with everything it asked.
            Declined: it was cancelled, or it expired.
        """
        if self._answer is None:
            self._sink.call(self._sink.suspend)
        answer = self._answer
        if answer.status != "resolved":
            raise Declined(f"The question {self.key!r} was {answer.status}.")
        if self._schema is None or isinstance(self._schema, Mapping):
            return cast(T, answer.value)
        return validate_answer(cast(type[T], self._schema), answer.value)


class About(TypedDict, total=False):
    """What a question may say beside its key and its schema."""

    message: Any
    reason: str
    tool_call_id: str | None
    expires: timedelta | datetime | None
    permission: str | None
    metadata: Mapping[str, Any] | None


class Asks:
    """The asking part of a run context; from any thread."""

    _sink: RunSink

    @overload
    def interrupt(self, key: str, *, response_schema: type[T], **about: Unpack[About]) -> T: ...
    @overload
    def interrupt(self, key: str, *, response_schema: dict[str, Any] | None = None, **about: Unpack[About]) -> Any: ...
    def interrupt(self, key: str, *, response_schema: Any = None, **about: Unpack[About]) -> Any:
        """Ask a person, and give the answer: of this pass there is none, and the run ends here. Not awaited.

        Args:
            key: names the question within the turn.
            response_schema: a type (the answer is a value of it) or a JSON Schema.
            about: ``message`` for the person; ``reason``, an open word (default: ``input_required``);
                ``tool_call_id`` of the call it is about; ``expires``, a timedelta or datetime; ``permission`` needed to
                answer; ``metadata``.

        Raises:
            RunSuspended: there is no answer yet. A BaseException: leave it alone.
            Declined: the question was cancelled, or it expired.
            KeyReused: the key was used in this pass already.
        """
        return self.ask(key, response_schema=response_schema, **about).answer()

    @overload
    def ask(self, key: str, *, response_schema: type[T], **about: Unpack[About]) -> Question[T]: ...
    @overload
    def ask(
        self, key: str, *, response_schema: dict[str, Any] | None = None, **about: Unpack[About]
    ) -> Question[Any]: ...
    def ask(self, key: str, *, response_schema: Any = None, **about: Unpack[About]) -> Question[Any]:
        """Ask without leaving: ask several, then ``answer()`` each; one resume answers them all.

        Args:
            key: names the question within the turn.
            response_schema: as for `interrupt`.
            about: as for `interrupt`.
        """
        return self._sink.call(ask, self._sink, key, response_schema=response_schema, **about)


def ask(
    sink: RunSink,
    key: str,
    *,
    message: Any = None,
    reason: str = "input_required",
    response_schema: Any = None,
    tool_call_id: str | None = None,
    expires: timedelta | datetime | None = None,
    permission: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Question[Any]:
    """Ask, unless a pass of this turn has the answer."""
    interrupt_id = use_key(sink, key)
    answer = answer_to(sink, key, interrupt_id)
    if answer is None:
        interrupt: Wire = {"id": interrupt_id, "reason": reason}
        if message is not None:
            interrupt["message"] = str(message)
        if tool_call_id is not None:
            interrupt["toolCallId"] = tool_call_id
        if response_schema is not None:
            interrupt["responseSchema"] = flat_schema(response_schema)
        if expires is not None:
            interrupt["expiresAt"] = _moment(expires)
        if metadata is not None:
            interrupt["metadata"] = dict(metadata)
        sink.ask(key, plain(interrupt), permission or "")
    return Question(sink, key, response_schema, answer)


def answer_to(sink: RunSink, key: str, interrupt_id: str) -> Answer | None:
    """What became of this turn's question; a question dropped in an earlier turn is asked again."""
    answer: Answer | None = sink.setup.answers.get(key)
    if answer is None or answer.status == "resolved" or answer.interrupt_id == interrupt_id:
        return answer
    earlier_turn = answer.interrupt_id != key and answer.interrupt_id.endswith(f":{sink.prefix}{key}")
    return None if earlier_turn else answer


def _moment(expires: timedelta | datetime) -> str:
    moment = timezone.now() + expires if isinstance(expires, timedelta) else expires
    if timezone.is_naive(moment):
        moment = timezone.make_aware(moment)
    return moment.isoformat().replace("+00:00", "Z")
