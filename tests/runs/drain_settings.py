"""The demo site with little patience at its end."""

from __future__ import annotations

from project.settings import *  # noqa: F403

AGUI_DJANGO = {"GRACE": 1.0, "CANCEL_GRACE": 1.0}
