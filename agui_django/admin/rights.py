"""Who may do what in the admin, and what of the texts they are shown.

Law: one permission per verb, asked in every view, stream, search and action; texts are hidden by default, and whatever
renders something asks a `Redactor`. Roles, tool names, sizes, times, ids and codes of errors are no texts.
"""

from __future__ import annotations

from typing import Any, Final

from django.utils.translation import gettext as _

from agui_django.protocol.codec import decode, encode

APP: Final = "agui_django"
VIEW_CONTENT: Final = f"{APP}.view_content"
VIEW_TRACEBACK: Final = f"{APP}.view_traceback"
CANCEL: Final = f"{APP}.cancel_run"
ANSWER: Final = f"{APP}.answer_interrupt"
EDIT_STATE: Final = f"{APP}.edit_state"
REVIEW: Final = f"{APP}.review_run"
EXPORT: Final = f"{APP}.export"
PRUNE: Final = f"{APP}.prune"

#: What of an event a redacted viewer is sent; all other members are counted only.
_SHOWN: Final = ("type", "timestamp", "role", "toolCallName", "code")


class Redactor:
    """What one viewer may read.

    Args:
        user: the viewer.
        also: a permission that lets them read as well: who may answer a question has to see it.
    """

    def __init__(self, user: Any, *, also: str = "") -> None:
        """The user's permissions are asked once."""
        #: Whether they may read what users and agents wrote.
        self.content: bool = user.has_perm(VIEW_CONTENT) or bool(also and user.has_perm(also))
        #: Whether they may read tracebacks.
        self.traceback: bool = user.has_perm(VIEW_TRACEBACK)

    def text(self, text: str) -> str:
        """A text, or how long it is."""
        return text if self.content or not text else self.hidden(len(text))

    def hidden(self, size: int) -> str:
        """What stands in the place of a text."""
        return _("[hidden, %(size)d characters]") % {"size": size}

    def event(self, wire: str) -> str:
        """An event's wire text, or what of it is no text."""
        if self.content:
            return wire
        event = decode(wire)
        shown = {name: event[name] for name in _SHOWN if isinstance(event.get(name), str | int)}
        return encode({**shown, "hidden": len(wire)})
