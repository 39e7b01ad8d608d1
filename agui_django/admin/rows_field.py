"""A list in a form: an input per item, all of one name, and a button for one more that works without a script."""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.core.exceptions import ValidationError
from django.forms.utils import flatatt
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

#: Items of one list; a longer one is JSON.
MOST: Final = 60
#: What the button sends, in front of the field's name.
ADD: Final = "add:"


class Rows(forms.Widget):
    """The inputs.

    Args:
        kind: their type in HTML.
    """

    def __init__(self, kind: str) -> None:
        """One empty input follows what is there."""
        super().__init__()
        self.kind = kind
        #: Names the inputs behind the first one, which the label is for.
        self.title = ""
        #: Empty inputs that were asked for.
        self.more = 0

    def value_from_datadict(self, data: Any, files: Any, name: str) -> list[str]:
        """The items, empty ones too."""
        found = data.getlist(name) if hasattr(data, "getlist") else data.get(name) or []
        return list(found)[:MOST]

    def use_required_attribute(self, initial: Any) -> bool:
        """An input may stay empty."""
        return False

    def id_for_label(self, id_: str) -> str:
        """The first input."""
        return f"{id_}_0"

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        """The inputs and the button."""
        given = dict(attrs or {})
        base = given.pop("id", name)
        items = [*(value or []), *[""] * self.more] or [""]
        step = {"step": "any", "inputmode": "decimal"} if self.kind == "number" else {}
        rows = []
        for number, item in enumerate(items[:MOST]):
            named = {"aria-label": f"{self.title} {number + 1}"} if number else {}
            each = {**given, **step, **named, "type": self.kind, "name": name, "value": str(item)}
            rows.append((flatatt({**each, "id": f"{base}_{number}", "dir": "auto"}),))
        inputs = format_html_join("", "<li><input{}></li>", rows)
        return format_html(
            '<ol class="agui-rows">{}</ol><button type="submit" class="button" name="verb" value="{}{}" formnovalidate>'
            "{}</button>",
            inputs, ADD, name, _("Add a row"),
        )  # fmt: skip


class RowsField(forms.Field):
    """The items that were filled in.

    Args:
        kind: the type of the inputs.
        absent: stands for a list of which nothing was filled in.
    """

    widget: Rows

    def __init__(self, kind: str, absent: object) -> None:
        """Any number of items."""
        super().__init__(widget=Rows(kind))
        self._absent = absent

    def clean(self, value: Any) -> Any:
        """The items as texts."""
        found = [item for item in value or [] if item != ""]
        if not found and self.required:
            raise ValidationError(self.error_messages["required"], code="required")
        return found or self._absent
