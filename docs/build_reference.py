"""Writes the pages of docs/reference that follow from the code: ``python docs/build_reference.py``.

A test compares the pages with what this makes of the code of the day.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"


def settings_page() -> str:
    """Every key of AGUI_DJANGO: its type, its default and the text under it in conf.py."""
    tree = ast.parse((ROOT / "agui_django" / "conf.py").read_text())
    (defaults,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Defaults")
    parts = [
        "# Settings\n",
        "<!-- Written by docs/build_reference.py from agui_django/conf.py. -->\n",
        "All settings live in one dictionary; every key has a default, and an unknown key is an error of "
        "`manage.py check`.\n",
        '```python\nAGUI_DJANGO = {\n    "TIMEOUT": 120,\n    "BUSY": "cancel",\n}\n```\n',
        "`TIMEOUT`, `IDLE_TIMEOUT`, `ON_DISCONNECT`, `DISCONNECT_GRACE`, `BUSY`, `HISTORY`, `STATE_POLICY` and "
        '`OPEN_INTERRUPTS` can also be given to one agent, in lower case: `@agent("support", timeout=30)`.\n',
    ]
    for field, text in zip(defaults.body, defaults.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign):
            continue
        assert isinstance(field.target, ast.Name)
        assert field.value is not None
        assert isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant), field.target.id
        described = " ".join(str(text.value.value).split()).replace("``", "`")
        kind, default = ast.unparse(field.annotation), ast.unparse(field.value)
        parts.append(f"## {field.target.id}\n\nDefault `{default}` (`{kind}`)\n\n{described}\n")
    return "\n".join(parts)


def errors_page() -> str:
    """The table of protocol/errors.py."""
    sys.path.insert(0, str(ROOT))
    from agui_django.protocol import errors

    rows = []
    for cls, answer in errors.TABLE.items():
        text = (cls.__doc__ or "").strip().split("\n")[0]
        rows.append(f"| `{cls.__name__}` | `{answer.code}` | {answer.status} | {answer.close_code} | {text} |")
    return "\n".join(
        [
            "# Errors\n",
            "<!-- Written by docs/build_reference.py from agui_django/protocol/errors.py. -->\n",
            "What a request is refused with, before anything is stored, is a JSON body:\n",
            '```json\n{"error": {"code": "invalid_input", "message": "...", "fields": [{"path": "/messages/0/role", '
            '"message": "..."}], "reference": "..."}}\n```\n',
            "What goes wrong later is the run's own `RUN_ERROR` event with the same codes. The text of an exception "
            "that is not ours never reaches a client: it is in the run's row and in the log, under the reference.\n",
            "| class | code | HTTP | WebSocket | text |",
            "|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


PAGES = {"settings.md": settings_page, "errors.md": errors_page}


if __name__ == "__main__":
    REFERENCE.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page())
