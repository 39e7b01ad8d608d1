"""What scripted models say, whatever framework they pretend to be a model of.

Law: stateless but for what was asked. Which reply comes next is read from the conversation that the model is given, so
that it goes on where it was when a run is resumed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

#: One request to a model: (role, text) of each message. Roles: system, user, assistant, tool.
Request = list[tuple[str, str]]
Piece = str | Callable[[], Awaitable[Any]]


@dataclass(frozen=True)
class Reply:
    """One answer of a model.

    Attributes:
        text: what it says; or the pieces in which it is streamed, where a function is awaited at its place.
        reasoning: what it thinks first.
        calls: the tools it calls, as (name, arguments).
        raises: raised behind all that.
        input_tokens, output_tokens: its usage.
    """

    text: str | Sequence[Piece] = ""
    _: KW_ONLY
    reasoning: str = ""
    calls: Sequence[tuple[str, Mapping[str, Any]]] = ()
    raises: BaseException | None = None
    input_tokens: int = 3
    output_tokens: int = 2

    @property
    def pieces(self) -> Sequence[Piece]:
        """The text as it is streamed."""
        if isinstance(self.text, str):
            return [self.text] if self.text else []
        return self.text


class Script:
    """The replies of a model to one message of the user, in order; to the next message they begin again.

    Args:
        replies: each a `Reply`, a text, or a function of the request that gives one of them.

    Attributes:
        requests: what the model was asked, each as (role, text) of its messages.
    """

    def __init__(self, *replies: Reply | str | Callable[[Request], Reply | str]) -> None:
        self.requests: list[Request] = []
        self._replies = list(replies)

    @classmethod
    def of(cls, *replies: Script | Reply | str | Callable[[Request], Reply | str]) -> Script:
        """The script that a model is made with: the only argument, or one of these replies."""
        first = replies[0] if len(replies) == 1 else None
        return first if isinstance(first, Script) else cls(*replies)  # type: ignore[arg-type]

    def add(self, reply: Reply | str | Callable[[Request], Reply | str]) -> None:
        """Append a reply."""
        self._replies.append(reply)

    def next(self, request: Request) -> Reply:
        """The reply to a request.

        Raises:
            AssertionError: the script has no more.
        """
        self.requests.append(request)
        roles = [role for role, _ in request]
        turn = roles[len(roles) - roles[::-1].index("user") :] if "user" in roles else roles
        number = turn.count("assistant")
        if number >= len(self._replies):
            raise AssertionError(
                f"The scripted model was asked {number + 1} times, and has {len(self._replies)} replies."
            )
        reply = self._replies[number]
        given = reply if isinstance(reply, str | Reply) else reply(request)
        return Reply(given) if isinstance(given, str) else given
