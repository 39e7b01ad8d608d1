"""AppConfig: registers the system checks. Agents' modules load on first use and in checks, never in ``ready()``."""

from __future__ import annotations

from django.apps import AppConfig


class AgUiConfig(AppConfig):
    """The app behind AG-UI endpoints."""

    name = "agui_django"
    label = "agui_django"
    verbose_name = "AG-UI"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks and receivers; importing an LLM library here would break ``migrate`` without its key."""
        from agui_django import checks  # noqa: F401
        from agui_django.runs import attachments  # noqa: F401
