"""The DATABASES of the measured Django sites: SQLite as documented (WAL, IMMEDIATE) or PostgreSQL."""

from __future__ import annotations

import os
from typing import Any


def databases() -> dict[str, dict[str, Any]]:
    """Return the setting for AGUI_DATABASE and AGUI_DATABASE_NAME."""
    name = os.environ["AGUI_DATABASE_NAME"]
    if os.environ["AGUI_DATABASE"] == "postgres":
        user = os.environ.get("AGUI_POSTGRES_USER", "root")
        server = {"HOST": "127.0.0.1", "PORT": "5432", "USER": user}
        return {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": name, **server}}
    options = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 20,
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    }
    return {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": name, "OPTIONS": options}}
