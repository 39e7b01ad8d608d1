"""The demo site with a channel layer that holds one message: whatever comes while it is unread is dropped."""

from __future__ import annotations

from project.settings import *  # noqa: F403
from project.settings import CHANNEL_LAYERS

CHANNEL_LAYERS["default"]["CONFIG"]["capacity"] = 1
