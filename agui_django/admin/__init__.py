"""The admin: where staff read, steer and answer. Loaded by the admin's autodiscovery, so only where it is installed."""

from __future__ import annotations

from agui_django.admin import interrupts as interrupts
from agui_django.admin import runs as runs
from agui_django.admin import threads as threads
