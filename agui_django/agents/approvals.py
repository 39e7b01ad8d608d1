"""Tools that a person has to allow: the mark on a function, the question that is asked, and what its answer allows.

Law: an approval is for one call with exactly the arguments that were shown. The question's key holds their digest: what
has other arguments finds no answer, whoever changed them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from string import Formatter
from typing import Any, TypeVar, overload

from pydantic.errors import PydanticUserError

from agui_django.agents.arguments import Signature, signature_of
from agui_django.agents.asking import Question
from agui_django.protocol.codec import encode
from agui_django.protocol.errors import Declined
from agui_django.protocol.interrupts import flat_schema

F = TypeVar("F", bound=Callable[..., Any])

#: The attribute that holds a function's mark.
MARK = "__agui_approval__"
#: What the model and the client are told of a call that nobody allowed.
NOT_APPROVED = "Not approved."
#: The same, where nobody decided in time.
EXPIRED = "Expired: nobody approved it in time."


@dataclass(frozen=True)
class Approval:
    """How a person is asked.

    Attributes:
        message: the question, with the arguments' names in braces; None: one with the tool's name.
        edit: whether the person may change the arguments.
        permission: what the person needs to answer.
        expires: when the question closes by itself.
    """

    message: Any = None
    edit: bool = False
    permission: str | None = None
    expires: timedelta | datetime | None = None

    def question(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """What the person is asked."""
        if self.message is None:
            return f"Run {tool}?"
        return str(self.message).format_map(arguments)

    def schema(self, signature: Signature) -> dict[str, Any]:
        """The JSON Schema of an answer."""
        properties: dict[str, Any] = {"approved": {"type": "boolean"}, "reason": {"type": "string"}}
        if self.edit:
            try:
                properties["editedArgs"] = flat_schema(signature.model)
            except PydanticUserError:  # a parameter that JSON Schema cannot describe; its value is read all the same
                properties["editedArgs"] = {"type": "object"}
        return {"type": "object", "properties": properties, "required": ["approved"], "additionalProperties": False}

    def allowed(self, question: Question[Any]) -> str | None:
        """What the person changed: the arguments' new text, or None.

        Raises:
            RunSuspended: there is no answer yet.
            Declined: it was not approved as it was asked.
        """
        try:
            answer = question.answer()
        except Declined:
            raise Declined(EXPIRED if question.status == "expired" else NOT_APPROVED) from None
        if not isinstance(answer, Mapping) or answer.get("approved") is not True:
            reason = answer.get("reason") if isinstance(answer, Mapping) else None
            raise Declined(f"Not approved: {reason}" if isinstance(reason, str) and reason else NOT_APPROVED)
        edited = answer.get("editedArgs")
        if edited is not None and not self.edit:  # allowed, but something else
            raise Declined(NOT_APPROVED)
        return None if edited is None else encode(edited)


@overload
def approval_required(message: F, /) -> F: ...
@overload
def approval_required(
    message: Any = None,
    *,
    edit: bool = False,
    permission: str | None = None,
    expires: timedelta | datetime | None = None,
) -> Callable[[F], F]: ...
def approval_required(
    message: Any = None,
    *,
    edit: bool = False,
    permission: str | None = None,
    expires: timedelta | datetime | None = None,
) -> Any:
    """Mark a tool: whoever calls it through a tool call, a person decides first.

    The question's reason is ``tool_call``, its answer ``{"approved": true}``, with ``reason`` and, where `edit` allows
    it, ``editedArgs``: all arguments as they shall be. The function is executed at most once per approval, also when a
    process dies or two people answer. "No" gives the call a failed result and raises `Declined` in ``call.run``.

    Args:
        message: what the person is asked; the arguments' names in braces stand for their values. A lazy translation is
            rendered in the request's language.
        edit: whether the person may change the arguments; what they make of them is validated as the model's are.
        permission: what the person needs to answer.
        expires: when the question closes by itself, a timedelta or datetime; the call is declined then.

    Returns:
        A decorator that gives the very same function.

    Raises:
        TypeError: the message names something that is no parameter of the function.
    """

    def mark(fn: F) -> F:
        if isinstance(message, str):
            _check_names(message, fn)
        setattr(fn, MARK, Approval(message, edit, permission, expires))
        return fn

    if callable(message):
        fn, message = message, None
        return mark(fn)
    return mark


def approval_of(fn: Any) -> Approval | None:
    """A function's mark; also of what a partial, a method or an object with ``__call__`` leads to."""
    found: Approval | None = None
    while found is None and fn is not None:
        found = getattr(fn, MARK, None) or getattr(type(fn).__call__, MARK, None)
        fn = fn.func if isinstance(fn, functools.partial) else getattr(fn, "__wrapped__", None)
    return found


def approval_key(call_id: str, tool: str, arguments: str) -> str:
    """Names an approval within its turn: of this call, with these arguments."""
    digest = sha256("\0".join((call_id, tool, arguments)).encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"approve:{tool[:60]}:{digest}"


def _check_names(message: str, fn: Callable[..., Any]) -> None:
    signature = signature_of(fn)
    if signature.model.model_config.get("extra") == "allow":
        return
    known = set(signature.names.values())
    for _, name, _, _ in Formatter().parse(message):
        root = name if name is None else name.partition(".")[0].partition("[")[0]
        if root is not None and root not in known:
            raise TypeError(f"approval_required: {fn!r} has no parameter {root!r}.")
