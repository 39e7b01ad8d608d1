"""AG-UI endpoints for Django: agents whose threads, runs, messages, state and interrupts are stored.

The names that a site uses are here; they load on first use, since Django's apps must be ready for some.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agui_django.agents.approvals import approval_required as approval_required
    from agui_django.agents.calls import ToolCall as ToolCall
    from agui_django.agents.context import RunContext as RunContext
    from agui_django.agents.registry import agent as agent
    from agui_django.agents.registry import get_agent as get_agent
    from agui_django.agents.registry import register as register
    from agui_django.agents.retrying import Retry as Retry
    from agui_django.agents.sink import Event as Event
    from agui_django.agents.sync import SyncRunContext as SyncRunContext
    from agui_django.protocol.errors import AgentError as AgentError
    from agui_django.protocol.errors import Declined as Declined
    from agui_django.protocol.errors import RunSuspended as RunSuspended
    from agui_django.runs.start import astart_run as astart_run
    from agui_django.runs.start import start_run as start_run

__version__ = "0.1.0"

_HOMES = {
    "AgentError": "agui_django.protocol.errors",
    "Declined": "agui_django.protocol.errors",
    "Event": "agui_django.agents.sink",
    "Retry": "agui_django.agents.retrying",
    "RunContext": "agui_django.agents.context",
    "RunSuspended": "agui_django.protocol.errors",
    "SyncRunContext": "agui_django.agents.sync",
    "ToolCall": "agui_django.agents.calls",
    "agent": "agui_django.agents.registry",
    "approval_required": "agui_django.agents.approvals",
    "astart_run": "agui_django.runs.start",
    "get_agent": "agui_django.agents.registry",
    "register": "agui_django.agents.registry",
    "start_run": "agui_django.runs.start",
}

__all__ = [
    "AgentError",
    "Declined",
    "Event",
    "Retry",
    "RunContext",
    "RunSuspended",
    "SyncRunContext",
    "ToolCall",
    "agent",
    "approval_required",
    "astart_run",
    "get_agent",
    "register",
    "start_run",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
